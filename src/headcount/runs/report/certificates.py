"""Certificates in words: the bound, which always exists, and the verdict against a margin, for pages, cards and the terminal. No torch here."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, expm1, floor, log10

from headcount.core.certificate import CLIP, FEWEST_RESAMPLED, TOKEN_CLIP, Certificate, QualityBound, TaskCertificate
from headcount.core.margin import Margin
from headcount.core.metric_range import size_of_one_point
from headcount.core.sizes import SizeTest, smallest_certified
from headcount.core.stats.power import smallest_certifiable_loss_of_accuracy, smallest_certifiable_rise_of_loss
from headcount.runs.report.plain import format_count


def format_loss(quantity: str, loss: float) -> str:
    """Returns a loss of quality with its unit: `1.3 points`, `0.8 BLEU`, `0.02 nats`."""
    if quantity == "loss":
        return f"{_format_two_digits(loss)} nats"
    size = _format_two_digits(loss / size_of_one_point(quantity))
    return f"{size} {'point' if size == '1' else 'points'}" if size_of_one_point(quantity) < 1 else f"{size} {quantity}"


def describe_bound(bound: QualityBound) -> str:
    """Returns how much worse the smaller model is at most: `at most 1.3 points worse by accuracy`."""
    by = "" if bound.quantity == "loss" or size_of_one_point(bound.quantity) == 1 else f" by {bound.quantity}"
    if bound.bound <= 0:
        return f"better than the dense model{by or f' by {bound.quantity}'}"
    return f"at most {format_bound(bound)} worse{by}"


def headline(certificate: TaskCertificate) -> str:
    """Returns the bound of a task with its conditions: `at most 1.3 points worse by accuracy (95 %, one-sided, n = 500)`."""
    documents = "" if certificate.n_documents is None else f" from {certificate.n_documents} documents"
    clip = f", {describe_clip(certificate, certificate.quality)}" if certificate.quality.clip else ""
    return f"{describe_bound(certificate.quality)} (95 %, one-sided, n = {certificate.n_examples}{documents}{clip})"


def describe_clip(certificate: TaskCertificate, bound: QualityBound) -> str:
    """Returns how much one example counts for at most in a bound that clips: `counting up to 2 nats per example`."""
    return f"counting up to {bound.clip:g} nats per {'token' if certificate.quality.quantity == 'perplexity' else 'example'}"


def format_bound(bound: QualityBound) -> str:
    """Returns the bound for a cell of a table, rounded up: `1.3 points`, or `none` where the model is better."""
    return format_loss(bound.quantity, _round_up_to_two_digits(bound.bound)) if bound.bound > 0 else "none"


def describe_smallest_margin(bound: QualityBound) -> str:
    """Returns the smallest margin that these data certify for one model, in points and as a share, `1.4pt (1.6%)`; or why there is none."""
    if bound.reason:
        return f"none: {bound.reason}"
    if bound.bound <= 0:
        return "any margin"
    share = None if bound.relative_bound is None else f"{_round_up_to_two_digits(100 * bound.relative_bound):.6g}%"
    if bound.quantity == "loss":
        return share or "none"
    points = f"{_round_up_to_two_digits(bound.bound / bound.size_of_one_point):.6g}pt"
    return points if share is None else f"{points} ({share})"


def describe_size_tests(tests: Sequence[SizeTest], margin: Margin) -> str:
    """Returns the outcome of testing sizes in order: the smallest certified one, or the bound of the first, which failed."""
    first, certified = tests[0], smallest_certified(tests)
    order = f"sizes tested in order, each at 95 %: {', '.join(str(test.n_kept) for test in tests)}"
    if certified is None:
        quality = first.certificate.quality
        return f"no size certified against a margin of {margin}: with {first.n_kept} heads {headline(first.certificate)} ({order})" + (
            f"; {quality.reason}" if quality.reason else ""
        )
    return f"{certified.n_kept} heads are certified against a margin of {margin}: {headline(certified.certificate)} ({order})"


def describe_power(n_examples: int, metric: str) -> str:
    """Returns what so many examples can show, before anything is measured; an empty metric stands for the loss."""
    if metric in ("", "perplexity"):
        rise = smallest_certifiable_rise_of_loss(n_examples, CLIP if not metric else TOKEN_CLIP)
        size = (
            f"{_format_two_digits(rise)} nats per example" if not metric else f"{_format_two_digits(100 * expm1(rise))} % of the perplexity"
        )
        return f"with {n_examples:,} examples a margin of {size} can be certified if no example is damaged"
    if metric != "accuracy":
        few = "" if n_examples >= FEWEST_RESAMPLED else f", and a verdict needs {FEWEST_RESAMPLED}"
        return f"with {n_examples:,} examples the bound of {metric} is found by resampling{few}"
    points = format_loss(metric, smallest_certifiable_loss_of_accuracy(n_examples))
    return (
        f"with {n_examples:,} examples a margin of {points} can be certified if one prediction in fifty changes and the model is no worse"
    )


def _round_up_to_two_digits(number: float) -> float:
    """Returns a number above 0 rounded up to two digits that matter: a bound that is rounded down may not hold."""
    digits = 1 - floor(log10(number))
    return ceil(number * 10.0**digits - 1e-9) / 10.0**digits


def describe_verdict(bound: QualityBound) -> str:
    """Returns the verdict on one bound against its margin, with the number of examples that would decide where it is open."""
    margin = f"the margin of {bound.margin}"
    if bound.margin.endswith("%") and bound.margin_size is not None:
        margin += f" ({format_loss(bound.quantity, bound.margin_size)})"
    if bound.verdict == "certified":
        return f"certified: it loses less than {margin}"
    if bound.verdict == "worse":
        return f"worse: it loses more than {margin}, at least {format_loss(bound.quantity, bound.at_least)}"
    if bound.reason:
        return f"undecided against {margin}: {bound.reason}"
    if bound.n_needed is None:
        return f"undecided against {margin}: the loss observed is not below it, so more data will probably not certify this model"
    return f"undecided against {margin}: about {bound.n_needed:,} examples would decide"


def describe_certificate(certificate: Certificate) -> list[str]:
    """Returns the sentences of a certificate: for every task its headline, its verdicts, and the examples that changed."""
    sentences: list[str] = []
    names = tuple(task.task for task in certificate.tasks if task.task)
    for task in certificate.tasks:
        name = f"{task.task}: " if task.task else ""
        sentences.append(f"{name}{headline(task)}.")
        sentences += [f"{describe_verdict(bound)}." for bound in bounds_of_certificate(task) if bound.verdict is not None]
        if task.by_loss is not None:
            sentences.append(f"By the loss {describe_bound(task.by_loss)}, {describe_clip(task, task.by_loss)}.")
        if task.right_to_wrong is not None and task.wrong_to_right is not None:
            sentences.append(
                f"{format_count(len(task.right_to_wrong), 'example')} went from right to wrong, {len(task.wrong_to_right)} from wrong to right."
            )
    if len(certificate.tasks) > 1 and certificate.verdict is not None:
        sentences.append(f"All tasks together, each of which must hold: {certificate.verdict}.")
    return [sentence if sentence.startswith(names) else sentence[:1].upper() + sentence[1:] for sentence in sentences]


def bounds_of_certificate(certificate: TaskCertificate) -> list[QualityBound]:
    """Returns the bound of the metric and, where it was measured beside it, of the loss."""
    return [certificate.quality, *([certificate.by_loss] if certificate.by_loss is not None else [])]


def _format_two_digits(number: float) -> str:
    """Returns two digits that matter, without an exponent where that is readable."""
    return f"{number:.2g}" if 0.001 <= abs(number) < 100 or not number else f"{number:.2e}" if abs(number) < 0.001 else f"{number:,.0f}"
