"""Certificates: how much worse a smaller model is than the dense one, at most, and the verdict against a margin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from math import ceil, expm1, log1p
from typing import Any, Literal, Self

import numpy as np
from jaxtyping import Float

from headcount.core.errors import ArtifactError, DataError, OptionError
from headcount.core.evaluation import Evaluation, examples_are_right_or_wrong, score_interval
from headcount.core.margin import Margin
from headcount.core.metric_range import size_of_one_point
from headcount.core.stats.documents import sum_by_document
from headcount.core.stats.metric_parts import MetricOfSums, parts_if_all_wrong
from headcount.core.stats.quality_loss import BettingLoss, BootstrapLoss, QualityLoss, TangoLoss
from headcount.core.stats.samples import make_generator

Verdict = Literal["certified", "worse", "undecided"]

LEVEL = 0.95
"""The confidence of every bound, one-sided, and of every verdict."""
CLIP, TOKEN_CLIP = 2.0, 0.5
"""The largest rise of the loss of one example that counts, in nats; for windows of text, of one token."""
FEWEST_DOCUMENTS, FEWEST_RESAMPLED, FEWEST_OF_CLASS = 30, 256, 25
"""With fewer documents, or for a resampled metric fewer examples in all or of the rarer class, there is no verdict."""
LossesAndTokens = Float[np.ndarray, "windows 2"]
"""The metric parts of perplexity: the summed loss of each window, and its number of tokens."""


@dataclass(frozen=True, slots=True)
class QualityBound:
    """By how much a smaller model is worse on one task, by its metric or by its loss. All numbers are in units of what is measured.

    Attributes:
        quantity: The metric, or "loss".
        dense: The value of the dense model.
        small: The value of the smaller model.
        loss: The observed loss of quality, positive where the smaller model is worse.
        bound: How much worse it is at most, at 95 %, one-sided.
        relative_bound: The same as a share of the dense model's value: the smallest margin in % that these data certify.
        at_least: How much worse it is at least, at 95 %, one-sided; negative where it may be better.
        procedure: The statistical procedure.
        clip: The largest rise of the loss of one example that counts, in nats; None where nothing is clipped.
        margin: The margin, with its unit; empty where there is none.
        margin_size: The margin in units of what is measured.
        verdict: Whether the bound is below the margin; None without a margin.
        p: The p-value of losing the margin or more; None without a margin.
        n_needed: How many examples would decide with a power of 80 %; None where that is decided, or more data will probably not help.
        reason: Why data like these cannot decide, whatever the numbers; empty otherwise.
    """

    quantity: str
    dense: float
    small: float
    loss: float
    bound: float
    relative_bound: float | None
    at_least: float
    procedure: str
    clip: float | None = None
    margin: str = ""
    margin_size: float | None = None
    verdict: Verdict | None = None
    p: float | None = None
    n_needed: int | None = None
    reason: str = ""

    @property
    def size_of_one_point(self) -> float:
        """One point of what is measured."""
        return size_of_one_point(self.quantity)


@dataclass(frozen=True, slots=True)
class TaskCertificate:
    """How much worse a smaller model is on one task.

    Attributes:
        task: The name of the task.
        data: The hash of the examples.
        n_examples: How many examples of the report split were read.
        n_documents: How many documents they come from; None where the data name none.
        quality: The bound of the metric, or of the loss where the task has no metric.
        by_loss: The bound of the loss beside a metric; it takes part in the verdict where it has a margin.
        right_to_wrong: The positions of the examples that only the dense model gets right; None where examples are not right or wrong.
        wrong_to_right: The positions of those that only the smaller one does.
    """

    task: str
    data: str
    n_examples: int
    n_documents: int | None
    quality: QualityBound
    by_loss: QualityBound | None = None
    right_to_wrong: tuple[int, ...] | None = None
    wrong_to_right: tuple[int, ...] | None = None

    @property
    def verdict(self) -> Verdict | None:
        """The verdict on the task: every margin that is given must hold."""
        bounds = [self.quality, *([self.by_loss] if self.by_loss is not None else [])]
        return join_verdicts([bound.verdict for bound in bounds if bound.verdict is not None])

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Returns the certificate that `dataclasses.asdict` described."""
        flips = {name: None if values[name] is None else tuple(values[name]) for name in ("right_to_wrong", "wrong_to_right")}
        by_loss = None if values["by_loss"] is None else QualityBound(**values["by_loss"])
        return cls(**{**values, **flips, "quality": QualityBound(**values["quality"]), "by_loss": by_loss})


