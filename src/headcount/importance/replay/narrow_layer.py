"""A narrow last layer: computed only at the one position of each example that the model reads, such as [CLS] of a classifier.

A trial finds that position, and every batch is checked: with NaN at all other positions the result must stay that of the whole layer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal, TypeGuard

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from headcount.importance.replay.calls import Call, Calls, Forward, only_call
from headcount.importance.replay.routes import Route
from headcount.models.modules import Batch


@dataclass(frozen=True, slots=True)
class NarrowLayer:
    """The last layer, computed at one position of each example.

    From the last output projection on, every module without children sees that position only; sums with the residual stream broadcast it.

    Attributes:
        position_read: The position that the model reads, `first` or `last`.
        route: The route of the last block.
        leaves: The modules without children from the block's output projection on, by path.
        query: The query projection of the block if it is computed at that position too, else empty.
        wide: The modules whose output stands at every position again, because what follows expects its full length.
        is_poisoned: Whether their output is NaN at the other positions, which proves that these are not read.
    """

    position_read: Literal["first", "last"]
    route: Route
    leaves: tuple[str, ...]
    query: str
    wide: frozenset[str]
    is_poisoned: bool = False

    def narrow_forwards_by_path(self, model: nn.Module, read_positions: Int[Tensor, " rows"], n_tokens: int) -> dict[str, Forward]:
        """Returns forward passes by path for stacked rows of `n_tokens` tokens, of which row r is read at read_positions[r]."""

        def narrow_forward(path: str) -> Forward:
            own_forward = model.get_submodule(path).forward

            def forward(hidden: Tensor, *args: Any, **kwargs: Any) -> Any:
                if hidden.ndim == 3 and hidden.shape[:2] == (len(read_positions), n_tokens):
                    hidden = select_one_token_per_row(hidden, read_positions)
                output = own_forward(hidden, *args, **kwargs)
                if path not in self.wide:
                    return output
                is_poisoned = self.is_poisoned and path != self.query
                return _surround_with_nan(output, read_positions, n_tokens) if is_poisoned else output.expand(-1, n_tokens, -1)

            return forward

        return {path: narrow_forward(path) for path in (*self.leaves, self.query) if path}


def find_read_positions(
    position_read: Literal["first", "last"], batch: Batch, n_rows: int, n_tokens: int, device: torch.device
) -> Int[Tensor, " rows"]:
    """Returns the position of each example that a model reads, [rows]: the first, or the last that is no padding."""
    if position_read == "first":
        return torch.zeros(n_rows, dtype=torch.long, device=device)
    mask = batch.get("attention_mask")
    if not isinstance(mask, Tensor) or tuple(mask.shape) != (n_rows, n_tokens):
        return torch.full((n_rows,), n_tokens - 1, device=device)
    steps = torch.arange(1, n_tokens + 1, device=device)
    return ((mask != 0) * steps).argmax(dim=1)


def propose_narrow_layers(model: nn.Module, route: Route, calls: Calls) -> list[NarrowLayer]:
    """Returns narrow layers for the last block, one that reads the first position and one the last; a trial decides whether one holds."""
    block = route.block
    projection = only_call(calls, block.o.path)
    if projection is None or route.axis != 0 or len(projection.shape) != 3 or projection.shape[1] < 2:
        return []

    def is_shaped_like_projection_input(call: Call | None) -> TypeGuard[Call]:
        return call is not None and call.shape[:2] == projection.shape[:2] and len(call.shape) == 3

    starts = {}
    for path, module in model.named_modules():
        call = only_call(calls, path)
        if is_shaped_like_projection_input(call) and call.start >= projection.start and not any(module.children()):
            starts[path] = call.start
    leaves = tuple(sorted(starts, key=lambda path: starts[path]))
    if len(leaves) < 2:
        return []
    has_own_query = block.q.path not in (block.k.path, block.v.path) and is_shaped_like_projection_input(only_call(calls, block.q.path))
    # What leaves the layer stands at every position again: the model may give it a shape, or look for its position by itself.
    layer = re.match(r"(.*\.)?\d+\.", block.path)
    outside = [path for path in leaves if layer is None or not path.startswith(layer[0])]
    wide = frozenset([*outside, leaves[-1], block.q.path])
    return [NarrowLayer(position_read, route, leaves, block.q.path if has_own_query else "", wide) for position_read in ("first", "last")]


def select_one_token_per_row(tensor: Float[Tensor, "rows token width"], positions: Int[Tensor, " rows"]) -> Float[Tensor, "rows 1 width"]:
    """Selects one token of each row: [rows, token, width] -> [rows, 1, width]."""
    return tensor[torch.arange(len(positions), device=positions.device), positions].unsqueeze(1)


def _surround_with_nan(
    tensor: Float[Tensor, "rows 1 width"], positions: Int[Tensor, " rows"], n_tokens: int
) -> Float[Tensor, "rows token width"]:
    """Places the token of each row at its position and NaN everywhere else: [rows, 1, width] -> [rows, length, width]."""
    wide = tensor.new_full((tensor.shape[0], n_tokens, tensor.shape[2]), torch.nan)
    wide[torch.arange(len(positions), device=positions.device), positions] = tensor[:, 0]
    return wide
