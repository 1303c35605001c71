"""What losses and metrics do when heads are gated away, one intervention at a time, for the two methods that look at that."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from headcount.core.errors import memory_ran_out
from headcount.core.heads import AttentionBlock
from headcount.core.stats.totals import Totals
from headcount.data.chunks import n_rows
from headcount.data.losses import Losses
from headcount.data.stream import Reading, stream
from headcount.importance.base import Work
from headcount.importance.replay.engine import Ablator
from headcount.importance.replay.replay import Intervention
from headcount.importance.shared_pass import by_example
from headcount.models.gates import HeadGates
from headcount.models.head_map import HeadMap
from headcount.models.observe import Observation, Observer, evaluating, model_inputs
from headcount.models.state import forward

Gates = Callable[[int, int], float]
"""(the head that the intervention is about, another head of its block) -> that head's gate."""


def all_but(head: int, other: int) -> float:
    """Only this head goes."""
    return 0.0 if head == other else 1.0


def none_but(head: int, other: int) -> float:
    """Only this head of its block stays."""
    return 1.0 if head == other else 0.0


def changes(heads: HeadMap, gates: Gates) -> Iterator[Intervention]:
    """One intervention for every head, in flat order."""
    for block in heads.blocks:
        for head in range(block.n_heads):
            yield Intervention(block, tuple(gates(head, other) for other in range(block.n_heads)))


def mean_outputs(work: Work) -> dict[str, Tensor]:
    """The mean output of every head over the real tokens of the data, read in the same fixed order as for scores."""
    found: dict[str, Tensor] = {}
    rows: list[int] = []

    def add(seen: Observation) -> None:
        assert seen.outputs is not None
        real = torch.where(seen.queries[..., None, None], seen.outputs.double(), 0).sum(1)
        total, number = by_example(seen.block, rows[0], real, seen.queries.sum(-1, keepdim=True).double())
        found[seen.block.path] = found.get(seen.block.path, 0) + total
        found[f"{seen.block.path}/n"] = found.get(f"{seen.block.path}/n", 0) + number

    def measure(batch: Mapping[str, Any], _numbers: list[int]) -> dict[str, Tensor]:
        found.clear()
        rows[:] = [n_rows(batch)]
        with observer:
            observer.run(batch)
        return dict(found)

    observer = Observer(work.model, add, blocks=work.heads.blocks, attention=False)
    source = work.reading
    reading = Reading(source.data, source.split, source.limit, source.batch_size, source.pad_id)
    sums: dict[str, Totals] = {}
    for measured in stream(reading, measure):
        for block in work.heads.blocks:
            if block.n_heads:
                number = measured[f"{block.path}/n"]
                means = measured[block.path] / number[..., None].clip(min=1)
                sums.setdefault(block.path, Totals(block.n_heads, block.value_dim)).update(means, number)
    return {path: torch.from_numpy(total.mean()) for path, total in sums.items()}


class Ablation:
    """Runs one family of interventions over batches."""

    def __init__(self, work: Work, how: str, gates: Gates) -> None:
        self.work = work
        self.changes = list(changes(work.heads, gates))
        self.how: Any = how
        self.means = mean_outputs(work) if how == "mean" else None
        self.active: list[int] | None = None
        """The interventions still to be tried, all where None; the others get weight 0."""
        self._ablator: Ablator | None = None

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Tensor]:
        """The rise of every example's loss [batch, heads] under each intervention, and what it adds to the metric."""
        batch = model_inputs(batch, self.work.model)
        if self.active is not None:
            return self._some(batch, self.active)
        base, changed = self._run(batch, self.changes)
        found = {"": (changed["loss"] - base["loss"]).T}
        if "parts" in base:
            found |= {"metric": changed["parts"].transpose(0, 1), "metric_base": base["parts"]}
        if self.work.generate and self.work.metric is not None and self.work.metric.generates:
            found |= self._generated(batch)
        return found

    def _some(self, batch: Mapping[str, Any], active: list[int]) -> dict[str, Tensor]:
        base, changed = self._run(batch, [self.changes[i] for i in active])
        rises = (changed["loss"] - base["loss"]).T
        found = {"": torch.zeros(rises.shape[0], len(self.changes), dtype=rises.dtype, device=rises.device)}
        found["weight"] = torch.zeros_like(found[""])
        found[""][:, active], found["weight"][:, active] = rises, 1.0
        return found

    def _run(self, batch: Mapping[str, Any], changes: list[Intervention]) -> tuple[Any, Any]:
        """What is read for a batch and under changes; where memory runs out on several copies of the batch, with fewer of them."""
        ablator = self._ready(batch)
        while True:
            try:
                return ablator.run(batch, changes, self._read)
            except (RuntimeError, MemoryError) as error:
                if not memory_ran_out(error) or ablator.max_tokens <= _tokens(batch):
                    raise
                ablator.max_tokens //= 2

    def _ready(self, batch: Mapping[str, Any]) -> Ablator:
        """The ablator; labels are kept from models that need them only for a mean loss that nobody reads."""
        if self._ablator is None:
            with evaluating(self.work.model):
                self.work.losses(forward(self.work.model, batch), batch)
            decodes = getattr(self.work.model.config, "is_encoder_decoder", False)
            withhold = ["labels"] if self.work.losses.reads_logits and not decodes else []
            limit = 1 if self.work.losses.one_by_one else None
            self._ablator = Ablator(self.work.model, how=self.how, means=self.means, withhold=withhold, max_tokens=limit)
        return self._ablator

    def _read(self, output: Any, batch: Mapping[str, Any]) -> dict[str, Tensor]:
        losses: Losses = self.work.losses(output, batch)
        metric = self.work.metric
        if metric is None or metric.generates:
            return {"loss": losses.double()}
        return {"loss": losses.double(), "parts": metric.parts(self.work.model, output, batch).double()}

    def _generated(self, batch: Mapping[str, Any]) -> dict[str, Tensor]:
        model, metric, heads = self.work.model, self.work.metric, self.work.heads
        assert metric is not None
        with evaluating(model):
            base = metric.parts(model, None, batch).double()
            parts = []
            for change in self.changes:
                with HeadGates(model, _values(heads, change.block, change.gates), how=self.how, means=self.means):
                    parts.append(metric.parts(model, None, batch).double())
        return {"metric": torch.stack(parts, 1), "metric_base": base}

    @property
    def note(self) -> str:
        """Why some blocks are evaluated the slow way; empty if none is."""
        return self._ablator.fallback_reason if self._ablator else ""


def _tokens(batch: Mapping[str, Any]) -> int:
    """How many tokens a batch holds; for other inputs than text its examples."""
    texts = [batch[name].numel() for name in ("input_ids", "decoder_input_ids") if isinstance(batch.get(name), Tensor)]
    return max(texts, default=n_rows(batch))


def _values(heads: HeadMap, block: AttentionBlock, gates: tuple[float, ...]) -> Tensor:
    values = torch.ones(len(heads), dtype=torch.float64)
    values[heads.positions(block)] = torch.tensor(gates, dtype=torch.float64)
    return values
