"""Export: to a folder of full size that any tool loads (portable), and to ONNX; both are compared with the model before they are kept."""

from __future__ import annotations

import copy
import inspect
import logging
import shutil
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from headcount import __version__
from headcount.core.errors import ArtifactError, MissingExtra, UnsupportedModel, VerificationError
from headcount.core.files import check_writable
from headcount.data.task import Data
from headcount.models.archs import cut_record as record
from headcount.models.dummy_inputs.text import probe_inputs, reporting_inputs
from headcount.models.gates import output_tensors
from headcount.models.head_map import HeadMap
from headcount.models.observe import evaluating
from headcount.models.ownership import holds
from headcount.models.randomness import fork_rng
from headcount.surgery.config import assign
from headcount.surgery.named_heads import assign_fields, original_fields
from headcount.surgery.reshape import Cut, cuts_of
from headcount.surgery.samples import TEXT, RawBatch, sample_batches, varying_inputs
from headcount.surgery.save import save
from headcount.surgery.verify import HALF, check, difference, float_dtype, run


def widen(model: nn.Module) -> nn.Module:
    """The model at its original shapes: removed heads come back with all their weights zero, so they add nothing."""
    config = copy.deepcopy(model.config)
    assign(config, record.replaced(model))
    vars(config).pop(record.KEY, None)
    options = {"dtype": float_dtype(model), "attn_implementation": getattr(model.config, "_attn_implementation", None)}
    with fork_rng(()):  # first weights are drawn, and replaced below
        dense: Any = type(model)._from_config(config, **options)  # pyright: ignore[reportAttributeAccessIssue]
    dense = dense.to(next(model.parameters()).device).eval()
    small, big = HeadMap.of(model), HeadMap.of(dense)
    if hasattr(model, "generation_config"):
        dense.generation_config = copy.deepcopy(model.generation_config)
    assign_fields(dense, original_fields(model, small))
    if [block.n_original for block in small.blocks] != [block.n_heads for block in big.blocks]:
        raise UnsupportedModel(f"the configuration of this {type(model).__name__} does not build it at its original size")
    indices = {full.path: tuple(head.index for head in block.heads) for block, full in zip(small.blocks, big.blocks, strict=True)}
    cuts = {s.tensor: cut for cut in cuts_of(big, indices) for s in cut.block.slices}
    tables = _table_columns(model, small)
    source = model.state_dict()
    missing = dense.state_dict().keys() ^ source.keys()
    if missing:
        raise UnsupportedModel(f"{type(model).__name__} rebuilt from its configuration has other tensors: {sorted(missing)[0]}")
    for name, target in dense.named_parameters():
        old = source[name]
        if old.shape == target.shape:
            target.data = old.clone()
            continue
        target.data = torch.zeros(target.shape, dtype=old.dtype, device=old.device)
        if name in cuts:
            _scatter(target.data, old, name, cuts[name])
        else:
            target.data[:, tables[name]] = old
    for name, buffer in dense.named_buffers():
        if name in source:
            buffer.data = source[name].clone()
    return dense


def _scatter(target: Tensor, source: Tensor, name: str, cut: Cut) -> None:
    slices = [s for s in cut.block.slices if s.tensor == name]
    entries = sorted(entry for s in slices for entry in s.rows.keep(cut.units(s)))
    target.index_copy_(slices[0].axis, torch.tensor(entries, dtype=torch.long, device=target.device), source)


def _table_columns(model: nn.Module, heads: HeadMap) -> dict[str, list[int]]:
    """For bias tables that layers share and that were cut: the original heads that their columns are."""
    blocks = record.read(model)
    kept = {block.path: blocks.get(record.relative(model, block.path)) for block in heads.blocks}
    return {f"{path}.relative_attention_bias.weight": list(entry.columns) for path, entry in kept.items() if entry and entry.columns}


@holds("an export")
def export_portable(model: nn.Module, folder: str | Path, *, inputs: dict[str, Any] | None = None, **kwargs: Any) -> Path:
    """Writes the model at its original shapes, removed heads zeroed, for tools that know nothing of headcount. No smaller, no faster."""
    batch = inputs if inputs is not None else probe_inputs(model)
    dense = widen(model)
    end = "Nothing was written. Save the smaller model instead (headcount.save), and report the model class."
    with reporting_inputs(model, batch, dummy=inputs is None):
        expected = run(model, batch)
    check(expected, run(dense, batch), float_dtype(model), "the portable model", than="the smaller one", end=end)
    return save(dense, folder, **kwargs)


class _FirstOutput(nn.Module):
    """The model as a function of named tensors that gives its first output alone."""

    def __init__(self, model: nn.Module, names: list[str]) -> None:
        super().__init__()
        self.model, self.names = model, names
        parameters = inspect.signature(type(model).forward).parameters
        self.fixed = {"use_cache": False} if "use_cache" in parameters or hasattr(model.config, "use_cache") else {}

    def forward(self, *values: Tensor) -> Tensor:
        """Logits, or hidden states of a model without a head."""
        return output_tensors(self.model(**dict(zip(self.names, values, strict=True)), **self.fixed))[0]


def _dynamic_axes(names: list[str]) -> tuple[dict[int, Any], ...]:
    batch = torch.export.Dim("batch", min=1, max=4096)
    source, target = torch.export.Dim("length", min=2, max=8192), torch.export.Dim("target_length", min=2, max=8192)
    return tuple({0: batch} | ({1: target if name.startswith("decoder") else source} if name in TEXT else {}) for name in names)


