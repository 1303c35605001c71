"""The studies of roles and pruning: which roles survive, and what pruning by role costs."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import refused, result, run
from toys import files, saved_classifier, shared

import headcount as hc
from headcount.core.definition import Definition
from headcount.core.errors import OptionError
from headcount.core.heads import Head
from headcount.core.role_table import RoleScore, RoleTable
from headcount.pruning.methods.role import RolePruner
from headcount.pruning.spec import PruneSpec
from headcount.runs.scores import all_scores
from headcount.runs.store import Run
from headcount.studies._base import ANY_ROLE, parse_name_value_pairs
from headcount.studies._measure import role_pruning, survivors
from headcount.studies._measure.roles_importance import compare_ranks_by_role
from headcount.workflows.roles import read_roles

# Which roles survive.


def table_of(heads: tuple[Head, ...], having: dict[str, set[str]]) -> RoleTable:
    """Roles as a test would have found them."""
    names = RoleScore.__dataclass_fields__
    fill = dict.fromkeys(names, 0.0) | {
        "n_sentences": 9,
        "n_tokens": 99,
        "baseline_offset": 0,
        "attainable": True,
        "note": "",
        "p_t": None,
    }
    rows = [
        RoleScore(**{**fill, "head": head, "role": role, "has_role": str(head) in own, "by_argmax": False})
        for role, own in having.items()
        for head in heads
    ]
    return RoleTable(tuple(rows), heads)


def test_survivors_of_a_planted_role() -> None:
    heads = hc.HeadMap.of(hc.load("demo/encoder")).heads
    special = {str(head) for head in heads if head.index < 2}  # of eight in each of four layers
    table = table_of(heads, {"offset:-1": special, "local": {str(h) for h in heads[::4]}, "sink": {str(h) for h in heads if h.layer == 0}})
    last = {("last", keep): [frozenset(head for head in heads if head.index < keep // 4)] for keep in (8, 16)}
    first = {("first", keep): [frozenset(head for head in heads if head.index >= 8 - keep // 4)] for keep in (8, 16)}
    lowest = {("lowest", 8): [frozenset(heads[:8])]}
    generator = np.random.default_rng(0)
    sample = {("random", 8): [frozenset(heads[i] for i in generator.choice(32, 8, replace=False)) for _ in range(50)]}
    actual, overall = survivors.compare_survivors_with_chance(table, {**last, **first, **lowest, **sample})
    by = {(row.method, row.keep, row.role): row for row in actual}
    assert by["last", 8, "offset:-1"].share == 1 and by["last", 8, "offset:-1"].chance == 0.25
    assert by["last", 8, "offset:-1"].p == pytest.approx(2 / 28**4), "one way of C(8, 2) in each of four layers, twice"
    assert by["first", 8, "offset:-1"].share == 0 and by["first", 16, "offset:-1"].q < 0.05
    assert by["random", 8, "offset:-1"].p > 0.01 and by["last", 16, "local"].p == 1
    assert by["lowest", 8, "sink"].share == by["lowest", 8, "sink"].chance == by["lowest", 8, "sink"].p == 1, "the layer explains it"
    lived = {(row.method, row.role): row for row in overall}
    assert lived["last", "offset:-1"].survive_with == 1 and lived["last", "offset:-1"].survive_without == pytest.approx(8 / 24 / 2)
    assert lived["lowest", "sink"].survive_with == 1 and lived["lowest", "sink"].p == 1
    assert lived["last", "offset:-1"].q < 0.01 < lived["random", "offset:-1"].q and lived["first", "offset:-1"].difference < 0


def test_survivors_among_heads_that_share_keys_move_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two heads of a group have a role together and go together: half as many chances, not twice the evidence."""
    monkeypatch.setattr(survivors, "REPEATS", 1000)
    heads = hc.HeadMap.of(hc.load("demo/encoder")).heads
    units = [heads[index : index + 2] for index in range(0, 32, 2)]
    table = table_of(heads, {"offset:-1": {str(head) for unit in units[:6] for head in unit}})
    generator = np.random.default_rng(1)
    by_pair = {
        (f"draw {draw}", 16): [frozenset(head for i in generator.choice(16, 8, replace=False) for head in units[i])] for draw in range(300)
    }
    together, overall = survivors.compare_survivors_with_chance(table, by_pair, kv_groups=units)
    apart, _ = survivors.compare_survivors_with_chance(table, by_pair)
    shares = [np.mean([row.p < 0.05 for row in rows if row.role == "offset:-1"]) for rows in (together, overall, apart)]
    assert shares[0] < 0.05 and shares[1] < 0.07 and shares[2] > 0.08, shares
    evenly = {("even", 16): [frozenset(heads[::2])]}
    assert survivors.compare_survivors_with_chance(table, evenly, kv_groups=units) == survivors.compare_survivors_with_chance(
        table, evenly
    ), "groups that went in part are no units"
    mixed, _ = survivors.compare_survivors_with_chance(table, {**by_pair, **evenly}, kv_groups=units)
    p_values = {row.method: row.p for row in mixed if row.role == "offset:-1"}
    assert {row.method: row.p for row in together if row.role == "offset:-1"}.items() <= p_values.items(), (
        "one method splits groups, not others"
    )


