"""Made-up speech for a tiny Whisper, with known frames of its words, and cross-attention planted in its heads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from headcount.behaviour.speech import read_speech
from headcount.core.heads import AttentionBlock
from headcount.models.attention import AttentionTap
from headcount.models.head_map import HeadMap
from headcount.models.tiny.build import tiny_model

FRAMES = 32
"""Frames of the encoder of the tiny Whisper."""
Aim = Callable[[int | None, int | None], bool]
"""(word of a frame, word of the token to come), None for no word -> whether the head attends there."""


def whisper() -> Any:
    """A tiny Whisper in float64 that names no alignment heads."""
    model: Any = tiny_model("whisper", attn="eager")
    model.generation_config._from_model_config = False
    return model


def utterances(number: int, seed: int = 0) -> list[dict[str, Any]]:
    """Utterances of four words of one or two tokens, of uneven length, with two tokens before and silence behind them, all different."""
    rng = np.random.default_rng(seed)
    spoken = []
    for _ in range(number):
        cuts = np.sort(rng.choice(np.arange(3, 27), size=4, replace=False))
        first, after = np.array([0, *cuts[:-1]]), cuts
        n_tokens = rng.integers(1, 3, size=4)
        word_ids = np.repeat(np.arange(4), n_tokens).tolist()
        mask = torch.zeros(2 * FRAMES, dtype=torch.long)
        mask[: 2 * (int(cuts[-1]) + 2)] = 1
        spoken.append(
            {
                "input_features": torch.from_numpy(rng.normal(size=(80, 2 * FRAMES))),
                "attention_mask": mask,
                "labels": [2, 1, *rng.integers(3, 120, size=len(word_ids)).tolist(), 126],
                "word_ids": [None, None, *word_ids, None],
                "word_frames": list(zip(first.tolist(), after.tolist(), strict=True)),
            }
        )
    return spoken


@contextmanager
def attending(model: nn.Module, spoken: list[dict[str, Any]], aims: Mapping[str, Aim], *, share: float = 0.7) -> Iterator[None]:
    """Heads of cross-attention with an aim give it `share` of their attention; the rest, and that of other heads, is noise."""
    corpus = read_speech(model, spoken)
    by_tokens = {target.ids: number for number, target in enumerate(corpus.targets)}
    rows: list[int] = []

    def remember(_module: nn.Module, _args: Any, inputs: dict[str, Any]) -> None:
        tokens, mask = inputs["decoder_input_ids"], inputs["decoder_attention_mask"].bool()
        rows[:] = [by_tokens[tuple(ids[remaining].tolist()[1:])] for ids, remaining in zip(tokens, mask, strict=True)]

    def change(block: AttentionBlock, probabilities: Tensor, _visible: Tensor) -> Tensor:
        if block.kind != "cross":
            return probabilities
        planted = torch.zeros_like(probabilities)
        for row, number in enumerate(rows):
            frames, tokens = corpus.sentences[number].words, corpus.targets[number].words
            for position, head in enumerate(block.heads):
                noise = np.random.default_rng([number, block.layer, head.index]).random(tuple(planted.shape[-2:]))
                planted[row, position] = torch.from_numpy(noise / noise.sum(-1, keepdims=True))
                for query, word in enumerate(tokens[: planted.shape[2]] if str(head) in aims else ()):
                    aim = torch.tensor([aims[str(head)](frame, word) for frame in frames]).double()
                    if aim.any():
                        planted[row, position, query] *= 1 - share
                        planted[row, position, query, : len(aim)] += share * aim / aim.sum()
        return planted

    hook = model.register_forward_pre_hook(remember, with_kwargs=True)
    try:
        with AttentionTap(model, HeadMap.of(model).blocks, change):
            yield
    finally:
        hook.remove()
