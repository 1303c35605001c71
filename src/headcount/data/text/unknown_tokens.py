"""A warning where much of a text is unknown to the tokenizer: the model runs on it all the same, and its numbers mean little."""

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


def warn_of_unknown(told: str, tokenizer: Any, counts: tuple[int, int], texts: Callable[[], Iterable[Text]]) -> None:
    """Warns of `told` if of its ordinary tokens, `counts` being how many are unknown and how many there are, a fifth or more are unknown."""
    unknown, total = counts
    if not total or unknown / total < SHARE:
        return
    found = next((word for text in islice(texts(), LOOKED_AT) if (word := _unknown_word(tokenizer, text))), "")
    warnings.warn(
        f"{told}: {unknown / total:.0%} of the tokens are unknown to the tokenizer ({tokenizer.unk_token}){found and f', such as {found}'}; "
        "a model reads little of such a text. Give text in the language and spelling that it was trained on",
        UnknownTokens,
        stacklevel=2,
    )


def _unknown_word(tokenizer: Any, text: Text) -> str:
    """The first part of a text that becomes an unknown token, and where it stands; empty if there is none."""
    fast, wanted = getattr(tokenizer, "is_fast", False), tokenizer.unk_token_id
    for part in (text.text, text.pair, text.target):
        made = (
            tokenizer(part, add_special_tokens=False, verbose=False, **({"return_offsets_mapping": True} if fast else {})) if part else {}
        )
        place = next((i for i, token in enumerate(made.get("input_ids", ())) if token == wanted), None)
        if place is not None and part:
            start, end = made["offset_mapping"][place] if fast else (0, len(part))
            return f"'{part[start:end]}' in {text.where}"
    return ""
