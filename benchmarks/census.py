"""A census of every model class of the installed transformers: are its heads found, do their gates act, does a cut equal the gates?

    python benchmarks/census.py                         every class; writes census.jsonl, docs/census.md and the counts in README.md
    python benchmarks/census.py BertModel GPT2Model     some classes, prints their rows
    python benchmarks/census.py --again                 only the classes whose last row has a defect

Every class is built from its default configuration, shrunk by rules (headcount.testing.shrink), with random weights, and examined in a forked
process. Rows are written as they come, so that a census that was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import os
import resource
import signal
import sys
import time
import warnings
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SECONDS = 90
CHUNK = 16
MEMORY = 3 << 30
ROOT = Path(__file__).parents[1]
ROWS = Path(__file__).with_suffix(".jsonl")
DOCUMENT = ROOT / "docs" / "census.md"
README = ROOT / "README.md"
PARTIAL = ROOT / "build" / "census"


@dataclass(frozen=True, slots=True)
class Entry:
    """One configuration of one class to be examined."""

    name: str
    variant: str = ""

    @property
    def key(self) -> str:
        return f"{self.name} {self.variant}".strip()


def list_entries(names: list[str]) -> list[Entry]:
    """Every class, or those named, plain and in the variants that change its attention; classes of a family stand together."""
    from headcount.testing.census import variants_of
    from headcount.testing.shrink import model_classes

    classes = [cls for cls in model_classes() if not names or cls.__name__ in names]
    classes.sort(key=lambda cls: (cls.__module__, cls.__name__))
    return [entry for cls in classes for entry in (Entry(cls.__name__), *(Entry(cls.__name__, variant) for variant in variants_of(cls)))]


def examine(entry: Entry) -> dict[str, Any]:
    """The row of one entry."""
    from headcount.testing.census import examine_class
    from headcount.testing.shrink import model_classes

    model_class = next(cls for cls in model_classes() if cls.__name__ == entry.name)
    start = time.monotonic()
    row = examine_class(model_class, entry.variant).to_dict()
    return row | {"seconds": round(time.monotonic() - start, 1)}


class Census:
    """The rows of a census in progress, one file for each entry list, which a later call continues."""

    def __init__(self, entries: list[Entry], folder: Path, workers: int) -> None:
        self.entries, self.folder, self.workers = entries, folder, workers
        self.rows: dict[str, dict[str, Any]] = {}
        self.children: dict[int, list[Entry]] = {}
        self.start = time.monotonic()

    def run(self) -> list[dict[str, Any]]:
        """Examines every entry that has no row yet; returns all rows in the order of the entries."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._read()
        left = [entry for entry in self.entries if entry.key not in self.rows]
        chunks = [left[start : start + CHUNK] for start in range(0, len(left), CHUNK)]
        while chunks or self.children:
            while chunks and len(self.children) < self.workers:
                self._fork(chunks.pop(0))
            process, status = os.wait()
            chunk = self.children.pop(process, None)
            if chunk is None:
                continue
            self._read()
            rest = [entry for entry in chunk if entry.key not in self.rows]
            if rest:
                self._record_death(rest[0], status)
                if rest[1:]:
                    chunks.insert(0, rest[1:])
            self._report(chunk)
        return [self.rows[entry.key] for entry in self.entries]

    def _read(self) -> None:
        for file in sorted(self.folder.glob("*.jsonl")):
            for line in file.read_text(encoding="utf-8").splitlines():
                if line.endswith("}"):
                    row = json.loads(line)
                    self.rows[key_of(row)] = row

    def _write(self, row: dict[str, Any], name: str) -> None:
        with (self.folder / f"{name}.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")

    def _record_death(self, entry: Entry, status: int) -> None:
        if status == 0:
            raise RuntimeError(f"{entry.key} left no row")
        timed_out = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGALRM
        reason = f"stopped after {SECONDS} s" if timed_out else f"the process died (status {status})"
        row = {"name": entry.name, "variant": entry.variant, "built": reason}
        self._write({key: value for key, value in row.items() if value}, "deaths")
        self._read()

    def _fork(self, chunk: list[Entry]) -> None:
        process = os.fork()
        if process:
            self.children[process] = chunk
            return
        code = 1
        try:
            sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115, PTH123 - the process ends with the chunk
            for device in (1, 2):
                os.dup2(sys.stdout.fileno(), device)
            resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
            for entry in chunk:
                signal.alarm(SECONDS)
                row = examine(entry)
                signal.alarm(0)
                self._write(row, str(os.getpid()))
                gc.collect()
            code = 0
        finally:
            os._exit(code)

    def _report(self, chunk: list[Entry]) -> None:
        spent, rows = time.monotonic() - self.start, [self.rows[entry.key] for entry in chunk if entry.key in self.rows]
        defects = [key_of(row) for row in rows if defects_of(row)]
        print(f"[{len(self.rows)}/{len(self.entries)} {spent:.0f}s] {chunk[0].key} … {' '.join(defects)}", file=sys.stderr, flush=True)


def key_of(row: dict[str, Any]) -> str:
    return f"{row['name']} {row.get('variant', '')}".strip()


def defects_of(row: dict[str, Any]) -> list[str]:
    return [stage for stage, verdict in row.get("stages", {}).items() if verdict in ("raw", "wrong")]


def stamp() -> str:
    """A digest of the versions and sources that rows depend on."""
    import torch
    import transformers

    digest = hashlib.sha256(f"{transformers.__version__} {torch.__version__}".encode())
    for file in (*sorted((ROOT / "src" / "headcount").rglob("*.py")), Path(__file__)):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("classes", nargs="*", help="names of model classes; all by default")
    parser.add_argument("--workers", type=int, default=2, help="processes at a time")
    parser.add_argument("--again", action="store_true", help="examine only the entries whose last row has a defect, and print them")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    import torch
    import transformers

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    entries = list_entries(options.classes)
    if options.again:
        known = {key_of(row) for row in read_rows() if defects_of(row)}
        entries = [entry for entry in entries if entry.key in known]
    partial = bool(options.classes or options.again)
    folder = PARTIAL / (f"some-{os.getpid()}" if partial else stamp())
    rows = Census(entries, folder, options.workers).run()
    if partial:
        print("\n".join(json.dumps(row, ensure_ascii=False) for row in rows))
        return
    ROWS.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def read_rows() -> list[dict[str, Any]]:
    return [json.loads(line) for line in ROWS.read_text(encoding="utf-8").splitlines()]


if __name__ == "__main__":
    main()
