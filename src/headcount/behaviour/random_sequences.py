"""Random sequences for roles that are tested on input of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from headcount.data.checks import input_vocabulary_size, n_positions
from headcount.models.head_map import HeadMap
from headcount.models.observe import SPECIAL_IDS

LONGEST = 2**16
"""The length of sequences where a model has no limit."""
MIN_VOCABULARY = 64
"""A vocabulary smaller than this has too few tokens for random sequences without chance repetitions."""

PERIODS = (12, 48)
"""The fewest and the most tokens between a token of a probe and its copy. With one period for all sequences, an offset would do for the content."""


def draw_repetition_periods(n_sequences: int, max_period: int, seed: int) -> list[int]:
    """Returns the period of each sequence, from 12 to 48 or to the longest that the model has positions for."""
    random = np.random.Generator(np.random.Philox([seed, 1]))
    return random.integers(PERIODS[0], min(PERIODS[1], max_period) + 1, n_sequences).tolist()


def start_tokens_of_text_decoder(model: Any) -> list[int] | None:
    """Returns the tokens that a decoder's sequences begin with: its start token, or none; None if the model is no decoder of text."""
    kinds = {block.kind for block in HeadMap.of(model).blocks}
    if (
        kinds != {"decoder-self"}
        or getattr(model.config, "is_encoder_decoder", False)
        or getattr(model, "main_input_name", "") != "input_ids"
    ):
        return None
    token = getattr(model.config, "bos_token_id", None)
    return [token] if isinstance(token, int) else []


def max_tokens_after_start(model: Any, start_tokens: Sequence[int]) -> int:
    """Returns how many tokens the model has positions for after the start."""
    return (n_positions(model) or LONGEST) - len(start_tokens)


def draw_distinct_ordinary_tokens(model: nn.Module, shape: tuple[int, int], seed: int) -> Tensor | None:
    """Returns random ordinary tokens, none twice in a row of the result; None if the vocabulary is too small for that."""
    size = input_vocabulary_size(model) or 0
    special = {
        value for name in (*SPECIAL_IDS, "pad_token_id", "mask_token_id", "unk_token_id") for value in _special_ids_in_config(model, name)
    }
    ordinary = np.array([token for token in range(size) if token not in special])
    if len(ordinary) < max(MIN_VOCABULARY, shape[1]) or shape[1] < 1:
        return None
    random = np.random.Generator(np.random.Philox(seed))
    return torch.from_numpy(np.stack([random.choice(ordinary, shape[1], replace=False) for _ in range(shape[0])]))


def _special_ids_in_config(model: Any, config_name: str) -> list[int]:
    value = getattr(model.config, config_name, None)
    return [token for token in (value if isinstance(value, list | tuple) else [value]) if isinstance(token, int)]
