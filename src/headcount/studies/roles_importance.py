"""Do the heads that matter have roles? Importance and confidence of heads with and without each role, with intervals.

Voita et al. 2019: the most important and the most confident heads are those with a role. For every role the mean rank of its heads (1 = most
important) is set against that of the others, with a permutation test over heads; the interval holds the shifts that this test does not reject.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headcount.app.console import inputs
from headcount.app.console.command import command
from headcount.app.console.options import split
from headcount.app.console.session import Session
from headcount.app.console.text import Embedded, Parser, check_embedded, open_corpus

if TYPE_CHECKING:
    import numpy as np

    from headcount.core.role_table import RoleTable
    from headcount.core.scores import Scores

Text = Annotated[
    Path | None, typer.Option("--text", metavar="FILE", help="For roles: CoNLL-U, plain text, or a table; else the texts of the task.")
]
By = Annotated[str, typer.Option("--by", metavar="NAME,…", help="The scores to compare with roles.")]
ALPHA = 0.05


@dataclass(frozen=True, slots=True)
class RoleRow:
    """One role (or having any) and one score: mean rank of the heads with it and without, their difference, p of a permutation of heads.

    `low` and `high` are the interval by the same test; None where one of the groups has a single head, or so few heads that no shift is rejected.
    """

    role: str
    method: str
    n_heads: int
    rank_with: float
    rank_without: float
    difference: float
    low: float | None
    high: float | None
    p: float
    q: float
    mean_with: float
    mean_without: float


def roles_importance(table: RoleTable, scores: dict[str, Scores], *, seed: int = 0, repeats: int = 2000) -> list[RoleRow]:
    """Every role that some heads have and some lack, against every score."""
    from dataclasses import replace

    import numpy as np

    from headcount.core.stats.ranks import ranks
    from headcount.core.stats.significance import benjamini_hochberg

    labels = table.labels()
    groups = {"any role": [bool(labels[head]) for head in table.heads]}
    groups |= {role: [role in labels[head] for head in table.heads] for role in table.roles()}
    random = np.random.Generator(np.random.Philox(seed))
    found = []
    for method, made in scores.items():
        values = np.asarray(made.values)
        place = ranks(values, higher_is_keep=made.higher_is_keep).astype(float)
        for role, having in groups.items():
            has = np.array(having)
            if 0 < has.sum() < len(has):
                found.append(_row(role, method, has, place, values, random, repeats))
    q = benjamini_hochberg([row.p for row in found]) if found else []
    return [replace(row, q=float(value)) for row, value in zip(found, q, strict=True)]


def _row(
    role: str, method: str, has: np.ndarray, place: np.ndarray, values: np.ndarray, random: np.random.Generator, repeats: int
) -> RoleRow:
    mixed = draw_orders(random, len(place), repeats)
    gap = float(place[has].mean() - place[~has].mean())
    low, high, p = permute_groups(place, has, mixed)
    means = float(values[has].mean()), float(values[~has].mean())
    return RoleRow(role, method, int(has.sum()), float(place[has].mean()), float(place[~has].mean()), gap, low, high, p, 1.0, *means)


def draw_orders(random: np.random.Generator, size: int, repeats: int) -> np.ndarray:
    """So many random orders of `size` places, [repeats, size]."""
    import numpy as np

    return random.permuted(np.tile(np.arange(size), (repeats, 1)), axis=1)


def permute_groups(values: np.ndarray, has: np.ndarray, orders: np.ndarray) -> tuple[float | None, float | None, float]:
    """The 95 % interval of the difference of two group means, `has` minus the others, and its two-sided p-value, both by permuting members.

    The interval holds the shifts d that the test does not reject once d is taken off the first group; None where it has no ends, or where a group
    has a single member, whose spread nothing tells.
    """
    import numpy as np

    def gaps(of: np.ndarray) -> np.ndarray:
        return of[..., has].mean(-1) - of[..., ~has].mean(-1)

    gap, drawn, moved = float(gaps(values)), gaps(values[orders]), gaps(has[orders].astype(float))

    def p_of(shift: float) -> float:
        return float((1 + (np.abs(drawn - shift * moved) >= abs(gap - shift) - 1e-9).sum()) / (len(orders) + 1))

    reach = 100 * (float(np.ptp(values)) + 1)
    if min(has.sum(), (~has).sum()) < 2 or max(p_of(gap - reach), p_of(gap + reach)) > ALPHA:
        return None, None, p_of(0.0)
    return _end(p_of, gap, gap - reach), _end(p_of, gap, gap + reach), p_of(0.0)


def _end(p_of: Callable[[float], float], inside: float, outside: float) -> float:
    """The shift between one that a test keeps and one that it rejects where it changes its mind, by halving."""
    for _ in range(60):
        middle = (inside + outside) / 2
        inside, outside = (middle, outside) if p_of(middle) > ALPHA else (inside, middle)
    return inside


@command
def run(
    say: Session,
    given: inputs.TaskOptions,
    by: By = "gradient,confidence",
    text: Text = None,
    embedded: Embedded = None,
    parser: Parser = None,
) -> None:
    """Do the heads that matter have roles? Importance and confidence by role, with intervals."""
    check_embedded(text, embedded)
    from headcount.behaviour.given import roles
    from headcount.importance.base import Importance
    from headcount.importance.score import score_all
    from headcount.importance.settings import ScoreSettings

    live, _, folder = given.open_model(say)
    task = given.open_task(say, live, folder)
    methods = [str(Importance.parse(name)) for name in split(by)]
    read = open_corpus(say, given, live, folder, text=text, embedded=embedded, parser=parser, task=task)
    table = roles(live, read, seed=given.seed, batch_size=given.reading["batch_size"])
    with say.progress("scoring") as advance:
        scores = score_all(live, task, methods, ScoreSettings(seed=given.seed, **given.reading), progress=advance)
    rows = sorted(roles_importance(table, scores, seed=given.seed), key=lambda row: (row.method, row.p))
    say.table(
        ("score", "role", "heads", "mean rank with", "without", "difference", "q"),
        [
            (
                row.method,
                row.role,
                row.n_heads,
                f"{row.rank_with:.1f}",
                f"{row.rank_without:.1f}",
                f"{row.difference:+.1f}" + ("" if row.low is None else f" ({row.low:+.1f} … {row.high:+.1f})"),
                f"{row.q:.2g}",
            )
            for row in rows
        ],
        right=("heads", "mean rank with", "without"),
    )
    say.note("rank 1 is the head to keep first: a negative difference says that heads with the role matter more")
    say.result({"study": "roles-importance", "model": given.model, "task": task.name, "rows": [asdict(row) for row in rows]})
