"""Sweeps: many artifacts, computed by however many processes work in the run, each artifact by one of them and once."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headcount.core.errors import HeadcountError, NothingLeft
from headcount.runs.artifacts import Artifact, ArtifactKey
from headcount.runs.store import Run

Made = tuple[Mapping[str, Any], Mapping[str, np.ndarray]]


@dataclass(frozen=True)
class Job:
    """One artifact of a sweep and how it is computed."""

    spec: ArtifactKey
    compute: Callable[[], Made]


def sweep(
    run: Run, jobs: Sequence[Job], *, made: Mapping[str, Any], progress: Callable[[int, int | None], None] | None = None
) -> tuple[list[Artifact], dict[str, HeadcountError]]:
    """The artifacts of all jobs, in their order, and why some could not be made; what is finished is not computed again.

    A job that fails stops alone. A worker that joined raises NothingLeft when every artifact is finished or failed; the leader waits for workers.
    """
    failed: dict[str, HeadcountError] = {}
    done: dict[str, Artifact] = {}
    while True:
        waiting = False
        for job in jobs:
            key = job.spec.key
            if key in done or key in failed:
                continue
            artifact = run.find(job.spec)
            if artifact is None and run.hold is not None and not run.hold.claim(key):
                waiting = True
                continue
            try:
                done[key] = artifact or _compute(run, job, made)
            except NothingLeft:
                raise
            except HeadcountError as error:
                run.log(f"failed: {job.spec.kind} {job.spec.name}: {error}")
                failed[key] = error
            finally:
                if artifact is None and run.hold is not None:
                    run.hold.release(key)
            if progress is not None:
                progress(len(done) + len(failed), len(jobs))
        if not waiting:
            break
        time.sleep(0.1)
    if not run.leads:
        raise NothingLeft("there is nothing left to do")
    return [done[job.spec.key] for job in jobs if job.spec.key in done], {
        job.spec.name: failed[job.spec.key] for job in jobs if job.spec.key in failed
    }


def _compute(run: Run, job: Job, made: Mapping[str, Any]) -> Artifact:
    """Computes an artifact that this process has claimed, unless another finished it meanwhile."""
    return run.find(job.spec) or run.commit(job.spec, *job.compute(), made=made)
