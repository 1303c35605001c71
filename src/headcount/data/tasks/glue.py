from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from headcount.core.errors import DataError
from headcount.core.options import option
from headcount.data.metrics import ACCURACY, F1, MATTHEWS, PEARSON, Metric
from headcount.data.readers.tables import ColumnLayout
from headcount.data.task_builder import TaskRequest
from headcount.data.tasks.classification import Classification, text_and_label_layout

HUB = "nyu-mll/glue"


@dataclass(frozen=True, slots=True)
class GlueData:
    """The columns with text, the metric, and the validation set of one GLUE task."""

    columns: tuple[str, ...]
    metric: Metric = ACCURACY
    validation: str = "validation"
    config: str | None = None


_SENTENCES = ("sentence1", "sentence2")
GLUE = {
    "cola": GlueData(("sentence",), MATTHEWS),
    "mnli": GlueData(("premise", "hypothesis"), validation="validation_matched"),
    "mnli-mismatched": GlueData(("premise", "hypothesis"), validation="validation_mismatched", config="mnli"),
    "mrpc": GlueData(_SENTENCES, F1),
    "qnli": GlueData(("question", "sentence")),
    "qqp": GlueData(("question1", "question2"), F1),
    "rte": GlueData(_SENTENCES),
    "sst2": GlueData(("sentence",)),
    "stsb": GlueData(_SENTENCES, PEARSON),
    "wnli": GlueData(_SENTENCES),
}


@dataclass(frozen=True)
class Glue(Classification):
    """The GLUE tasks, from the hub or from local files, each with its columns and its metric.

    Calibration comes from the training set, selection and report from the two halves of the validation set (MNLI: the matched one).
    """

    variant: Literal["cola", "mnli", "mnli-mismatched", "mrpc", "qnli", "qqp", "rte", "sst2", "stsb", "wnli"] = option(
        help="Which of the tasks"
    )
    info = Classification.info

    @property
    def default_metric(self) -> Metric:
        """The metric of the task in GLUE."""
        return GLUE[self.variant].metric

    def resolve_data_and_columns(self, request: TaskRequest) -> tuple[TaskRequest, ColumnLayout]:
        """Returns the request with the data of the hub, unless it names files, and the columns of the task."""
        glue = GLUE[self.variant]
        if request.train is None and request.eval is None:
            train, held_out = (_load_hub_split(self.variant, split) for split in ("train", glue.validation))
            request = replace(request, train=train, eval=held_out)
        return request, text_and_label_layout(request, (glue.columns, ("text", "text_pair")[: len(glue.columns)]))


def _load_hub_split(variant: str, split: str) -> Any:
    import datasets

    config = GLUE[variant].config or variant
    try:
        return datasets.load_dataset(HUB, config, split=split)
    except Exception as error:  # hub, network and cache fail in many ways, none of them ours
        reason = " ".join(str(error).split())[:200]
        raise DataError(
            f"{HUB} ({config}, {split}) cannot be loaded: {type(error).__name__}: {reason}. "
            f"Without the network, give local files for glue/{variant} as train and eval"
        ) from error
