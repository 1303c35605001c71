"""Messages that reach the command line name flags, not Python arguments."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from command_line import run

import headcount as hc
from headcount.app.cli._app import import_command
from headcount.app.console.flags import flags_by_argument, replace_arguments_by_flags
from headcount.core.errors import ArtifactError
from headcount.models.tiny.build import tiny_model

MESSAGES = {
    "weights.bin is a pickle; convert it, or allow it (allow_pickle=True) if you trust it.": (
        "score",
        "weights.bin is a pickle; convert it, or allow it (--allow-pickle) if you trust it.",
    ),
    "asks for remote code. Allow it (trust_remote_code=True) only if you trust its author.": (
        "map",
        "asks for remote code. Allow it (--trust-remote-code) only if you trust its author.",
    ),
    "out is not empty; name another folder, or allow overwriting (overwrite=True)": (
        "cut",
        "out is not empty; name another folder, or allow overwriting (--overwrite)",
    ),
    "to cut texts: max_length=64, truncate=True": ("roles", "to cut texts: --max-length 64, --truncate"),
    "a recipe lasts for steps or for epochs; got steps=3 and epochs=1.5": (
        "prune",
        "a recipe lasts for steps or for epochs; got --steps 3 and --epochs 1.5",
    ),
    "filled with whole KV groups; unit='even' goes with keep": ("prune", "filled with whole KV groups; --unit even goes with keep"),
    "leave repair=False out": ("prune", "leave --no-repair out"),
    "leave repair=True out of prune(keep=4)": ("score", "leave repair=True out of prune(keep=4)"),
    "the model has num_labels=1, unless new_layers=True": ("score", "the model has num_labels=1, unless new_layers=True"),
    "read model.config.seed=3": ("score", "read model.config.seed=3"),
    "split='selection' is empty": ("score", "--split selection is empty"),
}


@pytest.mark.parametrize("message", MESSAGES)
def test_arguments_of_a_message_become_the_flags_of_the_command(message: str) -> None:
    command, expected = MESSAGES[message]
    assert replace_arguments_by_flags(message, flags_by_argument(import_command(command).params)) == expected


def test_an_error_of_the_core_names_the_flag(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    model = tiny_model("bert", dtype=torch.float32)
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(tmp_path)
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    code, _, err = run(capsys, "map", tmp_path)
    assert code == 1 and "(--allow-pickle)" in err and "allow_pickle=" not in err
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    code, _, err = run(capsys, "cut", "demo/encoder", "--heads", "L0H0", "--out", tmp_path / "full")
    assert code == 1 and "not empty" in err and "overwrite=" not in err
    with pytest.raises(ArtifactError, match=r"allow_pickle=True"):
        hc.load(tmp_path)
