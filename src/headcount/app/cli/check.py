"""`headcount check`: verifies every file of a run or of a saved model, and proves the laws on a model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from headcount.app.console import inputs
from headcount.app.console.command import command
from headcount.app.console.options import SomeHeads, split
from headcount.app.console.session import Session
from headcount.core.files import Problem, is_file, is_folder
from headcount.core.folders import finish_replacement
from headcount.core.plan import Plan

Target = Annotated[
    str, typer.Argument(metavar="RUN|MODEL", help="A run folder, a model folder, a hub id, or demo/NAME.", show_default=False)
]


def _show_problems(session: Session, name: str, problems: Sequence[Problem], checked: int, following: str = "") -> int:
    """Says what is damaged, missing or foreign, and the verb that may follow if nothing is; the exit code."""
    for problem in problems:
        text = f"{problem.kind:<8} {problem.path}: {problem.text}"
        session.note(text) if session.json else session.line(text)
    entries = [{"kind": problem.kind, "path": problem.path, "reason": problem.text} for problem in problems]
    session.result({"folder": name, "passed": not problems, "files": checked, "problems": entries})
    number = f"{len(problems)} problem{'s' if len(problems) != 1 else ''}"
    session.note(
        f"{number} in {name}; {checked} files were read" if problems else f"all {checked} files of {name} are as they were written"
    )
    if following and not problems:
        session.next(following, name)
    return 1 if problems else 0


@command
def run(
    session: Session,
    model: Target,
    heads: SomeHeads = None,
    loading: inputs.ModelOptions = inputs.DEFAULT_LOADING,
) -> int:
    """Verify every file of a run or a saved model; prove on a model that gates act, that a cut equals them, and that a reload equals it.

    What is damaged, missing or another run's is named, with exit code 1. The laws are proved on a model whose files are whole: gates act and leave
    no trace, a cut equals the gates, a reload equals what was saved.
    """
    folder = Path(model)
    finish_replacement(folder)
    if is_folder(folder):
        from headcount.app.console.verify import verify_model, verify_run

        session.doing("verifying the files")
        if is_file(folder / "run.json") or is_folder(folder / "artifacts"):
            return _show_problems(session, model, *verify_run(folder), following="report")
        problems, checked = verify_model(folder)
        if problems:
            return _show_problems(session, model, problems, checked)
    from headcount.testing.laws import check_model

    plan = Plan.removing(split(heads)) if heads else None
    live, found, _ = loading.open(session, model)
    if plan is not None:
        plan.check(found)
    results = []
    session.doing("proving the laws")
    for result in check_model(live, plan=plan):
        results.append(result)
        session.doing(f"proving the laws, {len(results)} done")
        mark = "n/a   " if not result.applies else "ok    " if result.passed else "FAILED"
        verdict = f"{mark} {result.law}{f': {result.detail}' if result.detail else ''}"
        session.note(verdict) if session.json else session.line(verdict)
    failed = [result.law for result in results if not result.passed]
    laws = [{"law": r.law, "passed": r.passed, "applies": r.applies, "detail": r.detail} for r in results]
    session.result({"model": model, "passed": not failed, "laws": laws})
    apply = sum(result.applies for result in results)
    session.note(f"{len(failed)} of {apply} laws failed" if failed else f"all {apply} laws that apply hold")
    if not failed and not any(block.can_cut for block in found.blocks):
        session.next("map", model)
    elif not failed:
        first = ",".join(map(str, next(iter(found.units()), ())))
        session.next("cut", model, "--heads", heads or first, "--out", "smaller")
    return 1 if failed else 0
