"""The tasks of GLUE, from the hub or from local files, each with its columns and its metric.

Calibration comes from the training set, selection and report from the two halves of the validation set (MNLI: the matched one).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from headcount.core.errors import DataError
from headcount.data.metrics import ACCURACY, F1, MATTHEWS, PEARSON, Metric
from headcount.data.open_task import Request
from headcount.data.readers.tables import read
from headcount.data.task import Task
from headcount.data.tasks.classification import check_model, from_rows, layout

USES = ("train", "eval", "text_column", "text_pair_column", "label_column", "max_length", "truncate", "metric")
HUB = "nyu-mll/glue"


@dataclass(frozen=True, slots=True)
class Facts:
    """The columns with text, the metric, and the validation set of one task."""

    columns: tuple[str, ...]
    metric: Metric = ACCURACY
    validation: str = "validation"
    config: str | None = None


_SENTENCES = ("sentence1", "sentence2")
FACTS = {
    "cola": Facts(("sentence",), MATTHEWS),
    "mnli": Facts(("premise", "hypothesis"), validation="validation_matched"),
    "mnli-mismatched": Facts(("premise", "hypothesis"), validation="validation_mismatched", config="mnli"),
    "mrpc": Facts(_SENTENCES, F1),
    "qnli": Facts(("question", "sentence")),
    "qqp": Facts(("question1", "question2"), F1),
    "rte": Facts(_SENTENCES),
    "sst2": Facts(("sentence",)),
    "stsb": Facts(_SENTENCES, PEARSON),
    "wnli": Facts(_SENTENCES),
}
VARIANTS = tuple(FACTS)


def build(request: Request) -> Task:
    """The task."""
    check_model(request)
    facts = FACTS[request.variant or ""]
    if request.train is None and request.eval is None:
        train, held_out = (_fetch(str(request.variant), split) for split in ("train", facts.validation))
        request = replace(request, train=train, eval=held_out)
    columns = layout(request, (facts.columns, ("text", "text_pair")[: len(facts.columns)]))
    return from_rows(request, lambda source: read(source, columns, request.most_rows), facts.metric)


def _fetch(variant: str, split: str) -> Any:
    import datasets

    name = FACTS[variant].config or variant
    try:
        return datasets.load_dataset(HUB, name, split=split)
    except Exception as error:  # hub, network and cache fail in many ways, none of them ours
        reason = " ".join(str(error).split())[:200]
        raise DataError(
            f"{HUB} ({name}, {split}) cannot be had: {type(error).__name__}: {reason}. "
            f"Without the network, give local files: --task glue/{variant} --train FILE --eval FILE"
        ) from error
