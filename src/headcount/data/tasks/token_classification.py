from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from headcount.core.errors import DataError, unknown_name_error
from headcount.data.metrics import IGNORED, TOKEN_ACCURACY
from headcount.data.readers.conllu import FIELDS, read_sentence_lines
from headcount.data.readers.lines import read_lines, uncompressed_suffix
from headcount.data.readers.tables import ColumnGroup, ColumnLayout, Source, TableRow, read_rows
from headcount.data.task import SPLITS, Split, Task, Text, Texts
from headcount.data.task_builder import TaskBuilder, TaskInfo, TaskRequest
from headcount.data.tasks._labels import LabelledRows, to_class_numbers
from headcount.data.tasks._splits import for_each_split, read_splits
from headcount.data.tasks._tokenize import (
    Packed,
    check_head,
    check_tokenizer,
    check_tokens,
    make_task,
    max_example_tokens,
    truncation_arguments,
)

CONLL = (".conll", ".txt", ".tsv", ".bio", ".iob", ".conllu")
WordAndTag = tuple[str, str]


@dataclass(frozen=True)
class TokenClassification(TaskBuilder):
    """A class for every word: CoNLL files (word first, tag last, an empty line after a sentence), CoNLL-U, or tables with lists.

    Tables have columns `tokens` and `tags`. The first piece of a word carries its label, the others none. The metric is the accuracy over
    words.
    """

    info = TaskInfo(
        uses=("train", "eval", "text_column", "label_column", "max_length", "truncate"),
        model="AutoModelForTokenClassification",
        metric="accuracy over words",
    )

    def build(self, request: TaskRequest) -> Task:
        """Returns the task."""
        check_head(request, ("TokenClassification",), self.info.model)
        check_tokenizer(request)
        if not getattr(request.tokenizer, "is_fast", False):
            raise DataError(f"task '{request.name}' needs a fast tokenizer, which knows the word of each piece; load it by AutoTokenizer")
        labelled = LabelledRows(
            lambda source: _read_tagged_rows(request, source),
            lambda row: (
                row.values["tags"] if isinstance(row.values["tags"], list) else []
            ),  # what is no list is refused when the row is used
        )

        def read_rows_by_split() -> dict[Split, list[TableRow]]:
            return read_splits(request, labelled, lambda row: "\0".join(row.values["tokens"]).encode())

        def read_texts(split: Split) -> Iterator[Text]:
            return (Text(row.origin, " ".join(row.values["tokens"])) for row in read_rows_by_split()[split])

        rows = read_rows_by_split()
        for row in (row for split in SPLITS for row in rows[split]):
            _check_tagged_row(row)
        labelled.check_labels_vary()
        examples = for_each_split(lambda split: Packed(_examples(request, rows[split])))
        return make_task(request, examples, TOKEN_ACCURACY, Texts(read_texts, request.max_length, request.truncate))


def _read_tagged_rows(request: TaskRequest, source: Source) -> Iterator[TableRow]:
    if isinstance(source, tuple) and len(source) == 1 and uncompressed_suffix(source[0]) in CONLL:
        return (_read_conllu if uncompressed_suffix(source[0]) == ".conllu" else _read_conll)(request, source[0])
    words = ColumnGroup({"tokens": "text_column"}, (("tokens",), ("words",)))
    tags = ColumnGroup({"tags": "label_column"}, (("tags",), ("ner_tags",), ("labels",)))
    named = {"tokens": request.text_column, "tags": request.label_column}
    return read_rows(source, ColumnLayout((words, tags), {}, {role: name for role, name in named.items() if name}), request.max_rows)


def _read_conll(request: TaskRequest, path: Path) -> Iterator[TableRow]:
    """Yields a row for each sentence; its number is that of its first line."""
    sentence: list[WordAndTag] = []
    first = 0
    for number, pair in _read_word_lines(request, path):
        if pair is not None:
            first = first if sentence else number
            sentence.append(pair)
        elif sentence:
            yield TableRow({"tokens": [word for word, _ in sentence], "tags": [tag for _, tag in sentence]}, str(path), first)
            sentence = []
    if sentence:
        yield TableRow({"tokens": [word for word, _ in sentence], "tags": [tag for _, tag in sentence]}, str(path), first)


def _read_word_lines(request: TaskRequest, path: Path) -> Iterator[tuple[int, WordAndTag | None]]:
    """Yields (line, (word, tag)), separated by tabs or blanks; None in place of the pair at the end of a sentence."""
    if request.text_column or request.label_column:
        raise DataError(f"{path}: the columns of a CoNLL file have no names; the word is the first, the tag the last")
    width = 0
    for number, text in read_lines(path):
        cells = text.split("\t") if "\t" in text else text.split()
        if not cells or cells[0] == "-DOCSTART-":
            yield number, None
            continue
        width = width or len(cells)
        if len(cells) != width or width < 2:
            raise DataError(
                f"{path}, line {number} has {len(cells)} columns, but the first line with a word has {width}; it must be 2 or more"
            )
        yield number, (cells[0], cells[-1])


def _read_conllu(request: TaskRequest, path: Path) -> Iterator[TableRow]:
    """Yields a row for each sentence, of its words alone: neither multi-word tokens (1-2) nor empty nodes (1.1)."""
    word, tag = request.text_column or "form", request.label_column or "upos"
    for name in (word, tag):
        if name not in FIELDS:
            raise unknown_name_error("column of CoNLL-U", name, FIELDS)
    for _, sentence in read_sentence_lines(path):
        words = [line for line in sentence if line.cells[0].isdecimal()]
        columns = {role: [line.cells[FIELDS.index(name)] for line in words] for role, name in (("tokens", word), ("tags", tag))}
        if words:
            yield TableRow(columns, str(path), words[0].number)


def _check_tagged_row(row: TableRow) -> None:
    tokens, tags = row.values["tokens"], row.values["tags"]
    if not isinstance(tokens, list) or not isinstance(tags, list) or not all(isinstance(word, str) for word in tokens):
        raise DataError(f"{row.origin}: tokens must be a list of words, and tags a list of labels")
    if len(tokens) != len(tags):
        raise DataError(f"{row.origin} has {len(tokens)} words, but {len(tags)} labels")


def _examples(request: TaskRequest, rows: Sequence[TableRow]) -> Iterator[dict[str, list[int]]]:
    limit = max_example_tokens(request)
    labels = iter(
        to_class_numbers(request, [(f"{row.origin}, word {n}", tag) for row in rows for n, tag in enumerate(row.values["tags"], 1)])
    )
    for row in rows:
        try:
            encoded = request.tokenizer(
                row.values["tokens"], is_split_into_words=True, verbose=False, **truncation_arguments(request, limit)
            )
        except (AssertionError, ValueError) as error:
            raise DataError(f"{row.origin}: the tokenizer does not take words: {error}") from error
        check_tokens(request, encoded["input_ids"], row.origin, limit)
        token_labels = _label_first_pieces(encoded.word_ids(), list(islice(labels, len(row.values["tokens"]))))
        if all(label == IGNORED for label in token_labels):
            raise DataError(f"{row.origin}: no word of it got a token, so all labels would be ignored; remove it")
        yield {**{name: list(encoded[name]) for name in encoded if name != "attention_mask"}, "labels": token_labels}


def _label_first_pieces(word_of_token: Sequence[int | None], label_of_word: Sequence[int]) -> list[int]:
    """Returns the label of a word at its first piece, IGNORED elsewhere."""
    before = [None, *word_of_token[:-1]]
    return [IGNORED if word is None or word == last else label_of_word[word] for word, last in zip(word_of_token, before, strict=True)]
