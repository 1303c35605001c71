"""The role tables that studies of roles read: measured once into the run, with labels by any definition; and the heads of every family."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from headcount.behaviour.base import Corpus
from headcount.behaviour.corpus import read_corpus
from headcount.behaviour.spec import RoleSpec, parse_roles
from headcount.core.definition import Definition
from headcount.core.errors import DataError
from headcount.core.heads import Head
from headcount.core.role_table import RoleTable
from headcount.data.task import Task
from headcount.data.text.annotated import join_pair
from headcount.studies._base import LoadedModel, StudyContext
from headcount.studies._results import describe_study_run
from headcount.workflows.roles import roles_into

BLOCK_ROLES = ("segment", "segment:entropy")
"""The two forms of block heads, which only pairs of texts show."""
PAIRS = "block heads on"
"""The condition of a table that says on which pairs block heads were tested, where these are not of the text itself."""


@dataclass(frozen=True, slots=True)
class Families:
    """The heads that were tested for every family of a definition, and those that have one of its roles. Families without a test are left out."""

    heads: tuple[Head, ...]
    tested: Mapping[str, frozenset[Head]]
    members: Mapping[str, frozenset[Head]]

    @classmethod
    def from_role_table(cls, table: RoleTable) -> Families:
        """Returns the families of a table by its own definition."""
        definition = Definition.parse(table.definition)
        tested: dict[str, set[Head]] = {}
        members: dict[str, set[Head]] = {}
        for row in table.rows:
            family = definition.family_of(row.role)
            if family is not None:
                tested.setdefault(family, set()).add(row.head)
                members.setdefault(family, set()).update([row.head] if row.has_role else [])
        names = [family for family in definition.info.families if family in tested]
        tested_heads, member_heads = ({name: frozenset(heads[name]) for name in names} for heads in (tested, members))
        return cls(table.heads, tested_heads, member_heads)

    def count_families_of(self, head: Head) -> int:
        """Returns how many families a head belongs to."""
        return sum(head in members for members in self.members.values())


def open_study_corpus(context: StudyContext, loaded: LoadedModel, task: Task | None, max_sentences: int | None) -> Corpus:
    """Returns the text of the caller or of the task, at most so many sentences of it.

    Raises:
        DataError: there is no text to measure roles on.
    """
    corpus = context.sources.open_corpus(loaded, task)
    if corpus is None:
        raise DataError("roles are measured on a text; name one, or a task with texts")
    return sample_sentences(corpus, max_sentences)


def sample_sentences(corpus: Corpus, max_sentences: int | None) -> Corpus:
    """Returns `max_sentences` sentences of a corpus, drawn by a hash of their tokens, in their order; all of them for None, and all images."""
    if max_sentences is None or len(corpus.sentences) <= max_sentences:
        return corpus
    order = sorted(range(len(corpus.sentences)), key=lambda index: hashlib.sha256(repr(corpus.sentences[index].ids).encode()).hexdigest())
    chosen = sorted(order[:max_sentences])
    sides = {name: tuple(getattr(corpus, name)[index] for index in chosen) for name in ("sentences", "targets") if getattr(corpus, name)}
    return replace(corpus, **sides)


def pair_consecutive_sentences(corpus: Corpus, loaded: LoadedModel, tokenizer: Any) -> Corpus | None:
    """Returns every two consecutive sentences of a corpus as a pair of texts; None if the tokenizer makes no pairs of them."""
    texts = [sentence.annotated for sentence in corpus.sentences]
    if corpus.targets or len(texts) < 2 or not all(text.words for text in texts):
        return None
    try:
        pairs = read_corpus(loaded.model, [join_pair(a, b) for a, b in zip(texts[::2], texts[1::2], strict=False)], tokenizer)
    except DataError:
        return None
    return pairs if pairs.has_two_text_sentences else None


class TextPairs(NamedTuple):
    """Pairs of texts, None if there are none, and where they are from."""

    origin: str
    pairs: Corpus | None


def _open_text_pairs_for_block_heads(context: StudyContext, task: Task | None, corpus: Corpus, max_sentences: int | None) -> TextPairs:
    """Returns pairs of texts for block heads, and where they are from: the texts of the task, or else consecutive sentences of the text."""
    tokenizer = context.sources.find_processor(context.loaded)
    if task is not None and context.sources.text_fingerprint:
        own = read_corpus(context.loaded.model, task, tokenizer, limit=context.limit)
        if own.has_two_text_sentences:
            return TextPairs(f"the texts of task {task.name}", sample_sentences(own, max_sentences))
    return TextPairs("pairs of consecutive sentences of the text", pair_consecutive_sentences(corpus, context.loaded, tokenizer))


def measure_role_table(context: StudyContext, study_name: str, definition: str, max_sentences: int | None = None) -> RoleTable:
    """Returns the roles of the model of a study on its text, with labels by a definition. Only roles of its families are tested.

    Where the text has no pairs, block heads are tested on those of the task or on consecutive sentences; `conditions` say on which.

    Raises:
        DataError: there is no text to measure roles on.
    """
    rule, loaded = Definition.parse(definition), context.loaded
    describe_study_run(context, loaded, {"study": study_name, "definition": definition, "limit": context.limit})
    task = context.task if context.sources.task_name else None
    corpus = open_study_corpus(context, loaded, task, max_sentences)
    table = _measure_or_read_role_table(context, loaded, corpus, _role_names_of_families(rule))
    has_blocks = "segment" in _role_names_of_families(rule)
    if has_blocks and not corpus.has_two_text_sentences and not corpus.grid:
        origin, pairs = _open_text_pairs_for_block_heads(context, task, corpus, max_sentences)
        if pairs is not None:
            blocks = _measure_or_read_role_table(context, loaded, pairs, BLOCK_ROLES)
            untested = {role: reason for role, reason in table.untested.items() if role not in BLOCK_ROLES}
            conditions = {**table.conditions, PAIRS: f"{origin} ({len(pairs.sentences)})"}
            table = replace(table, rows=(*table.rows, *blocks.rows), untested=untested, conditions=conditions)
    return table.relabel(rule)


def describe_tested_sentences(table: RoleTable) -> str:
    """Returns on how many sentences the roles of a table were tested, and where the pairs of block heads are from."""
    pairs = f"; block heads on {table.conditions[PAIRS]}" if PAIRS in table.conditions else ""
    return f"Roles by {table.definition} on {table.conditions.get('n_examples', 'an unknown number of')} sentences{pairs}."


def measure_role_tables_by_task(
    context: StudyContext, tasks: Sequence[str], definition: str, max_sentences: int | None = None
) -> dict[str, RoleTable]:
    """Returns the roles on the texts of further tasks, by task; `TASK=MODEL` names the model that was fine-tuned on it."""
    tables, rule = {}, Definition.parse(definition)
    for text in tasks:
        name, _, model = text.partition("=")
        loaded = context.sources.load_model(model, class_from_config=True) if model else context.loaded
        task = context.sources.open_task(loaded, name)
        corpus = sample_sentences(
            read_corpus(loaded.model, task, context.sources.find_processor(loaded), limit=context.limit), max_sentences
        )
        tables[text] = _measure_or_read_role_table(context, loaded, corpus, _role_names_of_families(rule), keep_in_run=not model).relabel(
            rule
        )
    return tables


def _role_names_of_families(definition: Definition) -> tuple[str, ...]:
    """Returns the names of the roles of all families, block heads in both forms."""
    names = definition.roles_of_families
    return (*names, "segment:entropy") if "segment" in names else names


def _measure_or_read_role_table(
    context: StudyContext, loaded: LoadedModel, corpus: Corpus, role_names: Sequence[str], *, keep_in_run: bool = True
) -> RoleTable:
    """Returns the test of some roles, kept in the run unless the model is another than that of the run."""
    spec = RoleSpec(parse_roles(role_names), batch_size=context.batch_size, seed=context.seed, swaps=0)
    with context.progress("testing roles") as advance:
        return roles_into(context.run if keep_in_run else None, loaded.model, corpus, spec, progress=advance)
