"""Do specialised heads go last? Roles of the heads that each pruning level of a comparison keeps, against what chance would give.

Voita et al. 2019 (section 5.3): as the penalty grows, heads without a role go first. Every method and number of heads of a run is set against
heads drawn at random: the number of survivors with a role is hypergeometric, several seeds add up. Over all levels together, heads with and
without a role are compared by the share of levels that they survive, with a permutation of heads.
Roles are those of the dense model. A method that trains weights before it cuts (L0, DSP) prunes other weights, whose heads may do other things: it is
left out and named, unless `dense_roles` asks for the roles that its heads had before that training.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from headcount.app.console import inputs
from headcount.app.console.command import command
from headcount.app.console.options import Device, Dtype, Seed
from headcount.app.console.run_folder import RunFolder
from headcount.app.console.session import Session
from headcount.app.console.text import Embedded, File, Parser, check_text, open_corpus
from headcount.core.errors import ArtifactError
from headcount.core.files import reopened_model
from headcount.core.heads import Head
from headcount.studies._results import corrected, keep_rows, led

if TYPE_CHECKING:
    import numpy as np

    from headcount.core.role_table import RoleTable
    from headcount.runs.store import Run

RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder that `headcount compare` made.", show_default=False)]
All = Annotated[bool, typer.Option("--all", help="Show every role at every level, not only any role and what differs from chance.")]
ANY = "any role"
REPEATS = 10_000


@dataclass(frozen=True, slots=True)
class Level:
    """One method, number of heads and role: of the `survivors` (mean over `seeds`) how many have it, and how many would by chance.

    `p` is two-sided: twice the smaller tail of the sum over seeds of hypergeometric numbers, or of draws of KV groups where these went as a whole.
    """

    method: str
    keep: int
    seeds: int
    role: str
    heads_with: int
    heads_tested: int
    survivors: float
    survivors_with: float
    share: float
    chance: float
    p: float
    q: float = 1.0


@dataclass(frozen=True, slots=True)
class Survival:
    """One method and role: the share of all levels that heads with it survive, and heads without; `p` of a permutation of heads, two-sided."""

    method: str
    role: str
    heads_with: int
    survive_with: float
    survive_without: float
    difference: float
    p: float
    q: float = 1.0


DenseRoles = Annotated[
    bool,
    typer.Option(
        "--dense-roles", help="Judge methods that train weights (L0, DSP) too, by the roles that heads had in the dense model before."
    ),
]
Kept = Mapping[tuple[str, int], Sequence[frozenset["Head"]]]
"""By method and number of heads, the survivors of every seed."""
Units = Sequence[Sequence["Head"]]
"""Heads that share keys and values."""


def survivors(table: RoleTable, kept: Kept, *, units: Units = (), seed: int = 0) -> tuple[list[Level], list[Survival]]:
    """Every method, level and role that some heads have and some lack; p-values of any role, and of the single ones, are corrected apart.

    Where heads that share keys and values went together, chance moves these `units`, not single heads.
    """
    together = _whole(units, [one for several in kept.values() for one in several])
    groups = {role: (tested, having) for role, (tested, having) in _groups(table).items() if 0 < len(having) < len(tested)}
    made = {role: Group(tested, having, _units_of(tested, together)) for role, (tested, having) in groups.items()}
    found = [asdict(_level(key, sets, role, group, seed)) for key, sets in kept.items() for role, group in made.items()]
    overall = []
    for method in dict.fromkeys(method for method, _ in kept):
        sets = [one for (name, _), several in kept.items() if name == method for one in several]
        overall += [asdict(_survival(method, sets, role, group, seed)) for role, group in made.items()]
    for rows in (found, overall):  # the question of the study is asked of any role; single roles are a search of their own
        corrected([row for row in rows if row["role"] == ANY])
        corrected([row for row in rows if row["role"] != ANY])
    return [Level(**row) for row in found], [Survival(**row) for row in overall]


class Group(NamedTuple):
    """The heads that were tested for a role, those that have it, and what moves together."""

    tested: list[Head]
    having: set[Head]
    units: list[list[Head]]


def _whole(units: Units, sets: Sequence[frozenset[Head]]) -> Units:
    """The units, if each of them stayed or went as a whole."""
    return units if all(len(one.intersection(unit)) in (0, len(unit)) for one in sets for unit in units) else ()


def _units_of(tested: list[Head], together: Units) -> list[list[Head]]:
    """What moves together of some heads; heads alone where nothing does."""
    mine = set(tested)
    found = [[head for head in unit if head in mine] for unit in together]
    rest = mine.difference(head for unit in found for head in unit)
    return [unit for unit in found if unit] + [[head] for head in tested if head in rest]


def _groups(table: RoleTable) -> dict[str, tuple[list[Head], set[Head]]]:
    """By role, the heads that were tested for it and those that have it."""
    found: dict[str, tuple[list[Head], set[Head]]] = {ANY: (list(table.heads), {h for h, roles in table.labels().items() if roles})}
    for row in table:
        tested, having = found.setdefault(row.role, ([], set()))
        tested.append(row.head)
        if row.has_role:
            having.add(row.head)
    return found


def _level(key: tuple[str, int], sets: Sequence[frozenset[Head]], role: str, group: Group, seed: int) -> Level:
    tested, having, units = group
    alive = [one.intersection(tested) for one in sets]
    seen = sum(len(one & having) for one in alive)
    total = sum(map(len, alive))
    if len(units) == len(tested):
        p = _tails(seen, [len(one) for one in alive], len(tested), len(having))
    else:
        p = _drawn(seen, [sum(unit[0] in one for unit in units) for one in alive], [len(having.intersection(unit)) for unit in units], seed)
    share = seen / total if total else 0.0
    counts = total / len(sets), seen / len(sets)
    return Level(*key, len(sets), role, len(having), len(tested), *counts, share, len(having) / len(tested), p)


def _drawn(seen: int, drawn: Iterable[int], having: Sequence[int], seed: int) -> float:
    """Twice the smaller tail of the number of heads with a role in units drawn at random, so many for each seed of a method."""
    import numpy as np

    random = np.random.Generator(np.random.Philox(seed))
    counts, total = np.array(having), np.zeros(REPEATS, dtype=int)
    for number in drawn:
        order = random.random((REPEATS, len(counts))).argsort(1)[:, :number]
        total += counts[order].sum(1)
    tail = min(int((total <= seen).sum()), int((total >= seen).sum()))
    return min(1.0, 2 * (1 + tail) / (REPEATS + 1))


def _tails(seen: int, drawn: Iterable[int], heads: int, having: int) -> float:
    """Twice the smaller tail of a sum of hypergeometric numbers, one for each number of heads drawn."""
    import numpy as np
    from scipy.stats import hypergeom

    chance: np.ndarray = np.ones(1)
    for number in drawn:
        chance = np.convolve(chance, hypergeom.pmf(np.arange(having + 1), heads, having, number))
    return float(min(1.0, 2 * min(chance[: seen + 1].sum(), chance[seen:].sum())))


def _survival(method: str, sets: Sequence[frozenset[Head]], role: str, group: Group, seed: int) -> Survival:
    import numpy as np

    ordered = sorted(group.units, key=len)
    heads = [head for unit in ordered for head in unit]
    lived = np.array([sum(head in one for one in sets) / len(sets) for head in heads])
    has = np.array([head in group.having for head in heads])
    gap = float(lived[has].mean() - lived[~has].mean())
    random = np.random.Generator(np.random.Philox(seed))
    parts, start = [], 0
    for size in sorted({len(unit) for unit in ordered}):  # units change places with those of their size
        number = sum(len(unit) == size for unit in ordered)
        each = lived[start : start + number * size : size]
        parts.append(random.permuted(np.tile(each, (REPEATS, 1)), axis=1).repeat(size, axis=1))
        start += number * size
    mixed = np.concatenate(parts, axis=1)
    drawn = mixed[:, has].mean(1) - mixed[:, ~has].mean(1)
    p = (1 + int((np.abs(drawn) >= abs(gap) - 1e-12).sum())) / (REPEATS + 1)
    return Survival(method, role, int(has.sum()), float(lived[has].mean()), float(lived[~has].mean()), gap, p)


def units_of(run: Run) -> list[list[Head]]:
    """The heads of a run that share keys and values."""
    found = []
    for block in run.heads().blocks:
        heads = [Head.parse(head) for head in block.heads]
        size = len(heads) // block.n_kv_heads if block.n_kv_heads else 1
        found += [heads[start : start + size] for start in range(0, len(heads), max(1, size))]
    return found


def kept_of(run: Run, *, dense_roles: bool = False) -> tuple[Kept, list[str]]:
    """The survivors of every method and level of a comparison, by seed, and the methods that train weights before they cut.

    The latter are left out unless `dense_roles`: the roles of the dense model are not those of the weights that they pruned.
    """
    from headcount.pruning.spec import PruneSpec
    from headcount.runs.results import PRUNED, method_label

    weights = run.record().model.weights
    artifacts = [artifact for artifact in run.results(PRUNED).values() if artifact.spec.parts.get("weights") == weights]
    if not artifacts:
        raise ArtifactError(f"{run.folder} holds no comparison; make one with: headcount compare MODEL --task TASK --out {run.folder}")
    heads = frozenset(Head.parse(head) for block in run.heads().blocks for head in block.heads)
    found: dict[tuple[str, int], list[frozenset[Head]]] = {}
    trained = {
        artifact.spec.key: PruneSpec.from_dict(artifact.content["spec"]).method.info.trains == "weights" and "gates" not in artifact.content
        for artifact in artifacts
    }  # an artifact holds gates, if only None, where its weights are the dense model's
    for artifact in sorted(artifacts, key=lambda artifact: (method_label(artifact), -len(heads) + len(artifact.content["removed"]))):
        left = heads.difference(map(Head.parse, artifact.content["removed"]))
        if dense_roles or not trained[artifact.key.digest]:
            found.setdefault((method_label(artifact), len(left)), []).append(left)
    names = sorted({method_label(artifact) for artifact in artifacts if trained[artifact.key.digest]})
    if not found:
        raise ArtifactError(
            f"{run.folder} compares {', '.join(names)} alone, which trained the weights before they cut, so the roles of the dense model are not "
            "those of the heads that went; compare a method that does not train, or judge by the roles before that training (dense_roles)"
        )
    return found, names


@command
def run(
    say: Session,
    folder: RunPath,
    text: File = None,
    embedded: Embedded = None,
    task: inputs.TaskName = None,
    parser: Parser = None,
    limit: inputs.Limit = None,
    everything: All = False,
    device: Device = "auto",
    dtype: Dtype = "auto",
    seed: Seed = 0,
    dense_roles: DenseRoles = False,
) -> None:
    """Do specialised heads go last? Roles of the heads that every level of a comparison keeps, against chance.

    Roles are those of the dense model: of the run (headcount roles … --out RUN), or measured on --embedded, --text or --task, and kept there.
    """
    from headcount.runs.store import Run

    kept_of(Run.open(folder), dense_roles=dense_roles)
    with RunFolder(folder).open(say) as kept:
        run = led(kept, "survivors")
        record = run.record()
        how = inputs.ModelOptions(device=device, dtype=dtype).as_recorded(record.config)
        place = reopened_model(record.model.name, record.config)
        given = inputs.TaskOptions(place, task=task, limit=limit, seed=seed, **how._asdict())
        table = _roles(say, run, given, text, embedded, parser)
        sets, trained = kept_of(run, dense_roles=dense_roles)
        levels, overall = survivors(table, sets, units=units_of(run), seed=seed)
        asked = {"weights": record.model.weights, "roles": table.data, "seed": seed, "dense roles": dense_roles}
        keep_rows(run, "survivors", asked, [asdict(row) for row in levels])
        _show(say, levels, overall, everything)
        if trained:
            say.line(_told_of_trained(trained, dense_roles))
        say.result(
            {
                "study": "survivors",
                "run": str(folder),
                "model": record.model.name,
                "roles of": "the dense model",
                "trained weights": trained,
                "trained weights are judged": dense_roles,
                "levels": [asdict(row) for row in levels],
                "survival": [asdict(row) for row in overall],
            }
        )


def _told_of_trained(names: Sequence[str], judged: bool) -> str:
    """What becomes of methods that trained the weights before they cut."""
    if judged:
        return (
            f"{', '.join(names)} trained the weights before cutting; their rows use the roles that heads had in the dense model before that"
        )
    return (
        f"left out: {', '.join(names)}: trained the weights before cutting, so the roles of the dense model are not those of the heads that went "
        "(dense_roles judges by them nevertheless)"
    )


def _roles(say: Session, run: Run, given: inputs.TaskOptions, text: Path | None, embedded: str | None, parser: str | None) -> RoleTable:
    """The roles of a run, or those measured on the text that is named, which the run keeps."""
    from headcount.behaviour.spec import RoleSpec
    from headcount.workflows.roles import read_roles, roles_into

    if text is None and embedded is None and given.task is None:
        if not run.results("roles"):
            raise ArtifactError(
                f"{run.folder} has no roles; name a text with --embedded, --text or --task, or measure them there: "
                f"headcount roles {given.model} --text FILE --out {run.folder}"
            )
        return read_roles(run)
    check_text(given, text, embedded)
    from headcount.models.provenance import model_record

    live, _, place = given.open_model(say)
    run.check_model(model_record(live, given.model))
    read = open_corpus(say, given, live, place, text=text, embedded=embedded, parser=parser)
    with say.progress("roles") as advance:
        return roles_into(run, live, read, RoleSpec(seed=given.seed, batch_size=given.reading["batch_size"]), progress=advance)


def _show(say: Session, levels: list[Level], overall: list[Survival], everything: bool) -> None:
    rows: list[Any] = [row for row in overall if everything or row.role == ANY or row.q <= 0.05]
    say.line("share of all levels that heads survive, with and without a role")
    say.table(
        ("method", "role", "heads", "with", "without", "difference", "p", "q"),
        [
            (
                r.method,
                r.role,
                r.heads_with,
                f"{r.survive_with:.0%}",
                f"{r.survive_without:.0%}",
                f"{r.difference:+.0%}",
                f"{r.p:.2g}",
                f"{r.q:.2g}",
            )
            for r in rows
        ],
        right=("heads", "with", "without", "difference", "p", "q"),
    )
    rows = [row for row in levels if everything or row.role == ANY or row.q <= 0.05]
    say.line("share of the survivors that have a role, by level")
    say.table(
        ("method", "heads", "seeds", "role", "survivors with it", "share", "by chance", "p", "q"),
        [
            (
                r.method,
                r.keep,
                r.seeds,
                r.role,
                f"{r.survivors_with:.1f} of {r.survivors:.1f}",
                f"{r.share:.0%}",
                f"{r.chance:.0%}",
                f"{r.p:.2g}",
                f"{r.q:.2g}",
            )
            for r in rows
        ],
        right=("heads", "seeds", "share", "by chance", "p", "q"),
    )
    say.note(f"{len(levels)} method × level × role tested; shown: {len(rows)} (any role, and q ≤ 0.05; --all for the rest)")
