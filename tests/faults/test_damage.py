"""Files of a run that were changed on disk: found out, set aside, named, and computed again."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import grid
import pytest

from headcount.core.errors import ArtifactError
from headcount.runs.scores import all_scores
from headcount.runs.store import Run


@pytest.fixture
def expected(shm: Path) -> Iterator[str]:
    with grid.small_chunks(shm / "computed"):
        digest = grid.warm_up(shm / "finished")
        stopped = grid.start(lambda: grid.lead(shm / "stopped"), grid.at(52, grid.crash)).wait()  # some blocks, some scores
        assert stopped.code == -9 and grid.finished(shm / "stopped")["chunk"] and grid.finished(shm / "stopped")["scores"]
        yield digest


def flip(content: bytes, draw: random.Random) -> bytes:
    position = draw.randrange(len(content))
    return content[:position] + bytes([content[position] ^ (1 << draw.randrange(8))]) + content[position + 1 :]


def zero(content: bytes, draw: random.Random) -> bytes:
    first = draw.randrange(len(content))
    length = draw.choice((1, 16, 512, len(content)))
    return content[:first] + bytes(len(content[first : first + length])) + content[first + length :]


DAMAGE: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "bit flipped": flip,
    "cut short": lambda content, draw: content[: draw.randrange(1, len(content))],
    "zeros": zero,
    "emptied": lambda _content, _draw: b"",
    "longer": lambda content, draw: content + draw.choice((b"\n", b"\0" * 100, b"x", content)),
}
SWAPPED = "swapped"


def victims(folder: Path) -> list[Path]:
    """The files of a run that are read again: artifacts, records and tables."""
    names = ("run.json", "heads.json", "tables.json", *grid.TABLES)
    return [*(folder / name for name in names if (folder / name).exists()), *sorted(folder.glob("artifacts/*/*.artifact"))]


def spoil(folder: Path, kind: str, draw: random.Random) -> list[Path]:
    """Damages one file, or swaps two; the files that are not what they were."""
    while True:
        chosen = draw.sample(victims(folder), 2 if kind == SWAPPED else 1)
        before = [path.read_bytes() for path in chosen]
        after = before[::-1] if kind == SWAPPED else [DAMAGE[kind](before[0], draw)]
        if after != before:
            for path, content in zip(chosen, after, strict=True):
                path.write_bytes(content)
            return chosen


def damage(shm: Path, base: str, kind: str, draw: random.Random, expected: str) -> str:
    """Damages a copy of a run, runs its command, and sees that it is mended; the name of what was damaged."""
    folder = shm / "run"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(shm / base, folder)
    spoiled = spoil(folder, kind, draw)
    bytes_of = [path.read_bytes() for path in spoiled]
    outcome = grid.finish(folder)
    aside = [path.read_bytes() for path in (folder / "quarantine").iterdir()]
    log = (folder / "log.txt").read_text()
    for path, content in zip(spoiled, bytes_of, strict=True):
        assert content in aside, (kind, path, outcome.result)
        assert any(str(path) in warning for warning in outcome.result["warnings"]), (kind, path, outcome.result)
        assert f"moves {path.relative_to(folder)}" in log, (kind, path, log)
    assert len(aside) == len(spoiled), (kind, spoiled, aside)
    assert grid.digest(folder) == expected, (kind, spoiled)
    assert not grid.finish(folder).result["warnings"], "mended once and for all"
    return spoiled[0].name


def many(shm: Path, expected: str, number: int, seed: int) -> int:
    draw, kinds = random.Random(seed), [*DAMAGE, SWAPPED]
    for turn in range(number):
        round_number, kind = divmod(turn, len(kinds))
        damage(shm, ("finished", "stopped")[(kind + round_number) % 2], kinds[kind], draw, expected)
    return number


def test_some_damaged_files_are_mended(shm: Path, expected: str) -> None:
    many(shm, expected, 2 * len([*DAMAGE, SWAPPED]), seed=1)


@pytest.mark.faults
def test_200_damaged_files_are_mended(shm: Path, expected: str, figure: Callable[..., None]) -> None:
    figure("damage", files=many(shm, expected, 200, seed=2), kinds=len(DAMAGE) + 1)


def flip_bits(folder: Path, per_file: int) -> int:
    """Flips a bit of so many bytes of each file, evenly spread, one at a time, and sees that it is found out; how many."""
    draw, flipped = random.Random(3), 0
    for path in victims(folder):
        content = path.read_bytes()
        for index in range(0, len(content), max(1, len(content) // per_file)):
            path.write_bytes(content[:index] + bytes([content[index] ^ (1 << draw.randrange(8))]) + content[index + 1 :])
            with pytest.raises(ArtifactError, match=r"damaged|torn|cannot be read|valid JSON|under another"):
                run = Run(folder)
                _ = [run.record(), run.heads(), *run.artifacts("chunk"), *run.artifacts("scores")]
            flipped += 1
        path.write_bytes(content)
    return flipped


def test_a_flipped_bit_of_an_artifact_or_a_record_is_found_out(shm: Path, expected: str) -> None:
    assert flip_bits(shm / "stopped", 50) >= 50 * len(victims(shm / "stopped"))


@pytest.mark.faults
def test_a_flipped_bit_anywhere_is_found_out(shm: Path, expected: str) -> None:
    flip_bits(shm / "stopped", 400)


def test_a_reader_is_told_and_changes_nothing(shm: Path, expected: str) -> None:
    artifact = next((shm / "finished").glob("artifacts/scores/gradient*"))
    artifact.write_bytes(artifact.read_bytes()[:-1])
    before = sorted(path.name for path in (shm / "finished").rglob("*"))
    with pytest.raises(ArtifactError, match=rf"{artifact.name} is damaged.*Run the command that made it again: {grid.COMMAND}"):
        all_scores(Run.open(shm / "finished"))
    assert before == sorted(path.name for path in (shm / "finished").rglob("*"))


def test_several_processes_that_find_the_same_damage_set_aside_one_file(shm: Path, expected: str) -> None:
    folder = shm / "stopped"
    artifact = sorted(folder.glob("artifacts/chunk/*.artifact"))[0]
    artifact.write_bytes(b"spoiled")
    with grid.small_chunks(pause=0.01):
        children = [grid.start(lambda: grid.lead(folder)), *(grid.start(lambda: grid.join(folder)) for _ in range(6))]
        for child in children:
            assert child.wait().code == 0, child.result
    assert [path.read_bytes() for path in (folder / "quarantine").iterdir()] == [b"spoiled"]
    grid.finish(folder)
    assert grid.digest(folder) == expected


def test_a_version_is_believed_only_under_a_seal(shm: Path, expected: str) -> None:
    """A flipped bit in the version of run.json is damage, not a newer release."""
    path = shm / "finished" / "run.json"
    path.write_text(path.read_text().replace('"schema_version": 3', '"schema_version": 4'))
    assert json.loads(path.read_text())["schema_version"] == 4
    outcome = grid.finish(shm / "finished")
    assert "run.json is damaged" in outcome.result["warnings"][0]
    assert grid.digest(shm / "finished") == expected
