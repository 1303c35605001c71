"""The roles of a run folder: roles.json with every head and role, roles.parquet and roles.csv as tables for other tools."""

from __future__ import annotations

import io
from pathlib import Path

from headcount.files import write_atomic, write_json
from headcount.heads import Head
from headcount.roles._table import RoleScore, RoleTable
from headcount.runs.schema import RoleRecord, RolesRecord
from headcount.runs.store import Run, read_record


def write_roles(run: Run, table: RoleTable) -> Path:
    """Writes the roles of a run, over earlier ones."""
    frame = table.to_pandas()
    rows = [RoleRecord(**{str(name): value for name, value in row.items()}) for row in frame.to_dict("records")]
    record = RolesRecord(
        tau=table.tau,
        alpha=table.alpha,
        data=table.data,
        heads=[str(head) for head in table.heads],
        rows=rows,
        untested=dict(table.untested),
        refused=dict(table.refused),
        conditions=dict(table.conditions),
    )
    packed = io.BytesIO()
    frame.to_parquet(packed, index=False)
    write_atomic(run.folder / "roles.parquet", packed.getvalue())
    write_atomic(run.folder / "roles.csv", frame.to_csv(index=False).encode())
    path = run.folder / "roles.json"
    write_json(path, record.model_dump())
    return path


def read_roles(run: Run) -> RoleTable:
    """The roles of a run."""
    record = read_record(run.folder / "roles.json", RolesRecord)
    rows = tuple(RoleScore(**{**row.model_dump(), "head": Head.parse(row.head)}) for row in record.rows)
    heads = tuple(Head.parse(head) for head in record.heads)
    return RoleTable(rows, heads, record.tau, record.alpha, record.untested, record.refused, record.data, record.conditions)
