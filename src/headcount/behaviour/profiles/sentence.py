"""A sentence as the report shows it: its tokens as people read them, with words, parts of speech and gold dependencies."""

from __future__ import annotations

from typing import Any

from headcount.data.text.aligned import Aligned
from headcount.data.text.annotated import Annotated
from headcount.data.text.unknown_tokens import unknown_id

LONG = 24
"""Examples of longer sentences are windows."""
AROUND, BESIDE = 5, 2
GAP = "…"


def token_texts(aligned: Aligned, tokenizer: Any = None, *, start: int | None = None) -> list[str]:
    """What every token stands for: its part of the text, else its name in the vocabulary; `start` is the token a decoder begins with."""
    front = [] if start is None else [_name(start, tokenizer)]
    text = aligned.annotated.text
    return front + [
        text[a:b] if b > a and not special else _name(i, tokenizer)
        for i, (a, b), special in zip(aligned.ids, aligned.offsets, aligned.special, strict=True)
    ]


def _name(token: int, tokenizer: Any) -> str:
    if tokenizer is None:
        return f"#{token}"
    made = tokenizer.convert_ids_to_tokens(token)
    return str(made) if made is not None else f"#{token}"


def side_of(aligned: Aligned, tokenizer: Any = None, *, start: int | None = None) -> dict[str, Any]:
    """One side of a sentence; words are None where they are not known."""
    front = 0 if start is None else 1
    words = aligned.annotated.words
    unknown = unknown_id(tokenizer) if tokenizer is not None else None
    blank = [False] * front + [unknown is not None and i == unknown for i in aligned.ids]
    return {
        "tokens": token_texts(aligned, tokenizer, start=start),
        "special": [True] * front + list(aligned.special),
        "unknown": blank if any(blank) else None,
        "word": [-1] * front + [-1 if word is None else word for word in aligned.words] if words else None,
        "words": [word.form for word in words] if words else None,
        "pos": [word.upos for word in words] if any(word.upos for word in words) else None,
        "arcs": _arcs(aligned.annotated),
    }


def _arcs(text: Annotated) -> list[list[Any]] | None:
    if not any(word.head is not None for word in text.words):
        return None
    return [[i, word.head, word.relation or ""] for i, word in enumerate(text.words) if word.head is not None and word.head >= 0]


def example(
    tokens: list[str], query: int, keys: list[tuple[int, float]], weight: float, query_tokens: list[str] | None = None
) -> dict[str, Any]:
    """One query with what it attends to most; of a long text the neighbourhood of query and keys, with gaps. In cross-attention the query is a
    place in `query_tokens`."""
    centres = [(place, BESIDE) for place, _ in keys] + ([] if query_tokens else [(query, AROUND)])
    shown, places = _window(tokens, centres)
    asked, asked_places = _window(query_tokens, [(query, AROUND)]) if query_tokens else (None, places)
    return {
        "tokens": shown,
        "query": asked_places[query],
        "keys": [[places[place], round(value, 4)] for place, value in keys],
        "query_tokens": asked,
        "weight": round(weight, 4),
    }


def _window(tokens: list[str], centres: list[tuple[int, int]]) -> tuple[list[str], dict[int, int]]:
    """The tokens near some places with a gap between distant ones, and where each of them is among these."""
    wanted = range(len(tokens))
    if len(tokens) > LONG:
        wanted = sorted({i for place, reach in centres for i in range(max(0, place - reach), min(len(tokens), place + reach + 1))})
    shown: list[str] = []
    places: dict[int, int] = {}
    before = -1
    for i in wanted:
        if i != before + 1:
            shown.append(GAP)
        places[i] = len(shown)
        shown.append(tokens[i])
        before = i
    if before < len(tokens) - 1:
        shown.append(GAP)
    return shown, places
