"""What does fine-tuning change in the roles of heads? The same heads of two models on the same sentences, with a paired test.

Pande et al. 2021: fine-tuning changes the late layers most, from delimiters to other tokens. For every head and role the difference of the
sieve bias, sentence by sentence, is tested by t; p-values are corrected over all heads and roles.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Annotated

import typer

from headcount.app.console import inputs
from headcount.app.console.command import command
from headcount.app.console.options import split
from headcount.app.console.session import Session
from headcount.app.console.text import Embedded, File, Parser, check_text, open_corpus
from headcount.core.errors import ArtifactError, DataError

if TYPE_CHECKING:
    from pathlib import Path

    from torch import nn

    from headcount.behaviour.base import Corpus
    from headcount.behaviour.spec import RoleSpec
    from headcount.core.heads import Head
    from headcount.data.task import Task

Second = Annotated[str, typer.Argument(metavar="MODEL_B", help="The model after fine-tuning.", show_default=False)]
Only = Annotated[str | None, typer.Option("--only", metavar="NAME,…", help="Roles of `headcount ls roles`.")]


@dataclass(frozen=True, slots=True)
class RoleChange:
    """One head and role: its bias in both models, the paired difference b − a with interval, p and corrected q, and whether it has the role."""

    head: Head
    role: str
    n_sentences: int
    a: float
    b: float
    difference: float
    low: float
    high: float
    p: float
    q: float
    had: bool
    has: bool


def finetune_roles(a: nn.Module, b: nn.Module, corpus: Corpus, spec: RoleSpec) -> list[RoleChange]:
    """Every head × role that both models were tested for, with the paired difference."""
    from headcount.behaviour.roles import biases_by_sentence, measure_roles
    from headcount.core.stats.significance import benjamini_hochberg, paired_t

    before, after = measure_roles(a, corpus, spec), measure_roles(b, corpus, spec)
    if before.heads != after.heads:
        raise ArtifactError(
            f"the models have different heads ({len(before.heads)} and {len(after.heads)}); compare a model with its fine-tuned self"
        )
    values = [biases_by_sentence(model, corpus, spec) for model in (a, b)]
    pairs = {(row.head, row.role): row for row in after}
    rows = [row for row in before if (row.head, row.role) in pairs and (row.head, row.role) in values[0]]
    found = []
    for row in rows:
        gap = values[1][row.head, row.role] - values[0][row.head, row.role]
        later, shift = pairs[row.head, row.role], paired_t(gap)
        told = (shift.difference, shift.low, shift.high, shift.p)
        found.append(RoleChange(row.head, row.role, len(gap), row.bias, later.bias, *told, 1.0, row.has_role, later.has_role))
    q = benjamini_hochberg([change.p for change in found]) if found else []
    return [replace(change, q=float(value)) for change, value in zip(found, q, strict=True)]


@command
def run(
    say: Session,
    given: inputs.TaskOptions,
    other: Second,
    text: File = None,
    embedded: Embedded = None,
    parser: Parser = None,
    only: Only = None,
) -> None:
    """What does fine-tuning change in the roles of heads? The same heads before and after, with a paired test."""
    check_text(given, text, embedded)
    after = given._replace(model=other, auto=None)
    first, _, folder = given.open_model(say)
    second, _, _ = after.open_model(say)
    task = _task(say, given, folder, first, second) if given.task else None
    read = open_corpus(say, given, first, folder, text=text, embedded=embedded, parser=parser, task=task)
    from headcount.behaviour.spec import RoleSpec, parse_roles

    spec = RoleSpec(parse_roles(split(only) if only else None), seed=given.seed, batch_size=given.reading["batch_size"])
    changes = finetune_roles(first, second, read, spec)
    changed = sorted((c for c in changes if c.q <= 0.05), key=lambda c: -abs(c.difference))
    rows = [
        (c.head, c.role, f"{c.a:.2f}", f"{c.b:.2f}", f"{c.difference:+.2f} ({c.low:+.2f} … {c.high:+.2f})", f"{c.q:.2g}", _word(c))
        for c in changed[:30]
    ]
    say.table(("head", "role", "before", "after", "change", "q", ""), rows, right=("before", "after"))
    say.line(f"{len(changed)} of {len(changes)} heads × roles changed (q ≤ 0.05); by layer, mean size of all changes:")
    say.table(
        ("layer", "mean |change|", "roles lost", "roles gained"),
        _layers(changes),
        right=("mean |change|", "roles lost", "roles gained"),
    )
    say.result({"study": "finetune-roles", "a": given.model, "b": other, "changes": [{**asdict(c), "head": str(c.head)} for c in changes]})


def _task(say: Session, given: inputs.TaskOptions, folder: Path, first: nn.Module, second: nn.Module) -> Task:
    """The task, made for whichever of the models has the head that it needs: as a rule the fine-tuned one."""
    try:
        return given.open_task(say, second, folder)
    except DataError as error:
        try:
            return given.open_task(say, first, folder)
        except DataError:
            raise error from None


def _word(change: RoleChange) -> str:
    return "lost" if change.had and not change.has else "gained" if change.has and not change.had else ""


def _layers(changes: list[RoleChange]) -> list[tuple[str, str, int, int]]:
    blocks: dict[str, list[RoleChange]] = {}
    for change in changes:
        blocks.setdefault(str(change.head).rpartition("H")[0], []).append(change)
    return [
        (
            name,
            f"{sum(abs(c.difference) for c in group) / len(group):.3f}",
            sum(c.had and not c.has for c in group),
            sum(c.has and not c.had for c in group),
        )
        for name, group in blocks.items()
    ]
