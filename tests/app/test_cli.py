"""The command line: what it prints where, how it exits, and what it imports."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import headcount as hc
from headcount.app.main import main
from headcount.models.tiny.build import tiny_model

COMMAND = Path(sys.executable).parent / "headcount"
# A shell starts background jobs with SIGINT ignored, and children inherit that.
CHILD = (
    "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); from headcount.app.main import main; sys.exit(main())"
)
LEGACY = Path(__file__).parents[1] / "golden" / "v4" / "bert" / "pruned"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "bert"
    tiny_model("bert", dtype=torch.float32).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def small(folder: Path) -> Path:
    path = folder.parent / "small"
    hc.save(hc.cut(hc.load(folder), hc.Plan.removing(["L0H1", "L1H2", "L1H4"])), path)
    return path


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = main([str(word) for word in words])
    seen = capsys.readouterr()
    return code, seen.out, seen.err


def result(capsys: pytest.CaptureFixture[str], *words: object) -> dict:
    """The JSON on stdout of a command that succeeds; NaN and Infinity, which json would accept, are refused."""
    code, out, err = run(capsys, *words, "--json")
    assert code == 0, err
    return json.loads(out, parse_constant=pytest.fail)


def refused(capsys: pytest.CaptureFixture[str], code: int, *words: object) -> str:
    """The message of a command that fails: one on stderr, no traceback, nothing on stdout."""
    found, out, err = run(capsys, *words)
    assert (found, out) == (code, ""), err
    assert "error: " in err
    assert "Traceback" not in err
    return err


# Nothing heavy is imported for what computes nothing.

LIGHT = {
    "--help": 0,
    "--version": 0,
    "cut --help": 0,
    "demo --help": 0,
    "ls": 0,
    "ls --json": 0,
    "ls archs": 0,
    "ls arch": 2,
    "": 2,
    "ct": 2,
    "cut": 2,
    "cut x --heads L0H1": 2,
    "cut x --heads L0X1 --out y": 2,
    "cut x --head L0H1 --out y": 2,
    "export x --to onxn --out y": 2,
    "check x --dtype float23": 2,
    "map x -q -v": 2,
}


def test_help_ls_and_wrong_usage_import_no_torch() -> None:
    script = (
        "import json, sys\n"
        "from headcount.app.main import main\n"
        "heavy = ('torch', 'transformers', 'numpy')\n"
        "for line in json.loads(sys.argv[1]):\n"
        "    code = main(line.split())\n"
        "    print('RESULT', json.dumps([line, code, [name for name in heavy if name in sys.modules]]))\n"
    )
    done = subprocess.run([sys.executable, "-c", script, json.dumps(list(LIGHT))], capture_output=True, text=True, check=True)
    found = [json.loads(line.removeprefix("RESULT")) for line in done.stdout.splitlines() if line.startswith("RESULT")]
    assert found == [[line, code, []] for line, code in LIGHT.items()]


@pytest.mark.skipif(not COMMAND.exists(), reason="the package is not installed in this environment")
def test_the_installed_command_answers() -> None:
    done = subprocess.run([COMMAND, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("headcount ")


# Every verb, as text and as JSON.


def test_map_shows_every_block(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    found = result(capsys, "map", folder)
    heads = hc.HeadMap.of(hc.load(folder))
    assert found["n_heads"] == len(heads)
    assert [head for block in found["blocks"] for head in block["heads"]] == [str(head) for head in heads]
    assert found["blocks"][1]["o"] == heads.blocks[1].o.path
    code, out, err = run(capsys, "map", folder)
    assert code == 0
    assert all(block.name in out for block in heads.blocks)
    assert f"next: headcount check {folder}" in err


def test_map_needs_no_weights(capsys: pytest.CaptureFixture[str], small: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((small / "config.json").read_text())
    found, whole = result(capsys, "map", tmp_path), result(capsys, "map", small)
    assert found["blocks"] == whole["blocks"]
    assert found["n_heads"] == 9


def test_map_names_what_cannot_be_cut_or_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for name, words in {"olmo2": "can be gated, not cut", "siglip": "MultiheadAttention"}.items():
        path = tmp_path / name
        tiny_model(name, dtype=torch.float32).config.save_pretrained(path)
        config = json.loads((path / "config.json").read_text())
        config["architectures"] = [type(tiny_model(name)).__name__]
        (path / "config.json").write_text(json.dumps(config))
        code, out, err = run(capsys, "map", path)
        assert code == 0, err
        assert words in out


def test_check_proves_the_laws(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    found = result(capsys, "check", folder, "--heads", "L0H1,L1H0", "--dtype", "float64")
    assert found["passed"] is True
    assert all(law["passed"] for law in found["laws"])
    assert found["laws"][-1]["law"] == "cut equals gate for L0H1, L1H0"


def test_check_fails_when_a_law_fails(capsys: pytest.CaptureFixture[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from headcount.testing import laws

    broken = [laws.LawResult("first", True, "fine"), laws.LawResult("second", False, "broken by 0.5")]
    monkeypatch.setattr(laws, "check_model", lambda _model, further_plan: iter(broken))
    code, out, err = run(capsys, "check", folder)
    assert code == 1
    assert "FAILED second: broken by 0.5" in out
    assert "1 of 2 laws failed" in err
    code, out, _ = run(capsys, "check", folder, "--json")
    assert (code, json.loads(out)["passed"]) == (1, False)


def test_cut_writes_the_smaller_model_and_its_command(capsys: pytest.CaptureFixture[str], folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "my model"
    found = result(capsys, "cut", folder, "--heads", "L0H1, L1H2", "--out", out)
    assert found["removed"] == ["L0H1", "L1H2"]
    small = hc.load(out)
    assert found["after"]["parameters"] == sum(p.numel() for p in small.parameters()) < found["before"]["parameters"]
    assert found["after"]["flops"] < found["before"]["flops"]
    written = json.loads((out / "heads.json").read_text())
    assert written["command"] == f"headcount cut {folder} --heads 'L0H1, L1H2' --out '{out}' --json"
    code, text, err = run(capsys, "cut", folder, "--heads", "L0H1", "--out", out, "--overwrite", "--dtype", "bfloat16")
    assert code == 0
    assert "parameters" in text
    assert "FLOPs of a pass over" in text
    assert "next: headcount check" in err
    assert next(hc.load(out).parameters()).dtype == torch.bfloat16


def test_load_legacy_makes_a_folder_that_loads(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    found = result(capsys, "load-legacy", LEGACY, "--out", tmp_path / "new")
    gone = json.loads((LEGACY / "config.json").read_text())["pruned_heads"]
    assert found["removed"] == [f"L{layer}H{head}" for layer, heads in sorted(gone.items()) for head in sorted(heads)]
    assert len(hc.HeadMap.of(hc.load(tmp_path / "new"))) == found["n_heads"]


def test_export_portable_loads_without_headcount(capsys: pytest.CaptureFixture[str], small: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForMaskedLM

    found = result(capsys, "export", small, "--to", "portable", "--out", tmp_path / "whole")
    plain, ours = AutoModelForMaskedLM.from_pretrained(found["path"]), hc.load(small)
    tokens = torch.arange(2, 12).view(1, 10)
    with torch.no_grad():
        torch.testing.assert_close(plain(tokens).logits, ours(tokens).logits)


def test_export_onnx_writes_only_json_to_stdout(capsys: pytest.CaptureFixture[str], small: Path, tmp_path: Path) -> None:
    found = result(capsys, "export", small, "--to", "onnx", "--out", tmp_path / "model.onnx")
    assert Path(found["path"]).is_file()
    assert found["difference"] < 1e-4


def test_demo_works_twice_in_a_row(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    first, second = (result(capsys, "demo", "--out", tmp_path, "--seed", 3, "--limit", 40) for _ in range(2))
    estimates = [step for step in first["steps"] if step["step"] == "train"]
    assert len(estimates) == 1, "before it trains, once"
    assert {**first, "steps": [step for step in first["steps"] if step not in estimates]} == second
    steps = {(step["model"], step["step"]): step for step in second["steps"]}
    for name in ("demo/entailment", "demo/translator"):
        assert steps[name, "evaluate"]["none"]["loss"] > steps[name, "evaluate"]["whole"]["loss"] + 0.5
        trained = {"dsp, only 10 steps"} if name == "demo/entailment" else set()
        made = {row["method"] for row in steps[name, "prune"]["models"]}
        assert made == {"surgeon", "gradient", "random", *trained} and not steps[name, "prune"]["failed"]
        before, after = steps[name, "keep"]["before"], steps[name, "keep"]["after"]
        assert before["parameters"] > after["parameters"] and before["flops"] > after["flops"]
        assert steps[name, "load"]["equal_weights"] is steps[name, "load"]["equal_outputs"] is True
        assert {row["name"] for row in steps[name, "bench"]["rows"]} == {"dense", "masked", "removed"}
        assert len(hc.HeadMap.of(hc.load(steps[name, "keep"]["folder"]))) == steps[name, "keep"]["keep"]
    for name, of_training in (("entailment", {"training.csv", "gates.csv"}), ("translator", set())):
        tables = {path.name for path in (tmp_path / name).glob("*.csv")}
        assert tables == {"scores.csv", "verdicts.csv", "roles.csv", "curves.csv", "plans.csv", "bench.csv", *of_training}


def test_ls_lists_kinds_and_names(capsys: pytest.CaptureFixture[str]) -> None:
    kinds = {row["kind"]: row["names"] for row in result(capsys, "ls")["rows"]}
    rows = result(capsys, "ls", "archs")["rows"]
    assert kinds["archs"] == len(rows)
    assert "BloomAttention" in [row["name"] for row in rows]
    assert "BloomAttention" in run(capsys, "ls", "archs")[1]


def test_quiet_leaves_stderr_empty(capsys: pytest.CaptureFixture[str], small: Path) -> None:
    code, out, err = run(capsys, "map", small, "-q")
    assert (code, err) == (0, "")
    assert "L1" in out


# One wrong input of each kind.


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("ct", "Did you mean 'cut'?"),
        ("ls arch", "Did you mean 'archs'?"),
        ("export x --to onxn --out y", "Did you mean 'onnx'?"),
        ("cut x --heads L0H1 --out y --dtype float23", "Did you mean 'float32'?"),
        ("cut x --heads L0H1,L0X3 --out y", "'L0X3' is no head address"),
        ("cut x --heads L0H1,L0H1 --out y", "removed twice"),
        ("cut x --heads , --out y", "at least one head"),
        ("cut x --heads L0H1", "--out"),
        ("demo --seed -1", "--seed"),
    ],
)
def test_wrong_usage_exits_2_and_says_what_was_meant(capsys: pytest.CaptureFixture[str], line: str, hint: str) -> None:
    assert hint in refused(capsys, 2, *line.split())


def test_an_unknown_device_is_wrong_usage(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    assert "--device cud is not available" in refused(capsys, 2, "check", folder, "--device", "cud")


def test_an_unknown_head_is_refused(capsys: pytest.CaptureFixture[str], folder: Path, tmp_path: Path) -> None:
    message = refused(capsys, 1, "cut", folder, "--heads", "L0H99", "--out", tmp_path / "out")
    assert "this model has no head L0H99" in message
    assert not (tmp_path / "out").exists()


def test_a_head_that_is_gone_is_refused(capsys: pytest.CaptureFixture[str], small: Path, tmp_path: Path) -> None:
    assert "L0H1 is already gone" in refused(capsys, 1, "cut", small, "--heads", "L0H1", "--out", tmp_path / "out")
    assert "L0H1 is already gone" in refused(capsys, 1, "check", small, "--heads", "L0H1")


@pytest.mark.parametrize("verb", ["map", "check"])
def test_a_missing_folder_is_refused(capsys: pytest.CaptureFixture[str], verb: str) -> None:
    assert "./nowhere is no folder" in refused(capsys, 1, verb, "./nowhere")


def test_a_folder_in_use_is_refused_before_the_model_is_loaded(capsys: pytest.CaptureFixture[str], folder: Path, small: Path) -> None:
    for target, words in {folder: ["--overwrite"], small: []}.items():
        message = refused(capsys, 1, "cut", "./nowhere", "--heads", "L0H1", "--out", target, *words)
        assert str(target) in message
        assert "nowhere" not in message


def test_a_damaged_file_is_refused_by_name(capsys: pytest.CaptureFixture[str], small: Path, tmp_path: Path) -> None:
    hc.save(hc.load(small), tmp_path / "copy")
    weights = tmp_path / "copy" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    assert str(weights) in refused(capsys, 1, "map", tmp_path / "copy")


def test_a_configuration_that_builds_nothing_is_refused(capsys: pytest.CaptureFixture[str], folder: Path, tmp_path: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_attention_heads": 0}))
    assert "num_attention_heads must be at least 1, got 0" in refused(capsys, 1, "map", tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_attention_heads": 7}))
    assert "config.json builds no BertForMaskedLM" in refused(capsys, 1, "map", tmp_path)
    (tmp_path / "config.json").write_text("{")
    assert "config.json is no valid JSON" in refused(capsys, 1, "map", tmp_path)


def test_verbose_shows_where_an_error_came_from(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "map", "./nowhere", "-v")
    assert (code, out) == (1, "")
    assert "Traceback" in err


def test_names_from_files_cannot_steer_the_terminal() -> None:
    from headcount.app.console.session import replace_control_characters_but_newlines

    assert "\x1b" not in replace_control_characters_but_newlines("bert\x1b[2Jx")


# Signals.


def test_ctrl_c_inside_a_verb_gives_130(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from headcount.app.cli import ls

    def interrupt(_kind: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ls, "_list_name_rows", interrupt)
    code, out, err = run(capsys, "ls")
    assert (code, out, err.strip()) == (130, "", "interrupted")


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_command_and_leaves_no_partial_folder(tmp_path: Path, sent: signal.Signals, code: int) -> None:
    command = [sys.executable, "-c", CHILD, "demo", "--out", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("entailment")
        process.send_signal(sent)
        _, err = process.communicate(timeout=60)
    assert process.returncode == code
    assert "Traceback" not in err
    assert not list(tmp_path.glob(".*"))
