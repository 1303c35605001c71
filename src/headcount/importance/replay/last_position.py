"""The last layer at the one position of each example that the model's head reads, found by trial and checked on every batch."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headcount.importance.replay.calls import Calls, only_call
from headcount.importance.replay.replay import Forward, Route
from headcount.models.modules import Batch


@dataclass(frozen=True, slots=True)
class Narrow:
    """The last block's layer computed at the one position of each example that the model's head reads, found by trial.

    From the last output projection on every module without children sees that position only; residual sums broadcast, and what stands at
    other positions is never read: a `poisoned` pass puts NaN there to prove it. Queries are computed at that position and stand at all.
    """

    reads: str
    route: Route
    leaves: tuple[str, ...]
    query: str
    wide: frozenset[str]
    poisoned: bool = False

    def forwards(self, model: nn.Module, positions: Tensor, length: int) -> dict[str, Forward]:
        """Forward passes for stacked rows of `length` tokens, of which row r is read at positions[r]."""

        def at_position(path: str, wide: bool) -> Forward:
            own = model.get_submodule(path).forward

            def forward(hidden: Tensor, *args: Any, **kwargs: Any) -> Any:
                if hidden.ndim == 3 and hidden.shape[:2] == (len(positions), length):
                    hidden = select_positions(hidden, positions)
                output = own(hidden, *args, **kwargs)
                if not wide:
                    return output
                poisons = self.poisoned and path != self.query
                return poison_elsewhere(output, positions, length) if poisons else output.expand(-1, length, -1)

            return forward

        return {path: at_position(path, path in self.wide) for path in (*self.leaves, self.query) if path}


def read_positions(reads: str, batch: Batch, rows: int, length: int, device: torch.device) -> Tensor:
    """Returns the position of each example that a model reads: the first, or the last that is no padding."""
    if reads == "first":
        return torch.zeros(rows, dtype=torch.long, device=device)
    mask = batch.get("attention_mask")
    if not isinstance(mask, Tensor) or tuple(mask.shape) != (rows, length):
        return torch.full((rows,), length - 1, device=device)
    steps = torch.arange(1, length + 1, device=device)
    return ((mask != 0) * steps).argmax(dim=1)


def narrow_candidates(model: nn.Module, route: Route, calls: Calls) -> list[Narrow]:
    """Returns candidates for narrowing what follows the last output projection; a trial decides whether one holds."""
    block = route.block
    last = only_call(calls, block.o.path)
    if last is None or route.axis != 0 or len(last.shape) != 3 or last.shape[1] < 2:
        return []
    shape = last.shape[:2]
    leaves = {}
    for path, module in model.named_modules():
        call = only_call(calls, path)
        if (
            call is not None
            and call.start >= last.start
            and call.shape[:2] == shape
            and len(call.shape) == 3
            and not any(module.children())
        ):
            leaves[path] = call.start
    query = only_call(calls, block.q.path)
    split = block.q.path not in (block.k.path, block.v.path) and query is not None and query.shape[:2] == shape and len(query.shape) == 3
    ordered = tuple(sorted(leaves, key=lambda path: leaves[path]))
    if len(ordered) < 2:
        return []
    # What leaves the layer stands at every position again: the model may give it a shape, or look for its position by itself.
    layer = re.match(r"(.*\.)?\d+\.", block.path)
    outside = [path for path in ordered if layer is None or not path.startswith(layer[0])]
    wide = frozenset([*outside, ordered[-1], block.q.path])
    return [Narrow(reads, route, ordered, block.q.path if split else "", wide) for reads in ("first", "last")]


def select_positions(tensor: Tensor, positions: Tensor) -> Tensor:
    """Selects one token of each row: [rows, token, width] -> [rows, 1, width]."""
    return tensor[torch.arange(len(positions), device=positions.device), positions].unsqueeze(1)


def poison_elsewhere(tensor: Tensor, positions: Tensor, length: int) -> Tensor:
    """Returns a tensor [rows, length, width] with the token of [rows, 1, width] at its position and NaN everywhere else."""
    wide = tensor.new_full((tensor.shape[0], length, tensor.shape[2]), torch.nan)
    wide[torch.arange(len(positions), device=positions.device), positions] = tensor[:, 0]
    return wide
