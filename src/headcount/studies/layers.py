from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from headcount.core.heads import AttentionBlock, Head
from headcount.core.options import option
from headcount.core.stats.significance import paired_t
from headcount.core.study_result import Column, StudyResult, Table, interval_columns
from headcount.studies._base import Progress, Study, StudyContext, StudyInfo
from headcount.studies._results import SIGNIFICANT, correct_rows, format_interval, keep_rows

if TYPE_CHECKING:
    from torch import nn

    from headcount.core.evaluation import Evaluation
    from headcount.data.task import Task
    from headcount.models.head_map import HeadMap
    from headcount.runs.store import Run

THIRD, LAYER, CONSECUTIVE, SPREAD = "third", "layer", "consecutive", "spread"
Ablation = Literal["zero", "mean", "uniform"]


@dataclass(frozen=True)
class Layers(Study):
    """Which layers matter? What the model loses when layers lose their heads: thirds, single layers, consecutive against spread-out pairs.

    Budhraja et al. 2020: no preference for top or bottom in BERT, but sparing the middle and avoiding consecutive layers helps. Heads are gated away;
    every evaluation is paired with that of the dense model. The excess of a pair is its cost beyond that of its two layers one by one.
    """

    _: KW_ONLY
    how: Literal["zero", "mean", "uniform"] = option(
        "zero", "What stands in for the removed heads: nothing, their mean output, or uniform attention"
    )
    info = StudyInfo(paper="Budhraja et al. 2020", needs=frozenset({"model", "task"}), optional=frozenset({"run"}))

    def measure(self, context: StudyContext) -> StudyResult:
        """Returns a row for every group of layers and, by stack, consecutive against spread-out pairs."""
        from headcount.studies._gated import score_of

        loaded = context.loaded
        context.describe_run(loaded, {"study": self.name, "how": self.how, "limit": context.limit})
        task = context.task
        with context.progress("removing layers", "groups") as advance:
            dense, rows, pairs = remove_layers(
                loaded.model,
                task,
                ablation=self.how,
                run=context.run,
                progress=advance,
                seed=context.seed,
                limit=context.limit,
                batch_size=context.batch_size,
            )
        keep_rows(context.run, self.name, {"model": context.model_name, "task": task.name, "data": dense.data, "how": self.how}, rows)
        metric = dense.metric or "loss"
        score = "metric" if dense.parts is not None else "loss"
        return StudyResult(
            study=str(self),
            tables=(_group_table(rows, metric, score), *([_pair_table(pairs)] if pairs else [])),
            sentence=_verdict(rows, metric, score),
            notes=(f"Dense model: {metric} {score_of(dense):.4g} on {dense.n_examples} examples.",),
            measurements={
                "model": context.model_name,
                "task": task.name,
                "how": self.how,
                "dense": {"loss": dense.loss, "metric": dense.metric, "value": dense.value},
                "rows": rows,
                "pairs": pairs,
            },
        )


@dataclass(frozen=True, slots=True)
class Group:
    """Layers of one stack that lose their heads together."""

    kind: str
    name: str
    stack: str
    layers: tuple[int, ...]
    heads: tuple[Head, ...]


def group_layers(heads: HeadMap, kinds: Sequence[str] = (THIRD, LAYER, CONSECUTIVE, SPREAD)) -> list[Group]:
    """Returns the thirds, single layers and pairs of every stack; thirds need three layers, spread-out pairs four."""
    groups: list[Group] = []
    for stack in dict.fromkeys(block.stack for block in heads.blocks):
        blocks = sorted((block for block in heads.blocks if block.stack == stack and block.n_heads), key=lambda block: block.layer)
        for kind in kinds:
            groups += [_group(kind, name, part) for name, part in _split_stack(kind, blocks)]
    return groups


def _split_stack(kind: str, blocks: list[AttentionBlock]) -> list[tuple[str, list[AttentionBlock]]]:
    depth, half = len(blocks), len(blocks) // 2
    if kind == LAYER:
        return [("", [block]) for block in blocks]
    if kind == THIRD:
        if depth < 3:
            return []
        side = round(depth / 3)  # bottom and top are of one size, so that they can be compared
        return [("bottom", blocks[:side]), ("middle", blocks[side : depth - side]), ("top", blocks[depth - side :])]
    if kind == CONSECUTIVE:
        return [("", [blocks[i], blocks[i + 1]]) for i in range(depth - 1)] if depth > 2 else []
    return [("", [blocks[i], blocks[i + half]]) for i in range(depth - half)] if half > 1 else []


def _group(kind: str, name: str, blocks: list[AttentionBlock]) -> Group:
    layers = tuple(block.layer for block in blocks)
    addresses = "+".join([blocks[0].name, *(f"L{layer}" for layer in layers[1:])])
    title = f"{name} ({addresses})" if name else addresses
    return Group(kind, title, blocks[0].stack, layers, tuple(head for block in blocks for head in block.heads))


