"""The report as a user meets it: the verbs, without torch, with figures, two runs, the whole job and its resumption."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from contract import check
from hostile import HOSTILE
from kit import make_run

import headcount as hc
from headcount.app.main import main
from headcount.runs.store import Run

BLOCKED = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ImportError(f"{{name}} is blocked")
sys.meta_path.insert(0, Block())
from headcount.app.main import main
sys.exit(main(sys.argv[1:]))
"""


def without(modules: tuple[str, ...], *words: object) -> subprocess.CompletedProcess[str]:
    """A command in a process that cannot import these modules."""
    command = [sys.executable, "-c", BLOCKED.format(blocked=modules), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "HF_HUB_OFFLINE": "1"})


def data_of(path: Path) -> Any:
    text = path.read_text(encoding="utf-8")
    return json.loads(text[text.index('id="headcount-data">') + len('id="headcount-data">') : text.rindex("</script>\n<script>")])


def test_a_report_is_written_without_torch(tmp_path: Path) -> None:
    make_run(tmp_path / "run")
    done = without(("torch", "transformers", "datasets", "accelerate"), "report", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    path = Path(done.stdout.strip())
    assert path == tmp_path / "run" / "report.html" and path.stat().st_size < 2_000_000
    check(data_of(path), "Report")


def test_extras_that_are_missing_are_named(tmp_path: Path) -> None:
    make_run(tmp_path / "run", n=20, kinds=("scores",))
    sample = without(("matplotlib",), "report", tmp_path / "run", "--figures", tmp_path / "figures")
    assert sample.returncode == 1 and "pip install 'headcount[figures]'" in sample.stderr and "Traceback" not in sample.stderr
    for module in ("starlette", "uvicorn"):
        served = without((module,), "serve", tmp_path / "run")
        assert served.returncode == 1 and "pip install 'headcount[serve]'" in served.stderr and "Traceback" not in served.stderr


def test_two_runs_another_place_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = make_run(tmp_path / "a", n=30), make_run(tmp_path / "b", n=30, seed=1)
    (tmp_path / "deep").mkdir()
    assert main(["report", str(a.folder), str(b.folder), "--out", str(tmp_path / "deep" / "both.html"), "--json", "-q"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert Path(content["report"]).stat().st_size == content["bytes"]
    assert data_of(tmp_path / "deep" / "both.html")["comparison"]["title"].startswith("b (plain) against a")
    assert not (a.folder / "report.html").exists()


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["report", "{0}/nothing"], 1, "holds no run"),
        (["report", "{0}/run", "--max-mb", "0"], 1, "at most 10 MB"),
        (["report", "{0}/run", "--out", "{0}"], 1, "is a folder"),
        (["report"], 2, "Missing argument"),
        (["serve"], 2, "Missing argument"),
        (["serve", "{0}/nothing"], 1, "holds no run"),
        (["serve", "{0}/run", "--port", "70000"], 2, "65535"),
        (["analyze", "demo/entailment", "--out", "{0}/x", "--keep", "1.0"], 2, "takes numbers of heads, or shares"),
        (["analyze", "demo/entailment", "--out", "{0}/x", "--by", "gradeint"], 2, "gradient"),
        (["analyze", "demo/entailment", "--out", "{0}/x", "--methods", "nope"], 2, "no method of pruning 'nope'"),
        (["analyze", "demo/entailment", "--out", "{0}/x", "--methods", "random,rank(bye=gradient)"], 2, "option of"),
        (["report", "{0}/run", "--out", "{0}/run/run.json"], 1, "report*.html"),
    ],
)
def test_what_cannot_be_done_is_said(words: list[str], code: int, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(tmp_path / "run", n=20, kinds=("scores",))
    assert main([word.format(tmp_path) for word in words]) == code
    assert text in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


def test_a_damaged_run_is_told_and_nothing_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path / "run", n=20)
    artifact = next((run.folder / "artifacts" / "roles").iterdir())
    artifact.write_bytes(artifact.read_bytes()[:-20])
    assert main(["report", str(run.folder)]) == 1
    assert "torn" in (err := capsys.readouterr().err) or "damaged" in err
    assert not (run.folder / "report.html").exists()


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_figures_are_whole_and_the_same_twice(tmp_path: Path) -> None:
    from headcount.runs.report.figures import write_figures_with_matplotlib

    run = make_run(tmp_path / "run", n=30)
    first = {path.name: path.read_bytes() for path in write_figures_with_matplotlib(run, tmp_path / "one").paths}
    again = {path.name: path.read_bytes() for path in write_figures_with_matplotlib(run, tmp_path / "two").paths}
    assert first == again
    assert {name.partition(".")[0] for name in first} >= {"map-gradient", "map-ablation", "curves", "cost", "roles"}
    for name, content in first.items():
        if name.endswith(".svg"):
            assert ElementTree.fromstring(content).tag.endswith("svg")
            assert b"<text" not in content, "letters are shapes, as in the figures of studies"
        else:
            assert content.startswith(b"%PDF") and content.rstrip().endswith(b"%%EOF")


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("text", [HOSTILE[i] for i in (1, 16, 40, 48, 55, 57)], ids=range(6))
def test_figures_take_hostile_names_as_text(text: str, tmp_path: Path) -> None:
    from headcount.runs.report.figures import write_figures_with_matplotlib

    for path in write_figures_with_matplotlib(make_run(tmp_path / "run", n=20, text=text, layers=1), tmp_path / "figures").paths:
        assert path.parent == tmp_path / "figures"
        if path.suffix == ".svg":
            tags = {element.tag.rpartition("}")[2] for element in ElementTree.fromstring(path.read_bytes()).iter()}
            assert not tags & {"script", "foreignObject", "a", "iframe"}


