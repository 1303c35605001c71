"""Scores as artifacts of a run."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from headcount.core.damage import Damage, HeadVerdicts
from headcount.core.errors import ArtifactError
from headcount.core.heads import Head
from headcount.core.scores import Scores
from headcount.core.stats.samples import Samples
from headcount.core.tolerance import TOLERANCE
from headcount.runs.artifacts import Artifact, Damaged, read_artifact_bytes
from headcount.runs.schema import ScoresRecord
from headcount.runs.store import Run

KIND, DAMAGE = "scores", "damage"
"""Scores that rankings rest on; and those on the report split, whose damage per example verdicts on single heads rest on."""
DAMAGE_PARTS = ("losses", "answers", "documents")


def pack_scores(scores: Scores) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Returns the content and the arrays of an artifact of scores."""
    record = ScoresRecord(
        method=scores.method,
        higher_is_keep=scores.higher_is_keep,
        normalise=scores.normalise,
        heads=[str(head) for head in scores.heads],
        units=[[str(head) for head in unit] for unit in scores.units],
        values=list(scores.values),
        stderr=list(scores.stderr),
        n_examples=scores.n_examples,
        data=scores.data,
        seed=scores.seed,
        columns={name: list(column) for name, column in scores.columns.items()},
        conditions=dict(scores.conditions),
        directions=dict(scores.directions),
        describes=scores.describes,
    )
    if scores.samples is None:
        return record.model_dump(), {}
    sums, weights = (np.asarray(array, dtype=np.float64) for array in (scores.samples.sums, scores.samples.weights))
    arrays = {"sums": sums, "weights": weights, "n": np.array([scores.samples.n], dtype=np.int64)}
    if scores.damage is not None:
        parts = {f"damage.{name}": getattr(scores.damage, name) for name in DAMAGE_PARTS}
        arrays |= {name: array for name, array in parts.items() if array is not None}
    return record.model_dump(), arrays


def unpack_scores(artifact: Artifact) -> Scores:
    """Returns the scores in an artifact; raises Damaged if it holds none."""
    try:
        record = ScoresRecord.model_validate(artifact.content)
    except ValidationError as error:
        first = error.errors()[0]
        raise Damaged(f"the artifact of {artifact.key.name} holds no scores: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    parse: Any = Head.parse
    arrays = artifact.arrays
    if arrays and {name for name in arrays if name.removeprefix("damage.") not in DAMAGE_PARTS} != {"sums", "weights", "n"}:
        raise Damaged(f"the artifact of {artifact.key.name} holds no scores: its arrays are {', '.join(arrays)}")
    return Scores(
        heads=tuple(map(parse, record.heads)),
        values=tuple(record.values),
        method=record.method,
        higher_is_keep=record.higher_is_keep,
        units=tuple(tuple(map(parse, unit)) for unit in record.units),
        stderr=tuple(record.stderr),
        n_examples=record.n_examples,
        samples=Samples(arrays["sums"], arrays["weights"], int(arrays["n"][0])) if arrays else None,
        damage=Damage(**{name: arrays.get(f"damage.{name}") for name in DAMAGE_PARTS}) if "damage.losses" in arrays else None,  # pyright: ignore[reportArgumentType]
        data=record.data,
        seed=record.seed,
        normalise=record.normalise,
        columns={name: tuple(column) for name, column in record.columns.items()},
        conditions=record.conditions,
        directions=record.directions,
        describes=record.describes,
    )


def all_scores(run: Run) -> dict[str, Scores]:
    """Returns the scores among the results of a run, by method."""
    return {name: unpack_scores(artifact) for name, artifact in run.results(KIND).items()}


def all_verdicts(run: Run, tolerance: str = TOLERANCE) -> dict[str, HeadVerdicts]:
    """Returns the verdicts on single heads of a run, by method of ablation."""
    return {name: _verdicts_of_file(run.folder / artifact.key.path_in_run, tolerance) for name, artifact in run.results(DAMAGE).items()}


@lru_cache(maxsize=32)
def _verdicts_of_file(path: Path, tolerance: str) -> HeadVerdicts:
    """Returns the verdicts of an artifact's file; a run writes its tables after every step, and betting on many heads takes seconds."""
    return unpack_scores(Artifact.unpack(read_artifact_bytes(path), path)).judge_heads(tolerance)


def scores_of(run: Run, method: str) -> Scores:
    """Returns the scores of one method; raises ArtifactError if the run has none."""
    known = run.results(KIND)
    if method not in known:
        raise ArtifactError(f"{run.folder} has no scores by '{method}'; it has {', '.join(known) or 'none'}")
    return unpack_scores(known[method])


def check_scores_of_same_heads(tables: Sequence[Scores]) -> None:
    """Raises ArtifactError unless all scores are of the same heads in the same order."""
    for scores in tables[1:]:
        if scores.heads != tables[0].heads:
            raise ArtifactError(
                f"these scores are of different heads ({len(tables[0].heads)} and {len(scores.heads)}); compare scores of one model, or of models "
                "of the same shape"
            )
