"""Sentences with words, dependencies and attention maps, made up from a seed."""

from __future__ import annotations

import base64
import zlib
from typing import Any

import numpy as np

Json = dict[str, Any]


def _words(text: str) -> list[str]:
    return text.split()


SENTENCE = _words(
    "The old committee that met on Tuesday quietly approved a generous budget for the new library while two members left early"
)
TARGET = _words("Das alte Komitee billigte still ein großzügiges Budget für die neue Bibliothek")
ARABIC = _words("وافقت اللجنة القديمة يوم الثلاثاء بهدوء على ميزانية سخية للمكتبة الجديدة بينما غادر عضوان مبكرا")
POS = ["DET", "ADJ", "NOUN", "PRON", "VERB", "ADP", "PROPN", "ADV"]
RELATIONS = ["det", "amod", "nsubj", "obj", "advmod", "case", "obl", "nmod"]


def side(words: list[str], tokens: int, lang: str) -> Json:
    """Text of about as many tokens; long words are split in two."""
    pieces: list[str] = ["[CLS]"]
    word: list[int] = [-1]
    shown: list[str] = []
    while len(pieces) < tokens - 1:
        text = words[len(shown) % len(words)]
        parts = [text[:5], f"##{text[5:]}"] if len(text) > 7 and len(pieces) < tokens - 2 else [text]
        pieces += parts
        word += [len(shown)] * len(parts)
        shown.append(text)
    arcs = [[at, max(0, at - 1 - at % 3) if at else min(2, len(shown) - 1), RELATIONS[at % len(RELATIONS)]] for at in range(len(shown))]
    special = [True] + [False] * (len(pieces) - 1) + [True]
    pos = [POS[at % len(POS)] for at in range(len(shown))]
    return {
        "tokens": [*pieces, "[SEP]"],
        "special": special,
        "unknown": None,
        "word": [*word, -1],
        "words": shown,
        "pos": pos,
        "arcs": [arc for arc in arcs if arc[0] != arc[1]],
        "lang": lang,
    }


def attention(rng: np.random.Generator, shape: Any, blocks: list[Json]) -> Json:
    """Maps that look like those of trained heads: peaked at offsets, at the first token, or spread."""
    sentences, maps = [], []
    both = any(block["kind"] == "cross" for block in blocks)
    for at in range(shape.sentences):
        source = side(shape.words[at:] + shape.words[:at], shape.tokens, shape.lang)
        target = side(TARGET, max(6, shape.tokens // 2), "de") if both else None
        sentences.append({"id": f"s{at}", "source": source, "target": target, "causal": shape.causal})
        sizes = {"cross": (target or source, source), "decoder-self": (target or source,) * 2}
        maps.append([_packed(rng, *sizes.get(block["kind"], (source, source)), block, shape.causal) for block in blocks])
    return {"sentences": sentences, "maps": maps, "included": [None] * len(blocks)}


def _packed(rng: np.random.Generator, query: Json, key: Json, block: Json, causal: bool) -> str:
    q, k, heads = len(query["tokens"]), len(key["tokens"]), len(block["heads"])
    rows, columns = np.arange(q)[:, None], np.arange(k)[None, :]
    out = np.empty((heads, q, k), np.uint8)
    for head in range(heads):
        offset = columns - rows == rng.integers(-3, 3)
        logits = rng.normal(0, 1.2, (q, k)) + rng.uniform(3, 8) * offset + rng.uniform(0, 4) * (columns == 0)
        if causal or block["kind"] == "decoder-self":
            logits = np.where(columns > rows, -np.inf, logits)
        weights = np.exp(logits - logits.max(1, keepdims=True))
        weights /= weights.sum(1, keepdims=True)
        out[head] = np.round(255 * np.sqrt(weights))
    return pack(out)


def pack(weights: np.ndarray) -> str:
    """Base64 of raw deflate of bytes, as the contract has it."""
    squeeze = zlib.compressobj(9, zlib.DEFLATED, -15)
    return base64.b64encode(squeeze.compress(weights.tobytes()) + squeeze.flush()).decode()
