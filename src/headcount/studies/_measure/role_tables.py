"""The role tables that studies of roles read: measured once into the run, with labels by any definition; and the heads of every family."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from headcount.behaviour.base import Corpus
from headcount.behaviour.corpus import read_corpus
from headcount.behaviour.spec import RoleSpec, parse_roles
from headcount.core.definition import Definition
from headcount.core.errors import DataError
from headcount.core.heads import Head
from headcount.core.role_table import RoleTable
from headcount.studies._base import LoadedModel, StudyContext
from headcount.studies._results import describe_run
from headcount.workflows.roles import roles_into

BLOCK_ROLES = ("segment", "segment:entropy")
"""The two forms of block heads, which only pairs of texts show."""


@dataclass(frozen=True, slots=True)
class Families:
    """The heads that were tested for every family of a definition, and those that have one of its roles. Families without a test are left out."""

    heads: tuple[Head, ...]
    tested: Mapping[str, frozenset[Head]]
    members: Mapping[str, frozenset[Head]]

    @classmethod
    def of(cls, table: RoleTable) -> Families:
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

    def count(self, head: Head) -> int:
        """Returns how many families a head belongs to."""
        return sum(head in members for members in self.members.values())


def measure_table(context: StudyContext, study: str, definition: str) -> RoleTable:
    """Returns the roles of the model of a study on its text, with labels by a definition. Only roles of its families are tested.

    Block heads are tested on the texts of the task where the named text has no pairs.

    Raises:
        DataError: there is no text to measure roles on.
    """
    loaded = context.loaded
    describe_run(context, loaded, {"study": study, "definition": definition, "limit": context.limit})
    task = context.task if context.sources.task_name else None
    corpus = context.sources.open_corpus(loaded, task)
    if corpus is None:
        raise DataError("roles are measured on a text; name one, or a task with texts")
    rule = Definition.parse(definition)
    table = _test_roles(context, loaded, corpus, _role_names(rule))
    has_blocks = "segment" in _role_names(rule)
    if task is not None and has_blocks and not corpus.has_pairs and not corpus.grid:
        pairs = read_corpus(loaded.model, task, context.sources.read_tokenizer(loaded), limit=context.limit)
        if pairs.has_pairs:
            blocks = _test_roles(context, loaded, pairs, BLOCK_ROLES)
            untested = {role: reason for role, reason in table.untested.items() if role not in BLOCK_ROLES}
            table = replace(table, rows=(*table.rows, *blocks.rows), untested=untested)
    return table.relabel(rule)


def measure_further_tables(context: StudyContext, tasks: Sequence[str], definition: str) -> dict[str, RoleTable]:
    """Returns the roles on the texts of further tasks, by task; `TASK=MODEL` names the model that was fine-tuned on it."""
    tables, rule = {}, Definition.parse(definition)
    for text in tasks:
        name, _, model = text.partition("=")
        loaded = context.sources.load_model(model, as_configured=True) if model else context.loaded
        task = context.sources.open_task(loaded, name)
        corpus = read_corpus(loaded.model, task, context.sources.read_tokenizer(loaded), limit=context.limit)
        tables[text] = _test_roles(context, loaded, corpus, _role_names(rule), is_of_run=not model).relabel(rule)
    return tables


def _role_names(definition: Definition) -> tuple[str, ...]:
    """Returns the names of the roles of all families, block heads in both forms."""
    names = [name for family in definition.info.families.values() for name in family]
    return (*names, "segment:entropy") if "segment" in names else tuple(names)


def _test_roles(context: StudyContext, loaded: LoadedModel, corpus: Corpus, names: Sequence[str], *, is_of_run: bool = True) -> RoleTable:
    """Returns the test of some roles, kept in the run unless the model is another than that of the run."""
    spec = RoleSpec(parse_roles(names), batch_size=context.batch_size, seed=context.seed)
    with context.progress("testing roles") as advance:
        return roles_into(context.run if is_of_run else None, loaded.model, corpus, spec, progress=advance)
