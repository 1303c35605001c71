"""Sentences of the command line that several verbs print."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headcount.runs.results import PrunedRow


def format_smallest(rows: Sequence[PrunedRow], method: str, number: int | None) -> str:
    """Returns the fewest heads of a method without a significant loss; how many sizes were tried where all of them lose."""
    sizes = {row.keep for row in rows if row.method == method and row.removed}
    return str(number) if number is not None else f"none of {len(sizes)} tried" if sizes else "nothing was removed"


def format_training(models: int, fewest: int, most: int, seconds: float) -> str:
    """Returns how many models will train, for how many optimiser steps, and for how long."""
    steps = f"{fewest}" if fewest == most else f"{fewest} to {most}"
    minutes, rest = divmod(round(seconds), 60)
    duration = f"{minutes} min {rest} s" if minutes else f"{rest} s"
    who = "1 model trains" if models == 1 else f"{models} models train, each"
    return f"{who} for {steps} optimiser steps: about {duration} in all on this machine"
