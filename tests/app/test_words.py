"""Commands that the page hands out make the models that it shows: read back by the command line, they wish for the same."""

from __future__ import annotations

import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kit import make_run

from headcount.app.console.inputs import ModelAndTaskOptions
from headcount.app.console.words import format_as_milliseconds, prune_command, task_words
from headcount.app.jobs import prune as prune_job
from headcount.app.main import main
from headcount.core.budget import Budget
from headcount.core.errors import PlanError
from headcount.pruning.recipe import Recipe
from headcount.pruning.spec import PruneSpec
from headcount.runs.artifacts import Artifact, ArtifactKey
from headcount.runs.report.plain import format_exact_number
from headcount.runs.report.repeat import format_prune_call, prune_commands_by_method
from headcount.runs.schema import RunRecord
from headcount.workflows.prune import build_grid

SPECS = {
    "plain": PruneSpec.of("surgeon", 12),
    "an importance": PruneSpec.of("gradient", 12),
    "an importance that is a pruner too": PruneSpec.of("rank(by=fisher;again=true)", 12),
    "a variant": PruneSpec.of("ablation:mean", 12, repair=True),
    "trained": PruneSpec.of(
        "l0", 12, recipe=Recipe(epochs=0.123456789, rate=3e-4, train_batch=8, distil=0.5, warmup=0.1), recover=1.5, repair=False
    ),
    "a seed of a grid": PruneSpec.of("random", 12, seed=2),
    "steps": PruneSpec.of("dsp(tau=2)", 12, seed=5, recipe=Recipe(steps=77)),
    "protected": PruneSpec.of("surgeon", 12, protected=("L0H1", "L2H3"), floor=1, unit="even"),
    "from scratch": PruneSpec.of("surgeon", 12, scratch=2.0, scratch_rate=1e-3),
    "means": PruneSpec.of("surgeon", 12, ablation="mean"),
    "parameters": PruneSpec.of("surgeon", Budget(parameters=1234567)),
    "bytes": PruneSpec.of("surgeon", Budget(kv_bytes=98304)),
    "time": PruneSpec.of("surgeon", Budget(latency=0.0123456789)),
    "kinds": PruneSpec.of("random", 12, kinds=("encoder-self",)),
    "a penalty": PruneSpec.of("l0(penalty=0.02)"),
}


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> RunRecord:
    made = make_run(tmp_path_factory.mktemp("commands") / "run", n=20, kinds=("scores",), text="demo/entailment").record()
    return made.model_copy(update={"config": {"opened": {"task": "demo/entailment", "dtype": "float32", "limit": 99}}})


def artifact_of(spec: PruneSpec) -> Artifact:
    content = {"spec": spec.to_dict(), "label": spec.label, "arguments": spec.arguments()}
    return Artifact(ArtifactKey("pruned", spec.name, {"limit": 30}), content)


def read_back(command: str, monkeypatch: pytest.MonkeyPatch, path: Path) -> PruneSpec:
    """What the command line makes of a command, without carrying it out."""
    actual: list[PruneSpec] = []

    def stop(spec: PruneSpec, *_: Any) -> None:
        actual.append(spec)
        raise PlanError("enough")

    monkeypatch.chdir(path)
    monkeypatch.setattr(prune_job, "check_request", stop)
    program, *words = shlex.split(command)
    assert program == "headcount" and main([*words, "-q"]) == 1
    return actual[0]


