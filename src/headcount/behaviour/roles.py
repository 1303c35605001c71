"""What every head does, tested over the sentences or images of a corpus, and on sequences that some roles bring along."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import nn

from headcount.behaviour.base import MIN_OCCURRENCES, Corpus, ProbeRole, Role
from headcount.behaviour.best_heads import find_best_head_of_each_role
from headcount.behaviour.beyond import HeadComparison, TwinSums, add_twin_comparisons, count_labels_under_swaps, find_inner_and_outer_roles
from headcount.behaviour.corpus import Parser, check_reading_arguments, read_corpus
from headcount.behaviour.measure import RoleProbe
from headcount.behaviour.patterns import PatternRule, parse_patterns
from headcount.behaviour.spec import RoleNames, RoleSpec, parse_roles
from headcount.behaviour.test import RoleTotals, score_roles
from headcount.behaviour.views import ViewName, check_model_reads, corpus_examples
from headcount.core.arguments import check_arguments
from headcount.core.definition import DEFAULT_DEFINITION, N_SWAPS, Definition
from headcount.core.errors import DataError, unknown_name_error
from headcount.core.heads import Head
from headcount.core.options import options_of
from headcount.core.progress import Progress, show_progress
from headcount.core.registry import ROLES
from headcount.core.role_table import RoleTable
from headcount.data.checks import check_finite_weights
from headcount.data.stream import ChunkStore, Reading, fingerprint, stream
from headcount.data.task import Split, Task
from headcount.models.head_map import HeadMap
from headcount.models.modules import unwrap
from headcount.models.ownership import holds_model

ATTENTION = {"self": "self-attention between tokens", "cross": "attention from a translation to its source", "image": "patches of images"}
HIDDEN = "no query can attend to a matching key: none occurs, or the causal mask hides it"


@check_arguments
def roles(
    model: nn.Module,
    text: Any,
    tokenizer: Any = None,
    *,
    only: RoleNames | None = None,
    definition: str | Definition = DEFAULT_DEFINITION,
    level: float = 0.95,
    split: Split = "calibration",
    limit: int | None = None,
    parser: Parser | None = None,
    max_length: int | None = None,
    truncate: bool = False,
    batch_size: int | None = None,
    seed: int = 0,
    swaps: int = N_SWAPS,
    patterns: Mapping[str, PatternRule] | None = None,
    progress: bool | Progress = True,
) -> RoleTable:
    """Tests what every head does: for each head and role the bias of its attention with test, interval and baseline.

    Args:
        model: A transformers model. Its weights and mode stay as they are.
        text: A file (CoNLL-U, a table, or plain text with a sentence a line), texts, pairs of texts, annotated sentences, a datasets.Dataset, a
            Task, mappings with `pixel_values` or `input_features` (speech), or a corpus that `headcount.behaviour.corpus.read_corpus` returned.
        tokenizer: The tokenizer of the model; images and tasks of tokens need none.
        only: Roles to test, by name (`syntax` for all its roles, `offset:-1` for one) or as objects (`Offset("-1")`); None for all.
        definition: When a head has a role: `beyond-distance`, `pande2021(tau=2;correct=bh)`, `voita2019`, or an object.
            `RoleTable.relabel` changes it later without another pass.
        level: The level of the intervals.
        split: The split of a task that is read.
        limit: How many sentences or images are read at most; None for all.
        parser: Puts trees on sentences: `spacy:PIPELINE`, `stanza:LANGUAGE`, or a function from sentences to sentences.
        max_length: The longest sentence in tokens; None for as many as the model has positions. A task has its own.
        truncate: Whether longer sentences are cut off instead of refused. A task has its own.
        batch_size: Examples per forward pass; None for the task's own, else 32. It falls by halves when memory runs out.
        seed: Seed of the permutation test, of random sequences and of swaps.
        swaps: How often labels are counted under annotations of other sentences of equal length, for the estimate of false discoveries; 0 for never.
        patterns: Roles of your own by name, tested as roles of content are: functions from a view to a boolean sieve [batch, q, k], or for each
            sentence a boolean matrix [q, k] over its words or its tokens.
        progress: A bar on a terminal or in a notebook (True), nothing (False), or a function that is called with (done, total).

    Returns:
        A table with one row for each head and role; `labels()` are the roles that each head has, `untested` says why others were not tested.

    Raises:
        UnknownName: a role or a definition does not exist.
        OptionError: a value has the wrong type or is out of range.
        DataError: the text is empty, cannot be aligned with the tokenizer, or does not go with the other arguments.
        UnsupportedModel: the model does not read what the text holds.

    Example:
        >>> import headcount as hc
        >>> from headcount.surgery.source import local_folder
        >>> from transformers import AutoTokenizer
        >>> model, tokenizer = hc.load("demo/encoder"), AutoTokenizer.from_pretrained(local_folder("demo/encoder"))
        >>> texts = ["the dog sees the cat .", "the old king likes the queen ."] * 8
        >>> table = hc.roles(model, texts, tokenizer, only=["offset:-1", "sink"])
        >>> table.roles()
        ['offset:-1', 'sink']
    """
    if batch_size is None and isinstance(text, Task):
        batch_size = text.batch_size
    spec = RoleSpec(parse_roles(only), Definition.parse(definition), level, batch_size, seed, swaps, parse_patterns(patterns))
    check_reading_arguments(model, text, split=split, limit=limit, max_length=max_length, truncate=truncate, parser=parser)
    with show_progress(progress, "testing roles") as advance:
        if isinstance(text, Corpus):
            return measure_roles(model, text, spec, progress=advance)
        corpus = read_corpus(model, text, tokenizer, split=split, limit=limit, parser=parser, max_length=max_length, truncate=truncate)
        return measure_roles(model, corpus, spec, progress=advance)


@dataclass(frozen=True, slots=True)
class SelectedRoles:
    """The roles to test, each group with the corpus that it is tested on, and why others cannot be tested."""

    groups: tuple[tuple[Corpus, tuple[Role, ...]], ...]
    untested: dict[str, str]


def select_roles(model: nn.Module, corpus: Corpus, spec: RoleSpec) -> SelectedRoles:
    """Returns the roles of a request that can be tested: the first group on the corpus itself, the others on sequences of their own.

    Raises:
        UnknownName: a role is named that the corpus does not offer.
    """
    on_corpus: dict[Role, None] = {}
    on_probes: dict[Role, Corpus] = {}
    untested: dict[str, str] = {}
    for requested in spec.only if spec.only is not None else parse_roles([*ROLES.names(), *spec.definition.further_roles]) or ():
        cls = requested if isinstance(requested, type) else type(requested)
        single = None if isinstance(requested, type) else requested
        if issubclass(cls, ProbeRole):
            role = single if isinstance(single, ProbeRole) else cls()
            sequences = role.probe(model, spec.seed)
            if sequences is None:
                untested[str(role)] = "it is tested on random tokens, which needs a decoder of text with enough tokens and positions"
            else:
                on_probes[role] = sequences
            continue
        offered = cls.list_offered(corpus)
        known = (*offered.testable, *offered.too_rare)
        if single is not None and not single.is_legacy:
            listed = cls(
                *(getattr(single, option.name) for option in options_of(cls) if option.is_positional)
            )  # keyword options by default
            if listed not in known and str(listed) != cls.name:
                raise unknown_name_error(f"role of {cls.name}", _role_variant(listed), map(_role_variant, known))
        if not known:
            label = cls.name if single is None else str(single)
            untested[label] = f"the text has no {', '.join(sorted(cls.info.needs)) or 'tokens'} for it"
            continue
        for role in known if single is None else (single,):
            if role in offered.too_rare:
                untested[str(role)] = f"{offered.too_rare[role]} of the {MIN_OCCURRENCES} occurrences that a test needs"
            else:
                on_corpus[role] = None
    on_corpus |= dict.fromkeys(spec.patterns)
    return SelectedRoles(((corpus, tuple(on_corpus)), *((text, (role,)) for role, text in on_probes.items())), untested)


def _role_variant(role: Role) -> str:
    """Returns the part of a role's name after the colon."""
    return str(role).partition(":")[2]


