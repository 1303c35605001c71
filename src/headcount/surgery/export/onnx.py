from __future__ import annotations

import inspect
import logging
import shutil
import tempfile
import warnings
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from headcount import __version__
from headcount.core.errors import ArtifactError, MissingExtra, UnsupportedModel, VerificationError
from headcount.core.files import check_writable
from headcount.data.task import Data
from headcount.models.gates import floating_point_outputs
from headcount.models.observe import evaluating
from headcount.models.ownership import holds_model
from headcount.surgery.export_base import ComparisonInputs, Exported, ExportInfo, ExportTarget
from headcount.surgery.samples import TEXT, comparison_batches, names_of_varying_inputs
from headcount.surgery.verify import HALF, largest_relative_difference, lowest_float_dtype


@dataclass(frozen=True, slots=True)
class OnnxExport(Exported):
    """An ONNX file and what is known of it.

    Attributes:
        files: All files that were written, weights beside the graph included.
        inputs: The inputs of the graph.
        dynamic: Whether batch size and text length are free; if not, the file has the shapes of the first batch and `reason` says why.
        reason: Why shapes are fixed; empty where they are free.
        difference: The largest relative difference from the model.
        compared: The shapes of the batches that were compared.
        varied: The inputs that had more than one value among these batches: equality is shown for these alone.
        unproven: The other inputs.
    """

    files: tuple[str, ...]
    inputs: tuple[str, ...]
    dynamic: bool
    reason: str
    difference: float
    compared: tuple[str, ...]
    varied: tuple[str, ...]
    unproven: tuple[str, ...]

    @property
    def caveats(self) -> tuple[str, ...]:
        """Returns a sentence on the inputs that did not vary, if there are any."""
        if not self.unproven:
            return ()
        return (
            f"Nothing is known of other values of {', '.join(self.unproven)}: the comparison had one only. Compare on a task or on inputs "
            "that have others.",
        )


@dataclass(frozen=True)
class Onnx(ExportTarget):
    """An ONNX file whose first output equals the model's in onnxruntime.

    The file takes every input that the tokenizer or the data give and the forward pass knows, `token_type_ids` included, and is compared on
    texts and pairs of several lengths, on examples of `data` (a task or batches), or on `inputs` (one batch or several) instead of all these.
    Batch and text lengths stay free where the model's code allows it, else the file has the shapes of the first batch. Decoders come without
    a cache.
    """

    info = ExportInfo(writes="file", compares_text=True)

    def check_path(self, path: Path, *, overwrite: bool) -> None:
        """Raises ArtifactError for a file that exists, unless it is an ONNX file of headcount's and may be overwritten."""
        _require_onnx()
        check_writable(path)
        if path.is_dir():
            raise ArtifactError(f"{path} is a folder; name a file to write, such as model.onnx")
        if not path.exists():
            return
        if not overwrite:
            raise ArtifactError(f"{path} exists already; name another file, or allow overwriting (overwrite=True)")
        import onnx

        try:
            producer = onnx.load(path, load_external_data=False).producer_name
        except Exception:  # whatever it is, it is not ours
            producer = ""
        if producer != "headcount":
            raise ArtifactError(f"{path} was not written by headcount, so it is not overwritten; name another file")

    @holds_model("an export")
    def write(
        self,
        model: nn.Module,
        path: Path,
        *,
        tokenizer: Any = None,
        data: Data = None,
        inputs: ComparisonInputs = None,
        command: str | None = None,
        overwrite: bool = False,
    ) -> OnnxExport:
        """Writes the file, after comparing it with the model in onnxruntime; raises VerificationError where they differ by more than 1e-4."""
        target = Path(path)
        self.check_path(target, overwrite=overwrite)
        if lowest_float_dtype(model) in HALF:
            raise UnsupportedModel(
                f"export to ONNX needs float32 weights, the model has {lowest_float_dtype(model)}; load it with dtype=float32"
            )
        samples = comparison_batches(model, tokenizer=tokenizer, data=data, inputs=inputs)
        first, names = samples[0], list(samples[0])
        wrapper = _FirstOutput(model, names)
        with evaluating(wrapper), tempfile.TemporaryDirectory() as scratch:
            file, reason = Path(scratch) / target.name, ""
            try:
                _write_onnx(wrapper, tuple(first.values()), names, file, dynamic=True)
            except Exception as error:  # the exporter has its own kinds of failure; the static export below decides
                reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
                _write_onnx(wrapper, tuple(first.values()), names, file, dynamic=False)
                samples = [batch for batch in samples if all(batch[name].shape == first[name].shape for name in names)]
            exported = _OnnxModel(file)
            gap = max(largest_relative_difference([exported(batch)], [wrapper(*batch.values()).cpu()]) for batch in samples)
            if not gap <= 1e-4:
                raise VerificationError(f"the ONNX file differs from the model by {gap:.3g} (relative), more than 1e-4; it was not kept")
            _mark_as_written_by_headcount(file)
            files = _copy_files(Path(scratch), target.parent)
        varied = names_of_varying_inputs(samples)
        return OnnxExport(
            path=target,
            files=tuple(files),
            inputs=tuple(exported.inputs),
            dynamic=not reason,
            reason=reason,
            difference=gap,
            compared=tuple("x".join(map(str, next(iter(batch.values())).shape)) for batch in samples),
            varied=tuple(name for name in exported.inputs if name in varied),
            unproven=tuple(name for name in exported.inputs if name not in varied),
        )


