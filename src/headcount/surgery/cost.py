"""What a model costs: parameters, bytes, floating-point operations of a pass, bytes of key-value cache per token."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from headcount.archs.inputs import probe_inputs
from headcount.archs.modules import unwrap
from headcount.heads import HeadMap
from headcount.observe import evaluating


@dataclass(frozen=True, slots=True)
class Cost:
    """Counts, not timings. FLOPs are those of one forward pass over `tokens` positions, as counted by torch."""

    heads: int
    parameters: int
    bytes: int
    flops: int
    tokens: int
    kv_bytes_per_token: int

    def to_dict(self) -> dict[str, float]:
        """Plain numbers by name."""
        return asdict(self)


def kv_bytes_per_token(model: nn.Module, heads: HeadMap) -> int:
    """Bytes that one more token adds to the cache of all self-attention blocks of a decoder; an empty block caches its idle head."""
    total = 0
    for block in heads.blocks:
        if block.kind == "decoder-self":
            size = model.get_submodule(block.o.path)._parameters["weight"].element_size()  # pyright: ignore[reportOptionalMemberAccess]
            total += max(block.n_kv_heads, 1) * (block.head_dim + block.value_dim) * size
    return total


def cost(model: nn.Module, inputs: dict[str, Any] | None = None) -> Cost:
    """The cost of a model, its operations counted on a probe batch or on `inputs`."""
    inner = unwrap(model)
    heads = HeadMap.of(inner)
    batch = inputs if inputs is not None else probe_inputs(inner)
    with evaluating(inner), FlopCounterMode(display=False) as counter:
        inner(**batch)
    main = next(value for value in batch.values() if isinstance(value, torch.Tensor))
    parameters = list(inner.parameters())
    return Cost(
        heads=len(heads),
        parameters=sum(p.numel() for p in parameters),
        bytes=sum(p.numel() * p.element_size() for p in parameters),
        flops=counter.get_total_flops(),
        tokens=main.shape[0] * (main.shape[1] if main.ndim > 1 else 1),
        kv_bytes_per_token=kv_bytes_per_token(inner, heads),
    )
