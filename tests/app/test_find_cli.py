"""`headcount find`: what it prints, writes and says before it starts, and that wrong input ends in one line, exit code 2 and nothing written."""

from __future__ import annotations

import json
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command_line import refused, result, run
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, WhisperFeatureExtractor

import headcount as hc
from headcount.models.tiny.build import tiny_model

WORDS = tuple(f"word{number}" for number in range(20))


def write_wave(path: Path, seconds: float, rate: int = 16_000, width: int = 2) -> None:
    noise = np.random.default_rng(len(path.name)).integers(-9000, 9000, size=int(seconds * rate)).astype(f"<i{width}")
    with wave.open(str(path), "wb") as file:
        file.setparams((1, width, rate, 0, "NONE", ""))
        file.writeframes(noise.tobytes())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Whisper for one second, `model`, with feature extractor and tokenizer; recordings with the times of their words, and wrong ones."""
    root = tmp_path_factory.mktemp("speech")
    model: Any = tiny_model("whisper", attn="eager", dtype=torch.float32, max_source_positions=50)
    model.save_pretrained(root / "model")
    WhisperFeatureExtractor(feature_size=80, chunk_length=1).save_pretrained(root / "model")
    tokenizer = Tokenizer(
        models.WordLevel({word: 3 + number for number, word in enumerate(WORDS)} | {"[UNK]": 1, "[END]": 126}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]", eos_token="[END]").save_pretrained(root / "model")
    rng = np.random.default_rng(0)
    lines = []
    for number in range(24):
        starts = np.sort(rng.choice(np.arange(0, 80), size=3, replace=False)) / 100
        ends = [*(starts[1:]), starts[-1] + 0.1]
        words = [{"word": str(rng.choice(WORDS)), "start": a, "end": b} for a, b in zip(starts.tolist(), ends, strict=True)]
        write_wave(root / f"{number}.wav", 0.95)
        lines.append({"audio": f"{number}.wav", "words": words})
    write = lambda name, rows: (root / name).write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))  # noqa: E731
    write("ok.jsonl", lines)
    numbered = {"word_ids": [0, 1, None], "word_times": [[0.1, 0.3], [0.4, 0.6]]}
    tokens = [{"audio": row["audio"], "labels": [3 + i, 5, 126], **numbered} for i, row in enumerate(lines)]
    write("tokens.jsonl", tokens)
    write_wave(root / "slow.wav", 0.5, rate=8_000)
    (root / "text.wav").write_text("no sound")
    write("slow.jsonl", [{**lines[0], "audio": "slow.wav"}, *lines])
    write("text.jsonl", [{**lines[0], "audio": "text.wav"}, *lines])
    write("gone.jsonl", [{**lines[0], "audio": "gone.wav"}, *lines])
    write("broken.jsonl", [lines[0], "{"])
    write("mute.jsonl", [{"audio": "0.wav"}])
    write("empty.jsonl", [])
    write("late.jsonl", [{**lines[0], "words": [{"word": "word1", "start": 3, "end": 4}]}, *lines])
    write("few.jsonl", lines[:5])
    write("timeless.jsonl", [{**lines[0], "words": [{"word": "word1"}]}, *lines])
    hc.save(tiny_model("bart", auto="AutoModelForSeq2SeqLM", dtype=torch.float32), root / "bart")
    return root


def test_alignment_heads_are_printed_and_written(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path.name: path.read_bytes() for path in (folder / "model").iterdir()}
    code, out, err = run(capsys, "find", "alignment", folder / "model", "--data", folder / "ok.jsonl", "--out", tmp_path / "copy")
    assert code == 0, err
    assert "12 heads are ranked on" in err and "on this machine; seed 0" in err and f"wrote {tmp_path / 'copy'}" in err
    assert "this list" in out and "all heads" in out and "attention that knows nothing would score" in out
    listed = json.loads((tmp_path / "copy" / "generation_config.json").read_text())["alignment_heads"]
    copy: Any = hc.load(tmp_path / "copy")
    assert copy.generation_config.alignment_heads == listed and (tmp_path / "copy" / "preprocessor_config.json").is_file()
    assert before == {path.name: path.read_bytes() for path in (folder / "model").iterdir()}, "MODEL stays as it is"
    json_output = result(capsys, "find", "alignment", tmp_path / "copy", "--data", folder / "ok.jsonl", "--in-place")
    assert (
        sorted([int(head[7]), int(head[9])] for head in json_output["heads"])
        == listed
        == hc.load(tmp_path / "copy").generation_config.alignment_heads
    )
    assert (
        json_output["schema_version"] == 1
        and json_output["command"].startswith("headcount find alignment")
        and len(json_output["model"]["weights"]) == 64
    )
    assert set(json_output["compared"]) == {"the best head alone", "all heads", "the list so far"}


def test_tokens_in_place_of_words_a_limit_and_a_json_file(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("find", "alignment", folder / "model", "--data", folder / "tokens.jsonl", "--limit", "16", "--seed", "3")
    json_output = result(capsys, *words, "--out", tmp_path / "list.json")
    assert (
        json_output["n_choosing"] + json_output["n_testing"] == 16
        and json_output["seed"] == 3
        and json_output["out"] == str(tmp_path / "list.json")
    )
    written = json.loads((tmp_path / "list.json").read_text())
    assert {name: value for name, value in json_output.items() if name != "out"} == written
    again = result(capsys, *words)
    assert {**again, "command": "", "out": ""} == {**json_output, "command": "", "out": ""}, "the same request gives the same numbers"
    assert "exists already" in refused(capsys, 2, *words, "--out", tmp_path / "list.json")
    assert result(capsys, *words, "--out", tmp_path / "list.json", "--overwrite")["heads"] == json_output["heads"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("alignmnt", "model"), "no job 'alignmnt'. Did you mean 'alignment'"),
        (("alignment", "model"), "give --data FILE"),
        (("alignment", "model", "--data", "none.jsonl"), "no file"),
        (("alignment", "model", "--data", "empty.jsonl"), "is empty"),
        (("alignment", "model", "--data", "broken.jsonl"), "broken.jsonl, line 2 is no JSON"),
        (("alignment", "model", "--data", "mute.jsonl"), "line 1 names no audio, or no words"),
        (("alignment", "model", "--data", "gone.jsonl"), "line 1: there is no file"),
        (("alignment", "model", "--data", "slow.jsonl"), "16 bits at 8000 Hz, not 16 at 16000"),
        (("alignment", "model", "--data", "text.jsonl"), "text.wav is no WAV file"),
        (("alignment", "model", "--data", "late.jsonl"), "line 1: word 0 is at"),
        (("alignment", "model", "--data", "timeless.jsonl"), "line 1: a word lacks or misstates"),
        (("alignment", "model", "--data", "few.jsonl"), "each needs 4"),
        (("alignment", "model", "--data", "ok.jsonl", "--limit", "3"), "--limit"),
        (("alignment", "model", "--data", "ok.jsonl", "--batch-size", "0"), "--batch-size"),
        (("alignment", "model", "--data", "ok.jsonl", "--out", "few.jsonl"), "few.jsonl is a file"),
        (("alignment", "model", "--data", "ok.jsonl", "--out", "model"), "not empty"),
        (("alignment", "model", "--data", "ok.jsonl", "--out", "a.json", "--in-place"), "--in-place is for alignment heads, without --out"),
        (("alignment", "demo/decoder", "--data", "ok.jsonl", "--in-place"), "needs a model folder of your own"),
        (("alignment", "demo/decoder", "--data", "ok.jsonl"), "no list of alignment heads: only Whisper's generation reads"),
        (("alignment", "bart", "--data", "ok.jsonl"), "no list of alignment heads"),
        (("induction", "demo/decoder", "--data", "ok.jsonl"), "leave out --data FILE and --language NAME"),
        (("induction", "demo/decoder", "--in-place"), "--in-place is for alignment heads"),
        (("retrieval", "demo/decoder", "--out", "heads"), "ends in .json"),
        (("induction", "demo/encoder"), "no induction heads to find"),
    ],
    ids=lambda value: "" if isinstance(value, str) else " ".join(value),
)
def test_wrong_input_is_refused_before_work(
    folder: Path, words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    before = sorted(folder.rglob("*"))
    assert message in refused(capsys, 2, "find", *words)
    assert sorted(folder.rglob("*")) == before


def test_a_model_without_such_heads_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """The embedded decoder has learnt to repeat nothing."""
    code, out, err = run(capsys, "find", "induction", "demo/decoder", "--limit", "24")
    assert code == 0 and "not shown to be better than attention that knows nothing" in err
    assert "score alone" in out and "this list" in out