class _FirstOutput(nn.Module):
    """The model as a function of named tensors that returns its first output alone."""

    def __init__(self, model: nn.Module, names: list[str]) -> None:
        super().__init__()
        self.model, self.names = model, names
        parameters = inspect.signature(type(model).forward).parameters
        self.fixed = {"use_cache": False} if "use_cache" in parameters or hasattr(model.config, "use_cache") else {}

    def forward(self, *values: Tensor) -> Tensor:
        """Returns logits, or the hidden states of a model without a head."""
        return floating_point_outputs(self.model(**dict(zip(self.names, values, strict=True)), **self.fixed))[0]


def _write_onnx(wrapper: nn.Module, example_inputs: tuple[Tensor, ...], input_names: list[str], path: Path, dynamic: bool) -> None:
    batch = torch.export.Dim("batch", min=1, max=4096)
    source, target = torch.export.Dim("length", min=2, max=8192), torch.export.Dim("target_length", min=2, max=8192)
    lengths = {name: target if name.startswith("decoder") else source for name in input_names if name in TEXT}
    axes = tuple({0: batch} | ({1: lengths[name]} if name in lengths else {}) for name in input_names)
    options = {
        "input_names": input_names,
        "output_names": ["output"],
        "dynamic_shapes": (axes,) if dynamic else None,
    }  # one tuple for *values
    log = logging.getLogger("torch.onnx")
    level = log.level
    with warnings.catch_warnings(), ExitStack() as stack:
        warnings.simplefilter("ignore")  # the exporter warns of its own renamings; the result is compared below
        stack.callback(log.setLevel, level)
        log.setLevel(logging.ERROR)
        torch.onnx.export(wrapper, example_inputs, path, dynamo=True, verbose=False, external_data=True, **options)


class _OnnxModel:
    """An ONNX file in onnxruntime."""

    def __init__(self, path: Path) -> None:
        import onnxruntime

        self.session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        self.inputs = [item.name for item in self.session.get_inputs()]

    def __call__(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Returns the output for a batch; inputs that the graph does not read have no name in it."""
        (output,) = self.session.run(None, {name: batch[name].cpu().numpy() for name in self.inputs})
        return torch.from_numpy(output)


def _require_onnx() -> None:
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise MissingExtra(f"export to ONNX needs {error.name}; install it with: pip install 'headcount[onnx]'") from error


def _mark_as_written_by_headcount(path: Path) -> None:
    """Marks an ONNX file as ours, so that it may be overwritten by a later export."""
    import onnx

    content = onnx.load(path, load_external_data=False)
    content.producer_name, content.producer_version = "headcount", __version__
    onnx.save(content, path)


def _copy_files(source_folder: Path, target_folder: Path) -> list[str]:
    """Copies the files of one folder into another, each whole or not at all, and returns their new paths."""
    target_folder.mkdir(parents=True, exist_ok=True)
    for file in source_folder.iterdir():
        partial = target_folder / f".{file.name}.partial"
        shutil.copyfile(file, partial)
        partial.replace(target_folder / file.name)
    return sorted(str(target_folder / file.name) for file in source_folder.iterdir())
