"""Nothing that the report split shows changes a choice: every command that chooses is run on a planted report split that contradicts selection."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from toys import examples, task, unbiased_encoder

import headcount as hc
from headcount.core.errors import NotCertified
from headcount.core.margin import Margin
from headcount.core.registry import PRUNERS
from headcount.data.evaluate import evaluate
from headcount.models.provenance import model_record
from headcount.pruning.base import Pruner
from headcount.pruning.recipe import Recipe
from headcount.pruning.spec import PruneSpec
from headcount.runs.describe import describe_run
from headcount.runs.results import PRUNED, choose_row_index_by_kept_count
from headcount.runs.store import Run
from headcount.studies.all_but_one import AllButOne
from headcount.workflows.analysis_spec import BenchSizes
from headcount.workflows.prune import Pruning, prune_until_a_size_fails

N = 60
Pair = tuple[Any, hc.Task, hc.Task]


@pytest.fixture(scope="module")
def pair() -> Pair:
    """A model, a task with the labels that the model gives, and the same with a report split of other texts and wrong labels.

    Whatever a choice could be made by on the report split, with labels or without, is another one there.
    """
    model, rows = unbiased_encoder(N), examples("encoder", N)
    with torch.no_grad():
        labels = model(**task("encoder").collate(rows)).logits.argmax(-1).tolist()
    own = [{**row, "labels": label} for row, label in zip(rows, labels, strict=True)]
    agreeing = task("encoder", rows=own)
    other = [{"input_ids": [7] * (2 + number % 7), "labels": 0} for number in range(N)]
    with torch.no_grad():
        wrong = ((model(**agreeing.collate(other)).logits.argmax(-1) + 1) % 3).tolist()
    planted = replace(agreeing, report=[{**row, "labels": label} for row, label in zip(other, wrong, strict=True)])
    assert evaluate(model, agreeing).value == 1.0 and evaluate(model, planted).value == 0.0
    return model, agreeing, planted


def both(pair: Pair, choose: Callable[[Any, hc.Task], Any]) -> Any:
    """Returns the choice, which must be the same on both report splits."""
    model, agreeing, planted = pair
    first, second = (choose(model, data) for data in (agreeing, planted))
    assert first == second
    return first


def test_compare_chooses_by_selection(pair: Pair, tmp_path: Path) -> None:
    def choose(model: Any, data: hc.Task) -> Any:
        out = tmp_path / str(data.report[0]["labels"])
        comparison = hc.compare(model, data, out=out, methods=["gradient"], keep=(4, 8), seeds=3, repair=False, progress=False)
        by_size, rows = choose_row_index_by_kept_count(comparison.models), comparison.models
        by_report = {keep: max((row.value or 0, -row.loss) for row in rows if row.n_kept == keep) for keep in by_size}
        agrees.append([((rows[at].value or 0, -rows[at].loss) == by_report[keep]) for keep, at in by_size.items()])
        assert comparison.chosen is not None
        return [(keep, rows[at].method, rows[at].seed) for keep, at in by_size.items()], comparison.chosen.position

    agrees: list[list[bool]] = []
    both(pair, choose)
    assert all(agrees[0]) and not all(agrees[1]), "the planted split would have chosen another model"


def test_analyze_keeps_a_model_by_selection(pair: Pair, tmp_path: Path) -> None:
    def choose(model: Any, data: hc.Task) -> Any:
        steps = {}
        hc.analyze(
            model,
            data,
            out=tmp_path / str(data.report[0]["labels"]),
            by=("gradient",),
            methods=("gradient",),
            keep=(4, 8),
            bench_sizes=BenchSizes((1,), (8,), 1),
            on_step=lambda step: steps.update({step.name: step.numbers}),
            progress=False,
        )
        chosen = [(row["keep"], row["method"], row["seed"]) for row in steps["prune"]["by_size"]]
        return chosen, steps["keep"]["removed"]

    both(pair, choose)


def test_prune_to_a_margin_takes_the_same_heads_at_every_size(pair: Pair, tmp_path: Path) -> None:
    def choose(model: Any, data: hc.Task) -> Any:
        with Run.lead(tmp_path / str(data.report[0]["labels"])) as run:
            heads = hc.HeadMap.of(model)
            run.stage_records(describe_run(model_record(model, "toy"), command="", seed=0), heads)
            pruning = Pruning(run, model, data, margin=Margin.parse("99pt"))
            tests = prune_until_a_size_fails(pruning, PruneSpec.of("surgeon", 1), [9, 6])
            removed = {artifact.key.name: artifact.content["removed"] for artifact in run.results(PRUNED).values()}
        return [test.n_kept for test in tests], removed

    both(pair, choose)
    model, agreeing, planted = pair
    certified = hc.prune(model, agreeing, "gradient", margin="99pt", repair=False, progress=False)
    assert certified.certificate is not None and certified.certificate.verdict == "certified" and len(certified.sizes) > 3
    with pytest.raises(NotCertified, match=r"no size is certified: with 11 heads, the largest size tested, accuracy may be worse by"):
        hc.prune(model, agreeing, "random", margin="0.1pt", repair=False, progress=False)
    pruned = hc.prune(model, planted, "gradient", keep=6, margin="99pt", repair=False, progress=False)
    assert len(pruned.plan.removed) == 6 and pruned.certificate is not None and pruned.sizes == ()


def test_pruners_and_studies_choose_by_selection(pair: Pair) -> None:
    both(pair, lambda model, data: hc.prune(model, data, "rank(by=gradient;stop=0.5)", repair=False, progress=False).plan.removed)
    both(pair, lambda model, data: [row["heads"] for row in hc.study(AllButOne(), model, data, progress=False).measurements["layers"]])


class Unread(Sequence[Any]):
    """A report split that nobody may read."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        pytest.fail("the report split was read while a choice was made")


METHODS = {"plan": "plan(removed=L0H0+L0H1+L1H0)", "rank": "rank(by=gradient;again=true)", "layers": "layers:top"}
"""What stands for a pruner that needs an option; role reads texts of the calibration split, and the toy task has none."""
CHOICES = [
    *(METHODS.get(name, name) for name in PRUNERS.names() if name != "role"),
    "rank(by=gradient;stop=0.5)",
    "ablation",
    "l0(penalty=0.01)",
]


@pytest.mark.parametrize("method", CHOICES)
def test_no_pruner_reads_the_report_split(pair: Pair, method: str) -> None:
    model, agreeing, _ = pair
    unread, pruner = replace(agreeing, report=Unread()), Pruner.parse(method)
    keep = None if pruner.sizing_option_text or method.startswith("plan") else 6
    recover = {"recover": "2steps"} if method == "random" else {}
    pruned = hc.prune(model, unread, pruner, keep, recipe=Recipe(steps=2), progress=False, **recover)
    assert pruned.plan.removed or pruner.sizing_option_text
