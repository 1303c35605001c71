"""The typical head of every family of roles, and its attention on an example sentence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headcount.behaviour.base import Corpus, Role
from headcount.behaviour.profiles.sentence import token_texts
from headcount.behaviour.views import ViewName, build_view, corpus_examples, view_name
from headcount.core.definition import Definition
from headcount.core.errors import DataError
from headcount.core.role_table import RoleScore, RoleTable
from headcount.models.modules import decoder_start_id
from headcount.models.observe import observe
from headcount.studies._base import StudyContext
from headcount.studies._measure.role_tables import measure_role_table, open_study_corpus

if TYPE_CHECKING:
    from headcount.studies.attention_maps import AttentionMaps


@dataclass(frozen=True, slots=True)
class TypicalHead:
    """The most typical head of a family, with its attention on one sentence, a row for every query.

    `accuracy` is the share of `n_tokens` tokens of all sentences whose strongest key the role asks for, `chance` that of a random key; `role_keys`
    marks the keys of every query that the role asks for.
    """

    family: str
    head: str
    role: str
    has_role: bool
    accuracy: float
    chance: float
    n_tokens: int
    sentence: str
    queries: tuple[str, ...]
    keys: tuple[str, ...]
    attention: tuple[tuple[float, ...], ...]
    role_keys: tuple[tuple[bool, ...], ...]


def measure_typical_heads(study: AttentionMaps, context: StudyContext) -> tuple[RoleTable, list[TypicalHead]]:
    """Returns the roles of the model of a study, and the typical head of every family that the text can show.

    Raises:
        DataError: there is no text, it is of images, or no sentence of it has a length that can be shown.
    """
    table = measure_role_table(context, study.name, study.definition, study.sentences)
    corpus = open_study_corpus(context, context.loaded, context.task if context.sources.task_name else None, study.sentences)
    if corpus.grid:
        raise DataError("attention maps are drawn on sentences, and this model reads images")
    numbers = list_sentence_indices_of_length(corpus, study.min_tokens, study.max_tokens)
    return table, [
        _observe_typical_head(context, corpus, numbers, row, family) for family, row in choose_typical_row_by_family(table).items()
    ]


def choose_typical_row_by_family(table: RoleTable) -> dict[str, RoleScore]:
    """Returns for every family the row with the largest lead of the accuracy over chance, rows that have the role first."""
    definition = Definition.parse(table.definition)
    rows: dict[str, RoleScore] = {}
    for family in definition.info.families:
        of_family = [row for row in table.rows if definition.family_of(row.role) == family]
        if of_family:
            rows[family] = max(of_family, key=lambda row: (row.has_role, row.accuracy - row.chance, str(row.head)))
    return rows


def list_sentence_indices_of_length(corpus: Corpus, min_tokens: int, max_tokens: int) -> list[int]:
    """Returns the numbers of the sentences of a length that can be shown.

    Raises:
        DataError: no sentence has such a length.
    """
    lengths = [
        max(len(sentence.ids), len(corpus.targets[number].ids) + 1 if corpus.targets else 0)
        for number, sentence in enumerate(corpus.sentences)
    ]
    fitting = [number for number, length in enumerate(lengths) if min_tokens <= length <= max_tokens]
    if not fitting:
        raise DataError(
            f"no sentence has {min_tokens} to {max_tokens} tokens; the text has {min(lengths)} to {max(lengths)}: name other bounds of the example"
        )
    return fitting


def _observe_typical_head(
    context: StudyContext, corpus: Corpus, sentence_indices: Sequence[int], row: RoleScore, family: str
) -> TypicalHead:
    """Returns the head of a row on the first of the sentences with most tokens that can show its role."""
    loaded, role = context.loaded, Role.parse(row.role)
    block = next(block for block in loaded.heads.blocks if row.head in block.heads)
    view = view_name(loaded.model, block)
    tokens = {index: _read_query_and_key_texts(context, corpus, index, view) for index in sentence_indices}
    sieves = {
        index: role.sieve(build_view(corpus, view, [index], (len(queries), len(keys))))[0] for index, (queries, keys) in tokens.items()
    }
    index = max(sentence_indices, key=lambda index: (int(sieves[index].any(-1).sum()), -index))
    examples = corpus_examples(loaded.model, corpus)
    batch = examples.collate([examples.examples[index]])
    ((observation, *_),) = observe(loaded.model, [batch], blocks=[block], outputs=False)
    assert observation.attention is not None
    weights = observation.attention[0, block.heads.index(row.head)].float().cpu()
    queries, keys = tokens[index]
    attention = tuple(tuple(float(weight) for weight in weights[i, : len(keys)]) for i in range(len(queries)))
    sentence, role_keys = corpus.sentences[index].annotated.text, tuple(tuple(map(bool, keys)) for keys in sieves[index].tolist())
    return TypicalHead(
        family, str(row.head), row.role, row.has_role, row.accuracy, row.chance, row.n_tokens, sentence, queries, keys, attention, role_keys
    )


def _read_query_and_key_texts(
    context: StudyContext, corpus: Corpus, sentence_index: int, view: ViewName
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the tokens of queries and keys as people read them."""
    tokenizer = context.sources.find_processor(context.loaded)
    source = tuple(token_texts(corpus.sentences[sentence_index], tokenizer))
    if view == "source":
        return source, source
    target = tuple(token_texts(corpus.targets[sentence_index], tokenizer, start_token=decoder_start_id(context.loaded.model)))
    return target, source if view == "cross" else target
