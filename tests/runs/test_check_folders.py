"""`headcount check` of run folders and saved models, and what `Run.open` and the report notice: damaged, missing and foreign files are named."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import headcount as hc
from headcount.app.main import main
from headcount.core.errors import ArtifactError
from headcount.core.files import json_bytes
from headcount.models.provenance import model_record
from headcount.models.tiny.build import tiny_model
from headcount.runs.describe import describe_run
from headcount.runs.scores import all_scores
from headcount.runs.store import Run
from headcount.surgery.cost import cost
from headcount.workflows.evaluate import evaluate_into
from headcount.workflows.score import score_into


def make_run(folder: Path, model: nn.Module, name: str, methods: list[str]) -> None:
    """A run with scores, an evaluation, and a model in models/."""
    from toys import task

    data = task("encoder", 12)
    with Run.lead(folder, command=f"headcount score {name}") as run:
        heads = hc.HeadMap.of(model)
        run.stage_records(describe_run(model_record(model, name), command=f"headcount score {name}", seed=0), heads)
        score_into(run, model, data, methods)
        evaluate_into(run, "whole", model, data)
        small = hc.cut(model, hc.Plan.removing(["L0H1"]))
        run.register_saved_model(hc.save(small, folder / "models" / "rank.12345678", cost=(cost(model), cost(small))))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run, and one of another model."""
    base = tmp_path_factory.mktemp("runs")
    first, second = (tiny_model("bert", auto="AutoModelForSequenceClassification", seed=seed, num_labels=3) for seed in (0, 1))
    make_run(base / "a", first, "first", ["magnitude", "gradient"])
    make_run(base / "b", second, "second", ["magnitude", "fisher"])
    return base / "a", base / "b"


