"""Do the heads that stay make up for those that went? How survivors change in the fine-tune after pruning, against that of the unpruned model.

Budhraja et al. 2020 (section 6): the relative change of a head's slices, ‖ΔW_h‖/‖W_h‖ of Q, K, V and O, and of its importance, in two fine-tunes by
one recipe: that of the pruned model, and that of the whole one. The same head is compared with itself; the test runs over the heads that stay.
Published: compensation is spread evenly over layers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headcount.app.console import inputs
from headcount.app.console.command import command
from headcount.app.console.pruning import Epochs, Options, Rate, Steps, TrainBatch, heads_of, note_training, recipe
from headcount.app.console.run_folder import RunFolder, describe
from headcount.app.console.format import format_training
from headcount.app.console.pruning import DEFAULT_TRAINING, MethodOptions, TrainingOptions, add_options, parse_heads
from headcount.app.console.run_folder import Place, describe
from headcount.app.console.session import Session
from headcount.core.heads import Head
from headcount.core.plan import Plan
from headcount.models.head_map import HeadMap
from headcount.studies._results import Folder, corrected, keep_rows, led

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor, nn

    from headcount.data.task import Task
    from headcount.pruning.recipe import Recipe
    from headcount.runs.artifacts import Artifact
    from headcount.runs.store import Run

Method = Annotated[str, typer.Option("--method", metavar="NAME", help="A pruner of `headcount ls pruners`, or an importance to rank by.")]
Keep = Annotated[str, typer.Option("--keep", metavar="K", help="How many heads stay: a number, or a share such as 25%.")]
By = Annotated[str, typer.Option("--by", metavar="NAME", help="The importance whose change is measured.")]
PARTS = ("q", "k", "v", "o")
IMPORTANCE = "importance"
KIND, WORK = "tuned", "work"
SCORED = 512
REPEATS = 10_000


def slices(model: nn.Module) -> dict[Head, dict[str, Tensor]]:
    """The weights of every head in Q, K, V and O, in float64; heads of one KV group share those of K and V."""
    from headcount.models.modules import unwrap
    from headcount.models.weights import weights_of

    found: dict[Head, dict[str, Tensor]] = {}
    for block in HeadMap.of(model).blocks:
        parts = {part: weights_of(unwrap(model), block, part) for part in PARTS}
        for place, head in enumerate(block.heads):
            found[head] = {part: weights[place].double().cpu() for part, weights in parts.items()}
    return found


def changes(before: Mapping[Head, Mapping[str, Tensor]], after: Mapping[Head, Mapping[str, Tensor]]) -> dict[Head, dict[str, float]]:
    """‖W' − W‖/‖W‖ of every part of every head; 0 for a part that was and stays zero."""
    found: dict[Head, dict[str, float]] = {}
    for head, parts in before.items():
        gaps = {part: (float((after[head][part] - old).norm()), float(old.norm())) for part, old in parts.items()}
        found[head] = {part: gap / size if size else float(gap > 0) for part, (gap, size) in gaps.items()}
    return found


