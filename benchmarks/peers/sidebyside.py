"""What comparisons with peers share: tables in a document, medians of interleaved rounds, a peer in an environment of its own.

Needs the standard library alone, so that every environment can import it.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

Times = dict[str, list[float]]


def put(document: Path, name: str, text: str) -> None:
    """Replaces what stands between `<!-- name -->` and `<!-- /name -->` of a document."""
    start, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    before, found, rest = document.read_text(encoding="utf-8").partition(start)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise SystemExit(f"{document} has no place for this table: add the lines {start} and {end}")
    document.write_text(f"{before}{start}\n\n{text.strip()}\n\n{end}{after}", encoding="utf-8")


def table(header: Sequence[str], rows: Iterable[Sequence[Any]], *, left: int = 1) -> str:
    """A Markdown table; the first `left` columns lean left, numbers after them right."""
    lines = [header, ["---"] * left + ["---:"] * (len(header) - left), *rows]
    return "\n".join(f"| {' | '.join(str(artifact) for artifact in line)} |" for line in lines)


def cpu(work: Callable[[], object]) -> float:
    """Seconds of CPU time that some work takes."""
    start = time.process_time()
    work()
    return time.process_time() - start


def interleaved(works: Mapping[str, Callable[[], float]], rounds: int) -> Times:
    """The seconds that each work says it took, all of them in turn in every round; a first round warms up and does not count."""
    times: Times = {name: [] for name in works}
    for turn in range(rounds + 1):
        for name, work in works.items():
            seconds = work()
            times[name] += [seconds] if turn else []
    return times


def ratio(times: Times, over: str, under: str) -> str:
    """The median ratio of two works over rounds, with its smallest and largest value."""
    ratios = [a / b for a, b in zip(times[over], times[under], strict=True)]
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} – {max(ratios):.2f})"


def median(times: Times, name: str) -> str:
    return f"{statistics.median(times[name]):.3g}"


def spearman(first: Sequence[float], second: Sequence[float]) -> float:
    """The rank correlation; ties get their mean rank."""
    return statistics.correlation(_ranks(first), _ranks(second))


def _ranks(values: Sequence[float]) -> list[float]:
    return [sum(other < value for other in values) + (sum(other == value for other in values) - 1) / 2 for value in values]


class Peer:
    """A script that runs in another environment and answers questions, one JSON line each way."""

    def __init__(self, python: str, script: str, *arguments: str) -> None:
        command = [python, str(Path(__file__).parent / script), *arguments]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, what: str, **wanted: Any) -> Any:
        """What the peer's function `what` returns."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps({"what": what, **wanted}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"the peer stopped at '{what}' with exit code {self._process.wait()}; what it said is above")
        return json.loads(line)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def serve(functions: Mapping[str, Callable[..., Any]]) -> None:
    """Answers questions until there are none; whatever else is printed goes to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        wanted = json.loads(line)
        answers.write(json.dumps(functions[wanted.pop("what")](**wanted)) + "\n")
        answers.flush()