def test_figures_that_a_run_lacks_are_named_with_their_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path / "run", n=20, kinds=("scores",))
    words = ["report", str(run.folder), "--figures", str(tmp_path / "figures")]
    assert main(words) == 0
    out, err = capsys.readouterr()
    assert str(tmp_path / "figures" / "map-gradient.svg") in out.splitlines()
    assert "not drawn: studies: no study is in the run (headcount ls studies); headcount study NAME " in err
    assert "not drawn: curves: no pruned model was measured; headcount compare " in err and "head maps" not in err
    assert main([*words, "--json", "-q"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert [figure["name"] for figure in content["not_drawn"]] == ["curves", "cost", "roles", "studies", "papers"]
    assert all(Path(path).is_file() for path in content["figures"]) and len(content["figures"]) == 2 * len(
        data_of(run.folder / "report.html")["runs"][0]["scores"]
    )


def test_the_whole_job_ends_in_a_report_and_goes_on(analysed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = data_of(analysed / "report.html")
    check(data, "Report")
    (run,) = data["runs"]
    assert run["roles"] and run["profiles"] and run["attention"] and run["curves"] and run["bench"] and len(run["scores"]) == 2
    assert run["config"]["opened"] == {"task": "demo/entailment"}
    assert run["command"].startswith("headcount.analyze('demo/entailment', 'demo/entailment', out=")
    for word in ("score_limit=16, comparison_limit=40", "by=('gradient', 'confidence')", "seeds=1", "keep=(0.5,)"):
        assert word in run["command"]
    assert (analysed / "report.html").stat().st_size < 2_000_000
    assert Run.open(analysed).report().read_bytes() == (analysed / "report.html").read_bytes()


@pytest.mark.usefixtures("small_bench")
def test_analyze_on_the_command_line_is_taken_up_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from headcount.workflows import prune as pruning

    text = tmp_path / "text.txt"
    text.write_text("the queen runs .\na king sleeps .\n" * 3 + " ".join(["the queen runs ."] * 12))
    words = [
        "analyze",
        "demo/entailment",
        "--task",
        "demo/entailment",
        "--text",
        str(text),
        "--out",
        str(tmp_path / "run"),
        "--by",
        "gradient,ablation",
        "--verdict-limit",
        "12",
    ]
    words += [
        "--methods",
        "random",
        "--keep",
        "25%,50%",
        "--seeds",
        "1",
        "--score-limit",
        "16",
        "--comparison-limit",
        "30",
        "--max-map-length",
        "8",
        "--json",
    ]
    made, real = [], pruning.prune_by_spec

    def counted(*args: Any, **options: Any) -> Any:
        made.append(args)
        if len(made) == 2:
            raise KeyboardInterrupt
        return real(*args, **options)

    monkeypatch.setattr(pruning, "prune_by_spec", counted)
    assert main(words) == 130
    assert "To resume: headcount analyze" in capsys.readouterr().err
    assert main(words) == 0
    content = json.loads(capsys.readouterr().out)
    steps = [step["step"] for step in content["steps"]]
    assert steps[:6] == ["find", "evaluate", "score", "judge", "roles", "profiles"] and steps[-2:] == ["bench", "report"]
    judge = content["steps"][3]
    assert judge["n_examples"] == 12 and judge["safe"] == [] and len(judge["rows"]) == 32
    assert "no head is called safe; a verdict needs at least 450 examples; there are 12" in judge["text"]
    artifacts = len(Run.open(tmp_path / "run").results("pruned"))
    assert artifacts == 2 and len(made) <= 4, "what was finished is not made again; the best model is made once more to be kept"
    report = data_of(Path(content["steps"][-1]["path"]))
    check(report, "Report")
    dense, before = report["runs"][0]["curves"]["dense"], next(step for step in content["steps"] if step["step"] == "keep")["before"]
    assert (before["flops"], before["tokens"]) == (dense["flops"], dense["tokens"]), "operations are counted once, for as many tokens"
    assert len(report["runs"][0]["attention"]["sentences"]) == 6, "the seventh is longer than was asked for"
    opened = report["runs"][0]["config"]["opened"]
    assert opened["task"] == "demo/entailment" and opened["text"] == str(text)
    assert report["runs"][0]["profiles"]["n_sentences"] == 7


def test_methods_are_checked_before_any_work_and_seeds_follow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from headcount.core.errors import HeadcountError
    from headcount.workflows import analyze
    from headcount.workflows.analysis_spec import AnalysisSpec
    from headcount.workflows.analyze import make_prune_requests

    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("work was done")

    monkeypatch.setattr(analyze, "evaluate_into", never)
    for wrong in ({"methods": ("random", "nope")}, {"by": ("gradeint",)}, {"methods": ("rank(bye=gradient)",)}):
        options: Any = wrong
        with pytest.raises(HeadcountError):
            hc.analyze("demo/entailment", "demo/entailment", out=tmp_path / "run", **options)
        assert not (tmp_path / "run").exists()
    spec = AnalysisSpec(methods=("l0",), keep=(0.5,), seeds=2, seed=3)
    requests = make_prune_requests(spec, hc.HeadMap.of(hc.load("demo/entailment")))
    assert [(str(request.method), request.seed) for request in requests] == [("l0", 3), ("l0", 4), ("random", 3), ("random", 4)]


def test_analyze_in_python_takes_a_live_model_and_a_task_without_texts(tmp_path: Path) -> None:
    from headcount.data.metrics import ACCURACY
    from headcount.data.task import pad
    from headcount.models.tiny.build import tiny_model
    from headcount.workflows.analysis_spec import BenchSizes

    model: Any = tiny_model("bert", auto="AutoModelForSequenceClassification", num_labels=2)
    rows = [{"input_ids": [5 + i % 7, 9, 11 + i % 3], "labels": i % 2} for i in range(24)]
    task = hc.Task("toy", rows, rows, rows, pad, metric=ACCURACY)
    options: Any = {"score_limit": 8, "comparison_limit": 24, "by": ("gradient",), "methods": ("random",), "keep": (0.5,), "seeds": 1}
    spoken_text: list[str] = []
    run = hc.analyze(
        model,
        task,
        out=tmp_path / "run",
        bench_sizes=BenchSizes((1,), (8,), 1),
        on_step=lambda step: spoken_text.append(step.name),
        **options,
    )
    assert spoken_text[-1] == "report" and run.report() == tmp_path / "run" / "report.html"
    data = data_of(run.report())
    check(data, "Report")
    assert data["runs"][0]["profiles"]["n_sentences"] == 24 and "opened" not in data["runs"][0]["config"]
    assert any("distances count tokens" in text for text in data["runs"][0]["warnings"])
    shutil.rmtree(tmp_path / "run" / "artifacts" / "profiles")
    with pytest.warns(UserWarning, match="artifacts are missing"):
        again = hc.analyze(model, task, out=tmp_path / "run", bench_sizes=BenchSizes((1,), (8,), 1), **options)
    assert data_of(again.report())["runs"][0]["profiles"] == data["runs"][0]["profiles"]
