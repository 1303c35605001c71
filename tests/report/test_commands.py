"""Commands that the page hands out make the models that it shows: read back by the command line, they wish for the same."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
from kit import make_run

from headcount.app.cli._main import main
from headcount.app.console.inputs import Shared
from headcount.core.errors import PlanError
from headcount.pruning.recipe import Recipe
from headcount.runs.artifacts import Artifact, ArtifactKey
from headcount.runs.report.commands import command_of, commands_of, milliseconds, plain_number
from headcount.runs.schema import RunRecord
from headcount.workflows import prune as pruning
from headcount.workflows.prune import Wish, grid

WISHES = {
    "plain": Wish("surgeon", 12),
    "an importance": Wish("rank", 12, options={"by": "gradient"}),
    "an importance that is a pruner too": Wish("rank", 12, options={"by": "fisher", "again": "true"}),
    "a variant": Wish("rank", 12, options={"by": "ablation:mean"}, repair=True),
    "trained": Wish("l0", 12, recipe=Recipe(epochs=0.123456789, rate=3e-4, train_batch=8, distil=0.5), recover=1.5, repair=False),
    "a seed of a grid": Wish("random", 12, seed=2),
    "seeds of a grid": Wish("dsp", 12, seed=5, recipe=Recipe(seed=3, epochs=2.0)),
    "one seed": Wish("random", 12, seed=3, recipe=Recipe(seed=3)),
    "protected": Wish("surgeon", 12, protected=("L0H1", "L2H3"), floor=1, unit="even"),
    "from scratch": Wish("surgeon", 12, scratch=Recipe(epochs=2.0, rate=1e-3)),
    "means": Wish("surgeon", 12, ablation="mean"),
    "parameters": Wish("surgeon", 0, limit=("parameters", 1234567)),
    "bytes": Wish("surgeon", 0, limit=("kv_bytes", 98304)),
    "time": Wish("surgeon", 0, limit=("latency", 0.0123456789)),
    "kinds": Wish("random", 12, kinds=("encoder-self",)),
}


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> RunRecord:
    made = make_run(tmp_path_factory.mktemp("commands") / "run", n=20, kinds=("scores",), text="demo/entailment").record()
    return made.model_copy(update={"config": {"opened": {"task": "demo/entailment", "dtype": "float32", "limit": 99}}})


def artifact_of(wish: Wish) -> Artifact:
    return Artifact(ArtifactKey("pruned", wish.name, {"limit": 30}), {"wish": wish.parts()})


def read_back(command: str, monkeypatch: pytest.MonkeyPatch, place: Path) -> Wish:
    """What the command line makes of a command, without carrying it out."""
    found: list[Wish] = []

    def stop(_model: Any, wish: Wish) -> None:
        found.append(wish)
        raise PlanError("enough")

    monkeypatch.chdir(place)
    monkeypatch.setattr(pruning, "check_wish", stop)
    program, *words = shlex.split(command)
    assert program == "headcount" and main([*words, "-q"]) == 1
    return found[0]


@pytest.mark.parametrize("name", WISHES)
def test_a_command_wishes_for_the_model_it_stands_at(name: str, record: RunRecord, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    command = command_of(record, "run", artifact_of(WISHES[name]))
    words = shlex.split(command)
    assert read_back(command, monkeypatch, tmp_path).parts() == WISHES[name].parts()
    assert words[words.index("--limit") + 1] == "99" and words[words.index("--dtype") + 1] == "float32"
    assert words[-2:] == ["--out", "runs/run"]


def test_a_command_for_any_number_of_heads(record: RunRecord, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    artifacts = [artifact_of(Wish("dsp", 12, seed=seed, recipe=Recipe(epochs=2.0))) for seed in (1, 0)]
    made = commands_of(record, "a run", [*artifacts, artifact_of(WISHES["time"]), artifact_of(WISHES["kinds"])])
    assert set(made) == {"dsp", "surgeon"}, "where heads of some kinds are counted, the page does not know the number"
    assert all(text.count("{keep}") == text.count("--keep {keep}") == 1 for text in made.values())
    found = read_back(made["dsp"].replace("{keep}", "7"), monkeypatch, tmp_path)
    assert found.parts() == Wish("dsp", 7, recipe=Recipe(epochs=2.0)).parts()
    assert "--latency" not in made["surgeon"] and made["dsp"].endswith("--out 'runs/a run'")


def test_the_next_command_opens_what_this_one_did() -> None:
    given = Shared("m", train=[Path("a.csv"), Path("b.csv")], text_column="said", task_option=["metric=f1"], max_length=64, truncate=True)
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
    assert given.of_task == words and Shared("m").of_task == []


@pytest.mark.parametrize("option", ["--option", "--task-option"])
def test_what_is_no_pair_is_told_of_by_its_option(option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prune", "demo/entailment", "--method", "random", "--keep", "4", option, "metric", "--out", str(tmp_path), "-q"]) == 2
    assert f"{option} takes NAME=VALUE, got 'metric'" in " ".join(capsys.readouterr().err.split())


def test_numbers_come_back_as_they_were() -> None:
    for value in (1, 1234567, 0.1, 1 / 3, 5e-5, 3.0, 1e-12):
        assert float(plain_number(value)) == value
        assert float(milliseconds(value)) / 1000 == value
    assert plain_number(1234567) == "1234567" and plain_number(5e-5) == "5e-05" and milliseconds(0.0125) == "12.5"


def test_models_that_differ_have_names_that_differ() -> None:
    wishes = [Wish("random", 4, protected=heads, floor=floor) for heads in (("L0H0", "L0H1"), ("L0H2", "L0H3")) for floor in (0, 1)]
    wishes += [Wish("random", 4, unit="even"), Wish("random", 4)]
    assert len({wish.name for wish in wishes}) == len(wishes) and Wish("random", 4).name == "random, 4 heads"


def test_a_grid_begins_at_its_first_seed() -> None:
    assert [wish.seed for wish in grid(["surgeon", "random"], [4], 2, Wish("random", 1), first=3)] == [3, 3, 4]
    assert grid(["surgeon"], [4], 2, Wish("random", 1), first=0) == grid(["surgeon"], [4], 2, Wish("random", 1))


def test_what_is_added_is_known_to_commands_report_and_list(
    record: RunRecord, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from headcount.core.registry import IMPORTANCES, PRUNERS, ROLES
    from headcount.runs.report.collect import collect

    monkeypatch.syspath_prepend(tmp_path)
    for registry in (IMPORTANCES, PRUNERS, ROLES):
        monkeypatch.setattr(registry, "_added", {})
        declares = "from types import SimpleNamespace\n\nABOUT = SimpleNamespace(variants=('',), normalise='none')\n"
        (tmp_path / f"my_{registry.kind}.py").write_text(f'"""One of my own {registry.kind}."""\n\n{declares}')
        registry.add("mine", f"my_{registry.kind}")
        assert main(["ls", registry.kind]) == 0
        assert f"One of my own {registry.kind}." in " ".join(capsys.readouterr().out.split())
    ranked = artifact_of(Wish("rank", 12, options={"by": "mine"}))
    assert "--method rank --option by=mine" in command_of(record, "run", ranked), "a pruner has that name too"
    monkeypatch.setattr(PRUNERS, "_added", {})
    assert "--method mine" in command_of(record, "run", ranked)
    roles = collect(make_run(tmp_path / "run", n=20, kinds=("roles",), text="mine")).report["runs"][0]["roles"]
    assert roles["about"][roles["names"].index("mine")] == "One of my own roles."
