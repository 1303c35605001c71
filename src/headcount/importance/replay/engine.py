"""The ablator evaluates a batch under many interventions: by replay where a trial proves it on this model, else by gates."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from headcount.core.errors import GateError
from headcount.importance.replay.last_position import Narrow
from headcount.importance.replay.packing import packed_linears
from headcount.importance.replay.passes import Pass, Read
from headcount.importance.replay.player import first_copy
from headcount.importance.replay.replay import Intervention, Recording
from headcount.importance.replay.trial import Proven, drop_harmful_options, try_out
from headcount.models.attention import eager
from headcount.models.gates import HeadGates, Means, Replacement
from headcount.models.modules import Batch, device_of, unwrap
from headcount.models.observe import evaluating, model_inputs
from headcount.models.ownership import holding

MAX_TOKENS = {"cpu": 512}
"""Rows times tokens of a stacked batch by device type: where matrix products of usual widths are fastest."""
OTHER_MAX_TOKENS = 16384
PACK_FROM = 16
"""The number of interventions from which packing all weights pays."""


class Ablator:
    """Evaluates interventions on heads on a batch: exactly what `HeadGates(model, …, how=how)` gives, at a fraction of the cost.

    The first batch is a trial: the replay of every block is compared with gates. Blocks that fail use gates, and `fallbacks` says why.
    `withhold` names entries of the batch that `read` gets and the model does not, such as labels whose mean loss nobody reads. `pack` lets
    linear layers on a CPU use packed weights where the trial shows that only rounding differs; False keeps the model's own kernels.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        how: Replacement = "zero",
        means: Means | None = None,
        max_tokens: int | None = None,
        withhold: Sequence[str] = (),
        pack: bool = True,
    ) -> None:
        self.model = unwrap(model)
        self.max_tokens = max_tokens or MAX_TOKENS.get(device_of(self.model).type, OTHER_MAX_TOKENS)
        self.withhold, self.pack = frozenset(withhold), pack
        self._gates = HeadGates(self.model, how=how, means=means)
        self.heads = self._gates.heads
        self._proven: Proven | None = None
        self._inputs: tuple[tuple[str, int], ...] = ()
        takes = inspect.signature(self.model.forward).parameters
        self._options = {"use_cache": False} if "use_cache" in takes else {}

    @property
    def fallbacks(self) -> dict[str, str]:
        """Why blocks are evaluated by gates, by block path; known after the first batch."""
        return dict(self._proven.player.survey.refused) if self._proven else {}

    @property
    def fallback_reason(self) -> str:
        """Why gates are used in place of replay, for the first block where they are; empty where replay serves all of them."""
        path, reason = next(iter(self.fallbacks.items()), ("", ""))
        return f"{len(self.fallbacks)} of {len(self.heads.blocks)} blocks, such as '{path}': {reason}" if path else ""

    @property
    def reads(self) -> str:
        """`first` or `last` where the trial found that only this position of the last layer is read, else empty."""
        return self._proven.narrow.reads if self._proven and self._proven.narrow else ""

    def run(self, batch: Batch, interventions: Sequence[Intervention], read: Read) -> tuple[Any, Any]:
        """Returns what `read` gives for the batch [batch, …], and under every intervention [interventions, batch, …]."""
        self._check(interventions)
        with self._quiet():
            work, proven = self._judge(Pass.of(self.model, model_inputs(batch, self.model), read, self._options, self.withhold))
            with packed_linears(self.model) if self.pack and proven.packs and len(interventions) >= PACK_FROM else nullcontext():
                baseline, record, proven = self._record(work, proven)
                results = self._evaluate(work, record, proven, interventions, _narrow_for(work, record, proven, baseline))
        if not interventions:
            return baseline, tree_map(lambda tensor: tensor.unsqueeze(0)[:0], baseline)
        return baseline, tree_map(lambda *tensors: torch.stack(tensors), *results)

    def _check(self, interventions: Sequence[Intervention]) -> None:
        for intervention in interventions:
            self.heads.positions(intervention.block)
            if len(intervention.gates) != intervention.block.n_heads:
                raise GateError(
                    f"block '{intervention.block.path}' has {intervention.block.n_heads} heads, "
                    f"but an intervention gives {len(intervention.gates)} gates"
                )

    @contextmanager
    def _quiet(self) -> Iterator[None]:
        """Eval mode without gradients, and the path of the model's attention that the intervention needs."""
        with holding(self.model, "ablation"), evaluating(self.model):
            if self._gates.how == "uniform":
                with eager(self.model):
                    yield
            else:
                yield

    def _judge(self, work: Pass) -> tuple[Pass, Proven]:
        """Returns the pass, and what a trial proved on this model with inputs of this kind; runs the trial if there was none."""
        inputs = tuple(sorted((name, value.ndim) for name, value in work.batch.items() if isinstance(value, Tensor)))
        if self._proven is None or inputs != self._inputs:
            work = drop_harmful_options(work)
            self._options = dict(work.options)
            self._proven, self._inputs = try_out(self._gates, work), inputs
        return work, self._proven

    def _record(self, work: Pass, proven: Proven) -> tuple[Any, Recording | None, Proven]:
        """Returns the baseline and its record. A batch that takes another route through the model gets a trial of its own."""
        for attempt in range(2):
            survey = proven.player.survey
            if not survey.routes:
                break
            baseline, record = proven.player.record(work)
            if record.fits(proven.order, survey.layouts):
                return baseline, record, proven
            if attempt == 0:
                proven = self._proven = try_out(self._gates, work)
        return first_copy(work.result()), None, proven

    def _evaluate(
        self, work: Pass, record: Recording | None, proven: Proven, interventions: Sequence[Intervention], narrow: Narrow | None
    ) -> list[Any]:
        results: list[Any] = [None] * len(interventions)
        player = proven.player
        for positions in _by_block(interventions):
            block = interventions[positions[0]].block
            route = player.survey.routes.get(block.path) if record else None
            for part in _split_evenly(positions, self._copies(work, record) if proven.stackable else 1):
                gates = torch.tensor([interventions[position].gates for position in part], dtype=torch.float64).view(
                    len(part), block.n_heads
                )
                result = player.replay(work, record, route, gates, narrow) if record and route else player.run_gated(work, block, gates)
                for row, position in enumerate(part):
                    results[position] = tree_map(lambda tensor, row=row: tensor[row], result)
        return results

    def _copies(self, work: Pass, record: Recording | None) -> int:
        """Returns how many copies of the batch stay within `max_tokens`."""
        contexts = record.contexts.values() if record else ()
        tokens = max((context.numel() // max(1, context.shape[-1]) for context in contexts), default=work.tokens)
        return max(1, self.max_tokens // max(1, tokens))


def _narrow_for(work: Pass, record: Recording | None, proven: Proven, baseline: Any) -> Narrow | None:
    """Returns the narrow last layer if it reproduces the baseline of this batch."""
    narrow = proven.narrow
    return narrow if narrow and record and proven.player.narrow_holds(work, record, baseline, narrow) else None


def _by_block(interventions: Sequence[Intervention]) -> list[list[int]]:
    """Returns the positions of the interventions on each block."""
    groups: dict[str, list[int]] = {}
    for position, intervention in enumerate(interventions):
        groups.setdefault(intervention.block.path, []).append(position)
    return list(groups.values())


def _split_evenly(positions: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    """Yields the positions in as few parts of nearly equal length as hold at most `size` each."""
    count = -(-len(positions) // size)
    for part in range(count):
        yield positions[part * len(positions) // count : (part + 1) * len(positions) // count]
