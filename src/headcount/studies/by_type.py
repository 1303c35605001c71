"""Which attention matters most, encoder, cross or decoder? Scores by type of attention, and what removing a whole type costs.

Michel et al. 2019 (section 4.2) and Voita et al. 2019: encoder-decoder attention suffers first, encoder self-attention least. Each type is also
gated away in whole and in its lowest half, and every loss stands next to a paired test over the same examples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headcount.app.console import inputs
from headcount.app.console.command import command
from headcount.app.console.session import Session
from headcount.models.head_map import HeadMap

if TYPE_CHECKING:
    import numpy as np
    from torch import nn

    from headcount.core.heads import Head
    from headcount.core.scores import Scores
    from headcount.core.stats.significance import Difference
    from headcount.data.task import Task

By = Annotated[str, typer.Option("--by", metavar="NAME", help="The method that ranks the heads of each type.")]


@dataclass(frozen=True, slots=True)
class TypeRow:
    """One type of attention: its heads, their mean score with the interval over examples, and the rise of the loss without some of them.

    `share` of all scores is not defined, hence None, where these are not all of one sign, or all 0.
    """

    kind: str
    n_heads: int
    mean: float
    low: float
    high: float
    share: float | None
    without_half: Difference
    without_all: Difference
    metric: float | None
    metric_without_half: float | None
    metric_without_all: float | None


def by_type(model: nn.Module, task: Task, scores: Scores, ranking: Scores | None = None, **reading: Any) -> list[TypeRow]:
    """Returns a row for every type of attention in the model; scores come from calibration, losses from the report split.

    Means and shares are those of `scores`, which should not be normalised by layer: every layer would then have the same share. The lower half of a
    type is that of `ranking`, by default of the same scores.
    """
    import numpy as np

    from headcount.data.evaluate import evaluate

    heads = HeadMap.of(model)
    whole = evaluate(model, task, **reading)
    kinds: dict[str, list[int]] = {}
    for place, head in enumerate(heads):
        kinds.setdefault(heads.block_of(head).kind, []).append(place)
    drawn = scores.replicates() if scores.samples is not None else np.asarray(scores.values)[None]
    values = np.asarray(scores.values)
    total = float(values.sum()) if (values >= 0).all() or (values <= 0).all() else 0.0
    lowest_first = (ranking or scores).ranking()[::-1]
    return [_row(model, task, scores, kind, places, (whole, drawn, total, lowest_first), reading) for kind, places in kinds.items()]


def _row(
    model: nn.Module,
    task: Task,
    scores: Scores,
    kind: str,
    places: list[int],
    facts: tuple[Any, np.ndarray, float, Sequence[Head]],
    reading: dict[str, Any],
) -> TypeRow:
    import numpy as np

    from headcount.core.stats.significance import paired_t
    from headcount.data.evaluate import evaluate
    from headcount.data.mask import mask

    whole, drawn, total, lowest_first = facts
    members = {scores.heads[place] for place in places}
    order = [head for head in lowest_first if head in members]
    results = []
    for gone in (order[: len(order) // 2], order):
        with mask(model, gone):
            results.append(evaluate(model, task, **reading))
    half, none = results
    low, high = np.quantile(drawn[:, places].mean(1), [0.025, 0.975])
    values = np.asarray(scores.values)[places]
    return TypeRow(
        kind=kind,
        n_heads=len(places),
        mean=float(values.mean()),
        low=float(low),
        high=float(high),
        share=float(values.sum() / total) if total else None,
        without_half=paired_t(half.losses - whole.losses),
        without_all=paired_t(none.losses - whole.losses),
        metric=whole.value,
        metric_without_half=half.value,
        metric_without_all=none.value,
    )


@command
def run(say: Session, given: inputs.TaskOptions, by: By = "gradient") -> None:
    """Which attention matters most: encoder, cross or decoder? Scores by type, and the loss without half and without all heads of each."""
    from headcount.importance.base import Importance
    from headcount.importance.score import score

    by = str(Importance.parse(by))
    live, _, folder = given.open_model(say)
    data = given.open_task(say, live, folder)
    with say.progress("scoring") as advance:
        raw = score(live, data, by, normalise="none", seed=given.seed, progress=advance, **given.reading)
    ranking = raw.normalised(Importance.parse(by).info.normalise)
    rows = by_type(live, data, raw, ranking, **given.reading)
    name = data.metric.name if data.metric else ""

    def artifact(change: Any, value: float | None) -> str:
        loss = f"{change.difference:+.4g} ({change.low:+.3g} … {change.high:+.3g})"
        return loss if value is None else f"{loss}, {name} {value:.4g}"

    say.line(f"loss on the report split, change when heads go{f'; {name} of the whole model {rows[0].metric:.4g}' if name else ''}")
    say.line(f"means and shares are of raw scores; the lower half is that of {ranking.label}")
    say.table(
        ("attention", "heads", f"mean {by} (raw)", "95% interval", "share", "without the lower half", "without any"),
        [
            (
                row.kind,
                row.n_heads,
                f"{row.mean:.4g}",
                f"{row.low:.4g} … {row.high:.4g}",
                "–" if row.share is None else f"{row.share:.0%}",
                artifact(row.without_half, row.metric_without_half),
                artifact(row.without_all, row.metric_without_all),
            )
            for row in rows
        ],
        right=("heads", "share"),
    )
    head = {"study": "by-type", "model": given.model, "task": data.name, "by": by, "normalise": ranking.normalise}
    say.result({**head, "types": [asdict(row) for row in rows]})
