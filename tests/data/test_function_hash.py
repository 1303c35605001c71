"""Functions that compute differently have different hashes, and the same function the same one in every process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from headcount.data.function_hash import hash_function


def weighted(weight: object) -> Callable[[Any], Any]:
    return lambda outputs: outputs.loss * weight


def scaled(outputs: Any, factor: float = 1.0) -> Any:
    return outputs.loss * factor


class Scaled:
    def __init__(self, factor: object) -> None:
        self.factor = factor

    def __call__(self, outputs: Any) -> Any:
        return outputs.loss * self.factor


@pytest.mark.parametrize(
    "function_of",
    [
        weighted,
        lambda value: partial(scaled, factor=value),
        Scaled,
        lambda value: weighted(Scaled(value)),
        lambda value: weighted({"by class": [value, 1]}),
    ],
)
@pytest.mark.parametrize(("one", "other"), [(1.0, 2.0), (torch.tensor([1.0, 2.0]), torch.tensor([1.0, 3.0]))])
def test_functions_of_one_factory_that_hold_other_values_differ(function_of: Callable[[object], Any], one: object, other: object) -> None:
    """Two losses with other weights shared a key, so that results of the one were taken for the other's."""
    assert hash_function(function_of(one)) == hash_function(function_of(one))
    assert hash_function(function_of(one)) != hash_function(function_of(other))


def test_weights_of_a_model_that_a_loss_holds_count() -> None:
    first, second = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    assert hash_function(weighted(first)) != hash_function(weighted(second))


def test_a_function_that_calls_itself_has_a_hash() -> None:
    def count_down(number: int) -> int:
        return 0 if number == 0 else count_down(number - 1)

    assert hash_function(count_down) == hash_function(count_down)


def test_another_process_gives_the_same_hash() -> None:
    code = (
        "from headcount.data.function_hash import hash_function\n"
        "def make(weights):\n"
        "    return lambda outputs: [outputs * w for w in weights if w in {'a', 'b', 'c'}]\n"
        "print(hash_function(make({'a': {1, 2}, 'b': print})))"
    )
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout for _ in range(2)]
    assert runs[0] == runs[1] != ""
