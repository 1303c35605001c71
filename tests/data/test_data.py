"""Data: fixed chunks in a fixed order, whatever the batch size; tasks, datasets and batches that cannot be used are refused by name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headcount.core.errors import DataError, HeadcountError
from headcount.data.chunks import CHUNK, Chunk, chunks, default_batch_size, n_rows, number_of_examples, select_rows
from headcount.data.stream import Reading, stream
from headcount.data.task import SPLITS, Task, pad


def examples(number: int, seed: int = 0) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    return [{"input_ids": rng.integers(1, 50, size=int(rng.integers(1, 9))).tolist(), "labels": i % 2} for i in range(number)]


def task(rows: list[dict[str, Any]]) -> Task:
    return Task("toy", rows, rows[:1], rows[:1], pad)


def in_order(chunk: Chunk, size: int) -> list[list[int]]:
    """The tokens of a chunk's examples, put back into their places."""
    actual: dict[int, list[int]] = {}
    for positions, batch in chunk.batches(size):
        for place, ids, mask in zip(positions, batch["input_ids"], batch["attention_mask"], strict=True):
            assert place not in actual
            actual[place] = ids[mask.bool()].tolist()
    return [actual[index] for index in range(chunk.size)]


def read(data: Any, **options: Any) -> Reading:
    """A reading that has run to its end."""
    reading = Reading(data, **options)
    list(stream(reading, lambda batch, numbers: {"n": torch.tensor(numbers)}))
    return reading


# Chunks.


@settings(max_examples=25, deadline=None)
@given(number=st.integers(1, 40), size=st.integers(1, 50), batch=st.integers(1, 50), limit=st.none() | st.integers(1, 60))
def test_chunks_hold_every_example_once_in_order(number: int, size: int, batch: int, limit: int | None) -> None:
    rows = examples(number)
    made = list(chunks(task(rows), chunk_size=size, limit=limit))
    taken = rows[:limit]
    assert [chunk.first for chunk in made] == list(range(0, len(taken), size))
    assert all(chunk.size == size for chunk in made[:-1])
    assert [ids for chunk in made for ids in in_order(chunk, batch)] == [row["input_ids"] for row in taken]
    assert number_of_examples(task(rows), limit=limit) == len(taken)


def test_batches_of_a_chunk_hold_alike_lengths() -> None:
    (chunk,) = chunks(task(examples(60)))
    widths = [batch["input_ids"].shape[1] for _, batch in chunk.batches(10)]
    assert widths == sorted(widths)
    assert widths[0] < widths[-1]


def test_the_fingerprint_is_of_the_examples_alone() -> None:
    """Not of the batch size, of how many are in a chunk, or of the file they came from."""
    rows = examples(300)
    prints = {read(task(rows), batch_size=size, chunk_size=chunk).fingerprint for size in (None, 1, 7, 200, 400) for chunk in (32, CHUNK)}
    assert len(prints) == 1
    for other in (rows[:-1], rows[::-1], [*rows[:-1], {**rows[-1], "labels": 5}], [{"labels": r["labels"], "decoder": 1} for r in rows]):
        assert read(task(other)).fingerprint not in prints
    assert read(task(rows), limit=299).fingerprint == read(task(rows[:-1])).fingerprint


def test_tensors_of_another_kind_have_another_fingerprint() -> None:
    values = [torch.tensor([1, 2]), torch.tensor([1, 2]).int(), torch.tensor([[1, 2]]), torch.tensor([True, False]), [1, 2], [1.0, 2.0]]
    values += [torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.0]).bfloat16(), torch.tensor(1)]
    prints = [next(iter(chunks(Task("t", [{"x": v}], [{}], [{}], pad)))).digest for v in values]
    assert len(set(prints)) == len(values)


def test_results_come_in_the_order_of_the_examples() -> None:
    reading = Reading(task(examples(20)), batch_size=3, chunk_size=8)
    actual = list(stream(reading, lambda batch, numbers: {"n": torch.tensor(numbers), "long": batch["attention_mask"].sum(-1)}))
    assert np.concatenate([chunk["n"] for chunk in actual]).tolist() == list(range(20))
    assert np.concatenate([chunk["long"] for chunk in actual]).tolist() == [len(row["input_ids"]) for row in examples(20)]
    assert reading.examples == 20