def test_survivors_of_a_comparison(capsys: pytest.CaptureFixture[str], model: Path, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    words = ("compare", model, "--train", data, "--methods", "magnitude", "--keep", "25%,50%", "--seeds", 2, "--limit", 12, "--no-repair")
    assert run(capsys, *words, "--out", out)[0] == 0
    message = refused(capsys, 1, "study", "survivors", out)
    assert "has no roles; name a text or a task to measure them on" in message
    study_result = result(capsys, "study", "survivors", out, "--embedded", "english", "--limit", 20)
    assert {(row["method"], row["keep"], row["seeds"]) for row in study_result["rows"]} <= {
        (method, keep, seeds) for method, seeds in (("magnitude without repair", 1), ("random without repair", 2)) for keep in (3, 6)
    }
    assert all(0 <= row["p"] <= row["q"] <= 1 for row in study_result["rows"])
    again = result(capsys, "study", "survivors", out)
    assert again == study_result, "the roles are those of the run"
    assert (out / "study-survivors.csv").is_file()
    code, shown, err = run(capsys, "study", "survivors", out, "--all")
    assert code == 0 and "Share of the survivors that have a role" in shown, err


def test_the_model_of_a_comparison_is_opened_as_it_was(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, data: Path, tmp_path: Path
) -> None:
    model = saved_classifier(tmp_path / "models" / "bert")
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({name: value for name, value in config.items() if name != "architectures"}))
    monkeypatch.chdir(model.parent)
    words = ("--methods", "magnitude", "--keep", "50%", "--seeds", 1, "--limit", 12, "--no-repair", "--out", tmp_path / "run")
    how = ("--auto", "AutoModelForSequenceClassification", "--dtype", "float64")
    assert run(capsys, "compare", "bert", "--train", data, *how, *words)[0] == 0
    monkeypatch.chdir(tmp_path)
    assert result(capsys, "study", "survivors", tmp_path / "run", "--embedded", "english", "--limit", 20)["model"] == "bert"
    code, _, err = run(capsys, "bench", tmp_path / "run", "--batches", 1, "--lengths", 8, "--rounds", 1)
    assert code == 1 and "holds the results of 2 pruned models and the weights of none" in err, err
    command = err.partition("such as: ")[2].strip()
    assert command.startswith("headcount prune ") and command.endswith(f"--out {tmp_path / 'run'}")
    assert run(capsys, *shlex.split(command)[1:], "--no-bench")[0] == 0, "the command that is named makes it"
    code, shown, err = run(capsys, "bench", tmp_path / "run", "--batches", 1, "--lengths", 8, "--rounds", 1)
    assert code == 0 and "float64, BertForSequenceClassification" in err and "without repair" not in err, err
    assert len([line for line in shown.splitlines() if " times as " in line or "as fast" in line]) == 2, shown


def test_groups_keep_their_names_and_come_once() -> None:
    assert parse_name_value_pairs(["my-group=sink", "edges=delimiter,sink=2"], "groups") == {
        "my-group": "sink",
        "edges": "delimiter,sink=2",
    }
    with pytest.raises(OptionError, match="groups must name near once; got 'sink' and 'delimiter'"):
        parse_name_value_pairs(["near=sink", "near=delimiter"], "groups")


