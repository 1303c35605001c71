"""The run folder of a command: locked before torch is imported and any work is done, with the workers that share the work."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from headcount.app.console.inputs import RunOptions
from headcount.app.console.options import LOCAL, RAY
from headcount.app.console.session import ExitCode, Session
from headcount.app.console.stop import Terminated
from headcount.core.errors import ArtifactError, MissingExtra, NothingLeft
from headcount.runs.lock import Busy

if TYPE_CHECKING:
    from headcount.runs.store import Run

PATIENCE, HASTE = 10.0, 1.5
"""Seconds that workers have to end by themselves: when no work is left, and when the command was stopped or failed."""


@contextmanager
def open_run(session: Session, options: RunOptions) -> Iterator[Run | None]:
    """Yields the run, locked while the context lasts; None without a folder, and in all but the first process of a launcher."""
    from headcount.runs.layout import is_run
    from headcount.runs.store import Run  # imports numpy, which help texts do without

    if options.out is None:
        if options.join or options.workers > 1:
            raise typer.BadParameter("--workers and --join share the work through a run folder: name it with --out")
        yield None
    elif not session.leads_processes:
        yield None
    elif options.join:
        if not is_run(options.out):
            raise ArtifactError(f"{options.out} holds no run that could be joined; start the same command without --join first")
        try:
            with Run.join(options.out) as run:
                yield run
        except NothingLeft as message:
            session.write_note(str(message))
    else:
        with ExitStack() as stack:
            stack.enter_context(_note_how_to_resume_if_stopped(session, options.out))
            try:
                run = stack.enter_context(Run.lead(options.out, command=session.command))
            except Busy as error:
                raise Busy(f"{error}: the same command with --join.") from error
            stack.enter_context(START_WORKERS[options.engine](session, options.out, options.workers - 1))
            run.expects_workers = options.workers > 1
            yield run


@contextmanager
def lead_run(session: Session, out: Path, refusal_text: str) -> Iterator[Run]:
    """Yields the run of a command that one process leads; raises BadParameter with `refusal_text` in the other processes of a launcher."""
    with open_run(session, RunOptions(out)) as run:
        if run is None:
            raise typer.BadParameter(refusal_text)
        yield run


@contextmanager
def _note_how_to_resume_if_stopped(session: Session, out: Path) -> Iterator[None]:
    """Notes, when the command is stopped, what was finished and how to resume."""
    try:
        yield
    except (KeyboardInterrupt, Terminated):
        from headcount.runs.artifacts import SUFFIX
        from headcount.runs.layout import ARTIFACTS

        n_finished = sum(1 for _ in (out / ARTIFACTS).rglob(f"*{SUFFIX}"))
        finished = f"{n_finished} finished artifacts are kept in {out}" if n_finished else "nothing was finished yet"
        session.write_note(f"stopped; {finished}. To resume: {session.command}")
        raise


def _worker_command_arguments(session: Session) -> list[str]:
    """Returns the command line of a worker: the same one with --join."""
    arguments, words = [], iter(session.arguments)
    for word in words:
        if word in ("--workers", "--engine"):
            next(words, None)
        elif not word.startswith(("--workers=", "--engine=")) and word not in ("--verbose", "-v", "--quiet", "-q"):
            arguments.append(word)
    return [*arguments, "--join", "--quiet"]


@contextmanager
def _run_local_workers(session: Session, out: Path, n_workers: int) -> Iterator[None]:
    """Runs workers as processes of this machine."""
    command = [sys.executable, "-m", "headcount", *_worker_command_arguments(session)]
    if not n_workers:
        yield
        return
    log_file = out / "workers.log"
    with log_file.open("ab") as log:
        processes = [subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log) for _ in range(n_workers)]
    try:
        yield
    finally:
        _wait_for_workers_or_kill(session, processes)
        if not log_file.stat().st_size:
            log_file.unlink()


def _wait_for_workers_or_kill(session: Session, processes: list[subprocess.Popen[bytes]]) -> None:
    """Waits for the workers to end, and kills those that do not."""
    has_failed = sys.exc_info()[0] is not None
    for process in processes if has_failed else ():
        process.terminate()
    end = time.monotonic() + (HASTE if has_failed else PATIENCE)
    for process in processes:
        try:
            process.wait(max(0.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    bad = [process for process in processes if process.returncode not in (0, 130, 143, -2, -9, -15)]
    if bad and not has_failed:
        session.write_note(f"{len(bad)} of {len(processes)} workers failed (see workers.log in the run folder); the others did their work")


@contextmanager
def _run_ray_workers(session: Session, out: Path, n_workers: int) -> Iterator[None]:
    """Runs workers as tasks of a Ray cluster, which starts them again when they die."""
    try:
        import ray  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise MissingExtra("--engine ray needs Ray: pip install 'headcount[ray]'") from error
    arguments = [str(out.resolve()) if word == str(out) else word for word in _worker_command_arguments(session)]
    started = not ray.is_initialized()
    if started:
        ray.init(address=os.environ.get("RAY_ADDRESS"), log_to_driver=session.verbose, logging_level=40, include_dashboard=False)
    try:
        work = ray.remote(max_retries=3, num_cpus=1)(_run_ray_worker)
        tasks = [work.remote(arguments, str(Path.cwd())) for _ in range(n_workers)]
        yield
        finished, late = ray.wait(tasks, num_returns=len(tasks), timeout=PATIENCE) if tasks else ([], [])
        for task in late:
            ray.cancel(task, force=True)
        codes: list[int] = ray.get(finished)
        if any(codes):
            session.write_note(f"{sum(map(bool, codes))} of {n_workers} workers failed; the others did their work")
    finally:
        if started:
            ray.shutdown()


def _run_ray_worker(arguments: list[str], working_directory: str) -> ExitCode:
    """Runs a worker within Ray and returns its exit code; raises RuntimeError if it was killed, so that Ray starts it again."""
    process = subprocess.run([sys.executable, "-m", "headcount", *arguments], cwd=working_directory, stdout=subprocess.DEVNULL, check=False)
    if process.returncode < 0:
        raise RuntimeError(f"the worker was killed by signal {-process.returncode}")
    return process.returncode


START_WORKERS: dict[str, Callable[[Session, Path, int], AbstractContextManager[None]]] = {LOCAL: _run_local_workers, RAY: _run_ray_workers}