@pytest.fixture
def run(runs: tuple[Path, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(runs[0], tmp_path / "run"))


def artifact(folder: Path, name: str, kind: str = "scores") -> Path:
    return next((folder / "artifacts" / kind).glob(f"{name}.*"))


def check(folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, set[tuple[str, str]]]:
    """Exit code and (kind, path) of every problem that `headcount check` names."""
    code = main(["check", str(folder), "--json"])
    content = json.loads(capsys.readouterr().out)
    assert content["passed"] == (code == 0)
    return code, {(problem["kind"], problem["path"]) for problem in content["problems"]}


def test_a_whole_run_passes(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(run, capsys) == (0, set())
    assert main(["check", str(run)]) == 0
    assert f"all {3 + 3 + 3 + 5} files of {run} are as they were written" in capsys.readouterr().err
    Run.open(run)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def foreign_artifact(run: Path, other_run: Path) -> tuple[str, str]:
    shutil.copy(artifact(other_run, "fisher"), run / "artifacts" / "scores")
    return "foreign", f"artifacts/scores/{artifact(other_run, 'fisher').name}"


def foreign_evaluation(run: Path, other_run: Path) -> tuple[str, str]:
    """Under a name that run.json lists already, with another key."""
    shutil.copy(artifact(other_run, "whole", "evaluation"), run / "artifacts" / "evaluation")
    return "foreign", f"artifacts/evaluation/{artifact(other_run, 'whole', 'evaluation').name}"


def missing_artifact(run: Path, other_run: Path) -> tuple[str, str]:
    path = artifact(run, "gradient")
    path.unlink()
    return "missing", str(path.relative_to(run))


def foreign_record(run: Path, other_run: Path) -> tuple[str, str]:
    shutil.copy(other_run / "run.json", run / "run.json")
    return "foreign", "heads.json" if (run / "heads.json").read_bytes() != (
        other_run / "heads.json"
    ).read_bytes() else f"artifacts/scores/{artifact(run, 'gradient').name}"


def missing_heads(run: Path, other_run: Path) -> tuple[str, str]:
    (run / "heads.json").unlink()
    return "missing", "heads.json"


def damaged_record(run: Path, other_run: Path) -> tuple[str, str]:
    flip(run / "run.json")
    return "damaged", "run.json"


@pytest.mark.parametrize("way", [foreign_artifact, foreign_evaluation, missing_artifact, foreign_record, missing_heads, damaged_record],
                         ids=lambda way: way.__name__)  # fmt: skip
def test_open_report_and_check_notice(
    run: Path, runs: tuple[Path, Path], way: Callable[[Path, Path], tuple[str, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    problem = way(run, runs[1])
    with pytest.raises(ArtifactError):
        Run.open(run)
    assert main(["report", str(run)]) == 1
    assert not (run / "report.html").exists()
    capsys.readouterr()
    code, problems = check(run, capsys)
    assert code == 1 and problem in problems


def damaged_artifact(run: Path, other_run: Path) -> set[tuple[str, str]]:
    flip(artifact(run, "gradient"))
    return {("damaged", str(artifact(run, "gradient").relative_to(run)))}


def swapped_artifacts(run: Path, other_run: Path) -> set[tuple[str, str]]:
    first, second = artifact(run, "gradient"), artifact(run, "magnitude")
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(content)
    return {("foreign", str(path.relative_to(run))) for path in (first, second)}


def edited_table(run: Path, other_run: Path) -> set[tuple[str, str]]:
    (run / "scores.csv").write_text((run / "scores.csv").read_text().replace("1", "2"))
    return {("damaged", "scores.csv")}


def foreign_tables(run: Path, other_run: Path) -> set[tuple[str, str]]:
    for name in ("scores.csv", "scores.parquet", "outcomes.parquet", "tables.json"):
        shutil.copy(other_run / name, run / name)
    return {("foreign", name) for name in ("scores.csv", "scores.parquet", "outcomes.parquet")}


def missing_table(run: Path, other_run: Path) -> set[tuple[str, str]]:
    (run / "scores.parquet").unlink()
    return {("missing", "scores.parquet")}


def missing_model(run: Path, other_run: Path) -> set[tuple[str, str]]:
    shutil.rmtree(run / "models" / "rank.12345678")
    return {("missing", "models/rank.12345678")}


def foreign_model(run: Path, other_run: Path) -> set[tuple[str, str]]:
    shutil.rmtree(run / "models" / "rank.12345678")
    shutil.copytree(other_run / "models" / "rank.12345678", run / "models" / "rank.12345678")
    return {("foreign", "models/rank.12345678")}


def damaged_model(run: Path, other_run: Path) -> set[tuple[str, str]]:
    flip(run / "models" / "rank.12345678" / "model.safetensors")
    return {("damaged", "models/rank.12345678/model.safetensors")}


def unlisted_model(run: Path, other_run: Path) -> set[tuple[str, str]]:
    shutil.copytree(run / "models" / "rank.12345678", run / "models" / "other.87654321")
    return {("foreign", "models/other.87654321")}


def foreign_plan(run: Path, other_run: Path) -> set[tuple[str, str]]:
    hc.Plan.removing(["L0H2"]).write(run / "models" / "rank.12345678.plan.json")
    return {("foreign", "models/rank.12345678.plan.json")}


def several(run: Path, other_run: Path) -> set[tuple[str, str]]:
    return damaged_artifact(run, other_run) | missing_model(run, other_run) | missing_table(run, other_run)


CHANGES = [damaged_artifact, swapped_artifacts, edited_table, foreign_tables, missing_table, missing_model, foreign_model, damaged_model,
           unlisted_model, foreign_plan, several]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_check_names_everything_that_is_wrong(
    run: Path, runs: tuple[Path, Path], change: Callable[[Path, Path], set[tuple[str, str]]], capsys: pytest.CaptureFixture[str]
) -> None:
    expected = change(run, runs[1])
    assert check(run, capsys) == (1, expected)


def test_a_foreign_result_is_not_shown_by_who_works_in_the_run(run: Path, runs: tuple[Path, Path]) -> None:
    foreign_artifact(run, runs[1])
    before = (run / "scores.csv").read_bytes()
    with pytest.warns(UserWarning, match="is of another model .* it is not shown"), Run.lead(run) as led:
        assert set(all_scores(led)) == {"gradient", "magnitude"}
        led.register_results()
    assert (run / "scores.csv").read_bytes() == before


def test_a_missing_result_is_dropped_from_the_list_by_the_next_command(run: Path) -> None:
    model = tiny_model("bert", auto="AutoModelForSequenceClassification", seed=0, num_labels=3)
    artifact(run, "gradient").unlink()
    with pytest.warns(UserWarning, match="lists scores/gradient, whose artifacts are missing"), Run.lead(run) as led:
        led.stage_records(describe_run(model_record(model, "first"), command="headcount score first", seed=0), hc.HeadMap.of(model))
        score_into(led, model, None, ["magnitude"])
    assert set(all_scores(Run.open(run))) == {"magnitude"}


def test_the_report_says_that_a_model_is_gone(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(run / "models" / "rank.12345678")
    assert main(["report", str(run)]) == 0
    assert "1 model is listed in run.json and missing" in capsys.readouterr().err
    with pytest.raises(ArtifactError, match=r"is missing, though run\.json lists it"):
        Run.open(run).models()


# Saved models.


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    model = tiny_model("gpt2", dtype=torch.float32)
    return hc.save(hc.cut(model, hc.Plan.removing(["L0H1"])), tmp_path / "model")


def test_a_whole_model_is_verified_and_the_laws_are_proved(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(saved)]) == 0
    assert "laws that apply hold" in capsys.readouterr().err


def test_every_bad_file_of_a_model_is_named(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flip(saved / "model.safetensors")
    (saved / "generation_config.json").unlink()
    (saved / "adapter_config.json").write_text("{}")
    wrong = {("damaged", "model.safetensors"), ("missing", "generation_config.json"), ("foreign", "adapter_config.json")}
    assert check(saved, capsys) == (1, wrong)


def test_a_manifest_that_was_edited_or_is_gone_is_named(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = json.loads((saved / "heads.json").read_text())
    (saved / "heads.json").write_bytes(json_bytes({**content, "removed": []}))
    assert check(saved, capsys) == (1, {("damaged", "heads.json")})
    (saved / "heads.json").unlink()
    assert check(saved, capsys) == (1, {("missing", "heads.json")})


def test_a_dense_model_whose_manifest_is_gone_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It passed: only cut models were known to have a manifest."""
    folder = hc.save(tiny_model("gpt2").to(torch.bfloat16), tmp_path / "model")
    (folder / "heads.json").unlink()
    assert check(folder, capsys) == (1, {("missing", "heads.json")})
