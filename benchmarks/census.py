"""A census of every model class of the installed transformers: are its heads found, do their gates act, does a cut equal the gates?

    python benchmarks/census.py                         every class; writes census.jsonl, docs/census.md and the counts in README.md
    python benchmarks/census.py BertModel GPT2Model     some classes, prints their rows
    python benchmarks/census.py --again                 only what the last census did not prove; the other rows stay
    python benchmarks/census.py --again BertModel       only these classes; the other rows stay

Every class is built from its default configuration, shrunk by rules (headcount.models.tiny.build), with random weights, and examined in a forked
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
from collections.abc import Callable
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
    from headcount.models.tiny.build import model_classes
    from headcount.testing.census import variants_of

    classes = [cls for cls in model_classes() if not names or cls.__name__ in names]
    classes.sort(key=lambda cls: (cls.__module__, cls.__name__))
    return [entry for cls in classes for entry in (Entry(cls.__name__), *(Entry(cls.__name__, variant) for variant in variants_of(cls)))]


def examine(entry: Entry) -> dict[str, Any]:
    """The row of one entry."""
    from headcount.models.tiny.build import model_classes
    from headcount.testing.census import examine_class

    model_class = next(cls for cls in model_classes() if cls.__name__ == entry.name)
    start = time.monotonic()
    row = examine_class(model_class, entry.variant).to_dict()
    return row | {"seconds": round(time.monotonic() - start, 1)}


class Census:
    """A census in progress: its rows are files in a folder, which a later call continues."""

    def __init__(self, entries: list[Entry], folder: Path, workers: int, examine: Callable[[Entry], dict[str, Any]] = examine) -> None:
        self.entries, self.folder, self.workers, self.examine = entries, folder, workers, examine
        self.rows: dict[str, dict[str, Any]] = {}
        self.children: dict[int, list[Entry]] = {}
        self.start = time.monotonic()

    def run(self) -> list[dict[str, Any]]:
        """Examines every entry that has no row yet; returns all rows in the order of the entries."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._read()
        gc.collect()
        gc.freeze()  # what is imported stays shared with the children, whose collections then need not walk through it
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
        ended_by = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        timed_out = ended_by in (signal.SIGALRM, signal.SIGPROF)
        reason = f"stopped after {SECONDS} s" if timed_out else f"the process died (signal {ended_by}, status {os.WEXITSTATUS(status)})"
        row: dict[str, Any] = {"name": entry.name, "variant": entry.variant}
        if timed_out:
            row["built"] = reason
        else:  # an error that no caller can catch: nothing was refused
            row |= {"built": "yes", "stages": {"found": "raw"}, "notes": [f"found: {reason}"]}
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
                signal.setitimer(signal.ITIMER_PROF, SECONDS)  # of processor time, whatever else the machine does
                signal.alarm(10 * SECONDS)
                row = self.examine(entry)
                signal.setitimer(signal.ITIMER_PROF, 0)
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


def verdict(row: dict[str, Any], stage: str) -> str:
    return row.get("stages", {}).get(stage, "")


def is_built(row: dict[str, Any]) -> bool:
    return row.get("built", "yes") == "yes"


def has_attention(row: dict[str, Any]) -> bool:
    return is_built(row) and verdict(row, "found") != "none"


def is_without_attention(row: dict[str, Any]) -> bool:
    return is_built(row) and not has_attention(row)


def is_refused(row: dict[str, Any]) -> bool:
    """Whether some stage ends in a typed error, or some attention module is refused by name."""
    return has_attention(row) and any(value in ("refused", "part") for value in row["stages"].values())


COUNTS: dict[str, Callable[[dict[str, Any]], bool]] = {
    "found: every attention block": lambda row: verdict(row, "found") == "yes",
    "found: some blocks, the others refused by name": lambda row: verdict(row, "found") == "part",
    "gated: the gate of every head changes the output": lambda row: verdict(row, "gated") == "yes",
    "… and a gate of 0 equals attention probabilities of 0": lambda row: verdict(row, "zeroed") == "yes",
    "cut: equal to the gates, on inputs that the cut was not verified on": lambda row: verdict(row, "cut") == "yes",
    "… and `outputs.attentions` are those of the kept heads": lambda row: verdict(row, "attentions") == "yes",
    "generated: the cut model gives the tokens of the gated one": lambda row: verdict(row, "generated") == "yes",
    "reloaded: bit-equal after save and load": lambda row: verdict(row, "reloaded") == "yes",
    "refused by name at some stage, with a typed error that says what to do": is_refused,
    "raw error": lambda row: "raw" in row.get("stages", {}).values(),
    "wrong result": lambda row: "wrong" in row.get("stages", {}).values(),
}


