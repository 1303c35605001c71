"""Recipes: how a model is trained. No torch here, so that a command line can check one at once."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, replace

from headcount.core.errors import OptionError
from headcount.core.options import Configurable, format_value, option

FAIR_STEPS = 300
"""The fewest optimiser steps of a training whose recipe names neither steps nor epochs."""
Length = float | str
"""How long a training lasts: a number of epochs, a number of steps such as "300steps", or "auto"."""


@dataclass(frozen=True)
class Recipe(Configurable):
    """How a model is trained: for a number of optimiser steps or epochs, by default one epoch and at least 300 steps.

    Example:
        >>> Recipe(steps=500, rate=2e-4).n_steps(n_examples=10_000)
        500

    Raises:
        OptionError: a value has the wrong type or is out of range, or both steps and epochs are given.
    """

    _: KW_ONLY
    steps: int | None = option(None, "Optimiser steps of methods that train; by default those of one epoch, and at least 300.", minimum=1)
    epochs: float | None = option(None, "Epochs of methods that train, in place of a number of steps.", above=0)
    rate: float = option(5e-5, "Learning rate of weights, where they train.", minimum=0)
    train_batch: int = option(32, "Examples of one training step, over all processes and all parts of an accumulation.", minimum=1)
    warmup: float = option(0.06, "Share of the steps over which the learning rate rises.", minimum=0, maximum=1)
    decay: float = option(0.01, "Weight decay.", minimum=0)
    distil: float = option(0.0, "Weight of the dense model's predictions in the loss of the recovery.", minimum=0, maximum=1)
    save_every: int | None = option(None, "Steps between checkpoints; by default a tenth of all steps.", minimum=1)
    training_arguments: Mapping | None = option(None, "Further TrainingArguments: report_to, bf16, gradient_accumulation_steps, …")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps is not None and self.epochs is not None:
            raise OptionError(f"a recipe lasts for steps or for epochs; got steps={self.steps} and epochs={self.epochs}, leave one out")

    def n_steps(self, n_examples: int) -> int:
        """Returns the number of optimiser steps of a training on `n_examples` examples."""
        if self.steps is not None:
            return self.steps
        one_epoch = n_examples / self.train_batch
        return max(1, round(one_epoch * self.epochs)) if self.epochs is not None else max(FAIR_STEPS, round(one_epoch))

    @property
    def length(self) -> Length:
        """How long the training lasts, as `with_length` takes it."""
        return f"{self.steps}steps" if self.steps is not None else "auto" if self.epochs is None else self.epochs

    def with_length(self, length: Length, argument_name: str = "length") -> Recipe:
        """Returns the recipe with another length; `argument_name` is the argument that an error names."""
        value = parse_length(length, argument_name)
        if isinstance(value, str):
            return replace(self, steps=None if value == "auto" else int(value.removesuffix("steps")), epochs=None)
        return replace(self, epochs=value, steps=None)


def parse_length(length: Length, argument_name: str) -> Length:
    """Returns the length of a training in one form: a number of epochs as a float, "300steps", or "auto" (one epoch, and at least 300 steps).

    Raises:
        OptionError: `length`, the value of that argument, is none of these.
    """
    text = str(length).strip().removesuffix("epochs").strip()
    if text == "auto":
        return text
    number = text.removesuffix("steps").strip()
    try:
        value = int(number) if text.endswith("steps") else float(number)
    except ValueError:
        value = 0
    if isinstance(length, bool) or not 0 < value < math.inf:
        raise OptionError(
            f"{argument_name} must be a number of epochs above 0, a number of steps such as 300steps, or auto; got {length!r}"
        )
    return f"{value}steps" if isinstance(value, int) else value


def format_length(length: Length) -> str:
    """Returns the text of a length that `parse_length` returned."""
    return length if isinstance(length, str) else format_value(length)
