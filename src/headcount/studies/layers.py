"""Which layers matter? What the model loses when a block of layers loses its heads: thirds, single layers, consecutive against spread-out pairs.

Budhraja et al. 2020: no preference for top or bottom in BERT, but sparing the middle and avoiding consecutive layers helps. Heads go by gates; every
loss is paired with the whole model's. The excess of a pair is what it costs beyond its two layers one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headcount.app.console import inputs
from headcount.app.console.command import command
from headcount.app.console.run_folder import Out, RunFolder, describe
from headcount.app.console.session import Session
from headcount.core.heads import AttentionBlock, Head
from headcount.models.head_map import HeadMap
from headcount.studies._gated import chance_of, check_how, drop, interval, means_of, score_of, share_left, without
from headcount.studies._results import corrected, keep_rows

if TYPE_CHECKING:
    from torch import nn

    from headcount.core.evaluation import Evaluation
    from headcount.data.task import Task
    from headcount.runs.store import Run

How = Annotated[str, typer.Option("--how", metavar="NAME", help="zero, mean or uniform: what becomes of the heads.")]
THIRDS, LAYER, CONSECUTIVE, SPREAD = "third", "layer", "consecutive", "spread"


@dataclass(frozen=True, slots=True)
class Group:
    """Layers of one stack that lose their heads together."""

    kind: str
    name: str
    stack: str
    layers: tuple[int, ...]
    heads: tuple[Head, ...]


def groups(heads: HeadMap, kinds: Sequence[str] = (THIRDS, LAYER, CONSECUTIVE, SPREAD)) -> list[Group]:
    """The thirds, single layers and pairs of every stack; thirds take three layers, spread-out pairs four."""
    found: list[Group] = []
    for stack in dict.fromkeys(block.stack for block in heads.blocks):
        blocks = sorted((block for block in heads.blocks if block.stack == stack and block.n_heads), key=lambda block: block.layer)
        for kind in kinds:
            found += [_group(kind, name, part) for name, part in _parts(kind, blocks)]
    return found


def _parts(kind: str, blocks: list[AttentionBlock]) -> list[tuple[str, list[AttentionBlock]]]:
    depth, half = len(blocks), len(blocks) // 2
    if kind == LAYER:
        return [("", [block]) for block in blocks]
    if kind == THIRDS:
        if depth < 3:
            return []
        side = round(depth / 3)  # bottom and top are of one size, so that they can be compared
        return [("bottom", blocks[:side]), ("middle", blocks[side : depth - side]), ("top", blocks[depth - side :])]
    if kind == CONSECUTIVE:
        return [("", [blocks[i], blocks[i + 1]]) for i in range(depth - 1)] if depth > 2 else []
    return [("", [blocks[i], blocks[i + half]]) for i in range(depth - half)] if half > 1 else []


def _group(kind: str, name: str, blocks: list[AttentionBlock]) -> Group:
    stack, layers = blocks[0].stack, tuple(block.layer for block in blocks)
    said = "+".join([blocks[0].name, *(f"L{layer}" for layer in layers[1:])])
    title = f"{name} ({said})" if name else said
    return Group(kind, title, stack, layers, tuple(head for block in blocks for head in block.heads))


def layers(
    model: nn.Module,
    task: Task,
    *,
    how: str = "zero",
    run: Run | None = None,
    progress: Any = None,
    seed: int = 0,
    limit: int | None = None,
    batch_size: int | None = None,
) -> tuple[Evaluation, list[dict[str, Any]], list[dict[str, Any]]]:
    """The whole model; a row for every group of layers; and, by stack, consecutive against spread-out pairs."""
    wanted = groups(HeadMap.of(model))
    means = means_of(model, task, how, limit)
    whole = without(run, "dense", model, task, (), limit=limit, batch_size=batch_size)
    made: dict[tuple[str, str], Evaluation] = {}
    for number, group in enumerate(wanted):
        made[group.kind, group.name] = without(
            run, f"without {group.name}", model, task, group.heads, how=how, means=means, limit=limit, batch_size=batch_size
        )
        if progress is not None:
            progress(number + 1, len(wanted))
    chance = chance_of(model, task, limit)
    rows = [_row(group, whole, made[group.kind, group.name], task, chance, seed) for group in wanted]
    corrected(rows)
    return whole, rows, _pairs(wanted, made, whole)


def _row(group: Group, whole: Evaluation, left: Evaluation, task: Task, chance: float | None, seed: int) -> dict[str, Any]:
    lost, share = drop(whole, left, task, seed=seed), share_left(whole, left, task, chance, seed=seed)
    names = {"kind": group.kind, "name": group.name, "stack": group.stack, "layers": list(group.layers), "heads": len(group.heads)}
    return {**names, "loss": left.loss, "value": left.value, **lost.flat(), **share.flat(), "p": lost.shown.p}


def _pairs(wanted: Sequence[Group], made: dict[tuple[str, str], Evaluation], whole: Evaluation) -> list[dict[str, Any]]:
    """By stack, the mean rise of the loss and the mean excess of consecutive minus spread-out pairs, paired over examples."""
    import numpy as np

    from headcount.core.stats.significance import paired_t

    single = {(group.stack, group.layers[0]): made[group.kind, group.name].losses - whole.losses for group in wanted if group.kind == LAYER}
    found = []
    for stack in dict.fromkeys(group.stack for group in wanted):
        rises: dict[str, Any] = {}
        for kind in (CONSECUTIVE, SPREAD):
            mine = [group for group in wanted if (group.stack, group.kind) == (stack, kind)]
            each = [made[group.kind, group.name].losses - whole.losses for group in mine]
            extra = [rise - sum(single[stack, layer] for layer in group.layers) for rise, group in zip(each, mine, strict=True)]
            rises |= {kind: (np.mean(each, axis=0), np.mean(extra, axis=0))} if mine else {}
        for place, what in enumerate(("rise", "excess")) if len(rises) == 2 else ():
            pair = [rises[kind][place] for kind in (CONSECUTIVE, SPREAD)]
            gap = paired_t(pair[0] - pair[1])
            means = {kind: float(values.mean()) for kind, values in zip((CONSECUTIVE, SPREAD), pair, strict=True)}
            found.append(
                {"stack": stack, "what": what, **means, "difference": gap.difference, "low": gap.low, "high": gap.high, "p": gap.p}
            )
    return found


@command
def run(say: Session, given: inputs.TaskOptions, how: How = "zero", out: Out = None) -> None:
    """Which layers matter? The loss and metric when thirds, single layers and pairs of layers lose their heads, paired with the whole model."""
    check_how(how)
    with RunFolder(out).open(say) as kept:
        live, heads, folder = given.open_model(say)
        if kept is not None:
            describe(kept, say, given, live, heads, {"study": "layers", "how": how, "limit": given.limit})
        task = given.open_task(say, live, folder)
        with say.progress("groups of layers") as advance:
            whole, rows, pairs = layers(live, task, how=how, run=kept, progress=advance, seed=given.seed, **given.reading)
        keep_rows(kept, "layers", {"model": given.model, "task": task.name, "data": whole.data, "how": how}, rows)
        _show(say, whole, rows, pairs)
        told = {"loss": whole.loss, "metric": whole.metric, "value": whole.value}
        say.result({"study": "layers", "model": given.model, "task": task.name, "how": how, "dense": told, "rows": rows, "pairs": pairs})


def _show(say: Session, whole: Evaluation, rows: list[dict[str, Any]], pairs: list[dict[str, Any]]) -> None:
    from headcount.core.stats.significance import Difference

    def change(row: dict[str, Any], what: str) -> str:
        return interval(Difference(*(row[f"{what} {name}"] for name in ("difference", "low", "high", "p"))))

    metric = whole.metric or "loss"
    what = "metric" if whole.parts is not None else "loss"
    say.line(f"the whole model: {metric} {score_of(whole):.4g} on {whole.n_examples} examples")
    say.table(
        ("group", "layers without heads", "heads", metric, "change", "q", "loss"),
        [
            (
                row["kind"],
                row["name"],
                row["heads"],
                f"{row['loss'] if row['value'] is None else row['value']:.4g}",
                change(row, what),
                f"{row['q']:.2g}",
                change(row, "loss"),
            )
            for row in rows
        ],
        right=("heads", metric, "q"),
    )
    if pairs:
        say.line("rise of the loss by two layers, and its excess over that of the two one by one: consecutive against spread-out pairs")
        say.table(
            ("stack", "", CONSECUTIVE, SPREAD, "difference", "p"),
            [
                (
                    row["stack"],
                    row["what"],
                    f"{row[CONSECUTIVE]:+.4g}",
                    f"{row[SPREAD]:+.4g}",
                    f"{row['difference']:+.3g} ({row['low']:+.3g} … {row['high']:+.3g})",
                    f"{row['p']:.2g}",
                )
                for row in pairs
            ],
            right=(CONSECUTIVE, SPREAD, "p"),
        )
