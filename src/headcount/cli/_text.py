"""Opening the text of a command line: a file, or the embedded language."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from headcount.text.annotated import Annotated

SENTENCES = 500


def open_text(text: Path | None, embedded: str | None, *, limit: int | None, seed: int, **columns: Any) -> list[Annotated]:
    """The sentences of a file, or of the embedded language of that name."""
    if (text is None) == (embedded is None):
        raise typer.BadParameter("name a file with --text, or the embedded language with --embedded")
    if embedded is not None:
        from headcount.text.embedded import embedded as draw
        from headcount.text.embedded import embedded_translations

        if embedded == "translation":
            return embedded_translations(number=limit or SENTENCES, seed=seed)
        return draw(embedded, limit or SENTENCES, seed=seed)  # pyright: ignore[reportArgumentType]
    from headcount.text.plain import read_text

    return list(islice(read_text(text, **columns), limit))


def alignment(embedded: str | None, tokenizer: Any, *, max_length: int | None, truncate: bool) -> dict[str, Any]:
    """How a text meets the tokenizer; the embedded translator was trained without a delimiter in front."""
    options = {"max_length": max_length, "truncate": truncate}
    return {**options, "add_special_tokens": False, "end": (tokenizer.eos_token_id,)} if embedded == "translation" else options