def missing_from(versions: dict[str, str], rows: list[dict[str, Any]]) -> str:
    """A sentence on the classes that have no row yet, empty after a whole census."""
    missing = int(versions.get("classes", 0)) - sum(not row.get("variant") for row in rows)
    return f" Not complete: {missing} classes are still to be examined." if missing > 0 else ""


def summary(versions: dict[str, str], rows: list[dict[str, Any]]) -> list[str]:
    classes, variants = ([row for row in rows if bool(row.get("variant")) is kind] for kind in (False, True))
    return [
        f"transformers {versions['transformers']}, torch {versions['torch']}. {len(classes)} model classes of "
        f"{len({row.get('family') for row in classes})} families, {len(variants)} variants of them.{missing_from(versions, rows)}",
        "",
        "| | classes | variants |",
        "|---|---:|---:|",
        *(
            f"| {label} | {sum(map(count, classes))} | {sum(map(count, variants))} |"
            for label, count in {
                "with attention, built from a small configuration": has_attention,
                "without attention": is_without_attention,
                "not built here (reason in the table)": lambda row: not is_built(row),
                **COUNTS,
            }.items()
        ),
    ]


def with_counts(text: str, versions: dict[str, str], rows: list[dict[str, Any]]) -> str:
    """The README with the counts of a census in their marked place."""
    classes = [row for row in rows if not row.get("variant") and has_attention(row)]
    number = {stage: sum(verdict(row, stage) == "yes" for row in classes) for stage in ("found", "gated", "cut", "generated", "reloaded")}
    part = sum(verdict(row, "found") == "part" for row in classes)
    unbuilt = [row["built"] for row in rows if not row.get("variant") and not is_built(row)]
    defects = {kind: sum(kind in row.get("stages", {}).values() for row in rows) for kind in ("raw", "wrong")}
    families = len({row["family"] for row in classes if "family" in row})  # a process that died left none
    sentence = (
        f"Of {len(classes):,} model classes with attention ({families} families of transformers {versions['transformers']}, built small): "
        f"found {number['found'] + part:,} ({part} with some blocks refused), gated {number['gated']:,}, cut {number['cut']:,}, "
        f"generated {number['generated']}, reloaded {number['reloaded']:,}, refused by name at some stage {sum(map(is_refused, classes))}; "
        f"with their variants: {defects['raw']} raw errors, {defects['wrong']} wrong results. Not built here: {len(unbuilt)} "
        f"further classes, {sum('ImportError' in reason for reason in unbuilt)} of them for want of a package.{missing_from(versions, rows)}"
    )
    before, start, rest = text.partition(MARK)
    _, end, after = rest.partition(END)
    if not (start and end):
        raise RuntimeError(f"README.md has no place for the counts of the census, {MARK} … {END}")
    return f"{before}{MARK}\n{sentence}\n{END}{after}"


def is_proven(row: dict[str, Any]) -> bool:
    """Whether every stage that applies is proven."""
    return has_attention(row) and all(value in ("yes", "") for value in row["stages"].values())


def is_settled(row: dict[str, Any]) -> bool:
    """Whether another census could not say more of a row."""
    return is_proven(row) or is_without_attention(row)


def document(versions: dict[str, str], rows: list[dict[str, Any]]) -> str:
    proven: dict[str, list[str]] = {}
    for row in filter(is_proven, rows):
        proven.setdefault(row["family"], []).append(key_of(row) if row.get("variant") else row["name"])
    others = [row for row in rows if not is_proven(row) and (has_attention(row) or not is_built(row))]
    return "\n".join(
        [
            *HEAD,
            *summary(versions, rows),
            "",
            "## Classes and variants that are not proven in every stage",
            "",
            f"| class | {' | '.join(STAGES)} | note |",
            f"|---|{'---|' * len(STAGES)}---|",
            *(f"| {' | '.join([key_of(row), *(verdict(row, stage) for stage in STAGES), note_of(row)])} |" for row in others),
            "",
            "## Proven in every stage that applies",
            "",
            *(f"- **{family}**: {', '.join(names)}" for family, names in sorted(proven.items())),
            "",
            "## Without attention",
            "",
            ", ".join(row["name"] for row in rows if is_without_attention(row)),
            "",
        ]
    )


