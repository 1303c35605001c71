"""The live actions of the server: what they answer, what they refuse, and how they end."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from asking import ASKS, FRONT, HOME, TOKEN, data_of
from contract import TYPES, wrong
from packed import unpack_bytes
from starlette.testclient import TestClient

import headcount as hc
from headcount.app.serve.served_run import ServedRun
from headcount.app.serve.server import Site, application
from headcount.data.evaluate import evaluate
from headcount.data.open_task import open_task
from headcount.data.readers.processor import tokenizer_or_image_processor
from headcount.runs.store import Run
from headcount.surgery.source import local_folder


def answered(client: TestClient, action: str, requests: Any) -> Any:
    answer = client.post(f"/api/0/{action}", json=requests, headers=ASKS)
    assert answer.status_code == 200, answer.text
    kind = dict(TYPES["LiveApi"][1])[action][1][1]["answer"][1]
    assert wrong(answer.json(), kind) == []
    return answer.json()


def test_live_actions_tell_what_the_library_tells(analysed: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(analysed, folder)
    client = TestClient(application(Site([ServedRun(Run.open(folder))], TOKEN, FRONT)), base_url=HOME)
    model = hc.load("demo/entailment").eval()
    attention = answered(client, "attend", {"text": "the queen runs .", "pair": "a king sleeps ."})["attention"]
    tokens = attention["sentences"][0]["source"]["tokens"]
    assert tokens[0] == "[CLS]" and tokens.count("[SEP]") == 2
    first = np.frombuffer(unpack_bytes(attention["maps"][0][0]), dtype=np.uint8).reshape(8, len(tokens), len(tokens))
    assert np.allclose(((first / 255.0) ** 2).sum(-1), 1, atol=0.05)
    messages = answered(client, "ablate", {"heads": [0, 5], "limit": 30})
    live = ServedRun(Run.open(folder))
    task = open_task("demo/entailment", model, live.tokenizer())
    with hc.mask(model, ["L0H0", "L0H5"]):
        assert messages["value"] == pytest.approx(evaluate(model, task, limit=30).value) and messages["n"] == 30
    before = len(Run.open(folder).results("pruned"))
    made = answered(client, "prune", {"method": "magnitude", "keep": 12, "protect": [0, 31], "repair": False})
    assert len(hc.HeadMap.of(hc.load(made["folder"]))) == 12 and Path(made["folder"]).is_relative_to(folder)
    assert not {0, 31} & set(made["point"]["removed"]) and made["point"]["keep"] == 12
    assert len(Run.open(folder).results("pruned")) == before + 1
    report = data_of(client.get(f"/?token={TOKEN}").text)
    assert made["point"] in report["runs"][0]["curves"]["points"], "the page shows it at once"
    bad = client.post("/api/0/prune", json={"method": "nonsense", "keep": 12, "protect": [], "repair": True}, headers=ASKS)
    assert bad.status_code == 422 and "no method of pruning 'nonsense'" in bad.json()["error"]


def test_a_pruned_model_answers_with_its_own_numbers(analysed: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(analysed, folder)
    client = TestClient(application(Site([ServedRun(Run.open(folder))], TOKEN, FRONT)), base_url=HOME)
    ask = {"method": "magnitude", "keep": 12, "protect": []}
    mended, plain = (answered(client, "prune", {**ask, "repair": repair})["point"] for repair in (True, False))
    assert plain["removed"] == mended["removed"] and plain["keep"] == mended["keep"] == 12
    assert (plain["method"], mended["method"]) == ("magnitude without repair", "magnitude + repair")
    again = answered(client, "prune", {**ask, "method": plain["method"], "repair": None, "keep": 16})["point"]
    assert again["method"] == plain["method"], "as the models of this name were made"
    points = [
        answered(client, "prune", {**ask, "method": "random", "repair": None, "seed": seed, "floor": 2, "unit": "even"})["point"]
        for seed in (4, 5)
    ]
    assert [point["seed"] for point in points] == [4, 5] and points[0]["removed"] != points[1]["removed"]
    for point in points:
        layers = [head // 8 for head in range(32) if head not in point["removed"]]
        assert min(layers.count(layer) for layer in range(4)) >= 2
        assert "--floor 2 --unit even" in point["command"] and "--method-seed" in point["command"]
    spared = answered(client, "prune", {**ask, "protect": [3, 4], "repair": None})["point"]
    assert spared["method"] == "magnitude sparing L0H3+L0H4" and "--protected L0H3,L0H4" in spared["command"]


def test_sentences_that_the_model_cannot_read_are_told(analysed: Path) -> None:
    client = TestClient(application(Site([ServedRun(Run.open(analysed))], TOKEN, FRONT)), base_url=HOME)
    assert answered(client, "attend", {"text": "the queen runs .", "pair": None})["note"] is None
    note = answered(client, "attend", {"text": "xylophone qwertz zyx .", "pair": None})["note"]
    assert re.fullmatch(r"\d+ of \d+ tokens are unknown to the tokenizer: .*", note)
    one = answered(client, "attend", {"text": "the queen zyx runs .", "pair": None})
    assert one["note"].startswith("1 of 5 ") and one["attention"]["sentences"][0]["source"]["unknown"].count(True) == 1
    for pair in (None, "a king sleeps ."):
        long = client.post("/api/0/attend", json={"text": "the queen runs . " * 200, "pair": pair}, headers=ASKS)
        assert long.status_code == 422 and "Give a shorter one" in long.json()["error"] and "--" not in long.json()["error"]


def test_a_run_is_served_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from headcount.app.main import main

    shutil.copytree(local_folder("demo/entailment"), tmp_path / "model")
    (tmp_path / "data.csv").write_text("text,text_pair,label\n" + "the queen runs .,a king sleeps .,0\n" * 9)
    monkeypatch.chdir(tmp_path)
    words = ["score", "model", "--task", "classification", "--train", "data.csv", "--eval", "data.csv", "--by", "magnitude", "--out", "run"]
    assert main([*words, "-q"]) == 0
    opened = Run.open("run").record().config["opened"]
    assert opened["model"] == str(tmp_path / "model") and opened["train"] == [str(tmp_path / "data.csv")] == opened["eval"]
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    live = ServedRun(Run.open(tmp_path / "run"))
    assert not live.why_not and live.model() is not None


def test_another_model_under_the_name_is_refused(analysed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    live = ServedRun(Run.open(analysed))
    monkeypatch.setattr(
        live, "record", live.record.model_copy(update={"model": live.record.model.model_copy(update={"weights": "0" * 64})})
    )
    client = TestClient(application(Site([live], TOKEN, FRONT)), base_url=HOME)
    answer = client.post("/api/0/attend", json={"text": "a", "pair": None}, headers=ASKS)
    assert answer.status_code == 422 and "other weights than when this run" in answer.json()["error"]


def test_a_source_that_is_too_long_is_not_translated() -> None:
    from headcount.app.serve.actions import _build_sentence_corpus
    from headcount.core.errors import DataError

    class Translator:
        record, heads = None, ()

        def model(self) -> Any:
            return hc.load("demo/translator")

        def tokenizer(self) -> Any:
            return tokenizer_or_image_processor(self.model(), local_folder("demo/translator"))

        def task(self) -> Any:
            return open_task("demo/translation", self.model(), self.tokenizer())

    with pytest.raises(DataError, match="at most 128 are shown here"):
        _build_sentence_corpus(Translator(), "the dog sees " * 150, None)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_action_that_is_cut_off_ends_with_the_server(number: int, code: int, analysed: Path, tmp_path: Path) -> None:
    """A signal while a model is being pruned: no traceback, no waiting for it, and the run folder stays whole."""
    shutil.copytree(analysed, tmp_path / "run")
    process = subprocess.Popen(
        [sys.executable, "-m", "headcount", "serve", str(tmp_path / "run")], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        address, _, token = process.stdout.readline().strip().partition("/?token=")
        ask = {"method": "surgeon", "keep": 5, "protect": [], "repair": None}
        headers = {"X-Headcount-Token": token, "Content-Type": "application/json"}
        request = urllib.request.Request(f"{address}/api/0/prune", json.dumps(ask).encode(), headers)
        answers: list[str] = []

        def wait() -> None:
            try:
                urllib.request.urlopen(request, timeout=120)
            except Exception as error:
                answers.append(str(error))

        waiting = threading.Thread(target=wait)
        waiting.start()
        work, end = tmp_path / "run" / "log.txt", time.monotonic() + 120
        while "prune by surgeon" not in work.read_text() and time.monotonic() < end:
            time.sleep(0.05)
        start = time.monotonic()
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
        waiting.join(30)
    finally:
        process.kill()
    assert process.returncode == code and time.monotonic() - start < 30 and answers, errors
    assert "Traceback" not in errors
    assert Run.open(tmp_path / "run").results("pruned")
