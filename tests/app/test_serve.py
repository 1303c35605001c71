"""The local server: who is let in, what is refused, and how it ends."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from asking import ASKS, FRONT, HOME, TOKEN, data_of
from contract import check
from kit import make_run
from starlette.testclient import TestClient

from headcount.app.serve import actions
from headcount.app.serve.guard import MAX_BODY, host_name, is_ip_address
from headcount.app.serve.served_run import ServedRun
from headcount.app.serve.server import Site, application


@pytest.fixture(scope="module")
def by_hand(tmp_path_factory: pytest.TempPathFactory) -> list[ServedRun]:
    folder = tmp_path_factory.mktemp("served")
    return [ServedRun(make_run(folder / name, n=20, seed=i, text="no/such-model")) for i, name in enumerate("abc")]


@pytest.fixture
def client(by_hand: list[ServedRun]) -> TestClient:
    return TestClient(application(Site(by_hand[:1], TOKEN, FRONT)), base_url=HOME)


def test_the_page_needs_the_token_and_carries_it(client: TestClient) -> None:
    assert client.get("/").status_code == client.get("/?token=wrong").status_code == 403
    answer = client.get(f"/?token={TOKEN}")
    report = data_of(answer.text)
    check(report, "Report")
    assert report["live"]["token"] == TOKEN and report["live"]["runs"][0]["id"] == "0"
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "connect-src 'self'" in policy and "frame-ancestors 'none'" in policy
    assert answer.headers["cache-control"] == "no-store" and answer.headers["x-content-type-options"] == "nosniff"
    assert not [name for name in answer.headers if name.startswith("access-control")]


def test_a_model_that_is_not_here_says_why(client: TestClient) -> None:
    live = data_of(client.get(f"/?token={TOKEN}").text)["live"]["runs"][0]
    assert live["can_run"] is False and live["why_not"] == "the model no/such-model is not on this machine, and nothing is fetched here"
    answer = client.post("/api/0/attend", json={"text": "a", "pair": None}, headers=ASKS)
    assert answer.status_code == 422 and "not on this machine" in answer.json()["error"]


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "localhost.evil.example:8000", "0x7f000001.evil.example", ""]
)
def test_other_names_for_this_machine_are_refused(host: str, client: TestClient) -> None:
    answer = client.get(f"/?token={TOKEN}", headers={"Host": host})
    assert answer.status_code == 403 and TOKEN not in answer.text
    assert client.post("/api/0/attend", json={}, headers={**ASKS, "Host": host}).status_code == 403


@pytest.mark.parametrize("host", ["127.0.0.1:8000", "localhost:8000", "LOCALHOST", "[::1]:8000", "192.168.0.7:80"])
def test_its_own_names_and_addresses_are_answered(host: str, client: TestClient) -> None:
    assert client.get(f"/?token={TOKEN}", headers={"Host": host}).status_code == 200


def test_hosts_are_read_as_browsers_write_them() -> None:
    read = {"a.b:80": "a.b", "A.B": "a.b", "[::1]:80": "::1", "[::1]": "::1", "1.2.3.4": "1.2.3.4", "a:1:2": "a:1:2"}
    assert {text: host_name(text) for text in read} == read
    assert [is_ip_address(name) for name in ("127.0.0.1", "::1", "localhost", "1.2.3", "127.0.0.1.nip.io")] == [
        True,
        True,
        False,
        False,
        False,
    ]


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"X-Headcount-Token": ""},
        {"X-Headcount-Token": TOKEN[:-1]},
        {"X-Headcount-Token": TOKEN.upper()},
        {**ASKS, "Origin": "https://evil.example"},
        {**ASKS, "Origin": "null"},
        {**ASKS, "Origin": "http://127.0.0.1:9000"},
        {**ASKS, "Sec-Fetch-Site": "cross-site"},
        {**ASKS, "Sec-Fetch-Site": "same-site"},
    ],
)
def test_actions_without_the_token_or_from_other_pages_are_refused(headers: dict[str, str], client: TestClient) -> None:
    assert client.post("/api/0/attend", json={"text": "a", "pair": None}, headers=headers).status_code == 403


def test_requests_are_bounded_and_json(client: TestClient) -> None:
    large = json.dumps({"text": "a" * MAX_BODY, "pair": None})
    assert client.post("/api/0/attend", content=large, headers={**ASKS, "Content-Type": "application/json"}).status_code == 413

    def chunks() -> Any:
        yield from (b"a" * 1024 for _ in range(100))

    assert client.post("/api/0/attend", content=chunks(), headers={**ASKS, "Content-Type": "application/json"}).status_code == 413
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
        assert client.post("/api/0/attend", content=b"{}", headers={**ASKS, "Content-Type": kind}).status_code == 415
    assert client.post("/api/0/attend", content=b"{", headers={**ASKS, "Content-Type": "application/json"}).status_code == 400
    deep = client.post("/api/0/attend", content=b"[" * 50_000, headers={**ASKS, "Content-Type": "application/json"})
    assert deep.status_code == 400
    assert client.options("/api/0/attend", headers=ASKS).status_code == client.delete("/", headers=ASKS).status_code == 405


@pytest.mark.parametrize(
    "path",
    ["/api/0/attend/..", "/api/..%2f..%2fetc/attend", "/api/1/attend", "/api/0/run.json", "/../run.json", "/run.json", "/%2e%2e/run.json"],
)
def test_no_path_leads_to_a_file(path: str, client: TestClient) -> None:
    assert client.post(path, json={}, headers=ASKS).status_code in (403, 404, 405)
    assert client.get(f"{path}?token={TOKEN}", headers=ASKS).status_code in (404, 405)


@pytest.mark.parametrize(
    ("action", "asked"),
    [
        ("attend", []),
        ("attend", {"text": "a"}),
        ("attend", {"text": "a", "pair": None, "more": 1}),
        ("attend", {"text": " ", "pair": None}),
        ("attend", {"text": "a" * 4001, "pair": None}),
        ("attend", {"text": 5, "pair": None}),
        ("ablate", {"heads": [], "limit": 10}),
        ("ablate", {"heads": [0, 0], "limit": 10}),
        ("ablate", {"heads": [8], "limit": 10}),
        ("ablate", {"heads": [-1], "limit": 10}),
        ("ablate", {"heads": [True], "limit": 10}),
        ("ablate", {"heads": [0], "limit": 1}),
        ("ablate", {"heads": [0], "limit": 10**9}),
        ("prune", {"method": "", "keep": 4, "protect": [], "repair": True}),
        ("prune", {"method": "random", "keep": 0, "protect": [], "repair": True}),
        ("prune", {"method": "random", "keep": 4, "protect": [99], "repair": True}),
        ("prune", {"method": "random", "keep": 4, "protect": [], "repair": 1}),
        ("prune", {"method": "random", "keep": 8, "protect": [], "repair": True}),
        ("prune", {"method": "random", "keep": 4, "protect": [], "repair": None, "seed": -1}),
        ("prune", {"method": "random", "keep": 4, "protect": [], "repair": None, "floor": 0.5}),
        ("prune", {"method": "random", "keep": 4, "protect": [], "repair": None, "unit": "odd"}),
        ("prune", {"method": "random", "keep": 4, "protect": [], "repair": None, "more": 1}),
    ],
)
def test_requests_outside_the_contract_are_refused(action: str, asked: Any, client: TestClient) -> None:
    answer = client.post(f"/api/0/{action}", json=asked, headers=ASKS)
    assert answer.status_code == 400 and answer.json()["error"]


def test_one_action_at_a_time(by_hand: list[ServedRun], monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slow(_run: ServedRun, _asked: Any) -> dict[str, Any]:
        begun.set()
        go_on.wait(20)
        return {"done": True}

    monkeypatch.setattr(actions, "attend", slow)
    client = TestClient(application(Site(by_hand[:1], TOKEN, FRONT)), base_url=HOME)
    answers = []
    first = threading.Thread(target=lambda: answers.append(client.post("/api/0/attend", json={}, headers=ASKS)))
    first.start()
    assert begun.wait(20)
    second = TestClient(client.app, base_url=HOME).post("/api/0/ablate", json={}, headers=ASKS)
    go_on.set()
    first.join(20)
    assert second.status_code == 409 and answers[0].json() == {"done": True}
    assert client.post("/api/0/attend", json={}, headers=ASKS).status_code == 200, "and then the next"


def test_a_defect_answers_without_telling_secrets(by_hand: list[ServedRun], monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_run: ServedRun, _asked: Any) -> dict[str, Any]:
        raise ZeroDivisionError("a secret")

    monkeypatch.setattr(actions, "attend", broken)
    client = TestClient(application(Site(by_hand[:1], TOKEN, FRONT)), base_url=HOME, raise_server_exceptions=False)
    answer = client.post("/api/0/attend", json={}, headers=ASKS)
    assert answer.status_code == 500 and "ZeroDivisionError" in answer.json()["error"] and "secret" not in answer.text


def test_two_runs_are_compared_and_more_are_listed(by_hand: list[ServedRun]) -> None:
    two = TestClient(application(Site(by_hand[:2], TOKEN, FRONT)), base_url=HOME)
    report = data_of(two.get(f"/?token={TOKEN}").text)
    assert len(report["runs"]) == 2 and report["comparison"] is not None and [run["id"] for run in report["live"]["runs"]] == ["0", "1"]
    three = TestClient(application(Site(by_hand, TOKEN, FRONT)), base_url=HOME)
    listed = three.get(f"/?token={TOKEN}").text
    links = re.findall(r'href="([^"]+)"', listed)
    assert len(links) == 3 and "<script" not in listed
    assert [data_of(three.get(link).text)["runs"][0]["name"] for link in links] == ["a", "b", "c"]
    compared = data_of(three.get(f"/compare/2/0?token={TOKEN}").text)
    assert [run["name"] for run in compared["runs"]] == ["c", "a"] and [run["id"] for run in compared["live"]["runs"]] == ["2", "0"]
    assert three.get(f"/run/7?token={TOKEN}").status_code == 404
    check(three.get("/api/1/report", headers=ASKS).json(), "Report")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_command_serves_until_it_is_stopped(number: int, code: int, tmp_path: Path) -> None:
    make_run(tmp_path / "run", n=20, text="no/such-model")
    process = subprocess.Popen(
        [sys.executable, "-m", "headcount", "serve", str(tmp_path / "run")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=[\w-]{20,}", address)
        with urllib.request.urlopen(address, timeout=30) as answer:
            assert b"headcount-data" in answer.read()
        start = time.monotonic()
        process.send_signal(number)
        _, errors = process.communicate(timeout=20)
    finally:
        process.kill()
    assert process.returncode == code and time.monotonic() - start < 10, errors
    assert "Traceback" not in errors


def test_a_port_that_is_taken_is_an_error(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    import socket

    from headcount.app.main import main

    make_run(tmp_path / "run", n=20, kinds=("scores",))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert main(["serve", str(tmp_path / "run"), "--port", str(taken.getsockname()[1])]) == 1
    assert "cannot listen at 127.0.0.1" in capfd.readouterr().err