def test_progress_is_told_after_every_chunk() -> None:
    messages: list[tuple[int, int | None]] = []
    read(task(examples(20)), chunk_size=8, progress=lambda done, total: messages.append((done, total)))
    assert messages == [(8, 20), (16, 20), (20, 20)]
    messages.clear()
    read([pad(examples(3)), pad(examples(2))], progress=lambda done, total: messages.append((done, total)))
    assert messages == [(3, None), (5, None)]


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_below_one_is_refused(limit: int) -> None:
    with pytest.raises(DataError, match=f"limit must be 1 or more, got {limit}"):
        list(chunks(task(examples(3)), limit=limit))


@pytest.mark.parametrize("size", [0, -2])
def test_a_batch_size_below_one_is_refused(size: int) -> None:
    with pytest.raises(HeadcountError, match=f"batch_size must be 1 or more, got {size}"):
        Reading(task(examples(3)), batch_size=size)


def test_a_task_says_how_much_is_read_at_a_time() -> None:
    few = replace(task(examples(7)), batch_size=2)
    assert (Reading(few).batch_size, Reading(few, batch_size=5).batch_size) == (2, 5)
    assert (default_batch_size(few), default_batch_size(task(examples(3)))) == (2, 32)
    observed_values: list[int] = []
    list(stream(Reading(few), lambda batch, numbers: (observed_values.append(len(numbers)), {"n": torch.tensor(numbers)})[1]))
    assert max(observed_values) == 2 and sum(observed_values) == 7
    with pytest.raises(DataError, match="batch_size must be 1 or more, got 0"):
        replace(few, batch_size=0)


# Plain batches.


def test_one_batch_is_enough() -> None:
    batch = pad(examples(5))
    (chunk,) = chunks(batch)
    assert chunk.size == 5
    assert in_order(chunk, 2) == [row["input_ids"] for row in examples(5)]
    assert read(batch).fingerprint == read([batch]).fingerprint


def test_batches_are_chunks_and_a_limit_cuts_the_last() -> None:
    batches = [pad(examples(4, seed)) for seed in range(3)]
    made = list(chunks(batches, limit=6))
    assert [(chunk.first, chunk.size) for chunk in made] == [(0, 4), (4, 2)]
    assert in_order(made[1], 8) == [row["input_ids"] for row in examples(4, 1)[:2]]
    assert number_of_examples(batches) is None


def test_an_exhausted_iterator_is_refused() -> None:
    batches = iter([pad(examples(4))])
    assert len(list(chunks(batches))) == 1
    with pytest.raises(DataError, match="An iterator can be read once"):
        list(chunks(batches))


@pytest.mark.parametrize(
    "data", [[], (batch for batch in ()), [{}], [{"input_ids": [[1, 2]]}], [{"labels": torch.tensor(1)}], [[1, 2]], "text"]
)
def test_data_without_batches_are_refused(data: Any) -> None:
    with pytest.raises(DataError, match=r"empty|must yield batches|a batch holds tensors"):
        list(chunks(data))


def test_an_empty_batch_is_refused_by_its_place() -> None:
    with pytest.raises(DataError, match="batch that begins at example 4 is empty"):
        list(chunks([pad(examples(4)), select_rows(pad(examples(4)), slice(0, 0))]))


def test_a_mask_of_too_few_rows_is_left_to_the_check_of_the_batch() -> None:
    batch = pad(examples(4))
    (chunk,) = chunks({**batch, "attention_mask": batch["attention_mask"][:3]})
    assert [positions for positions, _ in chunk.batches(4)] == [[0, 1, 2, 3]]


def test_what_has_no_row_per_example_stays_whole() -> None:
    batch = {"input_ids": torch.zeros(4, 3), "positions": torch.arange(3), "use_cache": False, "scale": torch.tensor(2.0)}
    some = select_rows(batch, [2, 0])
    assert n_rows(batch) == 4 and n_rows(some) == 2
    assert torch.equal(some["positions"], torch.arange(3)) and some["use_cache"] is False and some["scale"] == 2.0


# Datasets.


