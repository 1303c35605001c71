"""A class for every word: CoNLL files (word first, tag last, an empty line after a sentence), CoNLL-U, or tables with lists `tokens` and `tags`.

The first piece of a word carries its label, the others none. The metric is the accuracy over words.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from headcount.core.errors import DataError, unknown
from headcount.data.metrics import IGNORED, TOKEN_ACCURACY
from headcount.data.open_task import Request
from headcount.data.readers.conll import FIELDS, sentences
from headcount.data.readers.lines import kind_of, lines
from headcount.data.readers.tables import Group, Layout, Row, Source, read
from headcount.data.task import SPLITS, Split, Task, Text
from headcount.data.tasks._labels import LabelledRows, to_classes
from headcount.data.tasks._splits import divide, each
from headcount.data.tasks._tokenize import Packed, check_head, check_tokenizer, check_tokens, longest, make_task, texts_of

USES = ("train", "eval", "text_column", "label_column", "max_length", "truncate")
CONLL = (".conll", ".txt", ".tsv", ".bio", ".iob", ".conllu")


def build(request: Request) -> Task:
    """The task."""
    check_head(request, ("TokenClassification",), "AutoModelForTokenClassification")
    check_tokenizer(request)
    if not getattr(request.tokenizer, "is_fast", False):
        raise DataError(f"task '{request.name}' needs a fast tokenizer, which knows the word of each piece; load it by AutoTokenizer")

    labelled = LabelledRows(lambda source: _read(request, source), _tags)

    def divided() -> dict[Split, list[Row]]:
        return divide(request, labelled, lambda row: "\0".join(row.values["tokens"]).encode())

    rows = divided()
    for row in (row for split in SPLITS for row in rows[split]):
        _check(row)
    labelled.check_several()
    made = each(lambda split: Packed(_examples(request, rows[split])))
    texts = texts_of(request, lambda split: (Text(row.where, " ".join(row.values["tokens"])) for row in divided()[split]))
    return make_task(request, made, TOKEN_ACCURACY, texts)


def _read(request: Request, source: Source) -> Iterator[Row]:
    if isinstance(source, tuple) and len(source) == 1 and kind_of(source[0]) in CONLL:
        return (_of_conllu if kind_of(source[0]) == ".conllu" else _of_conll)(request, source[0])
    words = Group({"tokens": "text_column"}, (("tokens",), ("words",)))
    tags = Group({"tags": "label_column"}, (("tags",), ("ner_tags",), ("labels",)))
    named = {"tokens": request.text_column, "tags": request.label_column}
    return read(source, Layout((words, tags), {}, {role: name for role, name in named.items() if name}), request.most_rows)


def _of_conll(request: Request, path: Path) -> Iterator[Row]:
    """One row for each sentence; its number is that of its first line."""
    sentence: list[tuple[str, str]] = []
    first = 0
    for number, pair in _words(request, path):
        if pair is not None:
            first = first if sentence else number
            sentence.append(pair)
        elif sentence:
            yield Row({"tokens": [word for word, _ in sentence], "tags": [tag for _, tag in sentence]}, str(path), first)
            sentence = []
    if sentence:
        yield Row({"tokens": [word for word, _ in sentence], "tags": [tag for _, tag in sentence]}, str(path), first)


def _words(request: Request, path: Path) -> Iterator[tuple[int, tuple[str, str] | None]]:
    """(line, (word, tag)) by tabs or blanks, and None at the end of a sentence."""
    if request.text_column or request.label_column:
        raise DataError(f"{path}: the columns of a CoNLL file have no names; the word is the first, the tag the last")
    width = 0
    for number, text in lines(path):
        cells = text.split("\t") if "\t" in text else text.split()
        if not cells or cells[0] == "-DOCSTART-":
            yield number, None
            continue
        width = width or len(cells)
        if len(cells) != width or width < 2:
            raise DataError(
                f"{path}, line {number} has {len(cells)} columns, but the first line with a word has {width}; 2 or more are wanted"
            )
        yield number, (cells[0], cells[-1])


def _of_conllu(request: Request, path: Path) -> Iterator[Row]:
    """One row for each sentence, of its words alone: neither multi-word tokens (1-2) nor empty nodes (1.1)."""
    word, tag = request.text_column or "form", request.label_column or "upos"
    for name in (word, tag):
        if name not in FIELDS:
            raise unknown("column of CoNLL-U", name, FIELDS)
    for _, found in sentences(path):
        words = [line for line in found if line.cells[0].isdecimal()]
        columns = {role: [line.cells[FIELDS.index(name)] for line in words] for role, name in (("tokens", word), ("tags", tag))}
        if words:
            yield Row(columns, str(path), words[0].number)


def _check(row: Row) -> None:
    tokens, tags = row.values["tokens"], row.values["tags"]
    if not isinstance(tokens, list) or not isinstance(tags, list) or not all(isinstance(word, str) for word in tokens):
        raise DataError(f"{row.where}: tokens must be a list of words, and tags a list of labels")
    if len(tokens) != len(tags):
        raise DataError(f"{row.where} has {len(tokens)} words, but {len(tags)} labels")


def _tags(row: Row) -> list[Any]:
    """The tags of a row, none where they are no list: what is wrong with a row is told when it is used."""
    return row.values["tags"] if isinstance(row.values["tags"], list) else []


def _examples(request: Request, rows: Sequence[Row]) -> Iterator[dict[str, list[int]]]:
    limit = longest(request)
    labels = iter(to_classes(request, [(f"{row.where}, word {n}", tag) for row in rows for n, tag in enumerate(row.values["tags"], 1)]))
    for row in rows:
        made = _encode(request, row, limit)
        check_tokens(request, made["input_ids"], row.where, limit)
        aligned = _aligned(made.word_ids(), list(islice(labels, len(row.values["tokens"]))))
        if all(label == IGNORED for label in aligned):
            raise DataError(f"{row.where}: no word of it got a token, so all labels would be ignored; remove it")
        yield {**{name: list(made[name]) for name in made if name != "attention_mask"}, "labels": aligned}


def _encode(request: Request, row: Row, limit: int | None) -> Any:
    cut: dict[str, Any] = {"truncation": True, "max_length": limit} if request.truncate and limit else {"truncation": False}
    try:
        return request.tokenizer(row.values["tokens"], is_split_into_words=True, verbose=False, **cut)
    except (AssertionError, ValueError) as error:
        raise DataError(f"{row.where}: the tokenizer does not take words: {error}") from error


def _aligned(words: Sequence[int | None], labels: Sequence[int]) -> list[int]:
    """The label of a word at its first piece, IGNORED elsewhere."""
    before = [None, *words[:-1]]
    return [IGNORED if word is None or word == last else labels[word] for word, last in zip(words, before, strict=True)]
