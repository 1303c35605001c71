from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np

from headcount.core.errors import OptionError
from headcount.core.heads import Head
from headcount.core.options import option
from headcount.core.plan import Plan
from headcount.core.stats.agreement import spearman
from headcount.core.stats.significance import paired_t
from headcount.core.study_result import Column, StudyResult, Table, interval_columns
from headcount.pruning.recipe import Recipe
from headcount.pruning.spec import PruneSpec
from headcount.runs.artifacts import Artifact
from headcount.studies._base import Study, StudyContext, StudyInfo
from headcount.studies._results import SIGNIFICANT, correct_rows, keep_rows

QUANTITIES = ("q", "k", "v", "o", "importance")
REPEATS = 10_000


@dataclass(frozen=True)
class Compensation(Study):
    """Do the heads that stay make up for those that went? Their change in the fine-tuning after pruning, against that of the dense model.

    Budhraja et al. 2020 (section 6): the relative change of the slices of a head, ‖ΔW_h‖/‖W_h‖ of Q, K, V and O, and of its importance, in two
    trainings by one recipe: that of the pruned model and that of the dense one. The same head is compared with itself; the test runs over the
    heads that stay. Published: compensation is spread evenly over layers.
    """

    _: KW_ONLY
    keep: int | float | str = option(help="How many heads stay, 2 or more: a number, or a share such as 25%")
    method: str = option("gradient", "A pruner with its options, such as dsp(tau=2), or an importance to rank by")
    by: str = option("gradient", "The importance whose change is measured")
    steps: int | None = option(None, "Optimiser steps of every training; by default those of one epoch, and at least 300", minimum=1)
    epochs: float | None = option(None, "Instead of steps: epochs of every training", above=0)
    rate: float = option(5e-5, "The learning rate", minimum=0)
    train_batch: int = option(32, "Examples per training step", minimum=1)
    info = StudyInfo(paper="Budhraja et al. 2020, section 6", needs=frozenset({"model", "task", "run"}))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps is not None and self.epochs is not None:
            raise OptionError("the length of training is set by steps or by epochs, not by both; leave one out")

    def measure(self, context: StudyContext) -> StudyResult:
        """Returns the differences by part over all survivors and by layer, and how evenly they are spread over layers."""
        from headcount.importance.base import Importance
        from headcount.pruning.prune import check_request
        from headcount.studies._gated import count_heads
        from headcount.studies._tuning import note_training, tune_model
        from headcount.workflows.prune import Pruning

        by = str(Importance.parse(self.by))
        run, loaded = context.required_run, context.loaded
        keep = count_heads(self.keep, len(loaded.heads))
        recipe = Recipe(epochs=self.epochs, steps=self.steps, rate=self.rate, train_batch=self.train_batch)
        request = PruneSpec.of(self.method, keep, repair=False, recipe=recipe, seed=context.seed)
        check_request(request, loaded.model, loaded.heads)
        if keep < 2:
            raise OptionError("compensation compares the heads that stay; keep 2 or more")
        context.describe_run(loaded, {"study": self.name, "spec": request.to_dict(), "by": by})
        task = context.task
        pruning = Pruning(run, loaded.model, task, limit=context.limit, command=context.command)
        note_training(context, pruning, [request])
        with context.progress(f"pruning by {self.method}") as advance:
            artifact, small = pruning.make(request, advance)
        small, plan = small.to(next(loaded.model.parameters()).device).eval(), Plan.removing(artifact.content["removed"])
        context.note(f"two fine-tunings of {recipe.n_steps(len(task.calibration))} optimiser steps each follow")
        with context.progress("fine-tuning the pruned model") as advance:
            pruned = tune_model(context, f"after {request.name}", small, recipe, by=by, progress=advance)
        with context.progress("fine-tuning the dense model") as advance:
            dense = tune_model(context, "whole", loaded.model, recipe, by=by, progress=advance)
        rows, evenness, heads = compare_changes(pruned, dense, plan, seed=context.seed)
        keep_rows(run, self.name, {**pruning.base_key, "spec": request.to_dict(), "by": by}, rows)
        return StudyResult(
            study=str(self),
            tables=(_change_table(rows), _evenness_table(evenness)),
            sentence=_verdict(rows),
            notes=(f"After fine-tuning by one recipe: pruned {_format_score(pruned)}, dense {_format_score(dense)}.",),
            measurements={
                "model": context.model_name,
                "task": task.name,
                "removed": list(map(str, plan.removed)),
                "tuned": {
                    name: {key: artifact.content[key] for key in ("loss", "metric", "value")}
                    for name, artifact in (("pruned", pruned), ("whole", dense))
                },
                "rows": rows,
                "even": evenness,
                "heads": heads,
            },
        )


