"""A sentence as the report shows it: its tokens as people read them, with words, parts of speech and gold dependencies."""

from __future__ import annotations

from typing import Any

from headcount.data.text.aligned import Aligned
from headcount.data.text.unknown_tokens import unknown_id

LONG = 24
"""Examples of longer sentences are shown as windows."""
AROUND_QUERY, AROUND_KEY = 5, 2
GAP = "…"


def token_texts(aligned: Aligned, tokenizer: Any = None, *, start_token: int | None = None) -> list[str]:
    """Returns what every token stands for: its part of the text, else its name in the vocabulary; `start_token` is the start token of a decoder."""
    front = [] if start_token is None else [_name_in_vocabulary(start_token, tokenizer)]
    text = aligned.annotated.text
    return front + [
        text[first:last] if last > first and not special else _name_in_vocabulary(token, tokenizer)
        for token, (first, last), special in zip(aligned.ids, aligned.offsets, aligned.special, strict=True)
    ]


def _name_in_vocabulary(token_id: int, tokenizer: Any) -> str:
    if tokenizer is None:
        return f"#{token_id}"
    name = tokenizer.convert_ids_to_tokens(token_id)
    return str(name) if name is not None else f"#{token_id}"


def describe_side(aligned: Aligned, tokenizer: Any = None, *, start_token: int | None = None) -> dict[str, Any]:
    """Returns one side of a sentence as plain data; what is not known of it is None."""
    n_front = 0 if start_token is None else 1
    words = aligned.annotated.words
    unknown = unknown_id(tokenizer) if tokenizer is not None else None
    is_unknown = [False] * n_front + [unknown is not None and token == unknown for token in aligned.ids]
    arcs = [[i, word.head, word.relation or ""] for i, word in enumerate(words) if word.head is not None and word.head >= 0]
    return {
        "tokens": token_texts(aligned, tokenizer, start_token=start_token),
        "special": [True] * n_front + list(aligned.special),
        "unknown": is_unknown if any(is_unknown) else None,
        "word": [-1] * n_front + [-1 if word is None else word for word in aligned.words] if words else None,
        "words": [word.form for word in words] if words else None,
        "pos": [word.upos for word in words] if any(word.upos for word in words) else None,
        "arcs": arcs if any(word.head is not None for word in words) else None,
    }


def describe_query(
    key_tokens: list[str],
    query_position: int,
    weighted_keys: list[tuple[int, float]],
    confidence: float,
    cross_query_tokens: list[str] | None = None,
) -> dict[str, Any]:
    """Returns one query with the keys it attends to most, as plain data.

    Of a long text only the neighbourhood of query and keys is shown, with gaps. In cross-attention the query is a position in `cross_query_tokens`.
    """
    centres = [(key, AROUND_KEY) for key, _ in weighted_keys] + ([] if cross_query_tokens else [(query_position, AROUND_QUERY)])
    window, positions = _window_and_positions(key_tokens, centres)
    query_window, query_positions = (
        _window_and_positions(cross_query_tokens, [(query_position, AROUND_QUERY)]) if cross_query_tokens else (None, positions)
    )
    return {
        "tokens": window,
        "query": query_positions[query_position],
        "keys": [[positions[key], round(value, 4)] for key, value in weighted_keys],
        "query_tokens": query_window,
        "weight": round(confidence, 4),
    }


def _window_and_positions(tokens: list[str], centres_and_reaches: list[tuple[int, int]]) -> tuple[list[str], dict[int, int]]:
    """Returns the tokens within reach of the centres (position, reach) with a gap between distant ones, and the position of each among these."""
    visible = range(len(tokens))
    if len(tokens) > LONG:
        visible = sorted(
            {i for centre, reach in centres_and_reaches for i in range(max(0, centre - reach), min(len(tokens), centre + reach + 1))}
        )
    window: list[str] = []
    positions: dict[int, int] = {}
    previous = -1
    for i in visible:
        if i != previous + 1:
            window.append(GAP)
        positions[i] = len(window)
        window.append(tokens[i])
        previous = i
    if previous < len(tokens) - 1:
        window.append(GAP)
    return window, positions
