"""The effect of interventions on heads on losses and metrics, one intervention at a time, for `ablation` and `all-but-one`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from headcount.core.errors import is_out_of_memory
from headcount.core.stats.totals import Totals
from headcount.data.chunks import n_rows
from headcount.data.stream import Reading, stream
from headcount.importance.base import BatchMeasurement, ScoreContext
from headcount.importance.replay.engine import Ablator, Intervention, InterventionResults
from headcount.importance.shared_pass import sum_rows_by_example
from headcount.models.gates import HeadGates, Replacement
from headcount.models.head_map import HeadMap
from headcount.models.modules import Batch
from headcount.models.observe import Observation, Observer, evaluating, model_inputs
from headcount.models.state import forward_preserving_state

GateForTarget = Callable[[int, int], float]
"""(position of the target head in its block, position of a head of that block) -> the gate of the latter."""


def gate_removing_target(target_position: int, head_position: int) -> float:
    """Returns the gate of a head if only the target is removed from its block."""
    return 0.0 if head_position == target_position else 1.0


def gate_keeping_target(target_position: int, head_position: int) -> float:
    """Returns the gate of a head if only the target stays in its block."""
    return 1.0 if head_position == target_position else 0.0


def one_intervention_per_head(heads: HeadMap, gate_of: GateForTarget) -> Iterator[Intervention]:
    """Yields one intervention for every head, in flat order."""
    for block in heads.blocks:
        for target in range(block.n_heads):
            yield Intervention(block, tuple(gate_of(target, head) for head in range(block.n_heads)))


def measure_mean_outputs(context: ScoreContext) -> dict[str, Tensor]:
    """Returns the mean output of every head over the real tokens of the data, by block path.

    Data are read in the chunks of scores, by all processes, so that the bits do not depend on either; `models.observe.mean_outputs` sums batch
    by batch.
    """
    sums: dict[str, Tensor] = {}
    counts: dict[str, Tensor] = {}
    n_examples = 0

    def add_outputs(observation: Observation) -> None:
        assert observation.outputs is not None
        queries, path = observation.queries, observation.block.path
        real = torch.where(queries[..., None, None], observation.outputs.double(), 0).sum(1)
        total, count = sum_rows_by_example(observation.block, n_examples, real, queries.sum(-1, keepdim=True).double())
        sums[path] = sums.get(path, 0) + total
        counts[path] = counts.get(path, 0) + count

    def sum_outputs_of_batch(batch: Batch, _numbers: list[int]) -> dict[str, Tensor]:
        nonlocal n_examples
        sums.clear()
        counts.clear()
        n_examples = n_rows(batch)
        with observer:
            observer.run(batch)
        return {**sums, **{f"{path}/n": count for path, count in counts.items()}}

    observer = Observer(context.model, add_outputs, blocks=context.heads.blocks, attention=False)
    source = context.reading
    reading = Reading(source.data, source.split, source.limit, source.batch_size, source.pad_id)
    totals: dict[str, Totals] = {}
    for measured in stream(reading, sum_outputs_of_batch):
        for block in context.heads.blocks:
            if block.n_heads:
                count = measured[f"{block.path}/n"]
                means = measured[block.path] / count[..., None].clip(min=1)
                totals.setdefault(block.path, Totals(block.n_heads, block.value_dim)).update(means, count)
    return {path: torch.from_numpy(total.mean()) for path, total in totals.items()}


class InterventionEffects:
    """Measures batches under one intervention for every head: the rise of every example's loss, and what it adds to the metric."""

    def __init__(self, context: ScoreContext, how: Replacement, gate_of: GateForTarget) -> None:
        self.context = context
        self.interventions = list(one_intervention_per_head(context.heads, gate_of))
        self.how: Replacement = how
        self.means = measure_mean_outputs(context) if how == "mean" else None
        self._ablator: Ablator | None = None

    def __call__(self, batch: Batch) -> BatchMeasurement:
        """Returns the effects on a batch; in a race, those of heads that are decided have weight 0."""
        batch = model_inputs(batch, self.context.model)
        if self.context.race is not None:
            return self._measure_active_heads(batch, self.context.race.undecided_head_positions)
        results = self._run_interventions(batch, self.interventions)
        base, changed = results.baseline, results.under_interventions
        metric, metric_base = changed.get("parts"), base.get("parts")
        if self.context.generate and self.context.metric is not None and self.context.metric.generates:
            metric_base, metric = self._generate_metric_parts(batch)
        elif metric is not None:
            metric = metric.transpose(0, 1)
        return BatchMeasurement((changed["loss"] - base["loss"]).T, metric=metric, metric_base=metric_base)

    def _measure_active_heads(self, batch: Batch, active_positions: list[int]) -> BatchMeasurement:
        results = self._run_interventions(batch, [self.interventions[i] for i in active_positions])
        rises = (results.under_interventions["loss"] - results.baseline["loss"]).T
        values = torch.zeros(rises.shape[0], len(self.interventions), dtype=rises.dtype, device=rises.device)
        weights = torch.zeros_like(values)
        values[:, active_positions], weights[:, active_positions] = rises, 1.0
        return BatchMeasurement(values, weights)

    def _run_interventions(self, batch: Batch, interventions: list[Intervention]) -> InterventionResults:
        """Returns losses and metric parts without and under interventions; if memory runs out on stacked copies, fewer run at a time."""
        ablator = self._make_ablator(batch)
        texts = [batch[name].numel() for name in ("input_ids", "decoder_input_ids") if isinstance(batch.get(name), Tensor)]
        n_tokens = max(texts, default=n_rows(batch))  # of one copy; for inputs other than text, examples
        while True:
            try:
                return ablator.run(batch, interventions, self._read_losses_and_metric_parts)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error) or ablator.max_tokens <= n_tokens:
                    raise
                ablator.max_tokens //= 2

    def _make_ablator(self, batch: Batch) -> Ablator:
        """Returns the ablator. Labels are withheld from models that need them only for a mean loss that nobody reads."""
        if self._ablator is None:
            model, losses = self.context.model, self.context.losses
            with evaluating(model):
                losses(forward_preserving_state(model, batch), batch)
            decodes = getattr(model.config, "is_encoder_decoder", False)
            withhold = ["labels"] if losses.reads_logits and not decodes else []
            limit = 1 if losses.one_by_one else None
            self._ablator = Ablator(model, how=self.how, means=self.means, withhold=withhold, max_tokens=limit)
        return self._ablator

    def _read_losses_and_metric_parts(self, output: Any, batch: Batch) -> dict[str, Tensor]:
        losses = self.context.losses(output, batch)
        metric = self.context.metric
        if metric is None or metric.generates:
            return {"loss": losses.double()}
        return {"loss": losses.double(), "parts": metric.parts(self.context.model, output, batch).double()}

    def _generate_metric_parts(self, batch: Batch) -> tuple[Float[Tensor, "batch parts"], Float[Tensor, "batch heads parts"]]:
        """Returns the metric parts of generated text, without and under every intervention."""
        model, metric, heads = self.context.model, self.context.metric, self.context.heads
        assert metric is not None
        with evaluating(model):
            base = metric.parts(model, None, batch).double()
            parts = []
            for intervention in self.interventions:
                values = torch.ones(len(heads), dtype=torch.float64)
                values[heads.positions(intervention.block)] = torch.tensor(intervention.gates, dtype=torch.float64)
                with HeadGates(model, values, how=self.how, means=self.means, heads=heads):
                    parts.append(metric.parts(model, None, batch).double())
        return base, torch.stack(parts, 1)
