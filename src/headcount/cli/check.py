"""`headcount check`: verifies every file of a run or of a saved model, and proves the laws on a model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headcount.terminal import inputs
from headcount.terminal.options import SomeHeads, split
from headcount.terminal.session import Session
from headcount.terminal.verb import verb

if TYPE_CHECKING:
    from headcount.files import Problem

Target = Annotated[
    str, typer.Argument(metavar="RUN|MODEL", help="A run folder, a model folder, a hub id, or demo/NAME.", show_default=False)
]


def _show_problems(say: Session, name: str, problems: Sequence[Problem], checked: int) -> int:
    """Says what is damaged, missing or foreign; the exit code."""
    for problem in problems:
        text = f"{problem.kind:<8} {problem.path}: {problem.text}"
        say.note(text) if say.json else say.line(text)
    found = [{"kind": problem.kind, "path": problem.path, "reason": problem.text} for problem in problems]
    say.result({"folder": name, "passed": not problems, "files": checked, "problems": found})
    number = f"{len(problems)} problem{'s' if len(problems) != 1 else ''}"
    say.note(f"{number} in {name}; {checked} files were read" if problems else f"all {checked} files of {name} are as they were written")
    return 1 if problems else 0


def _problems_of_training(folder: Path) -> Iterator[Problem]:
    """What is wrong with the checkpoints of trainings that are under way."""
    from headcount.files import Problem

    holders = sorted({path.parent for path in (folder / "work").rglob("checkpoint-*")})
    if holders:
        from headcount.training.trainer import checkpoints, damage_of

        for path in (each for holder in holders for each in checkpoints(holder)):
            if (damage := damage_of(path)) is not None:
                text = f"{path} is damaged ({damage}); the command that trains sets it aside and goes on from an earlier one"
                yield Problem("damaged", str(path.relative_to(folder)), text)


def _check_run(say: Session, folder: Path) -> int:
    from headcount.runs.check import RunCheck
    from headcount.surgery.manifest import problems_of_folder

    say.doing("verifying the run")
    check = RunCheck(folder, problems_of_folder)
    problems = [*check.problems(), *_problems_of_training(folder)]
    code = _show_problems(say, str(folder), problems, check.checked)
    if not code:
        say.next("report", folder)
    return code


def _problems_of_model(folder: Path) -> list[Problem]:
    """What is wrong with the files of a model that headcount saved; nothing for models of others, which have no hashes."""
    from headcount.archs import record
    from headcount.files import read_json
    from headcount.surgery.manifest import NAME, problems_of_folder

    if not (folder / NAME).exists():
        config = read_json(folder / "config.json") if (folder / "config.json").is_file() else {}
        if not (isinstance(config, dict) and config.get(record.KEY)):
            return []
    return list(problems_of_folder(folder))


@verb
def run(
    say: Session,
    model: Target,
    heads: SomeHeads = None,
    loading: inputs.Loading = inputs.ANYHOW,
) -> int:
    """Verify every file of a run or a saved model; prove on a model that gates act, that a cut equals them, and that a reload equals it.

    What is damaged, missing or another run's is named, with exit code 1. The laws are proved on a model whose files are whole: gates act and leave
    no trace, a cut equals the gates, a reload equals what was saved.
    """
    from headcount.files import finish_replacement
    from headcount.runs.check import is_run

    folder = Path(model)
    if is_run(folder):
        return _check_run(say, folder)
    finish_replacement(folder)
    if folder.is_dir() and (problems := _problems_of_model(folder)):
        return _show_problems(say, model, problems, sum(path.is_file() for path in folder.iterdir()))
    from headcount.plan import Plan
    from headcount.testing.laws import check_model

    plan = Plan.removing(split(heads)) if heads else None
    live, found, _ = loading.open(say, model)
    if plan is not None:
        plan.check(found)
    results = []
    say.doing("proving the laws")
    for result in check_model(live, plan=plan):
        results.append(result)
        say.doing(f"proving the laws, {len(results)} done")
        mark = "n/a   " if not result.applies else "ok    " if result.passed else "FAILED"
        verdict = f"{mark} {result.law}{f': {result.detail}' if result.detail else ''}"
        say.note(verdict) if say.json else say.line(verdict)
    failed = [result.law for result in results if not result.passed]
    laws = [{"law": r.law, "passed": r.passed, "applies": r.applies, "detail": r.detail} for r in results]
    say.result({"model": model, "passed": not failed, "laws": laws})
    apply = sum(result.applies for result in results)
    say.note(f"{len(failed)} of {apply} laws failed" if failed else f"all {apply} laws that apply hold")
    if not failed and not any(block.can_cut for block in found.blocks):
        say.next("map", model)
    elif not failed:
        first = ",".join(map(str, next(iter(found.units()), ())))
        say.next("cut", model, "--heads", heads or first, "--out", "smaller")
    return 1 if failed else 0
