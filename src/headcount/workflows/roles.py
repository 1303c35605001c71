"""The roles of a run folder: an artifact with every head and role, and tables for other tools."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Unpack

from torch import nn

from headcount.behaviour.base import Corpus
from headcount.behaviour.roles import Options, data_print, measure
from headcount.core.errors import ArtifactError
from headcount.core.heads import Head
from headcount.core.role_table import BestHead, RoleScore, RoleTable
from headcount.data.stream import Reading, agree, fingerprint
from headcount.models.modules import unwrap
from headcount.models.provenance import model_key, provenance
from headcount.runs.artifacts import Artifact, ArtifactKey
from headcount.runs.chunks import Chunks
from headcount.runs.schema import BestHeadRecord, RoleRecord, RolesRecord
from headcount.runs.store import Run

KIND = "roles"
ASKED = ("only", "tau", "alpha", "correct", "level", "batch_size", "seed")


def pack_roles(table: RoleTable) -> dict[str, Any]:
    """The content of an artifact of roles."""
    rows = [RoleRecord(**{str(name): value for name, value in row.items()}) for row in table.to_pandas().to_dict("records")]
    record = RolesRecord(
        tau=table.tau,
        alpha=table.alpha,
        data=table.data,
        heads=[str(head) for head in table.heads],
        rows=rows,
        untested=dict(table.untested),
        refused=dict(table.refused),
        conditions=dict(table.conditions),
        best_heads=[BestHeadRecord(**{**asdict(best), "head": str(best.head)}) for best in table.best_heads],
    )
    return record.model_dump()


def unpack_roles(artifact: Artifact) -> RoleTable:
    """The roles of an artifact."""
    record = RolesRecord.model_validate(artifact.content)
    rows = tuple(RoleScore(**{**row.model_dump(), "head": Head.parse(row.head)}) for row in record.rows)
    heads = tuple(Head.parse(head) for head in record.heads)
    best = tuple(BestHead(**{**one.model_dump(), "head": Head.parse(one.head)}) for one in record.best_heads or ())
    return RoleTable(rows, heads, record.tau, record.alpha, record.untested, record.refused, record.data, record.conditions, best)


def roles_into(run: Run | None, model: nn.Module, corpus: Corpus, **options: Unpack[Options]) -> RoleTable:
    """Like `measure`, with a run that keeps everything: finished roles are not measured again, others go on where they stopped.

    Only the first of several processes that torchrun started has the run; without one, nothing is kept.
    """
    if not agree(run is not None):
        return measure(model, corpus, **options)
    parts = {**model_key(unwrap(model)), **{name: _plain(options.get(name)) for name in ASKED}}
    parts |= {"data": data_print(model, corpus, **options), "refused": dict(corpus.facts.get("refused", {})), "best head": "by halves"}
    spec, made = ArtifactKey(KIND, "roles", parts), provenance()
    found = run.find(spec) if run is not None else None
    if not agree(found is not None):
        kept: list[Chunks] = []

        def memory(reading: Reading) -> Chunks | None:
            if run is None:
                return None
            kept.append(Chunks(run, "roles", {"roles": spec.inputs, "pass": fingerprint(reading)}, made, goal=[spec]))
            return kept[-1]

        table = measure(model, corpus, **{**options, "memory": memory})  # pyright: ignore[reportArgumentType]
        if run is None:
            return table
        found = run.commit(spec, pack_roles(table), provenance=made)
        for blocks in kept:
            blocks.clear()
    if run is not None and found is not None:
        run.present(found, data={"text": parts["data"]})
    return unpack_roles(agree(found))


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, str | int | float) else sorted(value)


def read_roles(run: Run) -> RoleTable:
    """The roles of a run."""
    found = run.results(KIND)
    if not found:
        raise ArtifactError(f"{run.folder} has no roles; make them with: headcount roles MODEL --text FILE --out {run.folder}")
    return unpack_roles(next(iter(found.values())))
