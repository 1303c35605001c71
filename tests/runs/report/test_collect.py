"""What the page gets out of a run folder: the contract to the letter, and the numbers that the library itself would tell."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import is_typeddict

import numpy as np
import pandas
import pytest
from contract import TYPES, check, wrong
from kit import heads_of, make_run
from packed import unpack_bytes

from headcount.core.damage import Damage
from headcount.core.errors import ArtifactError
from headcount.core.heads import Head
from headcount.core.scores import ScoreInterval, Scores
from headcount.core.stats.metric_parts import find_metric_of_sums
from headcount.core.stats.samples import Samples
from headcount.core.stats.significance import benjamini_hochberg, tango
from headcount.runs.artifacts import ArtifactKey
from headcount.runs.report import contract
from headcount.runs.report.collect import collect_report
from headcount.runs.report.roles import short_mark_of_each_role
from headcount.runs.report.scores import _score_columns, _test_scores_against_zero
from headcount.runs.scores import all_scores, all_verdicts
from headcount.runs.store import Run

EVERYTHING = ("scores", "roles", "evaluation", "pruned", "bench", "study", "profiles", "damage")


def test_the_checker_finds_what_does_not_fit() -> None:
    good = {"of": "a", "point": None, "method": None, "keep": 3, "seed": 0, "name": "dense", "batch": 1, "length": 2, "seconds": 0.1}
    good |= {
        "low": 0.1,
        "high": 0.1,
        "speedup": 1,
        "speedup_low": None,
        "speedup_high": 1.1,
        "rounds": 15,
        "is_noisy": False,
        "is_apart": False,
        "is_odd": False,
    }
    assert wrong(good, "BenchRow") == [] and len(TYPES) > 15
    for bad in ({"name": "whole"}, {"batch": "1"}, {"seconds": None}, {"extra": 1}, {"keep": True}):
        assert wrong({**good, **bad}, "BenchRow"), bad
    assert wrong({key: value for key, value in good.items() if key != "rounds"}, "BenchRow")


@pytest.mark.parametrize("left", EVERYTHING)
def test_a_run_fits_the_contract_whatever_is_missing(left: str, tmp_path: Path) -> None:
    kinds = [kind for kind in EVERYTHING if kind != left and not (left in ("pruned", "evaluation") and kind == "bench")]
    report = collect_report(make_run(tmp_path / "run", kinds=kinds)).with_all_maps()
    check(report, "Report")
    (data,) = report["runs"]
    assert len(data["summary"]) == 3 and all(data["summary"])
    empty = {"scores": [], "roles": None, "evaluation": None, "pruned": None, "bench": [], "study": [], "profiles": None, "damage": None}
    key = {"evaluation": "curves", "pruned": "curves", "study": "studies", "damage": "verdicts"}.get(left, left)
    assert data[key] == empty[left]


def test_a_run_of_nothing_but_scores_and_the_frozen_run_open(tmp_path: Path) -> None:
    check(collect_report(make_run(tmp_path / "run", kinds=("scores",))).with_all_maps(), "Report")
    frozen = Run.open(Path(__file__).parents[2] / "frozen" / "run-v3")
    report = collect_report(frozen).with_all_maps()
    check(report, "Report")
    assert {score["name"] for score in report["runs"][0]["scores"]} >= {"ablation", "gradient", "magnitude"}


def test_heads_are_numbered_and_groups_follow(tmp_path: Path) -> None:
    data = collect_report(make_run(tmp_path / "run", kv_heads=2)).report["runs"][0]
    assert data["heads"] == heads_of()
    assert [head for block in data["blocks"] for head in block["heads"]] == list(range(8))
    assert data["blocks"][0]["kv_group"] == [0, 0, 1, 1] and data["curves"]["unit"] == 2
    assert collect_report(make_run(tmp_path / "other")).report["runs"][0]["blocks"][0]["kv_group"] is None


def test_scores_are_those_of_the_run_with_corrected_significance(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    data, scores = collect_report(run).report["runs"][0], all_scores(run)
    by_name = {score["name"]: score for score in data["scores"]}
    assert [score["kind"] for score in data["scores"]] == ["importance", "importance", "description"]
    for name, made in scores.items():
        assert np.allclose(by_name[name]["values"], made.values, rtol=1e-4, atol=1e-12)
        intervals = made.intervals()
        assert by_name[name]["low"] == pytest.approx([interval.low for interval in intervals], rel=1e-4)
        assert by_name[name]["significant"] == (benjamini_hochberg([interval.p for interval in intervals]) <= 0.05).tolist()
        assert by_name[name]["about"]


def test_significance_is_told_only_where_it_can_be() -> None:
    assert _test_scores_against_zero([None, None]) == (None, None, None)
    tested = _test_scores_against_zero([ScoreInterval(-1.0, 1.0, 1.0), None, ScoreInterval(0.5, 1.0, 1e-6), ScoreInterval(-9.0, 10.0, 0.9)])
    assert tested == ([-1, None, 0.5, -9], [1, None, 1, 10], [False, False, True, False])
    noise = [ScoreInterval(-1.0, 1.0, p) for p in np.random.default_rng(0).random(400)]
    assert sum(_test_scores_against_zero(noise).significant or []) <= 2, "without a true effect hardly any head is called"


def test_what_single_heads_cost_is_told_with_its_conditions(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    verdicts = collect_report(run).report["runs"][0]["verdicts"]
    ablation = all_verdicts(run)["ablation"]
    assert verdicts["bound"] == pytest.approx([row.bound for row in ablation.rows], rel=1e-4)
    assert verdicts["safe"] == [row.safe for row in ablation.rows] and verdicts["safe"][0] is True and verdicts["safe"][-1] is False
    assert (verdicts["unit"], verdicts["tolerance"], verdicts["clip"], verdicts["n_examples"], verdicts["reason"]) == (
        "nats",
        0.02,
        2.0,
        900,
        "",
    )
    table = pandas.read_csv(run.folder / "verdicts.csv")
    assert table["bound"].tolist() == pytest.approx([row.bound for row in ablation.rows]) and table["safe"].tolist() == verdicts["safe"]
    assert set(table["clip"]) == {2.0} and set(table["examples"]) == {900}


def test_a_change_of_right_answers_has_the_interval_of_tango(tmp_path: Path) -> None:
    answers = np.zeros((200, 2), dtype=np.int8)
    answers[:30, 1] = 1
    answers[30:34, 1] = -1
    losses = np.random.default_rng(0).normal(size=(200, 2))
    heads = (Head("", 0, 0), Head("", 0, 1))
    scores = Scores(heads, (0.0, 0.0), "ablation", samples=Samples.of(losses), damage=Damage(losses, answers), n_examples=200)
    scores = replace(scores, columns={"accuracy change": (0.0, -0.13), "accuracy stderr": (0.0, 0.02)})
    change = _score_columns("ablation", scores, ["L0H0", "L0H1"])[1]
    expected = tango(np.r_[np.ones(30), np.zeros(4), np.ones(166)], np.r_[np.zeros(30), np.ones(4), np.ones(166)])
    assert change["name"] == "ablation: accuracy change" and change["significant"] == [False, True]
    assert (change["low"][1], change["high"][1]) == pytest.approx((expected.low, expected.high), rel=1e-4)
    assert change["low"][0] == -change["high"][0] < 0, "no answer changed, and the interval is no point"


def test_roles_keep_every_row_and_say_where_no_head_beats_the_baseline(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    roles = collect_report(run).report["runs"][0]["roles"]
    rows = next(iter(run.results("roles").values())).content["rows"]
    assert len(roles["rows"]["head"]) == len(rows) == 8 * 5
    for i, row in enumerate(rows):
        assert roles["names"][roles["rows"]["role"][i]] == row["role"]
        assert roles["rows"]["bias"][i] == pytest.approx(row["bias"], rel=1e-3)
    for head, labels in enumerate(roles["labels"]):
        has = {row["role"] for row in rows if row["head"] == heads_of()[head] and row["has_role"]}
        assert {roles["names"][role] for role in labels} == has
    assert len(roles["relations"]) == 2
    for relation in roles["relations"]:
        (bests,) = [best for best in roles["best"] if best["role"] == relation["role"]]
        assert (relation["head"], relation["accuracy"]) == (bests["head"], bests["accuracy"])
        assert relation["holds"] == (relation["difference"] > 0 and relation["q"] < 0.05)
    assert roles["skipped"] == ["2 sentences: plain"]


def test_no_two_roles_share_a_mark() -> None:
    names = [*(f"offset:{n:+d}" for n in range(-3, 4)), *(f"syntax:{r}{e}" for r in ("nsubj", "nmod", "obj", "obl") for e in ("", "-of"))]
    names += [f"pos:X{i}" for i in range(60)]
    marks = short_mark_of_each_role(names)
    assert len(set(marks)) == len(names) and all(1 <= len(mark) <= 2 for mark in marks)
    assert marks[:3] == ["-3", "-2", "-1"]


def test_maps_come_back_byte_by_byte(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    attention = collect_report(run).with_all_maps()["runs"][0]["attention"]
    arrays = next(iter(run.results("profiles").values())).arrays
    for sentence in range(3):
        for block in range(2):
            assert unpack_bytes(attention["maps"][sentence][block]) == arrays[f"{sentence}/{block}"].tobytes()


def test_totals_by_name_are_those_of_the_metrics() -> None:
    from headcount.data import metrics

    for metric in (*metrics.BY_NAME.values(), metrics.TOKEN_ACCURACY, metrics.PERPLEXITY):
        assert find_metric_of_sums(metric.name) is metric.total
    sums = np.random.default_rng(0).integers(1, 9, (3, 10)).astype(float)
    sums[:, 0] = sums[:, 1] = 20
    assert np.allclose(find_metric_of_sums("BLEU")(sums), metrics.bleu(lambda *_: ([], [])).total(sums))  # pyright: ignore[reportOptionalCall]
    assert find_metric_of_sums("somebody's own") is None


def test_few_examples_damage_and_failures_are_told(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", n=50)
    (run.folder / "quarantine").mkdir()
    (run.folder / "quarantine" / "0000.x").write_text("x")
    with (run.folder / "log.txt").open("a") as log:
        log.write("2026-01-01T00:00:00+00:00 1 failed: pruned l0: no luck\n" * 2)
    warnings = collect_report(run).report["runs"][0]["warnings"]
    assert sum("50 examples" in text for text in warnings) == 1
    assert sum("1 damaged" in text for text in warnings) == 1
    assert warnings.count("Failed: pruned l0: no luck") == 1


def test_a_run_whose_artifacts_are_gone_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from headcount.app.main import main

    run = make_run(tmp_path / "run", n=20)
    assert main(["report", str(run.folder), "--max-mb", "0.01"]) == 0
    assert "could not be made as small as the 0.01 MB" in capsys.readouterr().err
    for path in sorted((run.folder / "artifacts" / "pruned").iterdir())[:2]:
        path.unlink()
    next((run.folder / "artifacts" / "roles").iterdir()).unlink()
    message = (
        r"run.json lists 3 results whose artifacts are missing \(first: .*Copy it again with all its artifacts, or run its command again"
    )
    with pytest.raises(ArtifactError, match=message):
        collect_report(run)
    assert main(["report", str(run.folder)]) == 1
    assert "3 results whose artifacts are missing" in capsys.readouterr().err


def test_the_q_of_a_relation_is_that_of_its_difference(tmp_path: Path) -> None:
    from headcount.core.role_table import RoleTable
    from headcount.runs.report.roles import pack_roles

    content = next(iter(make_run(tmp_path / "run").results("roles").values())).content
    syntax = [best for best in content["best_heads"] if best["role"].startswith("syntax:")]
    p = [0.001, 0.04]
    assert len(syntax) == 2

    def relations(**changes: float) -> list[dict]:
        best = [{**one, "accuracy": 0.9, "p": value, **changes} for one, value in zip(syntax, p, strict=True)]
        return pack_roles(RoleTable.from_dict({**content, "best_heads": best}), heads_of())["relations"]

    assert [relation["q"] for relation in relations()] == pytest.approx(benjamini_hochberg(p).tolist())
    assert all(relation["holds"] for relation in relations()) and not any(relation["holds"] for relation in relations(baseline=0.99))
    without = pack_roles(RoleTable.from_dict({**content, "best_heads": []}), heads_of())
    assert without["best"] == [] and without["relations"] == [], "roles that occur in one half only have no best heads"


def test_columns_of_a_score_say_what_they_are(tmp_path: Path) -> None:
    from dataclasses import replace

    scores = replace(all_scores(make_run(tmp_path / "run"))["ablation"], columns={"accuracy change": (0.1,) * 8, "examples": (3.0,) * 8})
    first, change, examples = _score_columns("ablation", scores, heads_of())
    assert len({first["about"], change["about"], examples["about"]}) == 3
    assert change["name"] == "ablation: accuracy change" and "accuracy" in change["about"]


def test_columns_and_kinds_of_scores_are_as_the_run_tells_them(tmp_path: Path) -> None:
    from dataclasses import replace

    from headcount.runs.artifacts import Artifact
    from headcount.runs.scores import pack_scores, unpack_scores

    gradient = all_scores(make_run(tmp_path / "run"))["gradient"]
    columns = {"WER change": (0.1,) * 8, "WER stderr": (0.1,) * 8, "examples": (3.0,) * 8}
    gradient = replace(gradient, method="mine", columns=columns, directions={"WER change": True}, describes=True)
    gradient = unpack_scores(Artifact(ArtifactKey("scores", "mine", {}), *pack_scores(gradient)))
    first, change, examples = _score_columns("mine", gradient, heads_of())
    assert first["kind"] == "description" and change["higher_is_keep"] is True and change["stderr"] is not None
    assert examples["higher_is_keep"] is True, "the page says 'the lower, the more the head is needed' of what is not"
    known = _score_columns("confidence", replace(gradient, describes=False), heads_of())[0]
    assert known["kind"] == "importance", "what the run tells goes before what is known by name"


def test_directions_are_guessed_where_scores_do_not_tell_them(tmp_path: Path) -> None:
    from dataclasses import replace

    ablation = all_scores(Run.open(Path(__file__).parents[2] / "frozen" / "run-v3"))["ablation"]
    old = replace(ablation, describes=None, directions={})
    first, change = _score_columns("ablation", old, [str(head) for head in old.heads])
    assert first["kind"] == "importance" and change["name"] == "ablation: accuracy change" and change["higher_is_keep"] is False
    scores = replace(old, columns=dict.fromkeys(("accuracy change", "perplexity change"), old.values))
    for name, direction in (("ablation", True), ("all-but-one", False)):
        _, accuracy, perplexity = _score_columns(name, replace(scores, higher_is_keep=direction), heads_of())
        assert (accuracy["higher_is_keep"], perplexity["higher_is_keep"]) == (not direction, direction)
    assert _score_columns("entropy", old, heads_of())[0]["kind"] == "description"


def test_a_run_opens_by_its_name_and_says_which_it_is(tmp_path: Path) -> None:
    make_run(tmp_path / "run", n=20, kinds=("scores",))
    assert repr(Run.open(str(tmp_path / "run"))) == f"Run({str(tmp_path / 'run')!r})"


def test_the_python_types_of_the_page_have_the_fields_of_the_contract() -> None:
    nested = {
        "Relation": ("Roles", "relations"),
        "Dense": ("Curves", "dense"),
        "ChosenPoint": ("Curves", "chosen"),
        "TestedPoint": ("Curves", "sizes"),
    }
    nested |= {"RunModel": ("RunData", "model"), "ScoreDifference": ("RunComparison", "scores"), "RoleChange": ("RunComparison", "roles")}
    nested |= {
        "RolesOnly": ("RunComparison", "roles_only"),
        "Outcomes": ("RunComparison", "outcomes"),
        "Setting": ("RunComparison", "config"),
    }
    nested |= {"LiveRunStatus": ("Live", "runs")}
    types = {name: value for name, value in vars(contract).items() if is_typeddict(value)}
    assert len(types) > 15
    for name, value in types.items():
        owner, field = nested.get(name, ({"PageTable": "Table"}.get(name, name), ""))
        kind = TYPES[owner] if not field else TYPES[owner][1][field][1]
        while kind[0] != "object":
            kind = kind[1][0] if kind[0] == "union" else kind[1]
        assert value.__annotations__.keys() == kind[1].keys(), name