def _to_onnx(wrapper: nn.Module, values: tuple[Tensor, ...], names: list[str], path: Path, dynamic: bool) -> None:
    axes = (_dynamic_axes(names),) if dynamic else None  # one tuple for *values
    options = {"input_names": names, "output_names": ["output"], "dynamic_shapes": axes}
    log = logging.getLogger("torch.onnx")
    level = log.level
    with warnings.catch_warnings(), ExitStack() as stack:
        warnings.simplefilter("ignore")  # the exporter warns of its own renamings; the result is compared below
        stack.callback(log.setLevel, level)
        log.setLevel(logging.ERROR)
        torch.onnx.export(wrapper, values, path, dynamo=True, verbose=False, external_data=True, **options)


class _OnnxModel:
    """An ONNX file in onnxruntime."""

    def __init__(self, path: Path) -> None:
        import onnxruntime

        self.session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        self.inputs = [item.name for item in self.session.get_inputs()]

    def __call__(self, batch: Mapping[str, Tensor]) -> Tensor:
        """The output for a batch; inputs that the graph does not read have no name in it."""
        (output,) = self.session.run(None, {name: batch[name].cpu().numpy() for name in self.inputs})
        return torch.from_numpy(output)


def _require_onnx() -> None:
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise MissingExtra(f"export to ONNX needs {error.name}; install it with: pip install 'headcount[onnx]'") from error


def check_onnx_target(target: Path, overwrite: bool) -> None:
    """Refuses a file that exists, unless it is an ONNX file of ours and may be overwritten."""
    _require_onnx()
    check_writable(target)
    if target.is_dir():
        raise ArtifactError(f"{target} is a folder; name a file to write, such as model.onnx")
    if not target.exists():
        return
    if not overwrite:
        raise ArtifactError(f"{target} exists already; name another file, or allow overwriting (overwrite=True, --overwrite)")
    import onnx

    try:
        producer = onnx.load(target, load_external_data=False).producer_name
    except Exception:  # whatever it is, it is not ours
        producer = ""
    if producer != "headcount":
        raise ArtifactError(f"{target} was not written by headcount, so it is not overwritten; name another file")


def _sign(path: Path) -> None:
    """Marks an ONNX file as ours, so that it may be overwritten by a later export."""
    import onnx

    content = onnx.load(path, load_external_data=False)
    content.producer_name, content.producer_version = "headcount", __version__
    onnx.save(content, path)


def _copy_files(source: Path, folder: Path) -> list[str]:
    """Puts the files of one folder into another, each whole or not at all; their new paths."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in source.iterdir():
        partial = folder / f".{file.name}.partial"
        shutil.copyfile(file, partial)
        partial.replace(folder / file.name)
    return sorted(str(folder / file.name) for file in source.iterdir())


@holds("an export")
def export_onnx(
    model: nn.Module,
    path: str | Path,
    *,
    tokenizer: Any = None,
    data: Data = None,
    inputs: RawBatch | Sequence[RawBatch] | None = None,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Writes an ONNX file whose first output equals the model's in onnxruntime, and says what was made.

    The file takes every input that the tokenizer or the data give and the forward pass knows, `token_type_ids` included, and is compared on
    texts and pairs of several lengths, on examples of `data` (a task or batches), or on `inputs` (one batch or several) instead of all these.
    Batch and text lengths stay free where the model's code allows it, else the file has the shapes of the first batch (`dynamic` is False and
    `reason` says why). Decoders come without a cache.

    Returns:
        path, files, inputs, dynamic, reason, difference (the largest, relative); `compared`, the shapes of the batches that were run;
        `varied`, the inputs that had more than one value in them, for which equality is shown; `unproven`, the other inputs.

    Raises:
        VerificationError: the outputs differ by more than 1e-4; nothing is written.
    """
    _require_onnx()
    target = Path(path)
    check_onnx_target(target, overwrite)
    if float_dtype(model) in HALF:
        raise UnsupportedModel(f"export to ONNX needs float32 weights, the model has {float_dtype(model)}; load it with dtype=float32")
    samples = sample_batches(model, tokenizer=tokenizer, data=data, inputs=inputs)
    first, names = samples[0], list(samples[0])
    wrapper = _FirstOutput(model, names)
    with evaluating(wrapper), tempfile.TemporaryDirectory() as scratch:
        file, reason = Path(scratch) / target.name, ""
        try:
            _to_onnx(wrapper, tuple(first.values()), names, file, dynamic=True)
        except Exception as error:  # the exporter has its own kinds of failure; the static export below decides
            reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            _to_onnx(wrapper, tuple(first.values()), names, file, dynamic=False)
            samples = [batch for batch in samples if all(batch[name].shape == first[name].shape for name in names)]
        exported = _OnnxModel(file)
        gap = max(difference([exported(batch)], [wrapper(*batch.values()).cpu()]) for batch in samples)
        if not gap <= 1e-4:
            raise VerificationError(f"the ONNX file differs from the model by {gap:.3g} (relative), more than 1e-4; it was not kept")
        _sign(file)
        files = _copy_files(Path(scratch), target.parent)
    proven = varying_inputs(samples)
    return {
        "path": str(target),
        "files": files,
        "inputs": exported.inputs,
        "dynamic": not reason,
        "reason": reason,
        "difference": gap,
        "compared": ["x".join(map(str, next(iter(batch.values())).shape)) for batch in samples],
        "varied": [name for name in exported.inputs if name in proven],
        "unproven": [name for name in exported.inputs if name not in proven],
    }
