"""`headcount cut`: removes heads for good and saves the smaller model."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from headcount.app.console import inputs
from headcount.app.console.command import command
from headcount.app.console.options import Heads, Model, OutFolder, Overwrite, split
from headcount.app.console.pruning import parse_keep
from headcount.app.console.session import Session
from headcount.core.budget import Budget
from headcount.core.errors import ArtifactError, PlanError
from headcount.core.folders import check_target
from headcount.core.plan import Plan

if TYPE_CHECKING:
    from torch import nn

    from headcount.core.scores import Scores
    from headcount.models.head_map import HeadMap
    from headcount.surgery.cost import Cost


def _keep(text: str | None) -> str | None:
    if text is not None and not re.fullmatch(r"[0-9]{1,9}|0?\.[0-9]{1,6}|[0-9]{1,3}(\.[0-9]{1,6})?%", text):
        raise typer.BadParameter(f"--keep takes a number of query heads such as 24, or a part of all such as 50% or 0.5; got {text!r:.40}")
    return text


PlanFile = Annotated[Path | None, typer.Option("--plan", metavar="FILE", help="A plan file, instead of --heads.")]
ScoresFile = Annotated[
    Path | None,
    typer.Option("--scores", metavar="FILE|RUN", help="Keep the best of these scores: a csv, tsv, json or parquet table, or a run folder."),
]
Method = Annotated[str | None, typer.Option("--method", metavar="NAME", help="The method, where --scores holds several.")]
Keep = Annotated[
    str | None, typer.Option("--keep", metavar="K|P%", callback=_keep, help="How many query heads stay, by --scores: 24, or 50%.")
]
LowerIsKeep = Annotated[bool, typer.Option("--lower-is-keep", help="In the table of --scores, less means keep.")]


class Wanted(NamedTuple):
    """Which heads go: named, in a plan file, or all but the best `keep` of some scores."""

    heads: str | None
    plan: Path | None
    scores: Path | None
    method: str | None
    keep: str | None
    lower_is_keep: bool

    def read(self) -> Plan | Scores:
        """What can be read before the model is there."""
        if sum(given is not None for given in (self.heads, self.plan, self.scores)) != 1:
            raise typer.BadParameter("name what goes by one of --heads, --plan and --scores")
        if (self.scores is None) != (self.keep is None):
            raise typer.BadParameter("--scores and --keep belong together: --scores FILE --keep 24")
        if self.scores is None and (self.method is not None or self.lower_is_keep):
            raise typer.BadParameter("--method and --lower-is-keep belong to --scores")

        if self.heads is not None:
            return Plan.removing(split(self.heads))
        return Plan.read(self.plan) if self.plan is not None else self._scores(Path(self.scores or ""))

    def _scores(self, path: Path) -> Scores:
        from headcount.core.scores import Scores

        if not path.is_dir():
            return Scores.read(path, method=self.method, higher_is_keep=False if self.lower_is_keep else None)
        if self.lower_is_keep:
            raise typer.BadParameter("--lower-is-keep is for tables; a run folder says itself what its scores mean")
        from headcount.runs.scores import all_scores, scores_of
        from headcount.runs.store import Run

        run = Run.open(path)
        if self.method is not None:
            return scores_of(run, self.method)
        found = all_scores(run)
        if len(found) != 1:
            raise ArtifactError(f"{path} holds scores by {', '.join(found) or 'no method'}; choose one (--method NAME)")
        return next(iter(found.values()))

    def plan_for(self, given: Plan | Scores, live: nn.Module, heads: HeadMap) -> Plan:
        """The plan for a model, checked against it."""
        from headcount.core.scores import Scores

        if isinstance(given, Scores):
            self._check_weights(live)
        plan = given if isinstance(given, Plan) else Plan.keep_top(given.reorder(heads), self._budget())
        if not plan.removed:
            raise PlanError(f"nothing would be removed from {heads.describe()}; name heads, or keep fewer")
        weights = ""
        if plan.made_for is not None and plan.made_for.weights:
            from headcount.models.provenance import weight_hash

            weights = weight_hash(live)
        plan.check(heads, weights)
        return plan

    def _check_weights(self, live: nn.Module) -> None:
        """Refuses scores of a run that is about other weights."""
        if self.scores is None or not self.scores.is_dir():
            return
        from headcount.models.provenance import weight_hash
        from headcount.runs.store import Run

        of, here = Run.open(self.scores).record().model.weights, weight_hash(live)
        if of != here:
            raise PlanError(
                f"{self.scores} holds scores of other weights ({of[:12]}; this model has {here[:12]}). To use them for another model of this "
                f"shape, name the table: --scores {self.scores / 'scores.parquet'}"
            )

    def _budget(self) -> Budget:
        text = self.keep or ""
        return Budget(fraction=float(text[:-1]) / 100) if text.endswith("%") else Budget(keep=parse_keep(text))


def show_costs(session: Session, before: Cost, after: Cost) -> None:
    """Writes the costs of a model before and after a cut side by side."""
    old, new = before.to_dict(), after.to_dict()
    labels = {
        "heads": "attention heads",
        "parameters": "parameters",
        "bytes": "bytes of parameters",
        "flops": f"FLOPs of a pass over {before.tokens} tokens",
        "kv_bytes_per_token": "bytes of KV cache per token",
    }
    rows = [
        (label, f"{old[name]:,}", f"{new[name]:,}", f"{new[name] / old[name]:.1%}" if old[name] else "") for name, label in labels.items()
    ]
    session.table(("", "before", "after", "left"), rows, right=("before", "after", "left"))


@command
def run(
    session: Session,
    model: Model,
    out: OutFolder,
    heads: Heads = None,
    plan: PlanFile = None,
    scores: ScoresFile = None,
    method: Method = None,
    keep: Keep = None,
    lower_is_keep: LowerIsKeep = False,
    overwrite: Overwrite = False,
    loading: inputs.ModelOptions = inputs.DEFAULT_LOADING,
) -> None:
    """Remove heads for good, prove that the smaller model equals the gated one, and save it."""
    from headcount.surgery.manifest import NAME

    wanted = Wanted(heads, plan, scores, method, keep, lower_is_keep)
    given = wanted.read()
    check_target(Path(out), overwrite, NAME)
    from headcount.surgery.cost import cost
    from headcount.surgery.cut import cut
    from headcount.surgery.save import save

    live, found, folder = loading.open(session, model)
    going = wanted.plan_for(given, live, found)
    session.doing("cutting, and comparing with the gated model")
    before = cost(live, heads=found)
    small = cut(live, going, in_place=True)
    after = cost(small)
    session.doing("saving")
    save(small, out, command=session.command, cost=(before, after), tokenizer=folder, overwrite=overwrite)
    session.note(f"cut equals gate; wrote {out}")
    show_costs(session, before, after)
    removed = [str(head) for head in going.removed]
    session.result({"model": model, "out": str(out), "removed": removed, "before": before.to_dict(), "after": after.to_dict()})
    session.next("check", out)