def note_of(row: dict[str, Any]) -> str:
    text = "; ".join(row.get("notes", [])) if is_built(row) else f"not built: {row['built']}"
    return text.replace("|", "\\|").replace("<", "&lt;")


STAGES = ("found", "gated", "zeroed", "cut", "attentions", "generated", "reloaded", "unchanged")
MARK, END = "<!-- census -->", "<!-- end of census -->"
HEAD = (
    "# Census of model classes",
    "",
    "Written by `make census`; do not edit. Every model class that transformers exports or builds by an auto class is built from its default",
    "configuration, shrunk by rules, with random weights in float64 (float32 where its code cannot do that), and one class of every type also in",
    "the variants that change attention (KV heads, relative and rotary positions, biases, windows, shared KV). Public functions are called",
    "without inputs, as a user would; where code computes in float32 inside a float64 model, a check that misses 1e-9 for that reason is made",
    "again with these parts in float64. The rows are in `benchmarks/census.jsonl`.",
    "",
    "*found*: attention modules are taken in, or refused by name (part). *gated*: the gate of every head changes the output. *zeroed*: gates of 0",
    "equal attention probabilities of 0, by an independent computation. *cut*: a random plan, cut, equals its gates on other inputs. *attentions*:",
    "`outputs.attentions` of the cut model are those of the kept heads. *generated*: greedy generation gives the same tokens. *reloaded*: save and",
    "load give the same bits. *unchanged*: detecting, gating and cutting leave the model as it was. *refused* is a typed error that says why and",
    "what to do; *raw* is any other error, *wrong* a result that the check contradicts: both are defects.",
    "",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("classes", nargs="*", help="names of model classes; all by default")
    parser.add_argument("--workers", type=int, default=2, help="processes at a time")
    again = "keep the rows of the last census, and examine only what it did not prove, or the classes named"
    parser.add_argument("--again", action="store_true", help=again)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    import torch
    import transformers

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    entries = list_entries([] if options.again else options.classes)
    stored = {key_of(row): row for row in read_rows()[1]} if options.again else {}
    if options.classes:
        left = [entry for entry in entries if entry.name in options.classes]
    else:
        left = [entry for entry in entries if entry.key not in stored or not is_settled(stored[entry.key])]
    folder = PARTIAL / (f"some-{os.getpid()}" if options.classes else stamp())
    fresh = {key_of(row): row for row in Census(left, folder, options.workers).run()}
    if options.classes:
        print("\n".join(json.dumps(row, ensure_ascii=False) for row in fresh.values()))
        if not options.again:
            return
    rows = [row for entry in entries if (row := (stored | fresh).get(entry.key))]  # a variant that its class refuses has none
    rows = [row for row in rows if is_built(row) or not row.get("variant")]  # a variant that its class refuses is none
    for row in rows:
        row.pop("seconds", None)
    versions = {
        "transformers": transformers.__version__,
        "torch": torch.__version__.partition("+")[0],
        "classes": str(len({entry.name for entry in entries})),
    }
    lines = [json.dumps(line, ensure_ascii=False) for line in (versions, *rows)]
    ROWS.write_text("\n".join(lines) + "\n", encoding="utf-8")
    DOCUMENT.write_text(document(versions, rows), encoding="utf-8")
    README.write_text(with_counts(README.read_text(encoding="utf-8"), versions, rows), encoding="utf-8")
    print("\n".join(summary(versions, rows)))
    if any(defects_of(row) for row in rows):
        sys.exit(1)


def read_rows() -> tuple[dict[str, str], list[dict[str, Any]]]:
    """The versions and the rows of the last whole census."""
    versions, *rows = (json.loads(line) for line in ROWS.read_text(encoding="utf-8").splitlines())
    return versions, rows


if __name__ == "__main__":
    main()
