"""What a model reads by: the tokenizer of its folder, or its image processor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from headcount.core.errors import ArtifactError
from headcount.core.files import read_json

MAX_EDGE = 2**14
"""The longest edge, in pixels, to which pictures may be resized."""


TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "spiece.model")
IMAGE_FILE = "preprocessor_config.json"


def tokenizer_or_image_processor(model: nn.Module, folder: Path, trust: bool = False) -> Any:
    """Returns the tokenizer of a model folder, or its image processor for a model that reads images; None where there is none."""
    reads_images = getattr(model, "main_input_name", "input_ids") == "pixel_values"
    files = (IMAGE_FILE,) if reads_images else TOKENIZER_FILES
    return read_processor(folder, trust=trust, for_images=reads_images) if any((folder / name).is_file() for name in files) else None


def read_processor(folder: Path, *, trust: bool = False, for_images: bool = False) -> Any:
    """Returns the tokenizer of a folder, or its image processor if it is `for_images`.

    `trust` says whether code of the folder may run; unsaid, transformers would ask on the terminal.
    """
    import transformers

    if for_images:
        _refuse_huge_picture_sizes(folder / IMAGE_FILE)
    auto: Any = transformers.AutoImageProcessor if for_images else transformers.AutoTokenizer
    try:
        return auto.from_pretrained(folder, trust_remote_code=trust)
    except (OSError, ValueError, KeyError, TypeError, ImportError) as error:
        raise ArtifactError(
            f"{folder} holds a tokenizer that cannot be read: {' '.join(str(error).split())[:300]}. Put the one of the model there"
        ) from error


def _refuse_huge_picture_sizes(path: Path) -> None:
    """Refuses a processor that would blow pictures up beyond any size that models read."""
    content = read_json(path)
    for name in ("size", "crop_size", "pad_size") if isinstance(content, dict) else ():
        sizes = content.get(name)
        has_pixels = isinstance(sizes, dict) and {"shortest_edge", "longest_edge"} <= sizes.keys()  # some count pixels, not edges
        limit = MAX_EDGE**2 if has_pixels else MAX_EDGE
        for key, value in (sizes if isinstance(sizes, dict) else {"": sizes}).items():
            if type(value) is int and value > limit:
                raise ArtifactError(
                    f"{path}: {name}{f'.{key}' if key else ''} may be at most {limit}, got {value!r:.30}; use the one that came with the model"
                )
