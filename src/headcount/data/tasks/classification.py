"""Classes of texts or pairs of texts, or a number for each (regression), from tsv, csv, jsonl or parquet.

Without a header the columns are text and label, or text, second text and label. The metric is accuracy; Pearson's correlation with num_labels=1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from headcount.core.errors import DataError
from headcount.data.checks import config_of
from headcount.data.metrics import ACCURACY, Metric
from headcount.data.open_task import Request
from headcount.data.readers.tables import PAIRS, SINGLE, Group, Layout, Row, Source, read
from headcount.data.task import Split, Task, Text
from headcount.data.tasks._labels import LabelledRows, metric_of, n_labels, to_classes, to_numbers
from headcount.data.tasks._splits import divide, each
from headcount.data.tasks._tokenize import Packed, check_head, check_tokenizer, encode, make_task, pad_id, texts_of

USES = ("train", "eval", "text_column", "text_pair_column", "label_column", "max_length", "truncate", "metric")
LABEL = Group({"label": "label_column"}, (("label",), ("labels",), ("score",)))


def layout(request: Request, usual: Sequence[tuple[str, ...]] = (*PAIRS, *SINGLE)) -> Layout:
    """Where the texts and the label are."""
    given = {"text": request.text_column, "text_pair": request.text_pair_column, "label": request.label_column}
    if given["text_pair"] and not given["text"]:
        raise DataError(f"text_pair_column is '{given['text_pair']}', but text_column is not given; name both")
    texts = Group({"text": "text_column", "text_pair": "text_pair_column"}, usual)
    places = {2: ("text", "label"), 3: ("text", "text_pair", "label")}
    return Layout((texts, LABEL), places, {role: name for role, name in given.items() if name})


def build(request: Request) -> Task:
    """The task."""
    check_model(request)
    return from_rows(request, lambda source: read(source, layout(request), request.most_rows))


def key(row: Row) -> bytes:
    """What makes an example itself: its texts."""
    return "\0".join(str(value) for role, value in row.values.items() if role != "label").encode()


def from_rows(request: Request, rows_of: Callable[[Source], Iterable[Row]], metric: Metric = ACCURACY) -> Task:
    """The task of rows that hold text, maybe text_pair, and label; they are divided anew for who asks for the texts."""
    labelled = LabelledRows(rows_of, lambda row: [row.values["label"]])

    def divided() -> dict[Split, list[Row]]:
        return divide(request, labelled, key)

    chosen, rows = metric_of(request, metric), divided()
    labels = each(lambda split: _labels(request, rows[split]))
    labelled.check_several()
    made = each(lambda split: Packed(_examples(request, rows[split], labels[split])))
    return make_task(request, made, chosen, texts_of(request, lambda split: map(_text, divided()[split])))


def _text(row: Row) -> Text:
    return Text(row.where, row.text("text"), row.text("text_pair") if "text_pair" in row.values else None)


def _labels(request: Request, rows: Sequence[Row]) -> Sequence[float]:
    labels = [(row.where, row.values["label"]) for row in rows]
    return to_numbers(request, labels) if n_labels(request) == 1 else to_classes(request, labels)


def check_model(request: Request) -> None:
    """Raises DataError for another head, another tokenizer, or a decoder that cannot tell padding, before which it classifies."""
    check_head(request, ("SequenceClassification",), "AutoModelForSequenceClassification")
    check_tokenizer(request)
    config = config_of(request.model)
    if getattr(config, "pad_token_id", None) is None and not hasattr(config, "type_vocab_size"):
        raise DataError(
            f"the configuration has no pad_token_id, so that a batch cannot be padded; set model.config.pad_token_id = {pad_id(request)}"
        )


def _examples(request: Request, rows: Sequence[Row], labels: Sequence[float]) -> Iterator[dict[str, Any]]:
    said = [_text(row) for row in rows]
    texts = [(one.where, one.text if one.pair is None else (one.text, one.pair)) for one in said]
    for example, label in zip(encode(request, texts), labels, strict=True):
        yield {**example, "labels": label}
