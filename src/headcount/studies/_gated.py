"""Evaluations with heads gated away, kept in a run, and their change against the dense model, paired over examples. Imports torch."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor, nn

from headcount.core.budget import Budget
from headcount.core.errors import OptionError
from headcount.core.evaluation import Evaluation, rise_of_loss
from headcount.core.heads import Head
from headcount.core.stats.means import MeanDifference
from headcount.core.stats.seed_parts import metric_of_second_minus_first
from headcount.data.chunks import batches
from headcount.data.task import Split, Task
from headcount.models.gates import HeadGates, Replacement
from headcount.models.head_map import HeadMap
from headcount.models.observe import mean_outputs
from headcount.models.provenance import weight_hash
from headcount.runs.store import Run
from headcount.workflows.evaluate import evaluate_into


@dataclass(frozen=True, slots=True)
class PairedChange:
    """Change of the loss and of the metric between two models on the same examples."""

    loss: MeanDifference
    metric: MeanDifference | None

    @property
    def score(self) -> MeanDifference:
        """The change of the metric, or of the loss where there is no metric."""
        return self.metric if self.metric is not None else self.loss

    def to_dict(self) -> dict[str, float | None]:
        """Returns the numbers by name, as plain data."""
        numbers = {f"loss {name}": value for name, value in asdict(self.loss).items()}
        if self.metric is not None:
            numbers |= {f"metric {name}": value for name, value in asdict(self.metric).items()}
        return numbers


def measure_paired_change(dense: Evaluation, pruned: Evaluation, task: Task, *, seed: int = 0, level: float = 0.95) -> PairedChange:
    """Returns the change from `dense` to `pruned` on the same examples, of the mean loss and of the metric, with intervals of this level."""
    loss = rise_of_loss(dense, pruned, level=level)
    if task.metric is None or dense.parts is None or pruned.parts is None:
        return PairedChange(loss, None)
    change = metric_of_second_minus_first(dense, pruned, task.metric.total, seed=seed, level=level)
    return PairedChange(loss, MeanDifference(change.difference, change.low, change.high, change.p))


def allow_other_model(run: Run | None, model: nn.Module) -> None:
    """Lets a run hold artifacts of a model that a study compares with the run's own."""
    if run is not None:
        run.register_compared_weights(weight_hash(model))


def evaluate_without(
    run: Run | None,
    artifact_name: str,
    model: nn.Module,
    task: Task,
    removed_heads: Iterable[Head],
    *,
    ablation: Replacement = "zero",
    means: Mapping[str, Tensor] | None = None,
    split: Split = "report",
    limit: int | None = None,
    batch_size: int | None = None,
) -> Evaluation:
    """Evaluates the model on a split with some heads gated away; a run keeps the evaluation under `artifact_name`."""
    allow_other_model(run, model)
    removed = frozenset(removed_heads)
    if not removed:
        return evaluate_into(run, artifact_name, model, task, split=split, limit=limit, batch_size=batch_size)
    under: dict[str, Any] = {"removed": sorted(map(str, removed)), "how": ablation}
    if means is not None:
        under["means"] = _hash_means(means)
    gates = HeadGates(model, how=ablation, means=means)
    gates.values = [float(head not in removed) for head in gates.heads]
    with gates:
        return evaluate_into(run, artifact_name, model, task, gate_description=under, split=split, limit=limit, batch_size=batch_size)


def _hash_means(means: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(means):
        digest.update(name.encode())
        digest.update(means[name].detach().double().cpu().numpy().tobytes())
    return digest.hexdigest()


def measure_means_for_ablation(
    model: nn.Module, task: Task, ablation: Replacement, limit: int | None, split: Split = "calibration"
) -> dict[str, Tensor] | None:
    """Returns the mean outputs of the heads on a split if the ablation puts them in place of removed heads, else None."""
    return mean_outputs(model, batches(task, split=split, limit=limit)) if ablation == "mean" else None


def resolve_kept_count(keep: int | float | str, n_heads: int) -> int:
    """Returns how many of the heads stay: a number of heads, or a share of them such as 0.25 or "25%".

    Raises:
        OptionError: the number is out of range, or the text is none.
    """
    try:
        if isinstance(keep, str) and not keep.strip().endswith("%"):
            keep = int(keep) if keep.strip().isdecimal() else float(keep)
        return Budget(keep=keep).heads(n_heads)
    except ValueError as error:
        raise OptionError(
            f"keep must be a number of heads from 1 to {n_heads}, or a share up to 100%, such as 25% or 0.25; got {keep}"
        ) from error


def list_kept_counts(keeps: Sequence[int | float | str], head_map: HeadMap, default_shares: Sequence[float]) -> list[int]:
    """Returns how many heads stay at each level of a curve, most first: `keeps`, or these shares of the units that stay or go together."""
    if keeps:
        return sorted({resolve_kept_count(keep, len(head_map)) for keep in keeps}, reverse=True)
    units = head_map.units()
    size = len(units[0]) if len({len(unit) for unit in units}) == 1 else 1
    number = len(head_map) // size
    return sorted({max(1, round(share * number)) * size for share in default_shares}, reverse=True)
