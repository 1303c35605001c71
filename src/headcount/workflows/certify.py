"""Certificates of live models: both are evaluated on the report split of every task, and compared example by example."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from headcount.core.arguments import check_arguments
from headcount.core.certificate import Certificate, certify_task
from headcount.core.errors import DataError, OptionError
from headcount.core.evaluation import Evaluation
from headcount.core.margin import Margin
from headcount.core.progress import Progress, show_progress_by_stage
from headcount.data.evaluate import evaluate
from headcount.data.task import Task
from headcount.data.task_builder import TaskBuilder
from headcount.models.modules import unwrap
from headcount.models.provenance import rounding_provenance, weight_hash
from headcount.surgery.load import load
from headcount.surgery.source import local_folder
from headcount.workflows.inputs import open_inputs


@dataclass(frozen=True, slots=True)
class CertificateRequest:
    """What a smaller model must hold.

    Args:
        margin: How much worse it may be on every task; None asks for bounds alone.
        loss_margin: How much larger its loss may be, as a share; None leaves the loss out of the verdict.
        limit: The most examples read of each report split; None for all.
        seed: Seeds the resampling.
    """

    margin: Margin | None
    loss_margin: Margin | None = None
    limit: int | None = None
    seed: int = 0

    @classmethod
    def parse(
        cls, margin: str | Margin | None, loss_margin: str | Margin | None = None, *, limit: int | None = None, seed: int = 0
    ) -> CertificateRequest:
        """Returns the request that texts describe.

        Raises:
            OptionError: a margin has no unit, or the margin of the loss is in points.
            DataError: the limit is below 1.
        """
        parsed = None if loss_margin is None else Margin.parse(loss_margin)
        if parsed is not None and parsed.share is None:
            raise OptionError(f"loss_margin must be a share of the dense model's loss, such as '1%'; got {parsed}")
        if limit is not None and limit < 1:
            raise DataError(f"limit must be 1 or more, got {limit}")
        return cls(None if margin is None else Margin.parse(margin), parsed, limit, seed)


@check_arguments
def certify(  # noqa: PLR0913 - three arguments, the rest by name
    small: nn.Module | str | Path,
    dense: nn.Module | str | Path,
    tasks: Task | str | Sequence[Task | str],
    *,
    margin: str | Margin,
    loss_margin: str | Margin | None = None,
    limit: int | None = None,
    seed: int = 0,
    progress: bool | Progress = True,
) -> Certificate:
    """Returns how much worse a smaller model is than the dense one, at most, and whether that is within a margin.

    Both models are evaluated on the same examples of the report split, on which nothing may have been chosen. With several tasks all must hold.

    Args:
        small: The smaller model, or its folder.
        dense: The dense model, its folder or a hub id.
        tasks: A task, the name of one, or several of them.
        margin: How much worse the smaller model may be: a share of the dense model's metric ("1%") or points of it ("0.5pt").
        loss_margin: How much larger the loss may be, as a share ("2%"); by default the loss is shown and takes no part in the verdict.
        limit: The most examples read of each report split, drawn by the hash of their content; None for all.
        seed: Seeds the resampling.
        progress: A bar on a terminal or in a notebook (True), nothing (False), or a function that is called with (done, total).

    Returns:
        The bound and the verdict for every task, and the examples whose answers changed.

    Raises:
        OptionError: a margin has no unit, or does not fit the metric.
        DataError: the models have different labels, or a metric is not known example by example.

    Example:
        >>> certificate = hc.certify("smaller", "demo/entailment", "demo/entailment", margin="2pt")
        >>> certificate.verdict, certificate.tasks[0].quality.bound
    """
    request = CertificateRequest.parse(margin, loss_margin, limit=limit, seed=seed)
    named: list[Task | str] = [tasks] if isinstance(tasks, Task | str) else list(tasks)
    if not named:
        raise OptionError("tasks must name a task, or several; got none")
    for name in named:
        if isinstance(name, str):
            TaskBuilder.parse(name)  # raises before a model is loaded
    inputs = [open_inputs(dense, task, None, seed=seed, limit=limit, batch_size=None) for task in named[:1]]
    model = inputs[0].model
    inputs += [open_inputs(model, task, inputs[0].tokenizer, seed=seed, limit=limit, batch_size=None) for task in named[1:]]
    smaller: Any = load(local_folder(small)).eval() if isinstance(small, str | Path) else unwrap(small)
    names = (str(small) if isinstance(small, str | Path) else type(smaller).__name__, inputs[0].name)
    with show_progress_by_stage(progress) as begin:
        return certify_models(
            smaller, model, [opened.task for opened in inputs], request, names=names, watch=lambda work: begin(work, "examples")
        )


def certify_models(
    small: nn.Module,
    dense: nn.Module,
    tasks: Sequence[Task],
    request: CertificateRequest,
    *,
    names: tuple[str, str] = ("", ""),
    watch: Callable[[str], Progress | None] | None = None,
) -> Certificate:
    """Returns the certificate of a live model against another one on tasks; all checks come before the first evaluation."""
    check_same_labels(small, dense)
    certificates = []
    for task in tasks:
        evaluations: dict[str, Evaluation] = {}
        for which, model in (("dense", dense), ("smaller", small)):
            progress = None if watch is None else watch(f"{task.name}: the {which} model")
            evaluations[which] = evaluate(model, task, limit=request.limit, progress=progress or False)
        total = task.metric.total if task.metric else None
        certificates.append(
            certify_task(
                evaluations["dense"], evaluations["smaller"], total, request.margin, loss_margin=request.loss_margin, seed=request.seed
            )
        )
    return Certificate(
        small=weight_hash(small),
        dense=weight_hash(dense),
        margin="" if request.margin is None else str(request.margin),
        tasks=tuple(certificates),
        loss_margin="" if request.loss_margin is None else str(request.loss_margin),
        names=names,
        provenance=rounding_provenance(),
    )


def check_same_labels(small: nn.Module, dense: nn.Module) -> None:
    """Raises DataError where two models do not answer alike: other classes, or another vocabulary."""
    configs: list[Any] = [unwrap(model).config for model in (small, dense)]
    classes, vocabularies = ([_config_value(config, name) for config in configs] for name in ("id2label", "vocab_size"))
    if classes[0] != classes[1]:
        raise DataError(
            f"the models have different labels, {_format_classes(classes[0])} and {_format_classes(classes[1])}; compare models of one task"
        )
    if vocabularies[0] != vocabularies[1]:
        raise DataError(f"the models have vocabularies of {vocabularies[0]} and {vocabularies[1]} tokens; compare models of one tokenizer")


def _config_value(config: Any, name: str) -> Any:
    value = getattr(config, name, None)
    return {int(key): label for key, label in value.items()} if isinstance(value, Mapping) else value


def _format_classes(classes: Any) -> str:
    return ", ".join(map(str, classes.values()))[:100] if isinstance(classes, Mapping) else str(classes)