@dataclass(frozen=True, slots=True)
class TestedSize:
    """One of the sizes that were tested in order: how many heads stay, how much worse the model is at most, the p-value and the verdict."""

    __test__ = False

    n_kept: int
    bound: float
    p: float | None
    verdict: Verdict | None


@dataclass(frozen=True, slots=True)
class Certificate:
    """How much worse a smaller model is than the dense one, on every task.

    Attributes:
        small: The hash of the weights of the smaller model.
        dense: The hash of the weights of the dense model.
        margin: The margin of every task; empty where only bounds were asked for.
        tasks: The certificates of the tasks; each holds at 95 %, and all must hold.
        loss_margin: The margin of the loss; empty where there is none.
        names: The names of the two models, as they were given.
        sizes: The sizes that were tested from large to small, each at 95 %, up to the first that failed; empty where one model alone was certified.
        opening: How models and tasks are opened again, for a check on another machine.
        provenance: Versions, threads and CPU features that can affect rounding.
    """

    small: str
    dense: str
    margin: str
    tasks: tuple[TaskCertificate, ...]
    loss_margin: str = ""
    names: tuple[str, str] = ("", "")
    sizes: tuple[TestedSize, ...] = ()
    opening: Mapping[str, Any] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)

    @property
    def verdict(self) -> Verdict | None:
        """The verdict over all tasks: certified if every one is, worse if one is, else undecided; None without a margin."""
        return join_verdicts([task.verdict for task in self.tasks if task.verdict is not None])

    def to_dict(self) -> dict[str, Any]:
        """Returns the certificate as plain data."""
        return {**asdict(self), "verdict": self.verdict}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Returns the certificate that `to_dict` described.

        Raises:
            ArtifactError: a field is missing or unknown.
        """
        try:
            fields = {name: value for name, value in values.items() if name != "verdict"}
            tasks = tuple(TaskCertificate.from_dict(task) for task in fields.pop("tasks"))
            sizes = tuple(TestedSize(**size) for size in fields.pop("sizes"))
            return cls(**{**fields, "tasks": tasks, "sizes": sizes, "names": tuple(fields["names"])})
        except (KeyError, TypeError, AttributeError) as error:
            raise ArtifactError(f"this is no certificate ({error}); make it again with headcount certify") from None


def join_verdicts(verdicts: Sequence[Verdict]) -> Verdict | None:
    """Returns one verdict for several that must all hold; None for none."""
    if not verdicts:
        return None
    return "worse" if "worse" in verdicts else "certified" if all(verdict == "certified" for verdict in verdicts) else "undecided"


def certify_task(
    dense: Evaluation,
    small: Evaluation,
    metric_of_sums: MetricOfSums | None,
    margin: Margin | None = None,
    *,
    loss_margin: Margin | None = None,
    seed: int = 0,
) -> TaskCertificate:
    """Returns how much worse the smaller model is on the same examples.

    Args:
        dense: The evaluation of the dense model.
        small: The evaluation of the smaller model.
        metric_of_sums: Turns summed parts into the metric (`Metric.total`); None for a task without a metric.
        margin: How much worse it may be; None gives the bound alone.
        loss_margin: How much larger the loss may be, as a share of the dense model's; None leaves the loss out of the verdict.
        seed: Seeds the resampling.

    Raises:
        DataError: the evaluations are not of the same examples, or have no parts of the metric per example.
        OptionError: the margin does not fit what is measured.
    """
    check_comparable(dense, small)
    if dense.value is not None and (metric_of_sums is None or dense.parts is None or small.parts is None):
        raise DataError(
            f"{dense.metric} is not known example by example, so that no bound can be given; use a metric with parts (`Metric.parts`)"
        )
    has_metric = dense.value is not None
    if loss_margin is not None and loss_margin.share is None:
        raise OptionError(f"loss_margin must be a share of the dense model's loss, such as '1%'; got {loss_margin}")
    by_loss = bound_of_loss(dense, small, loss_margin) if has_metric else None
    quality = (
        bound_of_metric(dense, small, metric_of_sums, margin, seed=seed)
        if has_metric and metric_of_sums is not None
        else bound_of_loss(dense, small, margin)
    )
    flips: dict[str, tuple[int, ...]] = {}
    if examples_are_right_or_wrong(dense) and examples_are_right_or_wrong(small) and dense.parts is not None and small.parts is not None:
        gap = small.parts[:, 0] - dense.parts[:, 0]
        flips = {name: tuple(np.flatnonzero(gap * sign > 0).tolist()) for name, sign in (("right_to_wrong", -1), ("wrong_to_right", 1))}
    n_documents = None if dense.documents is None else len(np.unique(dense.documents))
    return TaskCertificate(dense.task, dense.data, dense.n_examples, n_documents, quality, by_loss, **flips)


def check_comparable(dense: Evaluation, small: Evaluation) -> None:
    """Raises DataError unless both evaluations are of the same examples, by the same metric."""
    if dense.data != small.data or dense.n_examples != small.n_examples:
        raise DataError(
            f"the models were evaluated on different examples ({dense.n_examples} and {small.n_examples}); a bound needs the same ones for both"
        )
    if dense.metric != small.metric:
        raise DataError(
            f"the models were evaluated by different metrics, {dense.metric or 'the loss'} and {small.metric or 'the loss'}; use one"
        )
    if dense.n_examples < 2:
        raise DataError("a bound needs 2 examples or more, got 1; read more of the report split")


def loss_of_metric(dense: Evaluation, small: Evaluation, metric_of_sums: MetricOfSums, *, seed: int = 0) -> QualityLoss:
    """Returns the test of how much a metric loses: Tango for right and wrong, betting for perplexity, else by resampling."""
    assert dense.parts is not None and small.parts is not None
    if dense.metric == "perplexity":
        return _loss_of_log_perplexity(dense, small)
    if dense.documents is None and examples_are_right_or_wrong(dense) and examples_are_right_or_wrong(small):
        return TangoLoss(dense.parts[:, 0], small.parts[:, 0])
    metric = dense.metric
    is_known = parts_if_all_wrong(metric, small.parts[:1]) is not None
    return BootstrapLoss(
        dense.parts,
        small.parts,
        metric_of_sums,
        higher_is_better=dense.higher_is_better,
        worsen=(lambda parts: np.asarray(parts_if_all_wrong(metric, parts))) if is_known else None,
        documents=dense.documents,
        seed=seed,
    )


def bound_of_metric(
    dense: Evaluation, small: Evaluation, metric_of_sums: MetricOfSums, margin: Margin | None = None, *, seed: int = 0
) -> QualityBound:
    """Returns the bound of the metric, and the verdict against the margin if there is one."""
    assert dense.value is not None and small.value is not None
    test = loss_of_metric(dense, small, metric_of_sums, seed=seed)
    if isinstance(test, BettingLoss):
        return _bound_of_perplexity(test, dense, small, margin)
    low, high = test.one_sided_bounds(LEVEL)
    relative = test.relative_upper_bound(LEVEL) if isinstance(test, BootstrapLoss) else high / dense.value if dense.value > 0 else None
    bound = QualityBound(dense.metric, dense.value, small.value, test.estimate, high, relative, low, test.procedure)
    bound = replace(bound, reason=reason_against_verdict(dense, test))
    if margin is None:
        return bound
    size = margin.of_metric(dense.metric, dense.value)
    with_margin = replace(bound, margin=str(margin), margin_size=size)
    if margin.share is not None:
        _check_relative_margin(dense, metric_of_sums, margin, seed)
        if isinstance(test, BootstrapLoss):
            return _add_verdict(with_margin, test.against_share_of_dense(margin.share), 0.0, dense.n_examples)
    return _add_verdict(with_margin, test, size, dense.n_examples)


def bound_of_loss(dense: Evaluation, small: Evaluation, margin: Margin | None = None) -> QualityBound:
    """Returns the bound of the mean loss, the damage of each example clipped, and the verdict against the margin if there is one."""
    clip = TOKEN_CLIP if dense.metric == "perplexity" else CLIP
    test = _bet_on_damage(np.clip(small.losses - dense.losses, -clip, clip), np.ones(dense.n_examples), dense, clip)
    low, high = test.one_sided_bounds(LEVEL)
    bound = QualityBound(
        "loss", dense.loss, small.loss, test.estimate, high, high / dense.loss if dense.loss > 0 else None, low, test.procedure, clip
    )
    bound = replace(bound, reason=reason_against_verdict(dense, test))
    if margin is None:
        return bound
    if margin.share is None:
        raise OptionError(f"a loss has no points; give its margin as a share of the dense model's loss, such as '1%'; got {margin}")
    size = margin.of_metric("loss", dense.loss)
    return _add_verdict(replace(bound, margin=str(margin), margin_size=size), test, size, dense.n_examples)


def _bound_of_perplexity(test: BettingLoss, dense: Evaluation, small: Evaluation, margin: Margin | None) -> QualityBound:
    """Returns the bound of the perplexity, which is the exponential of the mean loss: a margin of 1 % is ln 1.01 there."""
    assert dense.value is not None and small.value is not None
    low, high = (expm1(end) for end in test.one_sided_bounds(LEVEL))
    loss = dense.value * expm1(test.estimate)
    bound = QualityBound(
        dense.metric, dense.value, small.value, loss, dense.value * high, high, dense.value * low, test.procedure, TOKEN_CLIP
    )
    bound = replace(bound, reason=reason_against_verdict(dense, test))
    if margin is None:
        return bound
    size = margin.of_metric(dense.metric, dense.value)
    return _add_verdict(replace(bound, margin=str(margin), margin_size=size), test, log1p(size / dense.value), dense.n_examples)


def _add_verdict(bound: QualityBound, test: QualityLoss, margin_of_test: float, n_examples: int) -> QualityBound:
    """Returns the bound with the verdict of a test at a margin in the units of the test.

    The number of examples that would decide is one of examples also where the test counts documents.
    """
    p_certified, p_worse = test.p_value_of_at_least(margin_of_test), test.p_value_of_at_most(margin_of_test)
    alpha, reason = 1 - LEVEL, bound.reason
    if bound.clip is not None and margin_of_test >= bound.clip:
        reason = f"the loss counts up to {bound.clip:g} nats only, and so large a margin says nothing"
    verdict: Verdict = "certified" if p_certified <= alpha else "worse" if p_worse <= alpha else "undecided"
    if reason:
        verdict = "undecided"
    n_needed = test.examples_needed(margin_of_test) if verdict == "undecided" and not reason else None
    n_needed = None if n_needed is None else ceil(n_needed * n_examples / test.n)
    return replace(bound, verdict=verdict, p=p_certified, n_needed=n_needed, reason=reason)


def _loss_of_log_perplexity(dense: Evaluation, small: Evaluation) -> BettingLoss:
    """Returns the test of the mean loss per token: each window's clipped rise, weighted by its tokens."""
    assert dense.parts is not None and small.parts is not None
    windows: LossesAndTokens = dense.parts
    tokens = windows[:, 1]
    damage = np.clip((small.parts[:, 0] - windows[:, 0]) / tokens, -TOKEN_CLIP, TOKEN_CLIP)
    return _bet_on_damage(damage, tokens, dense, TOKEN_CLIP)


