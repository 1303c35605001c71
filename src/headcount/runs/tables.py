"""The tables of a run: csv and parquet files for people and other tools, made out of its artifacts and nothing else.

`tables.json` keeps their hashes; a table that somebody or something changed goes to the quarantine and is written again.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headcount.core.budget import LIMITS
from headcount.core.files import sha256, write_atomic
from headcount.core.options import format_value
from headcount.core.score_tables import LISTING
from headcount.runs.artifacts import Artifact, Damaged
from headcount.runs.records import write_record
from headcount.runs.report.commands import plain_number
from headcount.runs.schema import TablesRecord
from headcount.runs.scores import all_scores
from headcount.runs.store import Run

if TYPE_CHECKING:
    import pandas

TABLES, STUDY = LISTING, "study"
Maker = Callable[[Run], "pandas.DataFrame | None"]


def _scores(run: Run) -> Any:
    import pandas

    by_method = all_scores(run)
    says = any(scores.normalise != "none" for scores in by_method.values())  # tables of older runs stay as they were
    frames = [
        scores.to_pandas().assign(method=name, **({"normalise": scores.normalise} if says else {})) for name, scores in by_method.items()
    ]
    if not frames:
        return None
    table = pandas.concat(frames, ignore_index=True)
    return table[["method", *[column for column in table.columns if column != "method"]]]


def _roles(run: Run) -> Any:
    import pandas

    artifacts = run.results("roles")
    return pandas.DataFrame([row for artifact in artifacts.values() for row in artifact.content["rows"]]) if artifacts else None


def _outcomes(run: Run) -> Any:
    import pandas

    frames = [
        pandas.DataFrame(
            {"evaluation": name, "example": range(len(artifact.arrays["losses"])), "loss": artifact.arrays["losses"], **_parts(artifact)}
        )
        for name, artifact in run.results("evaluation").items()
    ]
    return pandas.concat(frames, ignore_index=True) if frames else None


def _parts(artifact: Any) -> dict[str, Any]:
    parts = artifact.arrays.get("parts")
    return {} if parts is None else {f"part {number}": parts[:, number] for number in range(parts.shape[1])}


def _curves(run: Run) -> Any:
    import pandas

    artifacts = run.results("pruned")
    if not artifacts:
        return None
    n_heads = sum(len(block.heads) for block in run.heads().blocks)
    return pandas.DataFrame([_curve_row(artifact, n_heads) for artifact in artifacts.values()])


def _curve_row(artifact: Artifact, n_heads: int) -> dict[str, Any]:
    """Returns a pruned model as a row: its request, how many heads of the whole model it has, its results and its costs."""
    content, spec = artifact.content, artifact.content["spec"]
    budget = spec["budget"] or {}
    limits = [f"{name}={plain_number(budget[name])}" for name in LIMITS if budget.get(name) is not None]
    steps = content["steps"].values()
    return {
        "method": spec["method"]["name"],
        "label": content["label"],
        "keep": n_heads - len(content["removed"]),
        **{name: spec[name] for name in ("seed", "repair")},
        **{name: None if spec[name] is None else str(spec[name]) for name in ("recover", "scratch")},
        "ablation": spec["ablation"],
        "kinds": "+".join(spec["kinds"]),
        **{name: budget.get(name, default) for name, default in (("floor", 0), ("unit", "kv_group"))},
        "protected": "+".join(budget.get("protected", ())),
        "steps": min(steps, default=0),
        "limit": "".join(limits),
        "options": ";".join(f"{name}={format_value(value)}" for name, value in spec["method"].items() if name != "name"),
        "loss": content["loss"],
        content["metric"] or "metric": content["value"],
        **content["cost"],
    }


def _bench(run: Run) -> Any:
    import pandas

    found = [{"of": name, **row} for name, artifact in run.results("bench").items() for row in artifact.content["rows"]]
    return pandas.DataFrame(found) if found else None


MAKERS: dict[str, Maker] = {"scores": _scores, "roles": _roles, "outcomes": _outcomes, "curves": _curves, "bench": _bench}


def _made(run: Run) -> Iterator[tuple[str, Any]]:
    """Every table by name; each study has its own, of whatever rows it found."""
    import pandas

    yield from ((name, make(run)) for name, make in MAKERS.items())
    for name, artifact in run.results(STUDY).items():
        yield f"{STUDY}-{name}", pandas.DataFrame(artifact.content["rows"])


def table_files(run: Run) -> Iterator[tuple[str, bytes]]:
    """Every table of a run, made out of its artifacts: the name and the bytes of its file."""
    for name, table in _made(run):
        if table is not None:
            packed = io.BytesIO()
            table.to_parquet(packed, index=False)
            yield f"{name}.parquet", packed.getvalue()
            if name != "outcomes":
                yield f"{name}.csv", table.to_csv(index=False).encode()


def write_tables(run: Run) -> None:
    """Writes every table whose content is new; one that is not as it was left goes aside first."""
    known = run._known(TABLES, TablesRecord) or TablesRecord(files={})
    files = dict(table_files(run))
    wanted = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    there = {name: _left(run, name, {wanted[name], known.files.get(name), known.before.get(name)}) for name in files}
    before = {name: found for name, found in there.items() if found is not None and found != wanted[name]}
    record = TablesRecord(files={**known.files, **wanted}, before=before)
    if record != known:
        write_record(run.folder / TABLES, record)  # before the tables, so that a crash between them makes no table look damaged
    for name, content in files.items():
        if there[name] != wanted[name]:
            write_atomic(run.folder / name, content)


def same_table(path: Path, content: bytes) -> bool:
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


def _left(run: Run, name: str, hashes: set[str | None]) -> str | None:
    """The hash of a table that is as it was left; any other goes aside."""
    path = run.folder / name
    there = sha256(path) if path.is_file() else None
    if there is not None and there not in hashes:
        run.set_aside(path, Damaged(f"{path} is damaged or was edited: its hash is not the one that was written"))
        return None
    return there
