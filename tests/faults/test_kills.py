"""Processes killed at random, alone and among workers: nothing that was finished is lost, and nothing is computed twice."""

from __future__ import annotations

import random
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import grid
import pytest


@pytest.fixture
def expected(shm: Path) -> Iterator[str]:
    with grid.small_chunks(shm / "computed"):
        yield grid.warm_up(shm / "expected")


def kept(folder: Path) -> set[str]:
    """Everything finished in a folder; the blocks of a result count as there when it is."""
    there = grid.finished(folder)
    blocks = {f"{name} {n}" for name, (kind, goal) in grid.PASSES.items() if set(goal) <= there[kind] for n in range(0, 24, grid.SIZE)}
    return there["scores"] | there["evaluation"] | there["chunk"] | blocks


def kill_at_random(shm: Path, expected: str, number: int, seed: int) -> dict[str, int]:
    """Starts the command again and again, and kills it at a random moment, until there were so many kills."""
    draw, kills, lost, wrong, ends = random.Random(seed), 0, 0, 0, 0
    start = time.monotonic()
    grid.finish(shm / "timed")
    longest = time.monotonic() - start
    folder = shm / "run"
    while kills < number:
        before = kept(folder)
        (shm / "computed").unlink(missing_ok=True)
        child = grid.start(lambda: grid.lead(folder))
        time.sleep(draw.uniform(0, longest))
        child.kill()
        code = child.wait().code
        assert code in (0, -9), child.result
        kills += code == -9
        lost += len(before - kept(folder)) + len(before & {name for _, name in grid.computed(shm / "computed")})
        if code == 0:
            ends += 1
            wrong += grid.digest(folder) != expected or not grid.is_clean(folder)
            shutil.rmtree(folder)
    grid.finish(folder)
    return {"kills": kills, "lost": lost, "wrong": wrong + (grid.digest(folder) != expected), "ends": ends + 1}


def test_a_few_kills_at_random_times(shm: Path, expected: str) -> None:
    kills = kill_at_random(shm, expected, 15, seed=1)
    assert (kills["lost"], kills["wrong"]) == (0, 0), kills


@pytest.mark.faults
def test_300_kills_at_random_times(shm: Path, expected: str, figure: Callable[..., None]) -> None:
    kills = kill_at_random(shm, expected, 300, seed=2)
    assert (kills["lost"], kills["wrong"]) == (0, 0), kills
    figure("kills", **kills)


# Workers.

MANY = 96
"""Examples: 16 blocks in each of the two passes."""


def share(shm: Path, workers: int, kills: int, draw: random.Random) -> tuple[list[int], Path]:
    """One leader and workers that join; some workers are killed meanwhile and replaced. The processes that were killed, and the folder."""
    folder = shm / "shared"
    shutil.rmtree(folder, ignore_errors=True)
    (shm / "computed").unlink(missing_ok=True)

    def leading() -> None:
        from headcount.runs.store import Run

        with Run.lead(folder, command=grid.COMMAND) as run:
            run.expects_workers = True
            grid.work(run, number=MANY)

    leader = grid.start(leading)
    while not (folder / "run.json").exists():
        time.sleep(0.001)
    team = [grid.start(lambda: grid.join(folder, number=MANY)) for _ in range(workers)]
    dead: list[int] = []
    for _ in range(kills):
        time.sleep(draw.uniform(0, 0.1))
        victim = team.pop(draw.randrange(len(team)))
        victim.kill()
        if victim.wait().code == -9:
            dead.append(victim.pid)
        team.append(grid.start(lambda: grid.join(folder, number=MANY)))
    for child in [leader, *team]:
        assert child.wait().code == 0, child.result
    grid.finish(folder, lambda: grid.lead(folder, number=MANY))  # what a killed worker was writing is removed by the next leader
    return dead, folder


def twice(shm: Path, dead: list[int]) -> int:
    """How many blocks were computed more than once without a death that made it necessary."""
    begun = Counter(name for pid, name in grid.computed(shm / "computed") if pid not in dead)
    return sum(number - 1 for number in begun.values() if number > 1)


@pytest.fixture
def alone(shm: Path, expected: str) -> str:
    grid.finish(shm / "alone", lambda: grid.lead(shm / "alone", number=MANY))
    return grid.digest(shm / "alone")


def test_workers_share_a_run_and_one_is_killed(shm: Path, alone: str) -> None:
    with grid.small_chunks(shm / "computed", pause=0.01):
        dead, folder = share(shm, 3, 2, random.Random(5))
    assert twice(shm, dead) == 0
    assert grid.digest(folder) == alone and grid.is_clean(folder)
    helped = {pid for pid, _ in grid.computed(shm / "computed")}
    assert len(helped) > 1, "the workers did nothing"


@pytest.mark.faults
def test_80_workers_killed(shm: Path, alone: str, figure: Callable[..., None]) -> None:
    kills, rounds, draw = 0, 0, random.Random(6)
    while kills < 80:
        with grid.small_chunks(shm / "computed", pause=0.02):
            dead, folder = share(shm, 3, 10, draw)
        kills, rounds = kills + len(dead), rounds + 1
        assert twice(shm, dead) == 0
        assert grid.digest(folder) == alone and grid.is_clean(folder)
    figure("workers killed", kills=kills, rounds=rounds)


@pytest.mark.faults
def test_16_workers_on_one_folder(shm: Path, alone: str, figure: Callable[..., None]) -> None:
    again, helped, rounds = 0, [], 5
    for _ in range(rounds):
        with grid.small_chunks(shm / "computed", pause=0.02):
            _, folder = share(shm, 16, 0, random.Random(7))
        again += twice(shm, [])
        helped.append(len({pid for pid, _ in grid.computed(shm / "computed")}))
        assert grid.digest(folder) == alone and grid.is_clean(folder)
    assert again == 0 and max(helped) > 8, helped
    figure("workers", workers=16, twice=again, blocks=rounds * 32, rounds=rounds)


def test_a_leader_that_dies_leaves_workers_that_end_and_a_run_that_goes_on(shm: Path, alone: str) -> None:
    folder = shm / "left"
    with grid.small_chunks(shm / "computed", pause=0.02):
        leader = grid.start(lambda: grid.lead(folder, number=MANY))
        while not list(folder.glob("artifacts/chunk/*.artifact")):
            time.sleep(0.001)
        workers = [grid.start(lambda: grid.join(folder, number=MANY)) for _ in range(2)]
        time.sleep(0.05)
        leader.kill()
        assert leader.wait().code == -9
        for child in workers:
            assert child.wait().code == 0, child.result
    before = grid.finished(folder)["chunk"]
    assert len(before) == MANY // grid.SIZE, "the workers finished the pass that the leader left"
    (shm / "computed").unlink()
    grid.finish(folder, lambda: grid.lead(folder, number=MANY))
    assert not before & {name for _, name in grid.computed(shm / "computed")}
    assert grid.digest(folder) == alone and grid.is_clean(folder)
