"""The laws of export targets."""

from __future__ import annotations

import resource
import tempfile
import warnings
from enum import StrEnum
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import headcount as hc
from headcount.core.errors import ArtifactError
from headcount.core.options import Configurable
from headcount.core.registry import EXPORTS
from headcount.models.modules import Batch
from headcount.surgery.export_base import Exported, ExportInfo, ExportTarget
from headcount.surgery.samples import comparison_batches
from headcount.surgery.verify import forward_outputs, largest_relative_difference
from headcount.testing.kinds.declaration import Checks, KindOfMethod, parse_and_check_declaration
from headcount.testing.kinds.tiny_inputs import tiny_classifier

TOLERANCE = 1e-4
"""The relative difference of outputs that a format may make."""
DISK_BYTES = 8192
"""The largest file that can be written where a full disk is imitated; the weights of the tiny model are larger."""


class ExportLaw(StrEnum):
    """The laws of export targets beside those of declarations."""

    REFUSES_BAD_PATHS = "a path that cannot be written is refused before any work"
    WRITES = "it writes a model"
    LEAVES_THE_MODEL = "it leaves the model as it was"
    RETURNS_ITS_PATH = "what it returns names the path that was written"
    WRITES_WHAT_IT_SAYS = "it writes a file or a folder, as its info says"
    EQUALS_THE_MODEL = "what it wrote gives the outputs of the model, where it can be loaded"
    REFUSES_EXISTING_PATHS = "an existing path is refused without overwrite, and stays as it was"
    IS_ATOMIC = "a write that fails leaves nothing at the path"


KIND = KindOfMethod(EXPORTS, ExportTarget, ExportInfo, ExportTarget.parse, ExportLaw)


def check_export_target(target: str | Configurable, model: nn.Module | None = None) -> None:
    """Raises LawBroken, an AssertionError, unless an export target keeps the laws of export targets.

    The laws: it is a frozen dataclass with a docstring, documented options that refuse wrong values, and a complete `info`; its text gives it back;
    `check_path` refuses a path that cannot be written, and an existing one without overwrite, which stays as it was; `write` writes the file or
    the folder that `info` says, returns its path and leaves the model as it was; what was written gives the outputs of the model, where transformers
    or onnxruntime can load it; on a full disk nothing is left at the path.

    Args:
        target: The target as an object, or its text, such as "portable(max_shard_size=1GB)".
        model: The model that is exported; by default a tiny classifier in float32 without one of its heads.

    Example:
        >>> check_export_target("portable")
    """
    method, checks = parse_and_check_declaration(target, KIND)
    model = hc.cut(tiny_classifier(torch.float32), hc.Plan.removing(["L0H1"])) if model is None else model
    with tempfile.TemporaryDirectory() as scratch, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what an export does not compare
        folder = Path(scratch)
        _check_bad_paths(method, model, folder, checks)
        path = folder / f"model.{method.name}"
        with checks.require_model_unchanged(model, ExportLaw.LEAVES_THE_MODEL), checks.require_success(ExportLaw.WRITES):
            exported = method.write(model, path)
        _check_written(method, model, path, exported, checks)
        before = _contents(folder)
        checks.require_refusal(lambda: hc.export(model, path, method), ExportLaw.REFUSES_EXISTING_PATHS, path.name, "an existing path")
        checks.require(_contents(folder) == before, ExportLaw.REFUSES_EXISTING_PATHS, "it was changed")
        error = _write_on_full_disk(method, model, folder / f"second.{method.name}")
        checks.require(error is not None, ExportLaw.IS_ATOMIC, "no error is raised where the disk is full")
        leftovers = sorted(path.name for path in _contents(folder).keys() - before.keys())
        checks.require(not leftovers, ExportLaw.IS_ATOMIC, f"{', '.join(leftovers[:3])} is left")


def _check_bad_paths(method: ExportTarget, model: nn.Module, folder: Path, checks: Checks) -> None:
    """Checks that a path below a file, and one of the wrong kind, are refused before the model runs."""
    file = folder / "file"
    file.write_text("not written by headcount")
    passes: list[str] = []
    handle = model.register_forward_pre_hook(lambda *_: passes.append("pass"))
    try:
        for path in (file / "model", file):
            try:
                hc.export(model, path, method)
            except ArtifactError:
                checks.require(not passes, ExportLaw.REFUSES_BAD_PATHS, f"the model ran before {path.name} was refused")
            except Exception as error:  # not one that says that the path is wrong
                raise checks.broken(ExportLaw.REFUSES_BAD_PATHS, f"{type(error).__name__}: {error}") from error
            else:
                raise checks.broken(ExportLaw.REFUSES_BAD_PATHS, f"{path.name}, which is a file or below one, is taken")
    finally:
        handle.remove()
    file.unlink()


def _check_written(method: ExportTarget, model: nn.Module, path: Path, exported: Any, checks: Checks) -> None:
    """Checks what a target returned and wrote."""
    is_named = isinstance(exported, Exported) and exported.path == path
    checks.require(is_named, ExportLaw.RETURNS_ITS_PATH, f"it returns {exported!r}; return Exported(path)")
    is_written = path.is_dir() if method.info.writes == "folder" else path.is_file()
    checks.require(is_written, ExportLaw.WRITES_WHAT_IT_SAYS, f"{path.name} is no {method.info.writes}")
    batch = comparison_batches(model)[0]
    with checks.require_success(ExportLaw.EQUALS_THE_MODEL):
        outputs = load_outputs(path, batch)
    if outputs is not None:
        gap = largest_relative_difference(outputs, forward_outputs(model, batch)[: len(outputs)])
        checks.require(gap <= TOLERANCE, ExportLaw.EQUALS_THE_MODEL, f"its outputs differ by {gap:.3g} (relative)")


def load_outputs(path: Path, batch: Batch) -> list[Tensor] | None:
    """Returns the outputs of what was written, by transformers or onnxruntime; None where neither can load it."""
    if (path / "config.json").is_file():
        return list(forward_outputs(hc.load(path), batch))
    if path.suffix != ".onnx":
        return None
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (output,) = session.run(None, {item.name: batch[item.name].numpy() for item in session.get_inputs()})
    return [torch.from_numpy(output)]


def _contents(folder: Path) -> dict[Path, bytes]:
    """Returns everything in a folder, folders as empty."""
    return {path: path.read_bytes() if path.is_file() else b"" for path in folder.rglob("*")}


def _write_on_full_disk(method: ExportTarget, model: nn.Module, path: Path) -> Exception | None:
    """Returns the error of a write during which no file can grow beyond `DISK_BYTES`; None if there was none."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (DISK_BYTES, hard))
    try:
        method.write(model, path)
    except Exception as error:  # each library has its own
        return error
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    return None
