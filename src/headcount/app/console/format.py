"""Sentences that several commands print."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, floor, log10
from typing import TYPE_CHECKING

from headcount.core.training_log import FEW_STEPS

if TYPE_CHECKING:
    from headcount.core.damage import HeadVerdict, HeadVerdicts


def format_interval_ends(low: float | None, high: float | None) -> str:
    """Returns the ends of an interval of a difference; nothing where there is none."""
    return "" if low is None or high is None else f"{low:+.3g} … {high:+.3g}"


def format_p_value(p: float | None) -> str:
    """Returns a p-value with two digits; nothing where there is none."""
    return "" if p is None else f"{p:.2g}"


def format_duration(seconds: float) -> str:
    """Returns a duration in hours and minutes, minutes and seconds, or seconds."""
    minutes, remainder = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes} min {remainder} s" if minutes else f"{remainder} s"


def format_training(n_models: int, fewest_steps: int, most_steps: int, shortest_stage_steps: int, seconds: float) -> str:
    """Returns how many models will train, for how many optimiser steps, and for how long; with a warning where a stage has too few steps."""
    steps = f"{fewest_steps}" if fewest_steps == most_steps else f"{fewest_steps} to {most_steps}"
    subject = "1 model trains" if n_models == 1 else f"{n_models} models train, each"
    few = (
        f"; warning: a schedule has {shortest_stage_steps}, and fewer than {FEW_STEPS} are too few to judge a method by"
        if shortest_stage_steps < FEW_STEPS
        else ""
    )
    return f"{subject} for {steps} optimiser steps: about {format_duration(seconds)} in all on this machine{few}"


def format_head_bound(verdicts: HeadVerdicts, row: HeadVerdict) -> str:
    """Returns the most that removing one head alone costs on average, rounded up to two digits."""
    step = 10.0 ** (floor(log10(row.bound)) - 1) if row.bound > 0 else 1e-4
    return verdicts.tolerance.format_damage(ceil(row.bound / step - 1e-6) * step)


def format_verdicts(verdicts: HeadVerdicts) -> str:
    """Returns what bounds and marks of single heads say, and how many examples are missing."""
    size = verdicts.tolerance
    documents = "" if verdicts.n_documents is None else f" from {verdicts.n_documents} documents"
    text = (
        f"costs at most: each head removed alone, {verdicts.n_examples} report examples{documents}, {verdicts.level:.0%}, counting up to "
        f"{size.format_damage(size.clip)} per example; "
    )
    if verdicts.reason:
        return f"{text}no head is called safe: {verdicts.reason}"
    text += f"safe alone: at most {size}, corrected over heads; this says nothing about removing several"
    if verdicts.n_missing_for_harmless_head:
        text += f"; {verdicts.n_missing_for_harmless_head} {verdicts.unit_name} more would find every head that changes nothing"
    return text


def format_rounding_warning(method: str, heads: Sequence[str]) -> str:
    """Returns the warning about scores that rounding alone moves by more than their standard error."""
    names = f"{', '.join(heads[:8])}{' …' if len(heads) > 8 else ''}"
    return f"{method}: rounding alone moves the score of {names} by more than its standard error, so it depends on the processor"
