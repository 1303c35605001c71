"""`headcount check`: the files of a run or of a saved model, and the laws on a model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from headcount.app.console.inputs import ModelOptions
from headcount.app.console.models import open_model
from headcount.app.console.options import split_at_commas
from headcount.app.console.session import ExitCode, Session
from headcount.core.files import Problem, is_file, is_folder, read_json
from headcount.core.folders import finish_replacement
from headcount.core.plan import Plan
from headcount.models.archs import cut_record as record
from headcount.pruning.training.trainer import describe_checkpoint_damage, list_finished_checkpoints
from headcount.runs.check import RunCheck
from headcount.surgery import state
from headcount.surgery.manifest import NAME, manifest_and_file_problems
from headcount.testing import laws


class FileCheck(NamedTuple):
    """The problems of the files of a folder, and how many files were read."""

    problems: list[Problem]
    n_files: int


def check_run_or_model(session: Session, target: str, heads_to_cut: str | None, loading: ModelOptions) -> ExitCode:
    """Verifies the files of a run or of a model, and proves the laws on a model whose files are intact; returns the exit code."""
    folder = Path(target)
    finish_replacement(folder)
    if is_folder(folder):
        session.begin_work("verifying the files")
        if is_file(folder / "run.json") or is_folder(folder / "artifacts"):
            code = _show_problems(session, target, *verify_run_files(folder))
            if code == 0:
                session.suggest_next("report", target)
            return code
        problems, n_files = verify_model_files(folder)
        if problems:
            return _show_problems(session, target, problems, n_files)
    return _prove_laws(session, target, heads_to_cut, loading)


def verify_run_files(run_folder: Path) -> FileCheck:
    """Returns the problems of a run folder and the number of files that were read."""
    check = RunCheck(run_folder, manifest_and_file_problems)
    problems = [*check.problems(), *_verify_unfinished_trainings(run_folder)]
    return FileCheck(problems, check.checked)


def _verify_unfinished_trainings(run_folder: Path) -> Iterator[Problem]:
    """Yields the problems of the checkpoints of unfinished trainings."""
    trainings = sorted({path.parent for path in (run_folder / "work").rglob("checkpoint-*")})
    for path in (checkpoint for training in trainings for checkpoint in list_finished_checkpoints(training)):
        if (damage := describe_checkpoint_damage(path)) is not None:
            text = f"{path} is damaged ({damage}); the training command moves it away and resumes from an earlier one"
            yield Problem("damaged", str(path.relative_to(run_folder)), text)


def verify_model_files(model_folder: Path) -> FileCheck:
    """Returns the problems of a model that headcount saved and its number of files; none for other models, which have no hashes."""
    if not (model_folder / NAME).exists() and not (model_folder / state.NAME).exists():
        config = read_json(model_folder / "config.json") if (model_folder / "config.json").is_file() else {}
        if not (isinstance(config, dict) and config.get(record.KEY)):
            return FileCheck([], 0)
    return FileCheck(list(manifest_and_file_problems(model_folder)), sum(path.is_file() for path in model_folder.iterdir()))


def _show_problems(session: Session, folder_name: str, problems: Sequence[Problem], n_files: int) -> ExitCode:
    """Prints the files that are damaged, missing or foreign; returns the exit code."""
    for problem in problems:
        text = f"{problem.kind:<8} {problem.path}: {problem.text}"
        session.write_note(text) if session.json else session.write_line(text)
    entries = [{"kind": problem.kind, "path": problem.path, "reason": problem.text} for problem in problems]
    session.write_json({"folder": folder_name, "passed": not problems, "files": n_files, "problems": entries})
    number = f"{len(problems)} problem{'s' if len(problems) != 1 else ''}"
    session.write_note(
        f"{number} in {folder_name}; {n_files} files were read"
        if problems
        else f"all {n_files} files of {folder_name} are as they were written"
    )
    return 1 if problems else 0


def _prove_laws(session: Session, target: str, heads_to_cut: str | None, loading: ModelOptions) -> ExitCode:
    """Proves the laws on a model and prints the verdict of each; returns the exit code."""
    plan = Plan.removing(split_at_commas(heads_to_cut)) if heads_to_cut else None
    model, head_map, _ = open_model(session, target, loading)
    if plan is not None:
        plan.check(head_map)
    results = []
    session.begin_work("proving the laws")
    for result in laws.check_model(model, further_plan=plan):
        results.append(result)
        session.begin_work(f"proving the laws, {len(results)} done")
        mark = "n/a   " if not result.applies else "ok    " if result.passed else "FAILED"
        verdict = f"{mark} {result.law}{f': {result.detail}' if result.detail else ''}"
        session.write_note(verdict) if session.json else session.write_line(verdict)
    failed = [result.law for result in results if not result.passed]
    records = [{"law": r.law, "passed": r.passed, "applies": r.applies, "detail": r.detail} for r in results]
    session.write_json({"model": target, "passed": not failed, "laws": records})
    n_applicable = sum(result.applies for result in results)
    session.write_note(f"{len(failed)} of {n_applicable} laws failed" if failed else f"all {n_applicable} laws that apply hold")
    if failed:
        return 1
    if any(block.can_cut for block in head_map.blocks):
        first_unit = ",".join(map(str, next(iter(head_map.units()), ())))
        session.suggest_next("cut", target, "--heads", heads_to_cut or first_unit, "--out", "smaller")
    else:
        session.suggest_next("map", target)
    return 0
