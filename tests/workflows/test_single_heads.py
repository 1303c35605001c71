"""Verdicts on single heads: damage of each report example is kept, in the order of content hashes, and rankings have no part in it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from toys import examples, padder, shared, task

import headcount as hc
from headcount.app.console.format import format_head_bound
from headcount.app.console.steps import format_step
from headcount.core.damage import Damage, judge_damage
from headcount.core.errors import DataError, PlanError
from headcount.data.chunks import chunks
from headcount.data.evaluate import evaluate
from headcount.importance.settings import ScoreSettings
from headcount.models.head_map import HeadMap
from headcount.models.provenance import machine_entries, model_record
from headcount.models.tiny.float64 import Float64
from headcount.runs.artifacts import Artifact, ArtifactKey
from headcount.runs.describe import describe_run
from headcount.runs.scores import all_scores, all_verdicts, pack_scores, unpack_scores
from headcount.runs.store import Run
from headcount.workflows.analysis_spec import AnalysisSpec
from headcount.workflows.score import judge_into, score_into

N = 40


def describe(run: Run) -> None:
    model = shared("encoder")
    record = describe_run(model_record(model, "toy"), command="x", seed=0, task="t", machine=machine_entries(model), config={})
    run.stage_records(record, HeadMap.of(model))


def test_damage_of_each_example_is_that_of_evaluations_under_a_mask() -> None:
    model, data = shared("encoder"), task("encoder", N)
    with Float64():
        damage = hc.score(model, data, "ablation", split="report").damage
        dense = evaluate(model, data)
        with hc.mask(model, "L1H2"):
            ablated = evaluate(model, data)
    assert damage is not None and damage.losses.dtype == np.float32 and damage.losses.shape == (N, 12)
    hashes = [example_hashe for chunk in chunks(data, split="report") for example_hashe in chunk.example_hashes()]
    order = np.argsort(np.array([hashe.hex() for hashe in hashes]), kind="stable")
    np.testing.assert_allclose(damage.losses[:, 8], (ablated.losses - dense.losses)[order], rtol=1e-5, atol=1e-7)
    assert damage.answers is not None and dense.parts is not None and ablated.parts is not None
    np.testing.assert_array_equal(damage.answers[:, 8], (dense.parts[:, 0] - ablated.parts[:, 0])[order])


def test_the_order_of_the_file_does_not_matter() -> None:
    rows = examples("encoder", N)
    first, second = (hc.score(shared("encoder"), task("encoder", rows=part), "ablation", split="report") for part in (rows, rows[::-1]))
    assert first.damage is not None and second.damage is not None
    np.testing.assert_allclose(first.damage.losses, second.damage.losses, atol=1e-5)
    assert [row.safe for row in first.judge_heads().rows] == [row.safe for row in second.judge_heads().rows]


def test_plain_batches_have_damage_and_methods_that_measure_no_loss_have_none() -> None:
    batch = padder("encoder")(examples("encoder", 6))
    scores = hc.score(shared("encoder"), [batch], "ablation")
    assert scores.damage is not None and scores.damage.losses.shape == (6, 12) and scores.judge_heads().reason
    gradient = hc.score(shared("encoder"), task("encoder"), "gradient", split="report")
    raced = hc.score(shared("encoder"), task("encoder", 200), "ablation", split="report", adaptive=4)
    for other in (gradient, raced):
        with pytest.raises(PlanError, match="score by ablation"):
            other.judge_heads()


def test_rankings_rest_on_calibration_and_verdicts_on_the_report_split() -> None:
    model, data = shared("encoder"), task("encoder", N)
    with pytest.raises(PlanError, match=r"calibration split.*split='report'"):
        hc.score(model, data, "ablation").judge_heads()
    other = replace(data, calibration=examples("encoder", N + 9)[N:])
    first, second = (judge_into(None, model, each, ["gradient", "ablation"])["ablation"] for each in (data, other))
    assert first.rows == second.rows and first.n_examples == N
    assert judge_into(None, model, data, ["gradient", "magnitude"]) == {}


def test_documents_are_named_by_the_task_and_kept() -> None:
    model, data = shared("encoder"), task("encoder", N)
    names = [f"document {number % 7}" for number in range(N)]
    named = replace(data, documents={"report": names})
    scores = hc.score(model, named, "ablation", split="report", limit=30)
    assert scores.damage is not None and scores.damage.n_documents == 6 and len(scores.damage.losses) == 30
    verdicts = scores.judge_heads()
    assert (
        verdicts.n_examples_or_documents == 6
        and "documents; there are 6" in verdicts.reason
        and {row.safe for row in verdicts.rows} == {None}
    )
    assert evaluate(model, named, limit=9).documents is not None and evaluate(model, data).documents is None
    content, arrays = pack_scores(scores)
    back = unpack_scores(Artifact(ArtifactKey("damage", "ablation", {}), content, arrays))
    assert back.damage is not None and np.array_equal(back.damage.documents, scores.damage.documents)  # pyright: ignore[reportArgumentType]
    assert back.judge_heads() == verdicts
    with pytest.raises(DataError, match="names 3 documents for 40 examples of report"):
        replace(data, documents={"report": names[:3]})


def test_verdicts_are_kept_in_the_run_beside_the_ranking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, data = shared("encoder"), task("encoder", N)
    with Run.lead(tmp_path / "run") as run:
        describe(run)
        ranking = score_into(run, model, data, ["ablation"])["ablation"]
        verdicts = judge_into(run, model, data, ["ablation"])["ablation"]
    opened = Run.open(tmp_path / "run")
    assert all_scores(opened)["ablation"].values == ranking.values and ranking.conditions["split"] == "calibration"
    assert all_verdicts(opened)["ablation"] == verdicts
    assert (tmp_path / "run" / "verdicts.csv").read_text().startswith("method,head,cost,bound,p,q,safe,unit,tolerance,clip,level,examples")
    from headcount.data import stream

    monkeypatch.setattr(stream, "_measure_within_memory", lambda *_: pytest.fail("computed again"))
    with Run.lead(tmp_path / "run") as run:
        describe(run)
        assert judge_into(run, model, data, ["ablation"], tolerance="0.5pt")["ablation"].tolerance.unit == "points"


def numbers(damage: np.ndarray) -> dict[str, object]:
    heads = HeadMap.of(shared("encoder")).heads
    verdicts = judge_damage(heads, Damage(damage), tolerance=0.02, method="ablation")
    return {**verdicts.to_dict(), "safe": [str(head) for head in verdicts.safe_heads]}


def test_the_sentence_of_an_analysis_names_heads_and_never_a_number_of_heads_that_can_go() -> None:
    damage = np.column_stack([np.zeros((1200, 10)), np.full((1200, 2), 0.5)])
    text = format_step("judge", numbers(damage))
    assert "removed alone, each of L0H0, L0H1" in text and "up to 2 nats per example" in text
    assert "of several removed together this says nothing" in text and "10 heads" not in text and "10 of 12" not in text
    few = format_step("judge", numbers(damage[:100]))
    assert "no head is called safe; a verdict needs at least 450 examples; there are 100" in few
    assert "examples more would find" in format_step("judge", numbers(damage[:500]))


def test_an_analysis_reads_as_many_examples_as_verdicts_need() -> None:
    assert AnalysisSpec().verdict_limit is None and AnalysisSpec().cap_examples(64).verdict_limit == 64
    assert AnalysisSpec(verdict_limit=100).cap_examples(640).verdict_limit == 100
    assert ScoreSettings(limit=3).split == "calibration"


def test_a_bound_holds_as_it_is_written() -> None:
    heads = HeadMap.of(shared("encoder")).heads[:1]
    for shift in (0.0, 0.0111, 0.4):
        verdicts = judge_damage(heads, Damage(np.full((700, 1), shift)), tolerance=0.02)
        text = format_head_bound(verdicts, verdicts.rows[0])
        assert text.endswith(" nats") and verdicts.rows[0].bound <= float(text.split()[0]) <= 1.1 * verdicts.rows[0].bound


def test_the_demo_marks_heads_of_its_entailment_model_safe() -> None:
    from headcount.app.jobs.demo import SIZES, VERDICT_LIMITS
    from headcount.core.damage import examples_needed_for_harmless_head

    model = hc.load("demo/entailment")
    assert VERDICT_LIMITS["entailment"] is None and SIZES["entailment"][0] >= examples_needed_for_harmless_head(32), (
        "the demo reads as many examples as verdicts need"
    )
    data = hc.open_task(f"demo/entailment(size={SIZES['entailment'][0]})", model, hc.load_tokenizer("demo/entailment"))
    ablation = judge_into(None, model, data, ["ablation"], ScoreSettings(limit=600))["ablation"]
    assert ablation.safe_heads and not ablation["L0H7"].safe and ablation["L0H7"].bound > 0.1
