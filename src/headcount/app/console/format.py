"""Sentences that several commands print."""

from __future__ import annotations

from collections.abc import Sequence

from headcount.core.training_log import FEW_STEPS


def format_ends(low: float | None, high: float | None) -> str:
    """Returns the ends of an interval of a difference; nothing where there is none."""
    return "" if low is None or high is None else f"{low:+.3g} … {high:+.3g}"


def format_cell(number: float | None) -> str:
    """Returns a p-value with two digits; nothing where there is none."""
    return "" if number is None else f"{number:.2g}"


def format_duration(seconds: float) -> str:
    """Returns a duration in hours and minutes, minutes and seconds, or seconds."""
    minutes, remainder = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes} min {remainder} s" if minutes else f"{remainder} s"


def format_training(models: int, fewest: int, most: int, shortest: int, seconds: float) -> str:
    """Returns how many models will train, for how many optimiser steps, and for how long; with a warning where a stage has too few steps."""
    steps = f"{fewest}" if fewest == most else f"{fewest} to {most}"
    subject = "1 model trains" if models == 1 else f"{models} models train, each"
    few = (
        f"; warning: a schedule has {shortest}, and fewer than {FEW_STEPS} are too few to judge a method by" if shortest < FEW_STEPS else ""
    )
    return f"{subject} for {steps} optimiser steps: about {format_duration(seconds)} in all on this machine{few}"


def format_rounding(label: str, heads: Sequence[str]) -> str:
    """Returns the note on scores that rounding alone moves by more than their standard error."""
    names = f"{', '.join(heads[:8])}{' …' if len(heads) > 8 else ''}"
    return f"{label}: rounding alone moves the score of {names} by more than its standard error, so it depends on the processor"
