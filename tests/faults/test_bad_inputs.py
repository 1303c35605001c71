"""Every bad input of the catalogue ends in a typed error that names it, within 5 s and 512 MB, and leaves nothing behind."""

from __future__ import annotations

import hashlib
import json
import os
import select
import signal
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from bad_inputs import CASES, WANTED, Call, Case, Kit, Refused, Stock

import headcount as hc
from headcount.core.errors import HeadcountError

SECONDS, MEGABYTES = 5.0, 512.0
TRACE = Path("/tmp/headcount-was-here")


@dataclass(frozen=True)
class End:
    """How a call ended, and what it cost beyond what was imported before it."""

    kind: str
    code: int
    message: str
    seconds: float
    megabytes: float
    trace: str = ""


def attempt(call: Call) -> End:
    """Runs a call in a child process, which may be hung, starved or stripped of its rights."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)
        with os.fdopen(writer, "w") as out:
            out.write(json.dumps(_measured(call)))
        os._exit(0)
    os.close(writer)
    base = peak = _resident(child)
    while not select.select([reader], [], [], 0.005)[
        0
    ]:  # seen from outside: not every system keeps a peak, and the call may hold the interpreter
        peak = max(peak, _resident(child))
    with os.fdopen(reader) as lines:
        table = lines.read()
    _, status = os.waitpid(child, 0)
    assert table, f"the process died without a word: {os.waitstatus_to_exitcode(status)}"
    return End(**json.loads(table), megabytes=(peak - base) / 2**20)


def _resident(process: int) -> int:
    """Bytes that a process holds in memory."""
    return int(Path(f"/proc/{process}/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _measured(call: Call) -> dict[str, object]:
    signal.alarm(60)  # a call that hangs is killed
    torch.set_num_threads(1)
    cpu = time.process_time()
    kind, code, message, trace = "nothing", 0, "", ""
    try:
        call()
    except Refused as error:
        kind, code, message = "refused", error.code, str(error)
    except HeadcountError as error:
        kind, code, message = "typed", 1, str(error)
    except BaseException as error:
        kind, message, trace = type(error).__name__, str(error), traceback.format_exc()
    return {"kind": kind, "code": code, "message": message, "seconds": time.process_time() - cpu, "trace": trace}


def left_in(folder: Path) -> dict[str, str]:
    """What is in a folder, by name and content."""
    actual = {}
    for path in folder.rglob("*"):
        plain = path.is_file() and not path.is_symlink() and path.stat().st_size < 2**20 and os.access(path, os.R_OK)
        actual[str(path)] = hashlib.sha256(path.read_bytes()).hexdigest() if plain else str(path.lstat().st_size * path.is_symlink())
    return actual


@pytest.fixture(scope="session")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Stock:
    """Good models and runs; all that the cases import is imported here, so that they are measured without it."""
    import pandas  # noqa: F401
    import pyarrow.parquet  # noqa: F401

    from headcount.app.cli import _app

    torch.set_num_threads(1)
    made = Stock(tmp_path_factory.mktemp("stock"))
    for name in _app.list_command_names():
        _app.import_command(name)
    for folder in (made.plain(), made.cut(), made.grouped()):
        hc.load(folder)
    made.run()
    return made


@pytest.fixture
def kit(stock: Stock, tmp_path: Path) -> Iterator[Kit]:
    yield Kit(stock, tmp_path)
    for path in [tmp_path, *tmp_path.rglob("*")]:
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o700)


@pytest.mark.filterwarnings("ignore:.*has no heads.json")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_bad_input_ends_in_a_typed_error(case: Case, kit: Kit) -> None:
    call = case.make(kit)
    before = left_in(kit.place)
    end = attempt(call)
    assert end.kind in ("typed", "refused"), f"{end.kind}: {end.message}\n{end.trace}"
    assert end.code == case.code, end.message
    assert "unexpected" not in end.message.partition("error: ")[2][:12], end.message
    assert "Traceback" not in end.message
    for part in case.says:
        assert part in end.message
    assert end.seconds < SECONDS
    assert end.megabytes < MEGABYTES
    assert left_in(kit.place) == before
    assert not TRACE.exists(), "the input was executed"


def test_there_are_enough_cases(figure: Callable[..., None]) -> None:
    counts = Counter(case.group for case in CASES)
    assert all(counts[group] >= number for group, number in WANTED.items()), counts
    assert len({str(case) for case in CASES}) == len(CASES) >= 120
    assert all(case.says for case in CASES)
    figure("bad-inputs", tried=len(CASES), **{group.replace(" ", "_"): number for group, number in counts.items()})


def test_the_measure_measures() -> None:
    end = attempt(lambda: (bytearray(200 * 2**20), time.sleep(0.2)))
    assert (end.kind, end.code) == ("nothing", 0)
    assert 190 < end.megabytes < 260
    assert attempt(lambda: sum(range(10**7))).seconds > 0.05
    assert attempt(lambda: 1 / 0).kind == "ZeroDivisionError"
