"""Export targets: formats that other tools load. A target is one file in `surgery/export/`; `export` writes a model in one of them."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from torch import nn

from headcount.core.arguments import check_arguments
from headcount.core.errors import UnsupportedModel
from headcount.core.options import Configurable
from headcount.core.registry import EXPORTS
from headcount.data.task import Data
from headcount.surgery.samples import RawBatch

ComparisonInputs = RawBatch | Sequence[RawBatch] | None
"""A batch, or several, on which the export is compared with the model; None for batches that are made for it."""


@dataclass(frozen=True, slots=True)
class ExportInfo:
    """What a target writes and whether it compares the result on text: then it takes a tokenizer and data."""

    writes: Literal["file", "folder"]
    compares_text: bool = False


@dataclass(frozen=True, slots=True)
class Exported:
    """An export that was written and found equal to its model."""

    path: Path

    @property
    def caveats(self) -> tuple[str, ...]:
        """Returns sentences on what was not compared, or does not hold everywhere; `export` warns with them."""
        return ()

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields as plain data."""
        return asdict(self) | {"path": str(self.path)}


@dataclass(frozen=True)
class ExportTarget(Configurable):
    """Base of export targets: a frozen dataclass with `info`, `check_path` and `write`."""

    info: ClassVar[ExportInfo]

    @classmethod
    def parse(cls, text: str | Self) -> Self:
        """Returns the target that a text such as `onnx` or `portable(max_shard_size=1GB)` describes; a target is returned as it is."""
        return EXPORTS.parse(text, cls)

    def check_path(self, path: Path, *, overwrite: bool) -> None:
        """Raises ArtifactError if `path` cannot be written, and MissingExtra if a library is missing, before a model is loaded."""
        raise NotImplementedError(f"{type(self).__name__} has no check_path(path, *, overwrite)")

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
    ) -> Exported:
        """Writes a model and compares the result with it; nothing is left behind where they differ.

        Args:
            model: The model, cut or not.
            path: The file or folder to write.
            tokenizer: A tokenizer or processor; a target that writes a folder also takes the folder of a model whose tokenizer files it copies.
            data: A task or batches, whose examples are compared by targets with `info.compares_text`.
            inputs: A batch, or several, to compare on instead.
            command: The command line, for the model card.
            overwrite: Whether to replace what headcount wrote there before.
        """
        raise NotImplementedError(f"{type(self).__name__} has no write(model, path, …)")


@check_arguments
def export(
    model: nn.Module,
    path: str | Path,
    to: str | ExportTarget = "portable",
    *,
    tokenizer: Any = None,
    inputs: ComparisonInputs = None,
    overwrite: bool = False,
) -> Path:
    """Writes a model for tools that know nothing of headcount, after comparing the result with the model.

    Warns with what the comparison leaves open: inputs that had one value only, tensors that plain loading of a portable folder changes.

    Args:
        model: A transformers model, cut or not.
        path: The folder (portable) or file (onnx) to write.
        to: The target, by name or as an object: `"portable"` is a folder at the original shapes with removed heads zeroed, `"onnx"` an ONNX
            file. `headcount ls exports` lists them.
        tokenizer: Its files come with a portable folder; an ONNX file takes the inputs that it gives, and is compared on texts of its vocabulary.
        inputs: A batch (for ONNX also several) to compare on, instead of batches that are made for the model.
        overwrite: Whether to replace what headcount wrote there before.

    Returns:
        The path that was written.

    Raises:
        UnknownName: there is no such target.
        ArtifactError: the path cannot be written, or holds something that headcount did not write.
        VerificationError: the export differs from the model; nothing is written.

    Example:
        >>> hc.export(small, "portable-model")
        >>> hc.export(small, "model.onnx", to="onnx", tokenizer=tokenizer)
    """
    target, destination = ExportTarget.parse(to), Path(path)
    if not isinstance(model, nn.Module):
        raise UnsupportedModel(f"export takes a transformers model; got {type(model).__name__}")
    target.check_path(destination, overwrite=overwrite)
    exported = target.write(model, destination, tokenizer=tokenizer, inputs=inputs, overwrite=overwrite)
    for caveat in exported.caveats:
        warnings.warn(caveat, stacklevel=2)
    return exported.path