def test_rows_of_a_dataset_are_examples() -> None:
    datasets = pytest.importorskip("datasets")
    rows = examples(10)
    dataset = datasets.Dataset.from_list(rows)
    made = list(chunks(dataset, chunk_size=4, pad_id=7))
    assert [chunk.size for chunk in made] == [4, 4, 2]
    assert [ids for chunk in made for ids in in_order(chunk, 3)] == [row["input_ids"] for row in rows]
    _, batch = next(iter(made[0].batches(4)))
    assert (batch["input_ids"][~batch["attention_mask"].bool()] == 7).all()
    assert number_of_examples(dataset, limit=3) == 3
    assert read(dataset).fingerprint == read(task(rows)).fingerprint
    assert [ids for chunk in chunks(dataset.with_format("torch")) for ids in in_order(chunk, 3)] == [row["input_ids"] for row in rows]


def test_columns_of_text_are_refused_by_name() -> None:
    datasets = pytest.importorskip("datasets")
    dataset = datasets.Dataset.from_dict({"input_ids": [[1, 2]], "sentence": ["a b"]})
    with pytest.raises(DataError, match=r"column 'sentence' of the dataset holds text.*Tokenise"):
        list(chunks(dataset))
    with pytest.raises(DataError, match="the dataset is empty"):
        list(chunks(datasets.Dataset.from_dict({"input_ids": []})))


# Tasks.


@pytest.mark.parametrize("empty", SPLITS)
def test_a_task_needs_examples_in_each_split(empty: str) -> None:
    splits: dict[str, Any] = {split: [] if split == empty else examples(2) for split in SPLITS}
    with pytest.raises(DataError, match=f"the {empty} split of task 'toy' is empty"):
        Task("toy", collate=pad, **splits)


def test_a_task_has_three_splits() -> None:
    made = Task("toy", examples(3), examples(2), examples(1), pad)
    assert [len(made.split(split)) for split in SPLITS] == [3, 2, 1]
    assert [chunk.size for chunk in chunks(made, split="report")] == [1]
    with pytest.raises(DataError, match="no split 'test'; a task has calibration, selection, report"):
        made.split("test")  # pyright: ignore[reportArgumentType]


# Padding.


def test_padding_fills_each_input_with_its_own() -> None:
    rows = [
        {"input_ids": [5, 6, 7], "token_type_ids": [0, 1, 1], "labels": [1, 2, 3]},
        {"input_ids": [8], "token_type_ids": [1], "labels": [4]},
    ]
    batch = pad(rows, pad_id=9)
    assert batch["input_ids"].tolist() == [[5, 6, 7], [8, 9, 9]]
    assert batch["labels"].tolist() == [[1, 2, 3], [4, -100, -100]]
    assert batch["token_type_ids"].tolist() == [[0, 1, 1], [1, 0, 0]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]


def test_padding_leaves_numbers_pictures_and_given_masks() -> None:
    picture = torch.rand(3, 4, 4)
    batch = pad(
        [{"pixel_values": picture, "labels": 1, "weight": 0.5, "none": None}, {"pixel_values": picture + 1, "labels": 0, "weight": 2.0}]
    )
    assert batch["pixel_values"].shape == (2, 3, 4, 4)
    assert batch["labels"].tolist() == [1, 0] and batch["weight"].tolist() == [0.5, 2.0]
    assert set(batch) == {"pixel_values", "labels", "weight"}
    batch = pad([{"input_ids": [1, 2], "attention_mask": [1, 0]}, {"input_ids": [3]}])
    assert batch["attention_mask"].tolist() == [[1, 0], [1, 0]]


@pytest.mark.parametrize(
    "other", [{"input_ids": [1]}, {"input_ids": [1], "labels": 1, "token_type_ids": [0]}, {"input_ids": [1], "labels": None}]
)
def test_examples_with_other_inputs_than_the_first_are_refused(other: dict[str, Any]) -> None:
    with pytest.raises(DataError, match=r"example .* has .*but the first has"):
        pad([{"input_ids": [1, 2], "labels": 0}, other])


def test_pictures_of_different_sizes_are_refused() -> None:
    with pytest.raises(DataError, match=r"pixel_values.*\(3, 4, 4\).*\(3, 5, 4\)"):
        pad([{"pixel_values": torch.rand(3, 4, 4)}, {"pixel_values": torch.rand(3, 5, 4)}])
