"""Results that are summed over the examples of a chunk, beside results of each example."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
import torch
from torch import Tensor

from headcount.data.stream import Measure, Reading, Summed, stream
from headcount.data.task import CollatedExamples, pad


def examples(number: int) -> CollatedExamples:
    return CollatedExamples([{"input_ids": [1] * (1 + n % 3), "value": n} for n in range(number)], pad)


def measure_within(room: int) -> Measure:
    """Measures numbers of examples; memory runs out in the middle of a batch of more than `room`."""

    def measure(batch: Mapping[str, Tensor], numbers: list[int]) -> dict[str, Tensor | Summed]:
        values = batch["value"].double()
        if len(numbers) > room:
            raise MemoryError("out of memory")
        return {"row": values, "sum": Summed(values.sum()), "first half": Summed(values[torch.tensor(numbers) < 5].sum())}

    return measure


@pytest.mark.parametrize(("room", "batch_size"), [(100, 8), (100, 3), (2, 8), (1, 8)])
def test_sums_count_each_example_once(room: int, batch_size: int) -> None:
    """Also where memory runs out and batches are halved."""
    reading = Reading(examples(11), batch_size=batch_size, chunk_size=8)
    results = list(stream(reading, measure_within(room)))
    assert [result["sum"].item() for result in results] == [sum(range(8)), 8 + 9 + 10]
    assert sum(result["first half"].item() for result in results) == 0 + 1 + 2 + 3 + 4
    assert np.concatenate([result["row"] for result in results]).tolist() == list(range(11))
