"""What an encoder–decoder says, beside what it should say."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from headcount.data.checks import positions
from headcount.data.metrics import IGNORED
from headcount.models.modules import Batch, unwrap
from headcount.models.state import preserve

References = Mapping[bytes, str]
"""The target text of an example under the key of its tokens."""


def key(source: Iterable[int], target: Iterable[int]) -> bytes:
    """What identifies an example in a batch: its tokens."""
    tokens = array("q", [*source, IGNORED, *target])
    return hashlib.blake2b(tokens.tobytes(), digest_size=16).digest()


def _keys(batch: Batch) -> list[bytes]:
    mask = batch.get("attention_mask", torch.ones_like(batch["input_ids"])).bool()
    rows = zip(batch["input_ids"], mask, batch["labels"], strict=True)
    return [key(ids[seen].tolist(), labels[labels != IGNORED].tolist()) for ids, seen, labels in rows]


class Translations:
    """(model, batch) -> generated texts and reference texts, the latter as the file has them: tokens do not give all letters back."""

    def __init__(self, tokenizer: Any, references: References, *, max_new_tokens: int, num_beams: int = 1) -> None:
        self.tokenizer = tokenizer
        self.references = references
        self.options = {"max_new_tokens": max_new_tokens, "num_beams": num_beams, "do_sample": False}

    def __call__(self, model: nn.Module, batch: Batch) -> tuple[list[str], list[str]]:
        """What is said and what should be said, by example."""
        inputs = {name: value for name, value in batch.items() if name not in ("labels", "decoder_input_ids")}
        inner: Any = unwrap(model)
        with torch.no_grad(), preserve(inner):
            said = inner.generate(**inputs, **self.options)
        return self._decode(said), [self.references.get(name) or self._decode(row)[0] for name, row in self._targets(batch)]

    def _targets(self, batch: Batch) -> list[tuple[bytes, Tensor]]:
        kept = [row[row != IGNORED].unsqueeze(0) for row in batch["labels"]]
        return list(zip(_keys(batch), kept, strict=True))

    def _decode(self, ids: Tensor) -> list[str]:
        return [text.strip() for text in self.tokenizer.batch_decode(ids, skip_special_tokens=True)]


def most_tokens(model: nn.Module, targets: Iterable[int]) -> int:
    """How many tokens to generate at most: half as many again as the longest reference has, and 8, within the model's positions."""
    room = positions(model, decoder=True)
    wanted = max(targets) * 3 // 2 + 8
    return wanted if room is None else min(wanted, room - 1)
