"""How long a probe must be so that it runs the mechanism that the model's ordinary inputs run."""

from __future__ import annotations

from typing import Any

from torch import nn

PROBE_LENGTH = 9
"""Tokens of a probe for models whose code is the same for short and long inputs."""


def min_block_sparse_length(module: Any) -> int:
    """The fewest tokens for which BigBird's sparse attention runs, 0 for other modules; on fewer it switches to full attention."""
    if getattr(module, "attention_type", None) != "block_sparse" or not hasattr(module, "set_attention_type"):
        return 0
    config = getattr(module, "config", None)
    blocks, size = getattr(config, "num_random_blocks", None), getattr(config, "block_size", None)
    return (5 + 2 * blocks) * size + 1 if isinstance(blocks, int) and isinstance(size, int) else 0


def probe_length(model: nn.Module) -> int:
    """The number of tokens of a probe that runs every mechanism of a model's attention."""
    return max(PROBE_LENGTH, *(min_block_sparse_length(module) for module in model.modules()))
