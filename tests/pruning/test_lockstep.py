"""Passes in step: order, errors in any of them, interruption, and no thread left behind."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable

import pytest

from headcount.core.errors import UnsupportedModel
from headcount.pruning.repair.lockstep import Lockstep


@pytest.fixture(autouse=True)
def _no_thread_stays():
    before = threading.active_count()
    yield
    assert threading.active_count() == before


def walker(lockstep: Lockstep, log: list, number: int, keys: str, fail: str = "") -> Callable[[], None]:
    def job() -> None:
        for key in keys:
            log.append((number, key))
            if key == fail:
                raise ZeroDivisionError(f"pass {number} at {key}")
            lockstep.pause(key)
        log.append((number, "end"))

    return job


def test_all_reach_a_place_in_order_before_any_goes_on() -> None:
    for _ in range(20):
        log: list = []
        lockstep = Lockstep(lambda key, log=log: log.append(("between", key)))
        lockstep.run([walker(lockstep, log, number, "ab") for number in range(5)])
        assert log == [
            *((n, "a") for n in range(5)), ("between", "a"), *((n, "b") for n in range(5)), ("between", "b"), *((n, "end") for n in range(5)),
        ]  # fmt: skip


def test_no_jobs_and_jobs_without_a_pause_just_end() -> None:
    log: list = []
    Lockstep(lambda _: log.append("between")).run([])
    lockstep = Lockstep(lambda _: log.append("between"))
    lockstep.run([walker(lockstep, log, number, "") for number in range(3)])
    assert log == [(0, "end"), (1, "end"), (2, "end")]


@pytest.mark.parametrize("where", "abc")
@pytest.mark.parametrize("which", range(3))
def test_an_error_in_any_pass_ends_all_and_is_raised(which: int, where: str) -> None:
    log: list = []
    lockstep = Lockstep(lambda _: None)
    with pytest.raises(ZeroDivisionError, match=f"pass {which} at {where}"):
        lockstep.run([walker(lockstep, log, number, "abc", where if number == which else "") for number in range(3)])
    assert not any(key == "end" for _, key in log)


def test_an_error_between_ends_all() -> None:
    def between(key: object) -> None:
        if key == "b":
            raise KeyError(key)

    log: list = []
    lockstep = Lockstep(between)
    with pytest.raises(KeyError):
        lockstep.run([walker(lockstep, log, number, "abc") for number in range(3)])
    assert (0, "c") not in log


@pytest.mark.parametrize("keys", [("ab", "ac"), ("ab", "a"), ("", "a")])
def test_passes_that_part_ways_are_refused(keys: tuple[str, str]) -> None:
    lockstep = Lockstep(lambda _: None)
    with pytest.raises(UnsupportedModel, match="depend on the data"):
        lockstep.run([walker(lockstep, [], number, which) for number, which in enumerate(keys)])


def test_a_job_that_catches_errors_cannot_swallow_its_end() -> None:
    """Passes that are ended get something that `except Exception` does not catch, and clean up on their way."""
    cleaned: list = []
    lockstep = Lockstep(lambda _: None)

    def stubborn() -> None:
        try:
            lockstep.pause("a")
        except Exception:
            cleaned.append("swallowed")
        finally:
            cleaned.append("left")

    def failing() -> None:
        raise OSError("no")

    with pytest.raises(OSError, match="no"):
        lockstep.run([stubborn, failing])
    assert cleaned == ["left"]


def test_an_interruption_while_waiting_ends_all() -> None:
    log: list = []
    lockstep = Lockstep(lambda _: None)

    def interrupting() -> None:
        signal.raise_signal(signal.SIGINT)  # handled by the main thread, which waits for this pass
        lockstep.pause("a")
        log.append("went on")

    with pytest.raises(KeyboardInterrupt):
        lockstep.run([walker(lockstep, [], 0, "ab"), interrupting, walker(lockstep, [], 2, "ab")])
    assert not log


def test_a_pass_that_interrupts_itself_is_raised_too() -> None:
    lockstep = Lockstep(lambda _: None)

    def job() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        lockstep.run([walker(lockstep, [], 0, "a"), job])
