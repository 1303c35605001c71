"""The laws of tasks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import torch
from torch import nn

import headcount as hc
from headcount.core.errors import HeadcountError
from headcount.core.evaluation import Evaluation
from headcount.core.options import Configurable
from headcount.core.registry import TASKS
from headcount.data.checks import check_batch
from headcount.data.embedded.sentences import draw_sentences, draw_translations
from headcount.data.embedded.tokenizer import build_tokenizer
from headcount.data.task import SPLITS, Example, Task
from headcount.data.task_builder import TaskBuilder, TaskInfo
from headcount.models.tiny.build import tiny_model
from headcount.testing.kinds.declaration import KindOfMethod, parse_and_check_declaration

N_ROWS = 48
LIMIT = 6
"""The most examples of each split that the laws read."""
N_CLASSES = 2
Columns = dict[str, list[Any]]


class TaskLaw(StrEnum):
    """The laws of tasks beside those of declarations."""

    IS_BUILT = "it builds a task for a model"
    KEEPS_THE_LIMIT = "no split holds more examples than the limit"
    SPLITS_ARE_DISJOINT = "no example is in two splits"
    BATCHES_COLLATE = "its examples make batches that the model takes"
    IS_EVALUATED = "a model can be evaluated on it, with one finite loss for every example"
    METRIC_IS_FINITE = "its metric is a finite number"
    BATCHES_DO_NOT_MATTER = "batches do not matter"
    SAME_SEED = "the same seed gives the same examples"
    LEAVES_THE_MODEL = "it leaves the model as it was"


KIND = KindOfMethod(TASKS, TaskBuilder, TaskInfo, TaskBuilder.parse, TaskLaw)


@dataclass(frozen=True, slots=True)
class TaskInputs:
    """A model with the head that a task needs, its tokenizer, and data of the task."""

    model: nn.Module
    tokenizer: Any
    train: Any


def draw_labelled_pairs() -> Columns:
    """Returns columns of pairs of sentences with a class."""
    sentences = [sentence.text for sentence in draw_sentences("english", 2 * N_ROWS)]
    return {"text": sentences[::2], "text_pair": sentences[1::2], "label": [row % N_CLASSES for row in range(N_ROWS)]}


def draw_tagged_words() -> Columns:
    """Returns columns of lists of words with a class for each."""
    words = [sentence.text.split() for sentence in draw_sentences("english", N_ROWS)]
    return {"tokens": words, "tags": [[position % N_CLASSES for position in range(len(row))] for row in words]}


def draw_translated_texts() -> Columns:
    """Returns columns of texts and their translations, also as documents and summaries."""
    pairs = [(sentence.text, sentence.target) for sentence in draw_translations(number=N_ROWS)]
    texts = {"source": [text for text, _ in pairs], "target": [target.text for _, target in pairs if target is not None]}
    return texts | {"document": texts["source"], "summary": texts["target"]}


def draw_images() -> Columns:
    """Returns columns of images of the size of the tiny model with a class."""
    side = int(tiny_model("vit", auto="AutoModelForImageClassification").config.image_size)
    pixels = np.random.default_rng(0).random((N_ROWS, 3, side, side), dtype=np.float32)
    return {"pixel_values": pixels.tolist(), "label": [row % N_CLASSES for row in range(N_ROWS)]}


HEADS: dict[str, tuple[str, Callable[[], Columns]]] = {
    "AutoModelForSequenceClassification": ("bert", draw_labelled_pairs),
    "AutoModelForTokenClassification": ("bert", draw_tagged_words),
    "AutoModelForImageClassification": ("vit", draw_images),
    "AutoModelForSeq2SeqLM": ("t5", draw_translated_texts),
    "AutoModelForMaskedLM": ("bert", lambda: {"text": [sentence.text for sentence in draw_sentences("english", N_ROWS)]}),
    "AutoModelForCausalLM": ("gpt2", lambda: {"text": [sentence.text for sentence in draw_sentences("english", N_ROWS)]}),
}
"""By the class that `info.model` names: the family of the tiny model, and the columns of the data."""


def default_task_inputs(info: TaskInfo) -> TaskInputs:
    """Returns a tiny model with the head that a task names, and sentences, translations or images in the columns that are found by themselves.

    Raises:
        HeadcountError: the task names no class that has a default.
    """
    auto = next((name for name in HEADS if name in info.model), None)
    if auto is None:
        raise HeadcountError(
            f"info.model is '{info.model}', for which there are no default inputs; pass a model, and data if it reads some"
        )
    family, columns = HEADS[auto]
    if family == "vit":
        model, tokenizer = tiny_model(family, auto=auto, num_labels=N_CLASSES), None
    else:
        tokenizer = build_tokenizer(segments=family == "bert")
        overrides: dict[str, Any] = {"num_labels": N_CLASSES} if "Classification" in auto else {}
        overrides |= {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
        model = tiny_model(family, auto=auto, vocab_size=len(tokenizer), **overrides)
    import datasets

    data = datasets.Dataset.from_dict(columns()) if "train" in info.uses else None
    return TaskInputs(model.eval(), tokenizer, data)


def check_task(task: str | Configurable, model: nn.Module | None = None, tokenizer: Any = None, *, train: Any = None) -> None:
    """Raises LawBroken, an AssertionError, unless a task keeps the laws of tasks.

    The laws: it is a frozen dataclass with a docstring, documented options that refuse wrong values, and a complete `info`; its text gives it back;
    its splits keep to the limit and share no example; its batches are such as the model takes; every example has one finite loss, the same for every
    batch size, and the metric is finite; the same seed gives the same examples; the model is left as it was.

    Args:
        task: The task as an object, or its text, such as "demo/entailment(size=50)".
        model: A model with a head for the task; by default a tiny one with the head that `info.model` names.
        tokenizer: The tokenizer of that model, or its image processor.
        train: Data for the task, as for `hc.open_task`; by default sentences, translations or images with labels.

    Example:
        >>> check_task("classification(metric=f1)")
    """
    method, checks = parse_and_check_declaration(task, KIND)
    with checks.require_success(TaskLaw.IS_BUILT):
        inputs = default_task_inputs(method.info) if model is None else TaskInputs(model.eval(), tokenizer, train)

    def build_task() -> Task:
        return hc.open_task(method, inputs.model, inputs.tokenizer, train=inputs.train, limit=LIMIT)

    def evaluate_task(batch_size: int) -> Evaluation:
        return hc.evaluate(inputs.model, built, batch_size=batch_size)

    with checks.require_model_unchanged(inputs.model, TaskLaw.LEAVES_THE_MODEL), checks.require_success(TaskLaw.IS_BUILT):
        built = build_task()
    contents = [[_content_of_example(example) for example in _list_examples(built.split(split))] for split in SPLITS]
    sizes = [len(examples) for examples in contents]
    checks.require(
        max(sizes) <= LIMIT, TaskLaw.KEEPS_THE_LIMIT, f"the splits hold {', '.join(map(str, sizes))} examples, the limit is {LIMIT}"
    )
    shared = sum(map(len, map(set, contents))) - len(set().union(*contents))
    checks.require(not shared, TaskLaw.SPLITS_ARE_DISJOINT, f"{shared} examples are in more than one split")
    with checks.require_success(TaskLaw.BATCHES_COLLATE):
        for split in SPLITS:
            check_batch(inputs.model, built.collate(_list_examples(built.split(split))))
    with checks.require_success(TaskLaw.IS_EVALUATED):
        evaluation = evaluate_task(LIMIT)
    value = evaluation.value
    checks.require(value is None or math.isfinite(value), TaskLaw.METRIC_IS_FINITE, f"it is {value}")
    with checks.require_success(TaskLaw.BATCHES_DO_NOT_MATTER):
        gap = float(np.abs(evaluation.losses - evaluate_task(1).losses).max())
    checks.require(gap <= 1e-4, TaskLaw.BATCHES_DO_NOT_MATTER, f"the loss of an example differs by {gap:.3g} in a batch of its own")
    with checks.require_success(TaskLaw.SAME_SEED):
        again = build_task()
    same = contents == [[_content_of_example(example) for example in _list_examples(again.split(split))] for split in SPLITS]
    checks.require(same, TaskLaw.SAME_SEED, "two tasks hold different examples")


def _list_examples(examples: Sequence[Example]) -> list[Example]:
    return [examples[number] for number in range(len(examples))]


def _content_of_example(example: Example) -> str:
    """Returns everything that an example holds as text."""
    return repr({name: value.tolist() if isinstance(value, torch.Tensor) else value for name, value in sorted(example.items())})