def _bet_on_damage(
    damage: Float[np.ndarray, " examples"], weights: Float[np.ndarray, " examples"], dense: Evaluation, clip: float
) -> BettingLoss:
    """Returns the test of the weighted mean of clipped damage over examples; where the data name documents, their means are bet on.

    The order is one that the hash of the examples decides: gamblers win on a file that has its harmless examples first.
    """
    if dense.documents is not None:
        sums = sum_by_document(np.stack([damage * weights, weights], axis=1), dense.documents)
        damage, weights = sums[:, 0] / sums[:, 1], sums[:, 1]
    order = make_generator(int.from_bytes(sha256(dense.data.encode()).digest()[:8])).permutation(len(damage))
    return BettingLoss(damage[order], clip, weights[order])


def reason_against_verdict(dense: Evaluation, test: QualityLoss) -> str:
    """Returns why data like these give no verdict, whatever the numbers; empty where they may."""
    if dense.documents is not None and test.n < FEWEST_DOCUMENTS:
        return f"{test.n} documents are too few for a verdict, which needs {FEWEST_DOCUMENTS}"
    if not isinstance(test, BootstrapLoss):
        return ""
    if dense.n_examples < FEWEST_RESAMPLED:
        return f"{dense.n_examples} examples are too few for a verdict on {dense.metric}, which needs {FEWEST_RESAMPLED}"
    rarest = _n_examples_of_rarest_class(dense)
    if rarest is not None and rarest < FEWEST_OF_CLASS:
        return f"the rarest class has {rarest} examples, too few for a verdict on {dense.metric}, which needs {FEWEST_OF_CLASS}"
    return ""


