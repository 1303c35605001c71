"""What every head does, tested over the sentences or images of a corpus, and on sequences that some roles bring along."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypedDict, Unpack

import numpy as np
from torch import nn

from headcount.behaviour.base import LEAST, Corpus
from headcount.behaviour.best_heads import find_best_heads
from headcount.behaviour.measure import Role, RoleProbe, check_input
from headcount.behaviour.test import RoleTotals, rows_of, run_test
from headcount.core.errors import DataError, unknown
from headcount.core.heads import Head
from headcount.core.registry import ROLES
from headcount.core.role_table import ALPHA, TAU, RoleScore, RoleTable
from headcount.core.stats.significance import Adjust, adjust
from headcount.data.checks import check_weights
from headcount.data.stream import Memory, Progress, Reading, fingerprint, stream
from headcount.models.head_map import HeadMap
from headcount.models.modules import pad_id, start_id, unwrap
from headcount.models.ownership import holds

SHOWN = {"self": "self-attention between tokens", "cross": "attention from a translation to its source", "image": "patches of images"}


class Options(TypedDict, total=False):
    """How roles are tested: all keyword arguments of `measure`."""

    only: Iterable[str] | None
    tau: float
    alpha: float
    correct: Adjust
    level: float
    batch_size: int | None
    seed: int
    progress: Progress | None
    memory: Callable[[Reading], Memory] | None


def wanted(
    model: nn.Module, corpus: Corpus, names: Iterable[str] | None, seed: int
) -> tuple[list[tuple[Corpus, list[Role]]], dict[str, str]]:
    """The roles to test, each with the corpus that shows it, and why others cannot be tested; `names` are files, or `file:name`."""
    on_text: dict[str, Role] = {}
    probes, untested = [], {}
    for text in dict.fromkeys(names if names is not None else ROLES.names()):
        file, _, name = text.partition(":")
        module = ROLES.module(file)
        offered = module.names(corpus) if hasattr(module, "names") else ("",)
        scarce = module.scarce(corpus) if hasattr(module, "scarce") else {}
        if name and name not in (known := (*offered, *scarce, *module.ABOUT.legacy)):
            raise unknown(f"role of {file}", name, known)
        if hasattr(module, "probe"):
            own = module.probe(model, seed)
            if own is None:
                untested[file] = "it is tested on random tokens, by decoders of text that have tokens and positions enough for it"
            else:
                probes.append((own, [Role(file, "", module)]))
            continue
        if not offered and not scarce:
            untested[text] = f"the text has no {', '.join(sorted(module.ABOUT.needs)) or 'tokens'} for it"
            continue
        made = [Role(f"{file}:{one}" if one else file, one, module) for one in ((name,) if name else (*offered, *scarce))]
        on_text |= {role.label: role for role in made if role.name not in scarce}
        untested |= {
            role.label: f"{scarce[role.name]} of the {LEAST} occurrences that a test needs" for role in made if role.name in scarce
        }
    return [(corpus, list(on_text.values())), *probes], untested


@holds("roles")
def measure(model: nn.Module, corpus: Corpus, **options: Unpack[Options]) -> RoleTable:
    """What every head does on a corpus: bias, test and accuracy for each role that the corpus can show."""
    if not corpus.sentences and not corpus.images:
        raise DataError("there is no sentence to look at; the text is empty, or none of it could be aligned")
    inner: Any = unwrap(model)
    check_input(inner, corpus)
    check_weights(inner)
    heads, seed, tau, alpha = HeadMap.of(inner), options.get("seed", 0), options.get("tau", TAU), options.get("alpha", ALPHA)
    parts, untested = wanted(inner, corpus, options.get("only"), seed)
    totals, prints = [], []
    for probe, reading in _probes(inner, heads, parts, options):
        if options.get("memory") is not None:
            reading.memory = options["memory"](reading)  # pyright: ignore[reportTypedDictNotRequiredAccess, reportOptionalCall]
        made = _stream(probe, reading) if probe.views() else {}
        untested |= _untested(probe, made.values())
        totals += made.values()
        prints += [reading.fingerprint] if made else []
    rows = _rows(totals, options, tau, alpha)
    conditions = {
        "n_examples": len(corpus.sentences) or len(corpus.images),
        "dtype": str(next(inner.parameters()).dtype).removeprefix("torch."),
    }
    refused = dict(corpus.facts.get("refused", {}))
    best = find_best_heads([total.halves for total in totals])
    return RoleTable(tuple(rows), heads.heads, tau, alpha, untested, refused, " ".join(prints), conditions, best)


def _probes(model: Any, heads: HeadMap, parts: list[tuple[Corpus, list[Role]]], options: Options) -> Iterator[tuple[RoleProbe, Reading]]:
    """The passes that measure roles: over the text, and over the sequences that some roles bring along."""
    for text, chosen in parts:
        probe = RoleProbe(model, heads, text, chosen, pad_id(model), start_id(model))
        yield probe, Reading(probe.task(), batch_size=options.get("batch_size"), progress=options.get("progress"))


def data_print(model: nn.Module, corpus: Corpus, **options: Unpack[Options]) -> str:
    """The fingerprint of all that `measure` would read, without measuring anything."""
    inner: Any = unwrap(model)
    parts, _ = wanted(inner, corpus, options.get("only"), options.get("seed", 0))
    made = _probes(inner, HeadMap.of(inner), parts, options)
    return " ".join(fingerprint(reading) for probe, reading in made if probe.views())


def biases_by_sentence(model: nn.Module, corpus: Corpus, **options: Unpack[Options]) -> dict[tuple[Head, str], np.ndarray]:
    """The bias of every example that shows a role, by head and role: for paired tests. Memory grows with the corpus."""
    inner: Any = unwrap(model)
    parts, _ = wanted(inner, corpus, options.get("only"), options.get("seed", 0))
    found: dict[tuple[Head, str], np.ndarray] = {}
    for text, chosen in parts[:1]:
        probe = RoleProbe(inner, HeadMap.of(inner), text, chosen, pad_id(inner), start_id(inner))
        blocks = list(stream(Reading(probe.task(), batch_size=options.get("batch_size")), probe)) if probe.views() else []
        for view in probe.views():
            bias, tokens = (np.concatenate([block[f"{view}/{name}"] for block in blocks]) for name in ("bias", "tokens"))
            for h, head in enumerate(_heads_of(probe, view)):
                found |= {(head, role.label): bias[tokens[:, h, r] > 0, h, r] for r, role in enumerate(probe.roles_of(view))}
    return found


def _stream(probe: RoleProbe, reading: Reading) -> dict[str, RoleTotals]:
    totals = {view: _empty(probe, view) for view in probe.views()}
    for measured in stream(reading, probe):
        for view, total in totals.items():
            total.update({name.partition("/")[2]: value for name, value in measured.items() if name.startswith(f"{view}/")})
    return totals


def _untested(probe: RoleProbe, made: Iterable[RoleTotals]) -> dict[str, str]:
    """Why some roles have no row at all: a test needs two examples that show the role to some head."""
    most: dict[str, int] = {}
    for total in made:
        for label, number in zip(total.roles, total.sentences.reshape(len(total.heads), -1).max(0), strict=True):
            most[label] = max(most.get(label, 0), int(number))
    return {role.label: _why(role, most.get(role.label)) for role in probe.roles if most.get(role.label, 0) < 2}


def _why(role: Role, number: int | None) -> str:
    if number is None:
        return f"it is about {' or '.join(SHOWN[where] for where in sorted(role.about.where))}, which this model and its input do not show"
    if number:
        return "only one example shows it; a test needs two"
    return "no token sees a key that it is about: there is none, or it is hidden, as later tokens are from a decoder's"


def _empty(probe: RoleProbe, view: str) -> RoleTotals:
    roles = probe.roles_of(view)
    positional, legacy = [role.label for role in roles if role.about.positional], [role.label for role in roles if role.is_legacy]
    return RoleTotals(_heads_of(probe, view), [role.label for role in roles], positional, legacy)


def _heads_of(probe: RoleProbe, view: str) -> list[Head]:
    return [head for block in probe.blocks_of(view) for head in block.heads]


def _rows(totals: list[RoleTotals], options: Options, tau: float, alpha: float) -> list[RoleScore]:
    """All rows, the p-values of those that can have a label corrected together; the others' q is 1, whatever their p."""
    level, seed = options.get("level", 0.95), options.get("seed", 0)
    tested = [run_test(total, tau, level=level, seed=seed) for total in totals]
    p = np.concatenate([np.zeros(0), *(made.p for made in tested)])
    able = np.array([not note for made in tested for note in made.notes], dtype=bool)
    q = np.ones_like(p)
    if able.any():
        q[able] = adjust(p[able], options.get("correct", "bh"))
    rows, start = [], 0
    for total, made in zip(totals, tested, strict=True):
        rows += rows_of(total, made, q[start : start + len(made.p)], tau=tau, alpha=alpha)
        start += len(made.p)
    return rows