def remove_layers(
    model: nn.Module,
    task: Task,
    *,
    ablation: Ablation = "zero",
    run: Run | None = None,
    progress: Progress | None = None,
    seed: int = 0,
    limit: int | None = None,
    batch_size: int | None = None,
) -> tuple[Evaluation, list[dict[str, Any]], list[dict[str, Any]]]:
    """Returns the evaluation of the dense model, a row for every group of layers, and rows of consecutive against spread-out pairs by stack."""
    from headcount.models.head_map import HeadMap
    from headcount.studies import _gated as gated

    groups = group_layers(HeadMap.of(model))
    means = gated.means_for(model, task, ablation, limit)
    dense = gated.evaluate_without(run, "dense", model, task, (), limit=limit, batch_size=batch_size)
    evaluations: dict[tuple[str, str], Evaluation] = {}
    for number, group in enumerate(groups):
        evaluations[group.kind, group.name] = gated.evaluate_without(
            run, f"without {group.name}", model, task, group.heads, ablation=ablation, means=means, limit=limit, batch_size=batch_size
        )
        if progress is not None:
            progress(number + 1, len(groups))
    chance = gated.chance_of(model, task, limit)
    rows = []
    for group in groups:
        pruned = evaluations[group.kind, group.name]
        drop = gated.measure_drop(dense, pruned, task, seed=seed)
        share = gated.share_left(dense, pruned, task, chance, seed=seed)
        names = {"kind": group.kind, "name": group.name, "stack": group.stack, "layers": list(group.layers), "heads": len(group.heads)}
        rows.append({**names, "loss": pruned.loss, "value": pruned.value, **drop.flat(), **share.flat(), "p": drop.score.p})
    correct_rows(rows)
    return dense, rows, _compare_pairs(groups, evaluations, dense)


def _compare_pairs(groups: Sequence[Group], evaluations: Mapping[tuple[str, str], Evaluation], dense: Evaluation) -> list[dict[str, Any]]:
    """Returns, by stack, the mean rise of the loss and the mean excess of consecutive minus spread-out pairs, paired over examples."""
    rise = {(group.kind, group.name): evaluations[group.kind, group.name].losses - dense.losses for group in groups}
    of_layer = {(group.stack, group.layers[0]): rise[group.kind, group.name] for group in groups if group.kind == LAYER}
    rows = []
    for stack in dict.fromkeys(group.stack for group in groups):
        means: dict[str, tuple[Any, Any]] = {}
        for kind in (CONSECUTIVE, SPREAD):
            pairs = [group for group in groups if (group.stack, group.kind) == (stack, kind)]
            rises = [rise[group.kind, group.name] for group in pairs]
            excesses = [rise[group.kind, group.name] - sum(of_layer[stack, layer] for layer in group.layers) for group in pairs]
            if pairs:
                means[kind] = np.mean(rises, axis=0), np.mean(excesses, axis=0)
        for index, quantity in enumerate(("rise", "excess")) if len(means) == 2 else ():
            consecutive, spread = means[CONSECUTIVE][index], means[SPREAD][index]
            gap = paired_t(consecutive - spread)
            values = {CONSECUTIVE: float(consecutive.mean()), SPREAD: float(spread.mean())}
            ends = {"difference": gap.difference, "low": gap.low, "high": gap.high, "p": gap.p}
            rows.append({"stack": stack, "what": quantity, **values, **ends})
    return rows


def _group_table(rows: Sequence[Mapping[str, Any]], metric: str, score: str) -> Table:
    columns = (
        Column("group"),
        Column("layers without heads"),
        Column("heads"),
        Column(metric, format=".4g"),
        *interval_columns("change", "+.3g", metric),
        Column("q", format=".2g"),
        *interval_columns("change of the loss", "+.3g"),
    )
    cells = [
        (
            row["kind"],
            row["name"],
            row["heads"],
            row["loss"] if row["value"] is None else row["value"],
            *(row[f"{score} {end}"] for end in ("difference", "low", "high")),
            row["q"],
            *(row[f"loss {end}"] for end in ("difference", "low", "high")),
        )
        for row in rows
    ]
    return Table("groups", columns, tuple(cells))


def _pair_table(pairs: Sequence[Mapping[str, Any]]) -> Table:
    columns = (
        Column("stack"),
        Column("of the loss"),
        Column(CONSECUTIVE, format="+.4g"),
        Column(SPREAD, format="+.4g"),
        *interval_columns("difference", "+.3g"),
        Column("p", format=".2g"),
    )
    names = ("stack", "what", CONSECUTIVE, SPREAD, "difference", "low", "high", "p")
    title = "Rise of the loss without two layers, and its excess over that of the two one by one: consecutive against spread-out pairs"
    return Table("pairs", columns, tuple(tuple(row[name] for name in names) for row in pairs), title)


def _verdict(rows: Sequence[Mapping[str, Any]], metric: str, score: str) -> str:
    n_significant = sum(row["q"] <= SIGNIFICANT for row in rows)
    largest = max(rows, key=lambda row: abs(row[f"{score} difference"]))
    change = format_interval(*(largest[f"{score} {end}"] for end in ("difference", "low", "high")))
    return (
        f"{n_significant} of {len(rows)} groups of layers change {metric} significantly when they lose their heads (q ≤ {SIGNIFICANT}); "
        f"the largest change is {change} without {largest['name']}."
    )
