"""The walk down a tape: from the logits to the inputs, one rule per operation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from headcount.importance.relevance.noise import RoundingNoise
from headcount.importance.relevance.owners import Owners
from headcount.importance.relevance.rules import Rule
from headcount.importance.relevance.table import rule_of
from headcount.importance.relevance.tape import Node, Slot, Tape


@dataclass(frozen=True, slots=True)
class Arrival:
    """The result of a walk: relevance per example at the inputs and in leaks, and that of the requested slots."""

    arrived: Float[Tensor, " batch"]
    leaked: Float[Tensor, " batch"]
    by_slot: dict[int, Tensor]


class Descent:
    """One walk down a tape."""

    def __init__(self, tape: Tape, owners: Owners, rule: Rule, noise: RoundingNoise | None = None) -> None:
        self.tape, self.owners, self.rule, self.noise = tape, owners, rule, noise
        self.dtype = precision(tape)
        self.leaked = torch.zeros(owners.n_examples, dtype=torch.float64)
        self._relevance: dict[int, Tensor] = {}

    def value(self, argument: Any) -> Any:
        """The tensor of an argument, floats in the precision of the walk."""
        value = self.tape.values[argument.index] if isinstance(argument, Slot) else argument
        return value.to(self.dtype) if isinstance(value, Tensor) and value.is_floating_point() else value

    def leak(self, node: Node, amount: Tensor) -> None:
        """Books relevance that constants or ε took."""
        slot = node.outputs[0]
        assert slot is not None
        self.leaked += self.owners.total(amount, slot).to(self.leaked)

    def run(self, top: int, start: Tensor, keep: frozenset[int]) -> Arrival:
        """Walks all the way down from relevance `start` at a slot."""
        self._relevance = {top: start.to(self.dtype)}
        by_slot: dict[int, Tensor] = {}
        for node in reversed(self.tape.nodes):
            upstream = [self._take(slot, by_slot, keep) for slot in node.outputs]
            if any(part is not None for part in upstream):
                self._pass(node, upstream)
        arrived = torch.zeros_like(self.leaked)
        for slot in self.tape.sources:
            amount = self._take(slot, by_slot, keep)
            arrived += 0 if amount is None else self.owners.total(amount, slot).to(arrived)
        return Arrival(arrived, self.leaked, by_slot)

    def _take(self, slot: int | None, by_slot: dict[int, Tensor], keep: frozenset[int]) -> Tensor | None:
        """Takes the relevance of a slot, which is complete once all nodes that read it are done; stores it if the slot is in `keep`."""
        relevance = self._relevance.pop(slot, None) if slot is not None else None
        if slot in keep and relevance is not None:
            by_slot[slot] = relevance
        return relevance

    def _pass(self, node: Node, upstream: list[Tensor | None]) -> None:
        for slot, share in rule_of(node)(self, node, upstream):
            known = self._relevance.get(slot)
            rounded = share if self.noise is None else self.noise.apply(share)
            self._relevance[slot] = rounded if known is None else known + rounded


def precision(tape: Tape) -> torch.dtype:
    """Double where some value of the pass has it, else single: models in double run their softmax in single, those in half run all in it."""
    return torch.float64 if any(value.dtype == torch.float64 for value in tape.values) else torch.float32