def tuned(
    model: nn.Module,
    task: Task,
    recipe: Recipe,
    *,
    by: str,
    limit: int | None = None,
    seed: int = 0,
    folder: Any = None,
    progress: Any = None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """A fine-tune of a copy of the model: by head the relative change of its parts, and ln of the ratio of its importance after to before."""
    import numpy as np

    from headcount.data.evaluate import evaluate
    from headcount.importance.score import score
    from headcount.models.state import copy_model
    from headcount.pruning.training.fine_tune import fine_tune

    live = copy_model(model)
    read: Any = {"limit": min(SCORED, limit or SCORED), "seed": seed, "normalise": "none"}  # sizes are compared, not ranks
    before, worth = slices(live), score(live, task, by, **read).signed()
    fine_tune(live, task, recipe, seed=seed, folder=folder, progress=progress)
    after, then = changes(before, slices(live)), score(live, task, by, **read).signed()
    left = evaluate(live, task, limit=limit)
    heads = list(after)
    values = np.array([[*(after[head][part] for part in PARTS), _log_ratio(then[head], worth[head])] for head in heads])
    content = {"heads": list(map(str, heads)), "loss": left.loss, "metric": left.metric, "value": left.value, "n_examples": left.n_examples}
    return content, {"changes": values, "losses": left.losses} | ({} if left.parts is None else {"parts": left.parts})


def _log_ratio(after: float, before: float) -> float:
    """ln(after / before); 0 where both are 0, and small numbers are held away from 0."""
    import numpy as np

    tiny = 1e-12
    return float(np.log(max(abs(after), tiny)) - np.log(max(abs(before), tiny)))


def compensation(
    pruned: Artifact, whole: Artifact, plan: Plan, *, seed: int = 0
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[dict[str, Any]]]:
    """Rows by part over all survivors and by layer, how even it is over layers, and the numbers of every head.

    A difference is that of a head in the fine-tune after pruning minus the same head in that of the whole model; intervals and p are of a paired t
    over heads, which share their training and are not quite independent. Evenness: the variance between layers, by a permutation of heads over them.
    """
    import numpy as np

    heads = [Head.parse(head) for head in pruned.content["heads"]]
    place = {head: number for number, head in enumerate(whole.content["heads"])}
    mine = pruned.arrays["changes"]
    other = whole.arrays["changes"][[place[str(head)] for head in heads]]
    layer = np.array([str(head).rpartition("H")[0] for head in heads])
    lost = np.array([sum((h.stack, h.layer) == (head.stack, head.layer) for h in plan.removed) for head in heads])
    rows: list[dict[str, Any]] = []
    even: list[dict[str, Any]] = []
    for number, part in enumerate((*PARTS, IMPORTANCE)):
        pair = mine[:, number], other[:, number]
        rows += [_row(part, name, *(values[where] for values in pair)) for name, where in _layers(layer)]
        even.append(_even(part, pair[0] - pair[1], layer, lost, seed))
    corrected(rows)
    each = [
        {
            "head": str(head),
            **{
                f"{part} {what}": float(values[i, n])
                for what, values in (("pruned", mine), ("whole", other))
                for n, part in enumerate((*PARTS, IMPORTANCE))
            },
        }
        for i, head in enumerate(heads)
    ]
    return rows, even, each


def _layers(layer: np.ndarray) -> list[tuple[str, np.ndarray]]:
    import numpy as np

    return [("all", np.ones(len(layer), dtype=bool)), *((str(name), layer == name) for name in dict.fromkeys(layer.tolist()))]


def _row(part: str, where: str, pruned: np.ndarray, whole: np.ndarray) -> dict[str, Any]:
    """The difference over some heads; of a single head nothing tells how sure it is, so interval and p are None."""
    from headcount.core.stats.significance import paired_t

    gap = pruned - whole
    made = paired_t(gap) if len(gap) > 1 else None
    means = {"pruned": float(pruned.mean()), "whole": float(whole.mean())}
    return {
        "part": part,
        "where": where,
        "heads": len(gap),
        **means,
        "difference": float(gap.mean()),
        **({"low": None, "high": None, "p": None} if made is None else {"low": made.low, "high": made.high, "p": made.p}),
    }


def _even(part: str, gap: np.ndarray, layer: np.ndarray, lost: np.ndarray, seed: int) -> dict[str, Any]:
    """Whether layers differ, and whether survivors of layers that lost more heads change more; None where nothing varies."""
    import numpy as np

    from headcount.core.stats.agreement import spearman

    random = np.random.Generator(np.random.Philox(seed))
    seen = _between(gap[None], layer)[0]
    drawn = _between(random.permuted(np.tile(gap, (REPEATS, 1)), axis=1), layer)
    p = (1 + int((drawn >= seen * (1 - 1e-9)).sum())) / (REPEATS + 1)
    total = float(gap.var())
    varied = len(set(lost.tolist())) > 1 and total > 0
    agree = float(spearman(gap, lost.astype(float))) if varied else None
    return {"part": part, "share between layers": float(seen) / total if total else None, "p": p, "rank correlation with heads lost": agree}


def _between(values: np.ndarray, layer: np.ndarray) -> np.ndarray:
    """The variance between layers of each row of values."""
    import numpy as np

    names = sorted(set(layer.tolist()))
    means = np.stack([values[:, layer == name].mean(1) for name in names], 1)
    sizes = np.array([(layer == name).sum() for name in names])
    return ((means - values.mean(1, keepdims=True)) ** 2 * sizes).sum(1) / values.shape[1]


def tuned_into(
    run: Run,
    name: str,
    model: nn.Module,
    task: Task,
    recipe: Recipe,
    *,
    by: str,
    limit: int | None = None,
    seed: int = 0,
    progress: Any = None,
) -> Artifact:
    """The fine-tune of a model, taken from the run if it is finished there, and going on from its last checkpoint if it was stopped."""
    import shutil

    from headcount.data.evaluate import fingerprint_of
    from headcount.data.task import task_key
    from headcount.models.provenance import model_key, provenance
    from headcount.runs.artifacts import ArtifactKey

    prints = {split: fingerprint_of(model, task, split) for split in ("calibration", "report")}
    request = {"recipe": recipe.to_dict(), "seed": seed, "by": by, "limit": limit}
    spec = ArtifactKey(KIND, name, {**model_key(model), **task_key(task), **prints, **request})
    folder = run.folder / WORK / spec.key[:24]
    artifact = run.artifact(
        spec, lambda: tuned(model, task, recipe, by=by, limit=limit, seed=seed, folder=folder, progress=progress), made=provenance()
    )
    shutil.rmtree(folder, ignore_errors=True)
    return artifact


@command
def run(
    say: Session,
    given: inputs.TaskOptions,
    out: Folder,
    keep: Keep,
    method: Method = "gradient",
    option: MethodOptions = None,
    by: By = "gradient",
    training: TrainingOptions = DEFAULT_TRAINING,
) -> None:
    """Do the heads that stay make up for those that went? Change of survivors in the fine-tune after pruning, against that of the whole model."""
    from headcount.importance.base import Importance

    by = str(Importance.parse(by))
    with Place(out).taken(say) as taken:
        from headcount.pruning.prune import check_request
        from headcount.pruning.spec import PruneSpec
        from headcount.workflows.prune import Pruning, estimate_training

        kept = led(taken, "compensation")
        live, heads, folder = given.open_model(say)
        how, number = training.recipe(), parse_heads(keep, heads)
        spec = PruneSpec.of(add_options(method, inputs.pairs(option, "--option")), number, repair=False, recipe=how, seed=given.seed)
        check_request(spec, live, heads)
        if number < 2:
            raise typer.BadParameter("compensation compares the heads that stay; keep 2 or more")
        describe(kept, say, given, live, heads, {"study": "compensation", "spec": spec.to_dict(), "by": by})
        task = given.open_task(say, live, folder)
        pruning = Pruning(kept, live, task, limit=given.limit, command=say.command)
        estimate = estimate_training(pruning, [spec])
        if estimate is not None:
            say.note(format_training(**asdict(estimate)))
        with say.progress(f"pruning by {method}") as advance:
            artifact, small = pruning.make(spec, advance)
        small, plan = small.to(next(live.parameters()).device).eval(), Plan.removing(artifact.content["removed"])
        say.note(f"two fine-tunes of {how.n_steps(len(task.calibration))} optimiser steps each follow")
        with say.progress("fine-tuning the pruned model") as advance:
            mine = tuned_into(kept, f"after {spec.name}", small, task, how, by=by, limit=given.limit, seed=given.seed, progress=advance)
        with say.progress("fine-tuning the whole model") as advance:
            other = tuned_into(kept, "whole", live, task, how, by=by, limit=given.limit, seed=given.seed, progress=advance)
        rows, even, each = compensation(mine, other, plan, seed=given.seed)
        keep_rows(kept, "compensation", {**pruning.base_key, "spec": spec.to_dict(), "by": by}, rows)
        _show(say, mine, other, rows, even)
        told = {
            which: {key: artifact.content[key] for key in ("loss", "metric", "value")}
            for which, artifact in (("pruned", mine), ("whole", other))
        }
        result = {"study": "compensation", "model": given.model, "task": task.name, "removed": list(map(str, plan.removed)), "tuned": told}
        say.result({**result, "rows": rows, "even": even, "heads": each})


def _number(value: float | None, form: str) -> str:
    """A number as text; a dash where it is not defined."""
    return "–" if value is None else format(value, form)


def _show(say: Session, mine: Artifact, other: Artifact, rows: Sequence[dict[str, Any]], even: Sequence[dict[str, Any]]) -> None:
    def score(artifact: Artifact) -> str:
        told = artifact.content
        return f"{told['metric'] or 'loss'} {told['loss'] if told['value'] is None else told['value']:.4g}"

    say.line(f"after fine-tuning by one recipe: pruned {score(mine)}, whole {score(other)}")
    say.line("relative change of the heads that stay (importance: logarithm of the ratio after to before)")
    say.table(
        ("part", "where", "heads", "after pruning", "in the whole model", "difference", "p", "q"),
        [
            (
                row["part"],
                row["where"],
                row["heads"],
                f"{row['pruned']:.4g}",
                f"{row['whole']:.4g}",
                f"{row['difference']:+.3g}" + ("" if row["low"] is None else f" ({row['low']:+.3g} … {row['high']:+.3g})"),
                _number(row["p"], ".2g"),
                _number(row["q"], ".2g"),
            )
            for row in rows
        ],
        right=("heads", "after pruning", "in the whole model", "p", "q"),
    )
    say.line("is it spread evenly? share of the variance of the differences that lies between layers; p of heads shuffled over layers")
    say.table(
        ("part", "between layers", "p", "rank correlation with heads lost in the layer"),
        [
            (
                row["part"],
                _number(row["share between layers"], ".0%"),
                f"{row['p']:.2g}",
                _number(row["rank correlation with heads lost"], "+.2f"),
            )
            for row in even
        ],
        right=("between layers", "p", "rank correlation with heads lost in the layer"),
    )