def test_any_role_is_one_of_the_definition() -> None:
    """Heads that only have a role of no family of the definition are heads without a role."""
    heads = hc.HeadMap.of(hc.load("demo/encoder")).heads
    table = table_of(heads, {"offset:-1": {str(head) for head in heads[:8]}, "punctuation": {str(head) for head in heads[::2]}})
    table = replace(table, definition="voita2019")
    scores = {"made": hc.Scores(heads, tuple(float(number) for number in range(32)), "made", True)}
    rows = {row.role: row for row in compare_ranks_by_role(table, scores)}
    assert set(rows) == {ANY_ROLE, "offset:-1"} and rows[ANY_ROLE].n_heads == 8
    assert rows[ANY_ROLE].rank_with == pytest.approx(28.5), "the first eight heads have the lowest scores"


def test_roles_and_importance_are_kept_in_the_run(tmp_path: Path) -> None:
    study = "roles-importance(by=magnitude+gradient;definition=voita2019;sentences=20;examples=16)"
    result = hc.study(study, "demo/encoder", "demo/text", limit=40, out=tmp_path / "run", progress=False)
    table = read_roles(Run.open(tmp_path / "run"))
    assert table.conditions["n_examples"] == 20 and "on 20 sentences" in result.notes[1]
    families = {Definition.parse("voita2019").family_of(row.role) for row in table}
    assert families <= {"positional", "syntactic", "rare words"}, "only roles of the definition are tested"
    assert all_scores(Run.open(tmp_path / "run"))["gradient"].n_examples == 16
    families = {record["family"] for record in result.table("heads").records()}
    assert families <= {"positional", "syntactic", "rare words", "several", "no role"}


# Pruning by role.


def test_role_pruning_on_the_command_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ("demo/encoder", "--task", "demo/text", "--task-option", "size=40")
    labels = result(capsys, "roles", *words, "--only", "offset")["labels"].values()
    number = {role: sum(role in label for label in labels) for own in labels for role in own}
    role = min(number, key=lambda name: (abs(number[name] - 8), name))
    words = ("study", "role-pruning", *words, "--role", role, "--limit", 16, "--seeds", 2, "--keep", "50%", "--out", tmp_path / "run")
    study_result = result(capsys, *words)
    before = files(tmp_path / "run")
    assert result(capsys, *words) == study_result and files(tmp_path / "run") == before
    assert [(row["role"], row["heads"], row["keep"]) for row in study_result["rows"]] == [
        (role, "prune", 16),
        (role, "spare", 16),
        ("", "random", 16),
    ]
    first, second, control = study_result["rows"]
    assert first["against spare difference"] == pytest.approx(first["value"] - second["value"])
    assert first["against random difference"] == pytest.approx(first["value"] - control["value"])
    own = set(study_result["heads"][role])
    for artifact in Run.open(tmp_path / "run").results("pruned").values():
        removed_heads = set(artifact.content["removed"])
        method = PruneSpec.from_dict(artifact.content["spec"]).method
        if method == RolePruner("prune", roles=role):
            assert own <= removed_heads or removed_heads <= own
        elif method == RolePruner("spare", roles=role):
            assert len(own & removed_heads) == max(0, len(own) - 16)


def test_the_seed_moves_all_draws(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    requests: list[int] = []

    def select_heads_with_roles(model: Any, *_: Any, seed: int = 0, **__: Any) -> list[Head]:
        requests.append(seed)
        return list(hc.HeadMap.of(model))[:8]

    monkeypatch.setattr(role_pruning, "select_heads_with_roles", select_heads_with_roles)
    words = ("study", "role-pruning", "demo/encoder", "--task", "demo/text", "--task-option", "size=40", "--role", "any", "--limit", 8)
    for seed in (0, 5):
        out = tmp_path / f"run-{seed}"
        result(capsys, *words, "--seeds", 2, "--keep", "50%", "--seed", seed, "--out", out)
        seeds = {artifact.content["spec"]["seed"] for artifact in Run.open(out).results("pruned").values()}
        assert seeds == {seed, seed + 1}
    assert requests == [0, 5]


def test_the_level_at_which_just_the_role_goes() -> None:
    heads = hc.HeadMap.of(shared("encoder"))
    own = list(heads)[:3]
    selections = role_pruning.list_head_selections(heads, {"local": own}, [6], with_exact_role_removal=True)
    assert {selection.keep for selection in selections if selection.role} == {6, 9} and {
        selection.keep for selection in selections if not selection.role
    } == {6, 9}
    grouped = hc.HeadMap.of(shared("decoder"))
    selections = role_pruning.list_head_selections(grouped, {"local": [grouped[0]]}, [4], with_exact_role_removal=True)
    assert {selection.keep for selection in selections} == {4}, "half a KV group cannot go"