@holds_model("roles")
def measure_roles(
    model: nn.Module,
    corpus: Corpus,
    spec: RoleSpec = RoleSpec(),  # noqa: B008  frozen
    *,
    progress: Progress | None = None,
    open_chunk_store: Callable[[Reading], ChunkStore | None] | None = None,
) -> RoleTable:
    """Returns the bias, test and accuracy of every head for each role that the corpus can show.

    Args:
        model: The model.
        corpus: The sentences or images.
        spec: Which roles are tested, and how.
        progress: Called with the examples done and, if known, their number.
        open_chunk_store: Returns where the results of a pass are stored, so that it can be resumed.
    """
    if not corpus.sentences and not corpus.images:
        raise DataError("there is no sentence to test roles on; the text is empty, or none of it could be aligned")
    inner: Any = unwrap(model)
    check_model_reads(inner, corpus)
    check_finite_weights(inner)
    heads = HeadMap.of(inner)
    selected = select_roles(inner, corpus, spec)
    untested = dict(selected.untested)
    totals: list[RoleTotals] = []
    comparisons: list[HeadComparison] = []
    nested: list[tuple[str, str]] = []
    fingerprints = []
    for probe, reading in _probes_and_readings(inner, heads, selected, spec, progress):
        probe.twins = probe.prepare_twins(n_swaps=spec.swaps, seed=spec.seed)
        if open_chunk_store is not None:
            reading.chunk_store = open_chunk_store(reading)
        sums = _run_pass_and_sum(probe, reading) if probe.measured_views() else PassSums({}, {}, {})
        untested |= _explain_untested(probe, sums.totals.values())
        totals += sums.totals.values()
        comparisons += [compared for twins in sums.twins.values() for compared in twins.compare_heads_with_twins()]
        nested += find_inner_and_outer_roles(sums.overlaps, {view: total.roles for view, total in sums.totals.items()})
        fingerprints += [reading.fingerprint] if sums.totals else []
    content = {str(role) for _, group in selected.groups for role in group if role.info.is_content}
    rows = score_roles(totals, spec.definition.tested_bias, level=spec.level, seed=spec.seed)
    table = RoleTable(
        rows=add_twin_comparisons(rows, content, comparisons, spec.level),
        heads=heads.heads,
        tau=spec.definition.tested_bias,
        untested=untested,
        refused=dict(corpus.refused),
        data=" ".join(fingerprints),
        conditions={
            "n_examples": len(corpus.sentences) or len(corpus.images),
            "dtype": str(next(inner.parameters()).dtype).removeprefix("torch."),
        },
        best_heads=find_best_head_of_each_role([total.halves for total in totals]),
        nested=tuple(nested),
        curves=tuple(curve for compared in comparisons for curve in compared.curves_of_strongest_roles()),
        swapped=count_labels_under_swaps(comparisons),
    )
    return spec.definition.relabel(table)


