from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, asdict, dataclass
from typing import TYPE_CHECKING

from headcount.core.figure import Axis, HeatMap
from headcount.core.options import option
from headcount.core.study_result import Column, StudyResult, Table
from headcount.studies import _measure
from headcount.studies._base import Effort, Study, StudyContext, StudyInfo

if TYPE_CHECKING:
    from headcount.studies._measure.attention_maps import TypicalHead


@dataclass(frozen=True)
class AttentionMaps(Study):
    """What does a typical head of each family look at? Its attention on an example sentence, one map for every family of roles.

    Voita et al. 2019 (Fig. 5). The typical head is the one of the family whose strongest key is right most often above chance; where no head has a
    role of the family, the nearest one is shown, and the figure says so. The sentence is the one of those that fit in which most tokens can show
    the role; dots mark the keys that it asks for.
    """

    _: KW_ONLY
    definition: str = option("voita2019", "When a head has a role, of `headcount ls definitions`")
    sentences: int | None = option(None, "How many sentences are read at most, drawn by a hash of their tokens", minimum=2)
    min_tokens: int = option(6, "The fewest tokens of an example sentence", minimum=1)
    max_tokens: int = option(16, "The most tokens of an example sentence", minimum=2)
    info = StudyInfo(paper="Voita et al. 2019, Fig. 5", needs=frozenset({"model", "text"}), optional=frozenset({"task"}))

    def effort(self, context: StudyContext) -> Effort:
        """Returns a pass over the text."""
        return Effort(passes=self.sentences or context.limit or 500)

    def measure(self, context: StudyContext) -> StudyResult:
        """Returns the attention map of a typical head of every family."""
        table, heads = _measure.attention_maps.measure_typical_heads(self, context)
        return StudyResult(
            study=str(self),
            tables=(_typical_head_table(heads), _attention_weight_table(heads)),
            sentence=_summary_sentence(heads),
            notes=(
                _measure.role_tables.describe_tested_sentences(table),
                "One sentence is an example, and no evidence: the accuracy is that over all sentences.",
            ),
            figures=tuple(map(_attention_map_figure, heads)),
            measurements={"model": context.model_name, "definition": table.definition, "rows": [asdict(head) for head in heads]},
        )


def _typical_head_table(heads: Sequence[TypicalHead]) -> Table:
    columns = (
        Column("family"),
        Column("head"),
        Column("role"),
        Column("has the role"),
        Column("accuracy", format=".3f"),
        Column("of a random key", format=".3f"),
        Column("tokens"),
        Column("sentence"),
    )
    cells = tuple(
        (head.family, head.head, head.role, head.has_role, head.accuracy, head.chance, head.n_tokens, head.sentence) for head in heads
    )
    return Table("heads", columns, cells, "A typical head of each family: accuracy of its strongest key over all sentences")


def _attention_weight_table(heads: Sequence[TypicalHead]) -> Table:
    columns = (
        Column("family"),
        Column("head"),
        Column("query"),
        Column("key"),
        Column("from"),
        Column("to"),
        Column("attention", format=".4f"),
        Column("of the role"),
    )
    cells = []
    for head in heads:
        for i, weights in enumerate(head.attention):
            for j, weight in enumerate(weights):
                cells.append((head.family, head.head, i, j, head.queries[i], head.keys[j], weight, head.role_keys[i][j]))
    return Table("attention", columns, tuple(cells), "Attention of every query of the example to every key", is_printed=False)


def _attention_map_figure(head: TypicalHead) -> HeatMap:
    label = "" if head.has_role else ", the nearest head, which does not have the role"
    return HeatMap(
        name=f"{head.family.replace(' ', '-')}",
        title=f"{head.family}: attention of {head.head} ({head.role}{label})",
        x=Axis("key"),
        y=Axis("query"),
        table="attention",
        n=1,
        n_unit="sentence",
        rows=head.queries,
        columns=head.keys,
        values=head.attention,
        value=Axis("attention"),
        marks=head.role_keys,
        mark_label="key that the role asks for",
    )


def _summary_sentence(heads: Sequence[TypicalHead]) -> str:
    texts = [f"{head.family} {head.head} ({head.role}, {head.accuracy:.0%} of tokens)" for head in heads]
    return f"Typical heads: {', '.join(texts)}." if texts else "No role of the definition could be tested on this text."
