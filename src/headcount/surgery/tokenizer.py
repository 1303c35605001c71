"""`load_tokenizer`: the tokenizer that belongs to a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headcount.core.arguments import check_arguments
from headcount.core.errors import ArtifactError
from headcount.data.readers.processor import IMAGE_FILE, TOKENIZER_FILES, read_processor
from headcount.surgery.source import local_folder


@check_arguments
def load_tokenizer(model: str | Path, *, trust_remote_code: bool = False) -> Any:
    """Returns the tokenizer of a model, or the image processor of a model that reads images.

    Args:
        model: A folder, a hub id, or `demo/NAME` for an embedded model, as for `headcount.load`.
        trust_remote_code: Whether code that comes with the tokenizer may run.

    Raises:
        ArtifactError: there is no such model, or it has neither a tokenizer nor an image processor.

    Example:
        >>> import headcount as hc
        >>> hc.load_tokenizer("demo/entailment")("a cat sleeps")["input_ids"][:1]
        [2]
    """
    folder = local_folder(model)
    if any((folder / name).is_file() for name in TOKENIZER_FILES):
        return read_processor(folder, trust=trust_remote_code)
    if (folder / IMAGE_FILE).is_file():
        return read_processor(folder, trust=trust_remote_code, for_images=True)
    raise ArtifactError(f"{folder} holds no tokenizer and no image processor; save the one of the model there: tokenizer.save_pretrained")
