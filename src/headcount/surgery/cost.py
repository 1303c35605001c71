"""What a model costs: parameters, bytes, floating-point operations of a pass, bytes of key-value cache per token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from headcount.models.attention import eager_attention
from headcount.models.dummy_inputs.text import naming_inputs_in_errors, probe_inputs
from headcount.models.head_map import HeadMap
from headcount.models.modules import Batch, unwrap
from headcount.models.observe import evaluating, frozen_parameters
from headcount.models.ownership import holds_model
from headcount.models.state import forward_preserving_state

HeadMapOfSameModel = HeadMap
"""The heads that the model has now, where they are known already; not those that shall stay."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Counts, not timings. FLOPs are those of one forward pass over `tokens` positions (of the first block), as counted by torch."""

    heads: int
    parameters: int
    bytes: int
    flops: int
    tokens: int
    kv_bytes_per_token: int

    def to_dict(self) -> dict[str, float]:
        """Returns the counts by name."""
        return asdict(self)


def kv_bytes_per_token(model_output: Any) -> int:
    """Returns the bytes that one token of one example takes in the cache of a pass, over all layers; an empty block caches its idle head."""
    total = 0
    cache = model_output.get("past_key_values") if isinstance(model_output, Mapping) else None
    for layer in getattr(getattr(cache, "self_attention_cache", cache), "layers", None) or ():
        for states in (getattr(layer, "keys", None), getattr(layer, "values", None)):
            if isinstance(states, Tensor) and states.ndim == 4 and states.numel():
                total += states.shape[1] * states.shape[3] * states.element_size()
    return total


@holds_model("a count of its operations")
def cost(model: nn.Module, inputs: Batch | None = None, *, heads: HeadMapOfSameModel | None = None) -> Cost:
    """Returns the cost of a model, its operations counted and its cache measured on a probe batch or on `inputs`.

    Operations are counted on the eager path, where all of them can be seen. `heads` are those of the model, if known already.
    """
    inner = unwrap(model)
    heads = HeadMap.of(inner) if heads is None else heads
    batch = dict(inputs) if inputs is not None else probe_inputs(inner)
    positions: list[int] = []
    first = inner.get_submodule(heads.blocks[0].o.path)
    hook = first.register_forward_pre_hook(lambda _, args: positions.append(args[0].shape[:-1].numel()))
    try:
        with (
            naming_inputs_in_errors(inner, batch, is_dummy=inputs is None),
            evaluating(inner),
            frozen_parameters(inner),
            eager_attention(inner),
            FlopCounterMode(display=False) as counter,
        ):  # which hooks what asks for gradients
            output = forward_preserving_state(inner, batch)
    finally:
        hook.remove()
    parameters = list(inner.parameters())
    return Cost(
        heads=len(heads),
        parameters=sum(p.numel() for p in parameters),
        bytes=sum(p.numel() * p.element_size() for p in parameters),
        flops=counter.get_total_flops(),
        tokens=positions[0] if positions else 0,
        kv_bytes_per_token=kv_bytes_per_token(output),
    )
