"""Sweeps: many artifacts, computed by all processes that work in the run, each artifact once and by one process."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from headcount.core.errors import HeadcountError, NothingLeft
from headcount.runs.artifacts import Artifact, ArtifactKey
from headcount.runs.store import Computed, Run


@dataclass(frozen=True)
class Job:
    """One artifact of a sweep and the function that computes it."""

    key: ArtifactKey
    compute: Callable[[], Computed]


def sweep(
    run: Run, jobs: Sequence[Job], *, provenance: Mapping[str, object], progress: Callable[[int, int | None], None] | None = None
) -> tuple[list[Artifact], dict[str, HeadcountError]]:
    """Computes the artifacts of all jobs that are not finished yet; a job that fails does not stop the others.

    Returns:
        The artifacts in the order of the jobs, and the errors of the jobs that failed, by name.

    Raises:
        NothingLeft: In a worker that joined, when every artifact is finished or failed. The leading process waits for its workers instead.
    """
    failed: dict[str, HeadcountError] = {}
    finished: dict[str, Artifact] = {}
    while True:
        waiting = False
        for job in jobs:
            digest = job.key.digest
            if digest in finished or digest in failed:
                continue
            artifact = run.find(job.key)
            if artifact is None and run.lock is not None and not run.lock.claim(digest):
                waiting = True
                continue
            try:
                # Another process may have finished the artifact before this one claimed it.
                finished[digest] = artifact or run.find_or_compute(job.key, job.compute, provenance=provenance)
            except NothingLeft:
                raise
            except HeadcountError as error:
                run.log(f"failed: {job.key.kind} {job.key.name}: {error}")
                failed[digest] = error
            finally:
                if artifact is None and run.lock is not None:
                    run.lock.release(digest)
            if progress is not None:
                progress(len(finished) + len(failed), len(jobs))
        if not waiting:
            break
        time.sleep(0.1)
    if not run.leads:
        raise NothingLeft("there is nothing left to do")
    artifacts = [finished[job.key.digest] for job in jobs if job.key.digest in finished]
    return artifacts, {job.key.name: failed[job.key.digest] for job in jobs if job.key.digest in failed}
