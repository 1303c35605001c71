"""The roles of a run folder: an artifact with every head and role, and tables for other tools."""

from __future__ import annotations

from torch import nn

from headcount.behaviour.base import Corpus
from headcount.behaviour.roles import fingerprint_data, measure_roles
from headcount.behaviour.spec import RoleSpec
from headcount.core.errors import ArtifactError, DataError
from headcount.core.role_table import RoleTable
from headcount.data.stream import Progress, Reading, broadcast_from_first, fingerprint
from headcount.models.head_map import HeadMap
from headcount.models.modules import unwrap
from headcount.models.provenance import model_key, rounding_provenance
from headcount.runs.artifacts import ArtifactKey
from headcount.runs.chunks import Chunks
from headcount.runs.store import Run

KIND = "roles"


def roles_into(
    run: Run | None,
    model: nn.Module,
    corpus: Corpus,
    spec: RoleSpec = RoleSpec(),  # noqa: B008  frozen
    *,
    progress: Progress | None = None,
) -> RoleTable:
    """Returns the roles of a model, stored in a run: finished roles are read from it, others are resumed where they stopped.

    Of several processes that torchrun started only the first has the run; without a run, nothing is stored.
    """
    if run is not None and spec.patterns:
        raise DataError("a run cannot tell whether patterns of your own have changed, so it does not store them; test them without a run")
    if not broadcast_from_first(run is not None):
        return measure_roles(model, corpus, spec, progress=progress)
    data = fingerprint_data(model, corpus, spec, HeadMap.of(model))
    parts = {**model_key(unwrap(model)), **spec.to_dict(), "data": data, "refused": dict(corpus.refused), "best head": "by halves"}
    key, origin = ArtifactKey(KIND, "roles", parts), rounding_provenance()
    artifact = run.find(key) if run is not None else None
    if not broadcast_from_first(artifact is not None):
        passes: list[Chunks] = []

        def open_chunks(reading: Reading) -> Chunks | None:
            if run is None:
                return None
            passes.append(Chunks(run, "roles", {"roles": key.inputs, "pass": fingerprint(reading)}, origin, goal=[key]))
            return passes[-1]

        table = measure_roles(model, corpus, spec, progress=progress, open_chunk_store=open_chunks)
        if run is None:
            return table
        artifact = run.commit(key, table.to_dict(), provenance=origin)
        for chunks in passes:
            chunks.clear()
    if run is not None and artifact is not None:
        run.register_results(artifact, data_fingerprints={"text": data})
    return RoleTable.from_dict(broadcast_from_first(artifact).content)


def read_roles(run: Run) -> RoleTable:
    """Returns the roles of a run.

    Raises:
        ArtifactError: the run has none.
    """
    artifacts = run.results(KIND)
    if not artifacts:
        raise ArtifactError(f"{run.folder} has no roles; measure them into this run first (headcount roles)")
    return RoleTable.from_dict(next(iter(artifacts.values())).content)