@pytest.mark.parametrize("name", SPECS)
def test_a_command_asks_for_the_model_it_stands_at(name: str, record: RunRecord, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    command = prune_command(record, "run", artifact_of(SPECS[name]))
    words = shlex.split(command)
    assert read_back(command, monkeypatch, tmp_path) == SPECS[name]
    assert words[words.index("--limit") + 1] == "99" and words[words.index("--dtype") + 1] == "float32"
    assert words[-2:] == ["--out", "runs/run"]


def test_a_command_for_any_number_of_heads(record: RunRecord, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    artifacts = [artifact_of(PruneSpec.of("dsp", 12, seed=seed, recipe=Recipe(epochs=2.0))) for seed in (1, 0)]
    made = prune_commands_by_method(record, "a run", [*artifacts, artifact_of(SPECS["time"]), artifact_of(SPECS["kinds"])], prune_command)
    assert set(made) == {"dsp", "surgeon"}, "where heads of some kinds are counted, the page does not know the number"
    assert all(text.count("{keep}") == text.count("--keep {keep}") == 1 for text in made.values())
    back = read_back(made["dsp"].replace("{keep}", "7"), monkeypatch, tmp_path)
    assert back == PruneSpec.of("dsp", 7, recipe=Recipe(epochs=2.0))
    assert "--latency" not in made["surgeon"] and made["dsp"].endswith("--out 'runs/a run'")


@pytest.mark.parametrize("name", SPECS)
def test_a_page_written_in_python_has_the_call_that_makes_a_model(name: str, record: RunRecord) -> None:
    made: list[Any] = []

    def prune(model: str, task: Any, **arguments: Any) -> None:
        made.append((model, task, PruneSpec.of(**arguments)))

    namespace = SimpleNamespace(
        load=lambda folder, **options: (folder, options),
        load_tokenizer=lambda folder: folder,
        open_task=lambda *arguments, **options: (*arguments, options),
        prune=prune,
        Budget=Budget,
        Recipe=Recipe,
    )
    text = format_prune_call(record, "run", artifact_of(SPECS[name]))
    if name == "from scratch":
        assert text == "", "hc.prune does not draw weights anew"
        return
    exec(text, {"headcount": namespace})  # the text is what a reader of the page pastes
    opened = (record.model.name, {"dtype": "float32"})
    assert made == [(opened, (record.task, opened, record.model.name, {"limit": 99, "seed": record.seed}), SPECS[name])]
    assert format_prune_call(record, "run", artifact_of(SPECS[name]), "{keep}") == ""


def test_the_next_command_opens_what_this_one_did() -> None:
    model_and_task_options = ModelAndTaskOptions(
        "m", train=[Path("a.csv"), Path("b.csv")], text_column="said", task_option=["metric=f1"], max_length=64, truncate=True
    )
    words = [
        "--train",
        "a.csv",
        "--train",
        "b.csv",
        "--text-column",
        "said",
        "--task-option",
        "metric=f1",
        "--max-length",
        "64",
        "--truncate",
    ]
    assert task_words(model_and_task_options._asdict()) == words and task_words(ModelAndTaskOptions("m")._asdict()) == []


@pytest.mark.parametrize("option", ["--option", "--task-option"])
def test_what_is_no_pair_is_told_of_by_its_option(option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prune", "demo/entailment", "--method", "random", "--keep", "4", option, "metric", "--out", str(tmp_path), "-q"]) == 2
    assert f"{option} takes NAME=VALUE, got 'metric'" in " ".join(capsys.readouterr().err.split())


def test_numbers_come_back_as_they_were() -> None:
    for value in (1, 1234567, 0.1, 1 / 3, 5e-5, 3.0, 1e-12):
        assert float(format_exact_number(value)) == value
        assert float(format_as_milliseconds(value)) / 1000 == value
    assert format_exact_number(1234567) == "1234567" and format_exact_number(5e-5) == "5e-05" and format_as_milliseconds(0.0125) == "12.5"


def test_models_that_differ_have_names_that_differ() -> None:
    specs = [PruneSpec.of("random", 4, protected=heads, floor=floor) for heads in (("L0H0", "L0H1"), ("L0H2", "L0H3")) for floor in (0, 1)]
    specs += [PruneSpec.of("random", 4, unit="even"), PruneSpec.of("random", 4)]
    assert len({spec.name for spec in specs}) == len(specs) and PruneSpec.of("random", 4).name == "random, 4 heads"


def test_a_grid_begins_at_its_first_seed() -> None:
    template = PruneSpec.of("random", 1)
    assert [spec.seed for spec in build_grid(["surgeon", "random"], [4], 2, template, first_seed=3)] == [3, 3, 4]
    assert build_grid(["surgeon"], [4], 2, template, first_seed=0) == build_grid(["surgeon"], [4], 2, template)


def test_what_is_registered_is_known_to_commands_report_and_list(
    record: RunRecord, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from headcount.core.registry import PRUNERS
    from headcount.pruning.methods.random import RandomPruner

    monkeypatch.setattr(PRUNERS, "_registered", {})

    @PRUNERS.register("gradient")
    class Mine(RandomPruner):
        """One of my own pruners."""

    assert main(["ls", "pruners"]) == 0
    assert "One of my own pruners." in " ".join(capsys.readouterr().out.split())
    ranked = PruneSpec.of("rank(by=gradient)", 12)
    assert "--method rank " in prune_command(record, "run", artifact_of(ranked)), "a pruner has that name too"
    assert isinstance(PruneSpec.of("gradient", 12).method, Mine)
    monkeypatch.setattr(PRUNERS, "_registered", {})
    assert "--method gradient " in prune_command(record, "run", artifact_of(ranked))