def compare_changes(
    pruned: Artifact, dense: Artifact, plan: Plan, *, seed: int = 0
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[dict[str, Any]]]:
    """Returns rows by part over all survivors and by layer, rows of how even they are over layers, and the numbers of every head.

    A difference is that of a head in the fine-tuning after pruning minus the same head in that of the dense model; intervals and p are those of a
    paired t over heads, which share their training and are not quite independent. Evenness is tested by permuting heads over layers.
    """
    heads = [Head.parse(head) for head in pruned.content["heads"]]
    index_of = {head: index for index, head in enumerate(dense.content["heads"])}
    after_pruning = pruned.arrays["changes"]
    of_dense = dense.arrays["changes"][[index_of[str(head)] for head in heads]]
    layer = np.array([str(head).rpartition("H")[0] for head in heads])
    n_lost = np.array([sum((removed.stack, removed.layer) == (head.stack, head.layer) for removed in plan.removed) for head in heads])
    members = {"all": np.ones(len(layer), dtype=bool)} | {str(name): layer == name for name in dict.fromkeys(layer.tolist())}
    rows: list[dict[str, Any]] = []
    evenness: list[dict[str, Any]] = []
    for number, quantity in enumerate(QUANTITIES):
        values = after_pruning[:, number], of_dense[:, number]
        rows += [compare_heads(quantity, name, values[0][is_member], values[1][is_member]) for name, is_member in members.items()]
        evenness.append(_test_evenness(quantity, values[0] - values[1], layer, n_lost, seed))
    correct_rows(rows)
    by_head = []
    for index, head in enumerate(heads):
        numbers = {f"{quantity} pruned": float(after_pruning[index, number]) for number, quantity in enumerate(QUANTITIES)}
        numbers |= {f"{quantity} whole": float(of_dense[index, number]) for number, quantity in enumerate(QUANTITIES)}
        by_head.append({"head": str(head), **numbers})
    return rows, evenness, by_head


def compare_heads(quantity: str, layer: str, pruned: np.ndarray, dense: np.ndarray) -> dict[str, Any]:
    """Returns the mean difference over some heads; the uncertainty of a single head is unknown, so its interval and p are None."""
    gap = pruned - dense
    test = paired_t(gap) if len(gap) > 1 else None
    return {
        "part": quantity,
        "where": layer,
        "heads": len(gap),
        "pruned": float(pruned.mean()),
        "whole": float(dense.mean()),
        "difference": float(gap.mean()),
        **({"low": None, "high": None, "p": None} if test is None else {"low": test.low, "high": test.high, "p": test.p}),
    }


def _test_evenness(quantity: str, gap: np.ndarray, layer: np.ndarray, n_lost: np.ndarray, seed: int) -> dict[str, Any]:
    """Tests whether layers differ, and whether survivors of layers that lost more heads change more; None where nothing varies."""
    random = np.random.Generator(np.random.Philox(seed))
    between = _variance_between(gap[None], layer)[0]
    permuted = _variance_between(random.permuted(np.tile(gap, (REPEATS, 1)), axis=1), layer)
    p = (1 + int((permuted >= between * (1 - 1e-9)).sum())) / (REPEATS + 1)
    total = float(gap.var())
    varies = len(set(n_lost.tolist())) > 1 and total > 0
    return {
        "part": quantity,
        "share between layers": float(between) / total if total else None,
        "p": p,
        "rank correlation with heads lost": float(spearman(gap, n_lost.astype(float))) if varies else None,
    }


def _variance_between(values: np.ndarray, layer: np.ndarray) -> np.ndarray:
    """Returns the variance between layers of each row of values."""
    names = sorted(set(layer.tolist()))
    means = np.stack([values[:, layer == name].mean(1) for name in names], 1)
    sizes = np.array([(layer == name).sum() for name in names])
    return ((means - values.mean(1, keepdims=True)) ** 2 * sizes).sum(1) / values.shape[1]


def _format_score(artifact: Artifact) -> str:
    content = artifact.content
    return f"{content['metric'] or 'loss'} {content['loss'] if content['value'] is None else content['value']:.4g}"


def _change_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    columns = (
        Column("part"),
        Column("where"),
        Column("heads"),
        Column("after pruning", format=".4g"),
        Column("in the dense model", format=".4g"),
        *interval_columns("difference", "+.3g"),
        Column("p", format=".2g"),
        Column("q", format=".2g"),
    )
    names = ("part", "where", "heads", "pruned", "whole", "difference", "low", "high", "p", "q")
    title = "Relative change of the heads that stay (importance: logarithm of the ratio after to before)"
    return Table("changes", columns, tuple(tuple(row[name] for name in names) for row in rows), title)


def _evenness_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    correlation = "rank correlation with heads lost in the layer"
    columns = (Column("part"), Column("between layers", format=".0%"), Column("p", format=".2g"), Column(correlation, format="+.2f"))
    title = "Share of the variance of the differences that lies between layers; p of heads permuted over layers"
    return Table("evenness", columns, tuple(tuple(row.values()) for row in rows), title)


def _verdict(rows: Sequence[Mapping[str, Any]]) -> str:
    of_all = [row for row in rows if row["where"] == "all" and row["q"] is not None and row["q"] <= SIGNIFICANT]
    parts = [f"{row['part']} {row['difference']:+.3g} (q = {row['q']:.2g})" for row in of_all]
    if not parts:
        return f"The heads that stay change after pruning as they do in the dense model (no difference with q ≤ {SIGNIFICANT})."
    return f"The heads that stay change differently after pruning than in the dense model: {', '.join(parts)}."
