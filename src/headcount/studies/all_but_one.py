"""Can a layer live on one head? The best single head of every layer, chosen on one split and reported on another; and one head everywhere.

Michel et al. 2019 (section 3.3): most layers lose little when reduced to their best head, the last encoder-decoder layer a lot. Choosing and
reporting on the same examples would flatter; here the head is chosen on the selection split, and the loss and metric are those of the report split.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headcount.app.console import inputs
from headcount.app.console.command import command
from headcount.app.console.session import Session
from headcount.models.head_map import HeadMap
from headcount.studies._gated import means_of

if TYPE_CHECKING:
    from torch import nn

    from headcount.core.heads import Head
    from headcount.core.stats.significance import Difference
    from headcount.data.task import Task

How = Annotated[str, typer.Option("--how", metavar="NAME", help="zero, mean or uniform: what becomes of the other heads.")]


@dataclass(frozen=True, slots=True)
class LayerRow:
    """One block, or all of them: the heads that stay, how much the loss rose where they were chosen, and on the report split the rise of the
    loss with its paired interval and the metric.
    """

    block: str
    kept: tuple[str, ...]
    chosen_rise: float | None
    rise: Difference
    metric: float | None
    metric_change: Difference | None
    q: float


def all_but_one(model: nn.Module, task: Task, *, how: str = "zero", seed: int = 0, **reading: Any) -> list[LayerRow]:
    """A row for every block reduced to its best head, and a last one for the best head everywhere at once."""
    from headcount.core.stats.significance import benjamini_hochberg
    from headcount.data.evaluate import evaluate
    from headcount.importance.score import score

    scores = score(model, task, f"all-but-one:{how}", split="selection", seed=seed, **reading)
    heads = HeadMap.of(model)
    means = means_of(model, task, how, reading.get("limit"), "selection")
    whole = evaluate(model, task, **reading)
    best = {block.name: min(block.heads, key=lambda head: (scores[head], head)) for block in heads.blocks if block.n_heads}
    choices: list[tuple[str, list[Head], float | None]] = [(name, [head], scores[head]) for name, head in best.items()]
    choices.append(("everywhere", list(best.values()), None))
    rows = [_row(model, task, (name, kept, rise), (whole, how, means, seed), reading) for name, kept, rise in choices]
    q = benjamini_hochberg([row.rise.p for row in rows])
    return [replace(row, q=float(value)) for row, value in zip(rows, q, strict=True)]


def _row(
    model: nn.Module, task: Task, choice: tuple[str, list[Head], float | None], facts: tuple[Any, ...], reading: dict[str, Any]
) -> LayerRow:
    import torch

    from headcount.core.stats.significance import paired_bootstrap, paired_t
    from headcount.data.evaluate import evaluate
    from headcount.models.gates import HeadGates

    name, kept, chosen = choice
    whole, how, means, seed = facts
    heads = HeadMap.of(model)
    touched = {block.name for block in heads.blocks if name in (block.name, "everywhere")}
    values = torch.tensor([float(h in kept or heads.block_of(h).name not in touched) for h in heads], dtype=torch.float64)
    with HeadGates(model, values, how=how, means=means):
        left = evaluate(model, task, **reading)
    change = None
    if task.metric is not None and whole.parts is not None and left.parts is not None:
        change = paired_bootstrap(whole.parts, left.parts, task.metric.total, seed=seed)
    rise = paired_t(left.losses - whole.losses)
    return LayerRow(name, tuple(map(str, kept)), chosen, rise, left.value, change, 1.0)


@command
def run(say: Session, given: inputs.TaskOptions, how: How = "zero") -> None:
    """Can a layer live on one head? The best head of each, chosen on the selection split and reported on the report split."""
    from headcount.importance.base import Importance

    Importance.parse(f"all-but-one:{how}")
    live, _, folder = given.open_model(say)
    data = given.open_task(say, live, folder)
    with say.progress("scoring") as advance:
        rows = all_but_one(live, data, how=how, seed=given.seed, progress=advance, **given.reading)
    name = data.metric.name if data.metric else "metric"
    say.table(
        ("layer", "head left", "rise when chosen", "rise on report", "95% interval", "q", name, "change"),
        [
            (
                row.block,
                ", ".join(row.kept),
                "" if row.chosen_rise is None else f"{row.chosen_rise:+.4g}",
                f"{row.rise.difference:+.4g}",
                f"{row.rise.low:+.3g} … {row.rise.high:+.3g}",
                f"{row.q:.2g}",
                "" if row.metric is None else f"{row.metric:.4g}",
                "" if row.metric_change is None else f"{row.metric_change.difference:+.3g}",
            )
            for row in rows
        ],
    )
    say.result({"study": "all-but-one", "model": given.model, "task": data.name, "how": how, "layers": [asdict(row) for row in rows]})
