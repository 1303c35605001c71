"""The estimate of a paper: what several items share is counted once, what is finished not at all, and no study is free."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from headcount.pruning.recipe import FAIR_STEPS
from headcount.runs.store import Run
from headcount.studies._base import STEP_BATCH, Effort, Study, StudyContext
from headcount.studies._paper import Item, Paper
from headcount.studies._run_paper import list_items, run_paper, sum_efforts
from headcount.studies._run_study import PythonSources
from headcount.studies.from_scratch import FromScratch
from headcount.studies.kept import Kept
from headcount.studies.languages import Languages
from headcount.studies.pruning_curve import PruningCurve
from headcount.studies.roles_importance import RolesImportance
from headcount.studies.weight_change import WeightChange

MODEL, LIMIT = "demo/entailment", 16
GRID = {"methods": ("l0",), "keep": (16, 8), "seeds": 2, "steps": 20, "train_batch": 8}


@pytest.fixture
def context(tmp_path: Path) -> Iterator[StudyContext]:
    with Run.lead(tmp_path / "run") as run:
        yield StudyContext(PythonSources(MODEL, None, None, 0, LIMIT, None), model=MODEL, run=run, limit=LIMIT)


def items(*studies: Study) -> list[Item]:
    return [Item(f"T{number}", "", "", study) for number, study in enumerate(studies)]


def test_efforts_add_up_and_share() -> None:
    first = Effort(1, 2, 3, {"a": Effort(10, 20), "b": Effort(100)})
    second = Effort(1, shared={"b": Effort(100), "c": Effort(steps=7)})
    assert (first + second).with_shared_work() == Effort(112, 29, 3) and sum([first, first], Effort()).with_shared_work() == Effort(
        112, 24, 6
    )


def test_models_that_items_share_are_counted_once(context: StudyContext) -> None:
    curve, remaining = PruningCurve(**GRID), Kept(**GRID)
    alone = sum_efforts(items(curve), context)
    assert alone.steps == 4 * 20 * 8 / STEP_BATCH, "two sizes by two seeds, 20 steps of 8 examples; random heads train nothing"
    assert alone.passes == (1 + 2 * (4 + 4)) * LIMIT + 3 * LIMIT, (
        "the dense model, four of l0 and of random on two splits, the starting importance"
    )
    assert sum_efforts(items(curve, curve, remaining), context) == alone
    more = sum_efforts(items(curve, PruningCurve(**{**GRID, "keep": (16, 8, 4)})), context)
    assert more.steps == alone.steps * 3 / 2 and more.passes == alone.passes + 2 * 4 * LIMIT
    assert sum_efforts(items(PruningCurve(**{**GRID, "steps": None, "train_batch": 32})), context).steps == 4 * FAIR_STEPS


def test_a_ranking_on_few_examples_costs_less(context: StudyContext) -> None:
    small, complete = (PruningCurve(methods=(method,), keep=(16,), seeds=1) for method in ("rank(by=gradient;limit=4)", "gradient"))
    assert sum_efforts(items(complete), context).passes - sum_efforts(items(small), context).passes == 3 * (LIMIT - 4)


def test_a_control_from_scratch_does_not_choose_again(context: StudyContext) -> None:
    study = FromScratch("l0", keep=(8,), seeds=1, steps=20, scratch="40steps", train_batch=32, gates=False)
    effort = sum_efforts(items(study), context)
    assert effort.steps == 20 + 40, "the gates train once, the control by its own recipe"


def test_languages_and_changes_of_weights_are_not_free(context: StudyContext) -> None:
    assert sum_efforts(items(WeightChange("demo/entailment-english")), context).seconds > 0
    tasks = (MODEL, "demo/entailment-tavi")
    study = Languages(tasks=tasks, method="random", keep=(16,), seeds=2, recover="10steps", train_batch=16)
    effort = sum_efforts(items(study), context)
    assert effort.steps == 2 * 2 * 10 * 16 / STEP_BATCH, "two seeds of the pruned and of the dense model"
    assert effort.passes >= 2 * (1 + 4) * LIMIT, "two languages, the dense model and four others; no layers of an untrained model"
    untrained = sum_efforts(items(Languages(tasks=tasks, method="random", keep=(16,), seeds=2)), context)
    n_groups = 3 + 4  # thirds and layers
    assert untrained.passes >= 2 * (1 + n_groups + 2) * LIMIT
    two_models = Languages(tasks=tasks[:1], method="random", keep=(16,), against="demo/entailment-english")
    further = replace(two_models, other_tasks=("demo/entailment-tavi=demo/entailment=demo/entailment-tavi",))
    assert sum_efforts(items(further), context).passes == 2 * sum_efforts(items(two_models), context).passes
    assert sum_efforts(items(study, Languages(**{**study.__dict__, "groups": "groups.csv"})), context) == effort


def test_roles_and_importance_are_not_free(context: StudyContext) -> None:
    few = sum_efforts(items(RolesImportance(by=("gradient", "lrp"), sentences=10, examples=8)), context)
    assert few.passes == 10 + 2 * 3 * 8 and sum_efforts(items(RolesImportance()), context).passes == LIMIT + 2 * 3 * LIMIT


def test_what_is_finished_costs_nothing(context: StudyContext) -> None:
    small = {"methods": ("magnitude",), "keep": (16,), "seeds": 1}
    larger = PruningCurve(**{**small, "keep": (16, 8)})
    before = sum_efforts(items(larger), context)
    paper = Paper.parse("michel2019")
    run_paper(paper, items(PruningCurve(**small)), context)
    assert sum_efforts(items(PruningCurve(**small)), context) == Effort()
    assert before.passes - sum_efforts(items(larger), context).passes == 4 * LIMIT, "models of finished items are not made again"


def test_the_items_of_a_paper_share_their_models(context: StudyContext) -> None:
    chosen = [item for item in list_items(Paper.parse("li2021(quick=true)"), context) if item.study is not None]
    single = sum(sum_efforts([item], context).steps for item in chosen)
    together = sum_efforts(chosen, context).steps
    assert 0 < together < 0.7 * single
