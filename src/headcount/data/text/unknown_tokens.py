"""A warning where many tokens of a text are unknown to the tokenizer: a model runs on it, but its numbers mean little."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

from headcount.core.errors import UnknownTokens
from headcount.data.task import Text

SHARE = 0.2
"""From this share of unknown tokens on there is a warning."""
LOOKED_AT = 1000
"""Texts in which an example is sought."""


def unknown_id(tokenizer: Any) -> int | None:
    """The token for what a tokenizer does not know; None where there is none, or where it means something else too (GPT-2's end of text)."""
    ours = getattr(tokenizer, "unk_token_id", None)
    others = [getattr(tokenizer, f"{name}_token_id", None) for name in ("bos", "eos", "pad", "cls", "sep", "mask")]
    return None if ours in others else ours


def warn_of_unknown(label: str, tokenizer: Any, n_unknown_and_all: tuple[int, int], texts: Callable[[], Iterable[Text]]) -> None:
    """Warns if a fifth or more of the ordinary tokens are unknown.

    `label` names the text in the message, `texts` are searched for an example.
    """
    unknown, total = n_unknown_and_all
    if not total or unknown / total < SHARE:
        return
    example = next((word for text in islice(texts(), LOOKED_AT) if (word := _quote_first_unknown_word(tokenizer, text))), "")
    warnings.warn(
        f"{label}: {unknown / total:.0%} of the tokens are unknown to the tokenizer ({tokenizer.unk_token}){example and f', such as {example}'}; "
        "a model reads little of such a text. Give text in the language and spelling that it was trained on",
        UnknownTokens,
        stacklevel=2,
    )


def _quote_first_unknown_word(tokenizer: Any, text: Text) -> str:
    """Returns the first part of a text that becomes an unknown token, with its origin; empty if there is none."""
    is_fast = getattr(tokenizer, "is_fast", False)
    for part in (text.text, text.pair, text.target):
        encoded = (
            tokenizer(part, add_special_tokens=False, verbose=False, **({"return_offsets_mapping": True} if is_fast else {}))
            if part
            else {}
        )
        index = next((i for i, token in enumerate(encoded.get("input_ids", ())) if token == tokenizer.unk_token_id), None)
        if index is not None and part:
            start, end = encoded["offset_mapping"][index] if is_fast else (0, len(part))
            return f"'{part[start:end]}' in {text.origin}"
    return ""