def _probes_and_readings(
    model: Any, heads: HeadMap, selected: SelectedRoles, spec: RoleSpec, progress: Progress | None = None
) -> Iterator[tuple[RoleProbe, Reading]]:
    """Yields the passes that measure roles: over the corpus, and over the sequences that some roles bring along."""
    for corpus, group in selected.groups:
        yield (
            RoleProbe(model, heads, corpus, group),
            Reading(corpus_examples(model, corpus), batch_size=spec.batch_size, progress=progress),
        )


def fingerprint_data(model: nn.Module, corpus: Corpus, spec: RoleSpec, heads: HeadMap) -> str:
    """Returns the fingerprint of all that `measure_roles` would read, without measuring anything."""
    inner: Any = unwrap(model)
    passes = _probes_and_readings(inner, heads, select_roles(inner, corpus, spec), spec)
    return " ".join(fingerprint(reading) for probe, reading in passes if probe.measured_views())


def biases_by_sentence(model: nn.Module, corpus: Corpus, spec: RoleSpec, heads: HeadMap) -> dict[tuple[Head, str], np.ndarray]:
    """Returns the bias of every example that shows a role, by head and role, for paired tests. Memory grows with the corpus."""
    inner: Any = unwrap(model)
    probe, reading = next(_probes_and_readings(inner, heads, select_roles(inner, corpus, spec), spec))
    chunks = list(stream(reading, probe)) if probe.measured_views() else []
    by_head: dict[tuple[Head, str], np.ndarray] = {}
    for view in probe.measured_views():
        bias, tokens = (np.concatenate([chunk[f"{view}/{name}"] for chunk in chunks]) for name in ("bias", "tokens"))
        for h, head in enumerate(probe.heads_of_view(view)):
            by_head |= {(head, str(role)): bias[tokens[:, h, r] > 0, h, r] for r, role in enumerate(probe.roles_of_view(view))}
    return by_head


@dataclass(frozen=True, slots=True)
class PassSums:
    """The sums over the examples of a pass, for each view: for the tests, for distance twins, and how many pairs each two sieves share."""

    totals: dict[ViewName, RoleTotals]
    twins: dict[ViewName, TwinSums]
    overlaps: dict[ViewName, np.ndarray]


def _run_pass_and_sum(probe: RoleProbe, reading: Reading) -> PassSums:
    """Returns the sums over the examples of a pass."""
    sums = PassSums({}, {view: TwinSums(probe, view) for view in probe.twins}, {})
    for view in probe.measured_views():
        by_label = {str(role): role for role in probe.roles_of_view(view)}
        positional = [label for label, role in by_label.items() if role.info.positional]
        legacy = [label for label, role in by_label.items() if role.is_legacy]
        sums.totals[view] = RoleTotals(probe.heads_of_view(view), list(by_label), positional, legacy)
    for measured in stream(reading, probe):
        for view, total in sums.totals.items():
            total.add_sentences({name.partition("/")[2]: values for name, values in measured.items() if name.startswith(f"{view}/")})
            sums.overlaps[view] = sums.overlaps.get(view, 0) + measured[f"{view}/overlap"]
        for twins in sums.twins.values():
            twins.add_chunk(measured)
    return sums


def _explain_untested(probe: RoleProbe, totals: Iterable[RoleTotals]) -> dict[str, str]:
    """Returns why some roles have no row: a test needs two examples in which some head can show the role."""
    n_examples: dict[str, int] = {}
    for total in totals:
        for label, number in zip(total.roles, total.sentences.reshape(len(total.heads), -1).max(0), strict=True):
            n_examples[label] = max(n_examples.get(label, 0), int(number))
    reasons = {}
    for role in probe.roles:
        label = str(role)
        if label not in n_examples:
            subject = " or ".join(ATTENTION[attention] for attention in sorted(role.info.attention))
            reasons[label] = f"it is about {subject}, which this model and its input do not show"
        elif n_examples[label] < 2:
            reasons[label] = "only one example shows it; a test needs two" if n_examples[label] else HIDDEN
    return reasons