def _n_examples_of_rarest_class(dense: Evaluation) -> int | None:
    """Returns how many examples the rarest class has; None where the metric does not count classes."""
    if dense.metric not in ("F1", "Matthews correlation") or dense.parts is None:
        return None
    n_classes = round(dense.parts.shape[1] ** 0.5)
    return int(dense.parts.sum(0).reshape(n_classes, n_classes).sum(1).min())


def _check_relative_margin(dense: Evaluation, metric_of_sums: MetricOfSums, margin: Margin, seed: int) -> None:
    """Raises OptionError where a share of the dense model's metric says nothing, because it may be 0."""
    low, high = score_interval(dense, metric_of_sums, seed=seed)
    if low is not None and high is not None and low <= 0 <= high:
        raise OptionError(
            f"a margin of {margin} is a share of the dense model's {dense.metric}, which may be 0 (95 % {low:.3g} to {high:.3g}); "
            "give the margin in points, such as '1pt'"
        )


def unconfirmed_statements(recorded: Certificate, repeated: Certificate) -> list[str]:
    """Returns what a certificate that was made again does not confirm, in words; nothing if it still holds.

    Bounds may move with rounding; they are not confirmed where they are more than a tenth higher, and a verdict where it is another one.
    """
    differences = [
        f"the {which} model has other weights than when the certificate was made"
        for which, old, new in (("smaller", recorded.small, repeated.small), ("dense", recorded.dense, repeated.dense))
        if old != new
    ]
    for old, new in zip(recorded.tasks, repeated.tasks, strict=True):
        name = old.task or "the data"
        if old.data != new.data:
            differences.append(f"{name}: the examples are others ({old.n_examples} before, {new.n_examples} now)")
        if old.verdict != new.verdict:
            differences.append(f"{name}: the verdict was {old.verdict}, and is {new.verdict}")
        if new.quality.bound > old.quality.bound + 0.1 * abs(old.quality.bound):
            differences.append(f"{name}: the bound was {old.quality.bound:.3g}, and is {new.quality.bound:.3g}")
    return differences
