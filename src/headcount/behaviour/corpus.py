"""From sentences or images to the corpus that roles are measured on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from headcount.behaviour.base import Corpus
from headcount.core.errors import DataError
from headcount.data.checks import positions
from headcount.data.text.align import align_all
from headcount.data.text.annotated import Annotated
from headcount.data.text.sentences import plain, read_text
from headcount.models.modules import unwrap

Text = Any
"""A file (CoNLL-U or plain), texts, annotated sentences, batches of pixel values, or a corpus."""


def align_items(model: nn.Module, text: Text, tokenizer: Any = None, **alignment: Any) -> Corpus:
    """The corpus of a text for a model: words and pieces aligned, what cannot be aligned counted in `facts["refused"]`.

    `alignment` takes max_length, truncate, add_special_tokens and end (token ids after each text), for tokenizers that the model was not trained
    with as they are.
    """
    inner: Any = unwrap(model)
    items: list[Any] = list(read_text(Path(text)) if isinstance(text, str | Path) else text)
    if not items:
        raise DataError("the text is empty; roles are tested over sentences")
    if isinstance(items[0], Mapping) and isinstance(items[0].get("pixel_values"), Tensor):
        return _images(inner, items)
    if tokenizer is None:
        raise DataError("roles of a text need the tokenizer of the model: roles(model, text, tokenizer)")
    sentences = [plain(item) if isinstance(item, str) else item for item in items]
    options = {**alignment, "max_length": alignment.get("max_length") or positions(inner)}
    return _corpus(inner, sentences, tokenizer, options)


def _corpus(model: Any, sentences: Sequence[Annotated], tokenizer: Any, options: dict[str, Any]) -> Corpus:
    aligned, refused = align_all(sentences, tokenizer, **options)
    counts = {str(reason): number for reason, number in refused.counts.items()}
    if not aligned:
        raise DataError(f"none of the {len(sentences)} sentences could be aligned with the tokenizer: {counts}")
    targets: Sequence[Any] = ()
    made = [a.annotated.target for a in aligned if a.annotated.target is not None]
    if getattr(model.config, "is_encoder_decoder", False) and len(made) == len(aligned):
        targets, lost = align_all(made, tokenizer, **options, as_target=True)
        if len(lost):
            raise DataError(f"{len(lost)} translations could not be aligned with the tokenizer; leave their sentences out")
    return Corpus(tuple(aligned), tuple(targets), facts={"refused": counts})


def _images(model: Any, items: Sequence[Mapping[str, Tensor]]) -> Corpus:
    """Single images; the grid of patches follows from the sizes of image and patch."""
    single = [
        {"pixel_values": image}
        for item in items
        for image in (item["pixel_values"] if item["pixel_values"].ndim == 4 else [item["pixel_values"]])
    ]
    patch = getattr(model.config, "patch_size", None)
    if patch is None:
        raise DataError(f"{type(model).__name__} names no patch size, so its attention has no grid of patches")
    down, across = (patch, patch) if isinstance(patch, int) else patch
    height, width = single[0]["pixel_values"].shape[-2:]
    return Corpus(images=single, grid=(height // down, width // across))
