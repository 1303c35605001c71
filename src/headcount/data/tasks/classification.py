from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from itertools import chain
from typing import Any, Literal

from headcount.core.errors import DataError
from headcount.core.options import option
from headcount.data.checks import config_of
from headcount.data.metrics import ACCURACY, Metric
from headcount.data.readers.tables import PAIRS, SINGLE, ColumnGroup, ColumnLayout, Source, TableRow, read_rows
from headcount.data.task import Split, Task, Text, Texts
from headcount.data.task_builder import TaskBuilder, TaskInfo, TaskRequest
from headcount.data.tasks._labels import LabelledRows, choose_metric, distinct_class_names, n_labels, to_class_numbers, to_regression_values
from headcount.data.tasks._splits import for_each_split, read_splits
from headcount.data.tasks._tokenize import Packed, check_head, check_tokenizer, encode, make_task, padding_token_id

LABEL = ColumnGroup({"label": "label_column"}, (("label",), ("labels",), ("score",)))


@dataclass(frozen=True)
class Classification(TaskBuilder):
    """Classes of texts or pairs of texts, or a number for each (regression), from tsv, csv, jsonl or parquet.

    Without a header the columns are text and label, or text, second text and label. The metric is accuracy; Pearson's correlation with
    num_labels=1.
    """

    _: KW_ONLY
    metric: Literal["auto", "accuracy", "f1", "matthews", "pearson"] = option(
        "auto", "The metric; auto is that of the task, or Pearson's correlation for regression"
    )
    info = TaskInfo(
        uses=("train", "eval", "text_column", "text_pair_column", "label_column", "document_column", "max_length", "truncate"),
        model="AutoModelForSequenceClassification",
        metric="accuracy, F1, Matthews correlation; Pearson correlation for regression",
    )

    def build(self, request: TaskRequest) -> Task:
        """Returns the task."""
        self.check_model(request)
        request, layout = self.resolve_data_and_columns(request)
        return self.build_from_rows(request, lambda source: read_rows(source, layout, request.max_rows), self.default_metric)

    @property
    def default_metric(self) -> Metric:
        """The metric where the caller chooses none."""
        return ACCURACY

    def resolve_data_and_columns(self, request: TaskRequest) -> tuple[TaskRequest, ColumnLayout]:
        """Returns the request with its sources, and how their columns are found."""
        return request, text_and_label_layout(request)

    def read_classes(self, request: TaskRequest) -> tuple[str, ...]:
        """Returns the names of all labels in the data: in the order of their numbers where these are known, else sorted."""
        request, layout = self.resolve_data_and_columns(replace(request, limit=None))
        rows = chain.from_iterable(read_rows(source, layout, None) for source in (request.train, request.eval) if source is not None)
        return distinct_class_names(request, (row.values["label"] for row in rows))

    def check_model(self, request: TaskRequest) -> None:
        """Raises DataError for another head, another tokenizer, or a decoder without padding token, after which it would classify."""
        check_head(request, ("SequenceClassification",), self.info.model)
        check_tokenizer(request)
        config = config_of(request.model)
        if getattr(config, "pad_token_id", None) is None and not hasattr(config, "type_vocab_size"):
            raise DataError(
                "the configuration has no pad_token_id, so that a batch cannot be padded; "
                f"set model.config.pad_token_id = {padding_token_id(request)}"
            )

    def build_from_rows(
        self, request: TaskRequest, read_rows: Callable[[Source], Iterable[TableRow]], default_metric: Metric = ACCURACY
    ) -> Task:
        """Returns the task of rows that hold text, label and perhaps text_pair; they are read again for the texts."""
        labelled = LabelledRows(read_rows, lambda row: [row.values["label"]])

        def read_rows_by_split() -> dict[Split, list[TableRow]]:
            return read_splits(request, labelled, _split_key)

        metric, rows = choose_metric(request, self.metric, default_metric), read_rows_by_split()
        to_values = to_regression_values if n_labels(request) == 1 else partial(to_class_numbers, request)
        labels = for_each_split(lambda split: to_values([(row.origin, row.values["label"]) for row in rows[split]]))
        labelled.check_labels_vary()
        examples = for_each_split(lambda split: Packed(_yield_model_inputs(request, rows[split], labels[split])))
        texts = Texts(lambda split: map(_text_of_row, read_rows_by_split()[split]), request.max_length, request.truncate)
        documents = for_each_split(lambda split: [str(row.values["document"]) for row in rows[split]]) if request.document_column else {}
        return replace(make_task(request, examples, metric, texts), documents=documents)


def text_and_label_layout(request: TaskRequest, usual_names: Sequence[tuple[str, ...]] = (*PAIRS, *SINGLE)) -> ColumnLayout:
    """Returns how the columns of texts and label are found."""
    names = {"text": request.text_column, "text_pair": request.text_pair_column, "label": request.label_column}
    if names["text_pair"] and not names["text"]:
        raise DataError(f"text_pair_column is '{names['text_pair']}', but text_column is not given; name both")
    texts = ColumnGroup({"text": "text_column", "text_pair": "text_pair_column"}, usual_names)
    roles = {2: ("text", "label"), 3: ("text", "text_pair", "label")}
    names["document"] = request.document_column
    groups = (texts, LABEL, *([ColumnGroup({"document": "document_column"}, ())] if request.document_column else []))
    return ColumnLayout(groups, roles, {role: name for role, name in names.items() if name})


def _split_key(row: TableRow) -> bytes:
    """Returns what decides the split of an example: its document, which no split divides, else its texts, so that equal examples share one."""
    if "document" in row.values:
        return str(row.values["document"]).encode()
    return "\0".join(str(value) for role, value in row.values.items() if role != "label").encode()


def _text_of_row(row: TableRow) -> Text:
    return Text(row.origin, row.text("text"), row.text("text_pair") if "text_pair" in row.values else None)


def _yield_model_inputs(request: TaskRequest, rows: Sequence[TableRow], labels: Sequence[float]) -> Iterator[dict[str, Any]]:
    texts = [_text_of_row(row) for row in rows]
    inputs = [(text.origin, text.text if text.pair is None else (text.text, text.pair)) for text in texts]
    for example, label in zip(encode(request, inputs), labels, strict=True):
        yield {**example, "labels": label}
