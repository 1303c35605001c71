"""What a model reads by: the tokenizer of its folder, or its image processor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from headcount.errors import ArtefactError


def reader_of(model: nn.Module, folder: Path, trust: bool = False) -> Any:
    """The tokenizer of a model folder, or its image processor for a model that reads images; None where there is none.

    Whether its own code is trusted must be said to transformers, which would ask on the terminal.
    """
    import transformers

    reads_images = getattr(model, "main_input_name", "input_ids") == "pixel_values"
    auto: Any = transformers.AutoImageProcessor if reads_images else transformers.AutoTokenizer
    files = ("preprocessor_config.json",) if reads_images else ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "spiece.model")
    if not any((folder / name).is_file() for name in files):
        return None
    try:
        return auto.from_pretrained(folder, trust_remote_code=trust)
    except (OSError, ValueError, KeyError, TypeError, ImportError) as error:
        raise ArtefactError(
            f"{folder} holds a tokenizer that cannot be read: {' '.join(str(error).split())[:300]}. Put the one of the model there"
        ) from error
