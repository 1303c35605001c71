"""The run folder of a verb: taken before any work is done for it, with the workers that share the work."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from headcount.app.console.session import Session
from headcount.app.console.stop import Terminated
from headcount.core.errors import MissingExtra, NothingLeft, unknown

if TYPE_CHECKING:
    from torch import nn

    from headcount.app.console.inputs import TaskOptions
    from headcount.models.head_map import HeadMap
    from headcount.runs.store import Run

LOCAL = "local"
PATIENCE, HASTE = 10.0, 1.5
"""Seconds that workers have to end by themselves: when there is nothing left to do, and when the command was stopped or failed."""


def _engine(name: str) -> str:
    if name not in ENGINES:
        raise unknown("engine", name, ENGINES)
    return name


Out = Annotated[
    Path | None,
    typer.Option("--out", metavar="RUN", help="The run folder: what is finished is kept there, and the same command goes on from it."),
]
Workers = Annotated[int, typer.Option("--workers", min=1, metavar="N", help="Share the work among N processes; needs --out.")]
Engine = Annotated[
    str,
    typer.Option(
        "--engine", metavar="NAME", callback=_engine, help="Where workers run: local, or ray (a cluster; RUN on storage that all share)."
    ),
]
Join = Annotated[bool, typer.Option("--join", help="Help the process that runs this command in RUN already, from here or another machine.")]


class RunFolder(NamedTuple):
    """Where a verb keeps its results, and who shares the work."""

    out: Path | None
    workers: int = 1
    engine: str = LOCAL
    join: bool = False

    @contextmanager
    def open(self, session: Session) -> Iterator[Run | None]:
        """The run, held while the context lasts; None without a folder, and for all but the first process that a launcher started."""
        if self.out is None:
            if self.join or self.workers > 1:
                raise typer.BadParameter("--workers and --join share the work through a run folder: name it with --out")
            yield None
            return
        if not session.leads:
            yield None
            return
        from headcount.runs.store import Run

        if self.join:
            try:
                with Run.join(self.out) as run:
                    yield run
            except NothingLeft as done:
                session.note(str(done))
        else:
            with (
                _resumable(session, self.out),
                Run.lead(self.out, command=session.command) as run,
                ENGINES[self.engine](session, self.out, self.workers - 1),
            ):
                run.expects_workers = self.workers > 1
                yield run


@contextmanager
def _resumable(session: Session, out: Path) -> Iterator[None]:
    """Says, when work is stopped, what is kept and how it goes on."""
    try:
        yield
    except (KeyboardInterrupt, Terminated):
        from headcount.runs.artifacts import SUFFIX
        from headcount.runs.store import ARTIFACTS

        number = sum(1 for _ in (out / ARTIFACTS).rglob(f"*{SUFFIX}"))
        kept = f"{number} finished artifacts are kept in {out}" if number else "nothing was finished yet"
        session.note(f"stopped; {kept}. To go on: {session.command}")
        raise


def describe(run: Run, session: Session, given: TaskOptions, model: nn.Module, heads: HeadMap, config: dict[str, Any]) -> None:
    """Writes what is computed now; refuses a folder that is another model's."""
    from headcount.runs.store import describe_run

    session.doing("hashing the weights")
    from headcount.models.provenance import machine_of, model_record

    machine = machine_of(model)
    asked = {**config, "opened": given.opened}
    facts: dict[str, Any] = {"command": session.command, "seed": given.seed, "task": given.task or "", "config": asked, "machine": machine}
    run.describe(describe_run(model_record(model, given.model), **facts), heads)


def _worker_arguments(session: Session) -> list[str]:
    """The command line of a worker: this one, joining."""
    kept, words = [], iter(session.arguments)
    for word in words:
        if word in ("--workers", "--engine"):
            next(words, None)
        elif not word.startswith(("--workers=", "--engine=")) and word not in ("--verbose", "-v", "--quiet", "-q"):
            kept.append(word)
    return [*kept, "--join", "--quiet"]


@contextmanager
def _local(session: Session, out: Path, number: int) -> Iterator[None]:
    """Workers as processes of this machine."""
    command = [sys.executable, "-m", "headcount", *_worker_arguments(session)]
    if not number:
        yield
        return
    told = out / "workers.log"
    with told.open("ab") as log:
        processes = [subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log) for _ in range(number)]
    try:
        yield
    finally:
        _end(session, processes)
        if not told.stat().st_size:
            told.unlink()


def _end(session: Session, processes: list[subprocess.Popen[bytes]]) -> None:
    """Waits for workers that have nothing left to do, and stops those that do not notice."""
    failing = sys.exc_info()[0] is not None
    for process in processes if failing else ():
        process.terminate()
    end = time.monotonic() + (HASTE if failing else PATIENCE)
    for process in processes:
        try:
            process.wait(max(0.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    bad = [process for process in processes if process.returncode not in (0, 130, 143, -2, -9, -15)]
    if bad and not failing:
        session.note(f"{len(bad)} of {len(processes)} workers failed (see workers.log in the run folder); the rest did their work")


@contextmanager
def _ray(session: Session, out: Path, number: int) -> Iterator[None]:
    """Workers as tasks of a Ray cluster, which places them and starts them again when they die."""
    try:
        import ray  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise MissingExtra("--engine ray needs Ray: pip install 'headcount[ray]'") from error
    arguments = [str(out.resolve()) if word == str(out) else word for word in _worker_arguments(session)]
    started = not ray.is_initialized()
    if started:
        ray.init(address=os.environ.get("RAY_ADDRESS"), log_to_driver=session.verbose, logging_level=40, include_dashboard=False)
    try:
        work = ray.remote(max_retries=3, num_cpus=1)(_work)
        tasks = [work.remote(arguments, str(Path.cwd())) for _ in range(number)]
        yield
        done, late = ray.wait(tasks, num_returns=len(tasks), timeout=PATIENCE) if tasks else ([], [])
        for task in late:
            ray.cancel(task, force=True)
        codes: list[Any] = ray.get(done)
        if any(codes):
            session.note(f"{sum(map(bool, codes))} of {number} workers failed; the rest did their work")
    finally:
        if started:
            ray.shutdown()


def _work(arguments: list[str], folder: str) -> int:
    """What a Ray worker does: the same command, joining; its exit code. A worker that is killed is started again by Ray."""
    done = subprocess.run([sys.executable, "-m", "headcount", *arguments], cwd=folder, stdout=subprocess.DEVNULL, check=False)
    if done.returncode < 0:
        raise RuntimeError(f"the worker was killed by signal {-done.returncode}")
    return done.returncode


ENGINES: dict[str, Callable[[Session, Path, int], Any]] = {LOCAL: _local, "ray": _ray}
