"""`open_task`: a task by its name, for a model and data."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from torch import nn

from headcount.core.arguments import check_arguments
from headcount.core.errors import DataError
from headcount.core.registry import TASKS
from headcount.data.task import Task
from headcount.data.task_builder import ARGUMENTS, TaskBuilder, TaskRequest
from headcount.models.modules import unwrap

HEADS = {
    "SequenceClassification": "classification",
    "TokenClassification": "token-classification",
    "ImageClassification": "image-classification",
    "MaskedLM": "masked-lm",
    "CausalLM": "causal-lm",
    "LMHead": "causal-lm",
}
"""The task of a model by a part of its class name."""


@check_arguments
def open_task(  # noqa: PLR0913 - three arguments, the rest are options by name
    task: str | TaskBuilder | None,
    model: nn.Module,
    tokenizer: Any = TaskRequest.tokenizer,
    *,
    train: Any = TaskRequest.train,
    eval: Any = TaskRequest.eval,
    text_column: str | None = TaskRequest.text_column,
    text_pair_column: str | None = TaskRequest.text_pair_column,
    label_column: str | None = TaskRequest.label_column,
    source_column: str | None = TaskRequest.source_column,
    target_column: str | None = TaskRequest.target_column,
    image_column: str | None = TaskRequest.image_column,
    document_column: str | None = TaskRequest.document_column,
    max_length: int | None = TaskRequest.max_length,
    truncate: bool = TaskRequest.truncate,
    limit: int | None = TaskRequest.limit,
    seed: int = TaskRequest.seed,
) -> Task:
    """Returns a task for a model: examples in three splits, with their metric.

    Args:
        task: A name of `headcount ls tasks`, with its variant and options ("demo/entailment(size=64)"), or a `TaskBuilder`; None for the
            task that the head of the model is made for.
        model: The model, with a head for the task.
        tokenizer: The tokenizer of the model, or its image processor.
        train: Data for calibration: a file, a list of parallel files, or a datasets.Dataset. A single source is divided in three.
        eval: Data for selection and report.
        text_column: The column of the text; by default it is found by its usual names. So are the others.
        text_pair_column: The column of the second text of a pair.
        label_column: The column of the label.
        source_column: The column of the text to translate or to summarise.
        target_column: The column of the translation or summary.
        image_column: The column of the image.
        document_column: The column that names the document of an example, where examples come from documents: no document is divided between
            splits, and certificates resample documents.
        max_length: The most tokens of an example, or of a window of running text; by default what model and tokenizer allow.
        truncate: Cuts longer texts instead of refusing them.
        limit: Keeps at most that many examples of each split.
        seed: Draws the examples of the embedded languages and the masked tokens.

    Returns:
        The task.

    Raises:
        UnknownName: there is no such task, variant or option.
        OptionError: an option of the task has the wrong type or is out of range.
        DataError: an argument that the task does not use, a wrong value, or data that the model cannot read.

    Example:
        >>> task = hc.open_task("classification", model, tokenizer, train="train.tsv", limit=1000)  # doctest: +SKIP
    """
    builder = TaskBuilder.parse(default_task(model) if task is None else task)
    request = TaskRequest(
        builder.label,
        model,
        tokenizer,
        train=train,
        eval=eval,
        text_column=text_column,
        text_pair_column=text_pair_column,
        label_column=label_column,
        source_column=source_column,
        target_column=target_column,
        image_column=image_column,
        document_column=document_column,
        max_length=max_length,
        truncate=truncate,
        limit=limit,
        seed=seed,
    )
    _refuse_unused_arguments(builder, request)
    return replace(builder.build(request), options=builder.to_dict())


def read_classes(
    task: str | TaskBuilder,
    *,
    train: Any = None,
    eval: Any = None,
    text_column: str | None = None,
    text_pair_column: str | None = None,
    label_column: str | None = None,
) -> tuple[str, ...]:
    """Returns the names of the classes in the data of a task, for the new head of a model that was never trained for it.

    Raises:
        DataError: the task has no classes of texts, or its data hold fewer than two.
    """
    builder, no_model = TaskBuilder.parse(task), cast(Any, None)
    request = TaskRequest(
        builder.label,
        no_model,
        train=train,
        eval=eval,
        text_column=text_column,
        text_pair_column=text_pair_column,
        label_column=label_column,
    )
    _refuse_unused_arguments(builder, request)
    return builder.read_classes(request)


def default_task(model: nn.Module) -> str:
    """Returns the name of the task that the head of a model is made for.

    Raises:
        DataError: the class of the model does not tell.
    """
    name = type(unwrap(model)).__name__
    task = next((task for part, task in HEADS.items() if part in name), None)
    if task is None:
        raise DataError(f"{name} does not tell which task it is for; name the task: {', '.join(TASKS.names())}")
    return task


def _refuse_unused_arguments(builder: TaskBuilder, request: TaskRequest) -> None:
    """Raises DataError for an argument that the task does not use."""
    unused = [name for name in ARGUMENTS if getattr(request, name) not in (None, False) and name not in builder.info.uses]
    if unused:
        uses = ", ".join(builder.info.uses) or "none of these arguments"
        raise DataError(f"task '{builder.name}' does not use {', '.join(unused)}; it uses {uses}")
