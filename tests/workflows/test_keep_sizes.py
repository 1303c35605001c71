"""What `keep` means, wherever it is taken: a whole number is a number of heads, a float below 1 a share of them, and 1.0 is refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import typer

import headcount as hc
from headcount.app.cli.analyze import parse_head_counts_or_shares
from headcount.app.console.pruning import parse_kept_head_count
from headcount.app.console.steps import format_step
from headcount.core.budget import Budget
from headcount.core.errors import PlanError
from headcount.core.plan import Plan, nearest_count_of_whole_units
from headcount.core.scores import Scores
from headcount.models.tiny.build import tiny_model
from headcount.pruning.prune import check_request
from headcount.workflows.analysis_spec import AnalysisSpec
from headcount.workflows.analyze import AnalysisJob, _verify_heads, make_prune_requests, run_analysis

HEADS = tuple(hc.Head("", layer, index) for layer in range(4) for index in range(8))


@pytest.mark.parametrize(("keep", "number"), [(8, 8), (np.int64(8), 8), (1, 1), (32, 32), (0.25, 8), (np.float32(0.5), 16), (0.01, 1)])
def test_a_number_is_heads_and_a_float_is_a_share(keep: Any, number: int) -> None:
    scores = Scores(HEADS, tuple(map(float, range(32))))
    assert Budget(keep=keep).heads(32) == number
    assert len(Plan.keep_top(scores, keep).removed) == 32 - number


@pytest.mark.parametrize("keep", [1.0, 0.0, 8.0, -0.5, 0, 33, True, "8"])
def test_anything_else_is_refused(keep: Any) -> None:
    with pytest.raises(
        PlanError, match=r"keep must be a whole number of heads from 1 (on|to 32), or a share of them, a float above 0 and below 1"
    ):
        Budget(keep=keep).heads(32)


def test_analyze_takes_numbers_of_heads() -> None:
    """`hc.analyze(keeps=(8,))` meant 8 × 32 = 256 heads."""
    model: Any = tiny_model("bert", auto="AutoModelForSequenceClassification")
    heads = hc.HeadMap.of(model)
    spec = AnalysisSpec(methods=("random",), keep=(8, 0.25), seeds=1)
    assert sorted(request.limits.heads(len(heads)) for request in make_prune_requests(spec, heads)) == sorted({8, round(0.25 * len(heads))})
    with pytest.raises(PlanError, match="keep must be a whole number"):
        AnalysisSpec(keep=(1.0,))


def test_analyze_refuses_what_prune_refuses() -> None:
    """A share that is no whole number of KV groups was rounded by analyze: 12.5 % of 12 heads became the 3 heads of a group."""
    model: Any = tiny_model("llama", num_key_value_heads=2)
    heads = hc.HeadMap.of(model)
    assert [len(unit) for unit in heads.units()] == [3, 3, 3, 3]
    reason = "2 heads are no whole number of units of 3 heads that share keys and values; the nearest are 0 and 3"
    with pytest.raises(PlanError, match=reason):
        hc.prune(model, None, "random", 0.125, repair=False)
    job = AnalysisJob("toy", model, SimpleNamespace(), AnalysisSpec(methods=("random",), keep=(0.125,), seeds=1))  # type: ignore[arg-type]
    with pytest.raises(PlanError, match=reason):
        next(run_analysis(job, SimpleNamespace()))  # type: ignore[arg-type]


@pytest.mark.parametrize(("kv_heads", "sizes"), [(6, [2, 3, 6]), (2, [3, 6]), (1, [6])])
def test_default_sizes_of_analyze_are_whole_groups_and_are_told(kv_heads: int, sizes: list[int]) -> None:
    model: Any = tiny_model("llama", num_key_value_heads=kv_heads)
    heads = hc.HeadMap.of(model)
    job = AnalysisJob("toy", model, SimpleNamespace(), AnalysisSpec(methods=("random",), seeds=1))  # type: ignore[arg-type]
    requests = make_prune_requests(job.spec, heads)
    assert sorted({request.limits.heads(len(heads)) for request in requests}) == sizes
    for request in requests:
        check_request(request, model, heads)
    step = _verify_heads(job, heads, requests)
    assert f"pruned to {', '.join(map(str, sizes))} heads, the whole" in format_step(step.name, step.numbers)
    assert step.numbers["keeps"] == sizes


def test_nearest_whole_units_of_mixed_sizes() -> None:
    assert [nearest_count_of_whole_units(share, [4, 4, 1, 1]) for share in (0.01, 0.25, 0.3, 0.7, 0.99)] == [1, 2, 4, 8, 10]


def test_the_command_line_reads_the_same() -> None:
    heads: Any = hc.HeadMap.of(tiny_model("bert"))
    total = len(heads)
    assert [parse_kept_head_count(text, heads) for text in ("3", "50%", "0.5", "100%")] == [3, total // 2, total // 2, total]
    assert parse_head_counts_or_shares("8,12.5%,0.25") == [8, 0.125, 0.25]
    for text in ("1.0", "0", "0.0", "many"):
        with pytest.raises(typer.BadParameter, match="a number of heads from 1 to"):
            parse_kept_head_count(text, heads)
    for text in ("1.0", "100%", "0%", "0", "many", ""):
        with pytest.raises(typer.BadParameter, match="--keep"):
            parse_head_counts_or_shares(text)
