"""The tables of a run: csv and parquet files for people and other tools, derived from its artifacts alone.

`tables.json` keeps their hashes; a table that was changed from outside is moved to the quarantine and written again.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headcount.core.budget import LIMITS
from headcount.core.files import sha256, write_atomic
from headcount.core.options import format_value
from headcount.core.score_tables import LISTING
from headcount.core.survivors import SurvivingHeads
from headcount.runs.artifacts import Artifact, Damaged
from headcount.runs.latency import LATENCY, unpack_latency
from headcount.runs.records import write_record
from headcount.runs.report.plain import format_exact_number
from headcount.runs.results import COMPARISON, PRUNED, PrunedRecord, method_label
from headcount.runs.schema import BlockRecord, TablesRecord
from headcount.runs.scores import all_scores, all_verdicts
from headcount.runs.store import Run
from headcount.runs.training_log import gate_table, training_table

if TYPE_CHECKING:
    import pandas

TABLES, STUDY = LISTING, "study"
DIFFERENCE_COLUMNS = ("keep", "method", "other", "difference", "low", "high", "p", "by", "q")
"""The columns of the differences between methods, also where there are none."""
TableMaker = Callable[[Run], "pandas.DataFrame | None"]


def _score_table(run: Run) -> pandas.DataFrame | None:
    import pandas

    by_method = all_scores(run)
    is_normalised = any(scores.normalise != "none" for scores in by_method.values())
    frames = [
        scores.to_pandas().assign(method=name, **({"normalise": scores.normalise} if is_normalised else {}))
        for name, scores in by_method.items()
    ]
    if not frames:
        return None
    table: Any = pandas.concat(frames, ignore_index=True)
    return table[["method", *[column for column in table.columns if column != "method"]]]


def _verdict_table(run: Run) -> pandas.DataFrame | None:
    """Returns what removing each head alone costs at most: one row per head and ablation."""
    import pandas

    rows = [
        {
            "method": name,
            **asdict(row),
            "head": str(row.head),
            "unit": verdicts.tolerance.unit,
            "tolerance": verdicts.tolerance.size,
            "clip": verdicts.tolerance.clip,
            "level": verdicts.level,
            "examples": verdicts.n_examples,
            "documents": verdicts.n_documents,
        }
        for name, verdicts in all_verdicts(run).items()
        for row in verdicts.rows
    ]
    return pandas.DataFrame(rows) if rows else None


def _role_table(run: Run) -> pandas.DataFrame | None:
    import pandas

    artifacts = run.results("roles")
    return pandas.DataFrame([row for artifact in artifacts.values() for row in artifact.content["rows"]]) if artifacts else None


def _outcome_table(run: Run) -> pandas.DataFrame | None:
    import pandas

    frames = []
    for name, artifact in run.results("evaluation").items():
        losses, parts = artifact.arrays["losses"], artifact.arrays.get("parts")
        columns: dict[str, Any] = {"evaluation": name, "example": range(len(losses)), "loss": losses}
        if parts is not None:
            columns |= {f"part {number}": parts[:, number] for number in range(parts.shape[1])}
        frames.append(pandas.DataFrame(columns))
    return pandas.concat(frames, ignore_index=True) if frames else None


def _curve_table(run: Run) -> pandas.DataFrame | None:
    import pandas

    artifacts = run.results(PRUNED)
    if not artifacts:
        return None
    blocks = run.heads().blocks
    return pandas.DataFrame([_pruned_model_row(artifact, blocks) for artifact in artifacts.values()])


def _pruned_model_row(artifact: Artifact, blocks: Sequence[BlockRecord]) -> dict[str, Any]:
    """Returns a pruned model as a row: its request, how many heads of the dense model it has and where, its results and its costs."""
    record = PrunedRecord.from_artifact(artifact)
    survivors = SurvivingHeads.after_removal(blocks, record.removed)
    spec, budget = record.spec, record.budget
    limits = [f"{name}={format_exact_number(budget[name])}" for name in LIMITS if budget.get(name) is not None]
    return {
        "method": spec["method"]["name"],
        "label": record.label,
        "keep": len(survivors.heads),
        **{name: spec[name] for name in ("seed", "repair")},
        **{name: None if spec[name] is None else str(spec[name]) for name in ("recover", "scratch")},
        "ablation": spec["ablation"],
        "kinds": "+".join(spec["kinds"]),
        **{name: budget.get(name, default) for name, default in (("floor", 0), ("unit", "kv_group"))},
        "protected": "+".join(budget.get("protected", ())),
        "steps": min(record.steps.values(), default=0),
        "limit": "".join(limits),
        "options": ";".join(f"{name}={format_value(value)}" for name, value in spec["method"].items() if name != "name"),
        "loss": record.loss,
        record.metric or "metric": record.value,
        **record.cost,
        **{f"survivors_{kind.replace('-', '_')}": number for kind, number in survivors.by_kind.items()},
        "survivors_by_layer": ";".join(f"{name}={number}" for name, number in survivors.by_block.items()),
    }


def _plan_table(run: Run) -> pandas.DataFrame | None:
    import pandas

    rows = []
    for name, artifact in run.results(PRUNED).items():
        record = PrunedRecord.from_artifact(artifact)
        survivors = SurvivingHeads.after_removal(run.heads().blocks, record.removed)
        lists = {"kept": " ".join(survivors.heads), "removed": " ".join(survivors.removed)}
        rows.append({"model": name, "method": method_label(artifact), "keep": len(survivors.heads), "seed": record.spec["seed"], **lists})
    return pandas.DataFrame(rows) if rows else None


def _comparison_table(run: Run, table_name: str) -> pandas.DataFrame | None:
    """Returns one of the tables that a comparison of methods holds; None if there is none."""
    import pandas

    tables = [artifact.content[table_name] for artifact in run.results(COMPARISON).values() if table_name in artifact.content]
    rows = [row for table in tables for row in table]
    columns = list(rows[0]) if rows else DIFFERENCE_COLUMNS
    return pandas.DataFrame(rows, columns=columns) if tables else None


def _latency_table(run: Run) -> pandas.DataFrame | None:
    import pandas

    rows = [{"of": name, **row.to_dict()} for name, artifact in run.results(LATENCY).items() for row in unpack_latency(artifact)]
    return pandas.DataFrame(rows) if rows else None


def _bench_table(run: Run) -> pandas.DataFrame | None:
    import pandas

    rows = [{"of": name, **row} for name, artifact in run.results("bench").items() for row in artifact.content["rows"]]
    return pandas.DataFrame(rows) if rows else None


MAKERS: dict[str, TableMaker] = {
    "scores": _score_table,
    "verdicts": _verdict_table,
    "roles": _role_table,
    "outcomes": _outcome_table,
    "curves": _curve_table,
    "plans": _plan_table,
    "methods": lambda run: _comparison_table(run, "methods"),
    "differences": lambda run: _comparison_table(run, "differences"),
    "role_changes": lambda run: _comparison_table(run, "role_changes"),
    "latency": _latency_table,
    "training": training_table,
    "gates": gate_table,
    "bench": _bench_table,
}


def _named_tables(run: Run) -> Iterator[tuple[str, pandas.DataFrame | None]]:
    """Yields every table by name; each study has its own."""
    import pandas

    yield from ((name, make(run)) for name, make in MAKERS.items())
    for name, artifact in run.results(STUDY).items():
        yield f"{STUDY}-{name}", pandas.DataFrame(artifact.content["rows"])


def table_files(run: Run) -> Iterator[tuple[str, bytes]]:
    """Yields file name and bytes of every table of a run."""
    for name, table in _named_tables(run):
        if table is not None:
            packed = io.BytesIO()
            table.to_parquet(packed, index=False)
            yield f"{name}.parquet", packed.getvalue()
            if name != "outcomes":
                yield f"{name}.csv", table.to_csv(index=False).encode()


def write_tables(run: Run) -> None:
    """Writes every table whose content is new; one that was changed from outside is moved to the quarantine first."""
    known = run.read_intact_record(TABLES, TablesRecord) or TablesRecord(files={})
    files = dict(table_files(run))
    hashes = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    current = {name: _hash_or_quarantine_table(run, name, {hashes[name], known.files.get(name), known.before.get(name)}) for name in files}
    before = {name: digest for name, digest in current.items() if digest is not None and digest != hashes[name]}
    record = TablesRecord(files={**known.files, **hashes}, before=before)
    if record != known:
        write_record(run.folder / TABLES, record)  # before the tables, so that no table looks damaged after a crash
    for name, content in files.items():
        if current[name] != hashes[name]:
            write_atomic(run.folder / name, content)


def is_same_table(path: Path, content: bytes) -> bool:
    """Whether a file holds the table whose bytes are `content`; another release of pandas may have written it in other bytes."""
    import pandas

    if path.read_bytes() == content:
        return True
    read = pandas.read_parquet if path.suffix == ".parquet" else pandas.read_csv
    try:
        pandas.testing.assert_frame_equal(read(path), read(io.BytesIO(content)))
    except (AssertionError, ValueError, OSError):
        return False
    return True


def _hash_or_quarantine_table(run: Run, file_name: str, known_hashes: set[str | None]) -> str | None:
    """Returns the hash of a table; None if it is missing or was changed, and then moved to the quarantine."""
    path = run.folder / file_name
    digest = sha256(path) if path.is_file() else None
    if digest is not None and digest not in known_hashes:
        run.quarantine(path, Damaged(f"{path} is damaged or was edited: its hash is not the one that was written"))
        return None
    return digest
