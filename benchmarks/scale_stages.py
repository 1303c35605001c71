"""What benchmarks/scale.py measures: five stages at one point of the grid, their CPU or wall time and their peak memory beyond the model.

    torchrun --nproc-per-node 2 benchmarks/scale_stages.py POINT SEED OUT       # POINT: the fields of a Point as JSON

As a script it measures the stages that run distributed, in an order drawn by SEED, and the first process writes what was found to OUT.
"""

from __future__ import annotations

import ctypes
import gc
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import torch
from training import Step
from transformers import BertConfig, BertForSequenceClassification

import headcount as hc
from headcount.behaviour.corpus import read_corpus
from headcount.core.files import write_json
from headcount.data.embedded.sentences import draw_sentences
from headcount.data.embedded.tokenizer import build_tokenizer
from headcount.data.stream import rank_and_world_size
from headcount.data.task import pad
from headcount.data.text.annotated import Annotated, Word

Work = Callable[[], Any]
Clock = Callable[[], float]
POSITIONS = 512
POOL = 512
"""Sentences that texts are joined from."""
CLEAR, STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")


@dataclass(frozen=True, slots=True, order=True)
class Point:
    """One place of the grid: a BERT shape, its data, and how many processes share the work."""

    layers: int
    heads: int
    length: int
    examples: int
    processes: int
    width: int
    batch: int

    def __str__(self) -> str:
        return " ".join(f"{name}={value}" for name, value in asdict(self).items())


def config_of(point: Point) -> BertConfig:
    return BertConfig(
        vocab_size=len(build_tokenizer(segments=True)),
        num_hidden_layers=point.layers,
        num_attention_heads=point.heads,
        hidden_size=point.width,
        intermediate_size=4 * point.width,
        max_position_embeddings=POSITIONS,
    )


def model_of(point: Point) -> BertForSequenceClassification:
    torch.manual_seed(0)
    return BertForSequenceClassification(config_of(point)).eval()


def task_of(point: Point) -> hc.Task:
    """Random tokens with random labels, all of one length."""
    drawn = torch.Generator().manual_seed(0)
    tokens = torch.randint(5, config_of(point).vocab_size, (point.examples, point.length), generator=drawn)
    rows = [{"input_ids": ids.tolist(), "labels": number % 2} for number, ids in enumerate(tokens)]
    return hc.Task("scale", rows, rows, rows, pad)


def texts_of(point: Point) -> Iterator[Annotated]:
    """Texts of at least so many words: embedded English sentences with their trees, joined."""
    pool, place = draw_sentences("english", POOL), 0
    for number in range(point.examples):
        words: list[Word] = []
        while len(words) < point.length:
            words += _after(words, pool[place % POOL].words)
            place += 1
        yield Annotated(" ".join(word.form for word in words), tuple(words), origin=f"text {number}")


def _after(before: list[Word], words: tuple[Word, ...]) -> list[Word]:
    """The words of a sentence behind those of others: characters and governors are counted on."""
    at, first = before[-1].end + 1 if before else 0, len(before)
    heads = (None if word.head is None else word.head if word.head < 0 else word.head + first for word in words)
    return [replace(word, head=head, start=word.start + at, end=word.end + at) for word, head in zip(words, heads, strict=True)]


def scoring(point: Point) -> Work:
    """Gradient importance."""
    model, task = model_of(point), task_of(point)
    return lambda: hc.score(model, task, "gradient", batch_size=point.batch)


def ablation(point: Point) -> Work:
    """Exact ablation of every head, with the trial that proves replay on the model."""
    model, task = model_of(point), task_of(point)
    return lambda: hc.score(model, task, "ablation", batch_size=point.batch)


def roles(point: Point) -> Work:
    """All roles that the texts can show."""
    model = model_of(point)
    corpus = read_corpus(model, list(texts_of(point)), build_tokenizer(segments=True), max_length=point.length, truncate=True)
    return lambda: hc.roles(model, corpus, batch_size=point.batch)


def dsp(point: Point) -> Work:
    """Training steps with subset gates, a quarter of the heads kept; every process takes its share of each batch."""
    rank, number = rank_and_world_size()
    rows = [row for place, row in enumerate(task_of(point).calibration) if place % number == rank]
    share = point.batch // number
    batches: list[Any] = [pad(rows[start : start + share]) for start in range(0, len(rows), share)]
    step: Any = Step(config_of(point), batches[0], "dsp")
    if number > 1:
        step.model = torch.nn.parallel.DistributedDataParallel(step.model)

    def train() -> None:
        for batch in batches:
            step.batch = batch
            step.run()

    return train


def cutting(point: Point) -> Work:
    """Half of the heads of every block leave, with the proof."""
    model = model_of(point)
    plan = hc.Plan.removing([str(head) for block in hc.HeadMap.of(model).blocks for head in block.heads[::2]])
    return lambda: hc.cut(model, plan)


STAGES: dict[str, Callable[[Point], Work]] = {"scoring": scoring, "ablation": ablation, "roles": roles, "dsp": dsp, "cutting": cutting}
SHARED = ("scoring", "ablation", "roles", "dsp")
"""The stages that several processes share."""


def measured(stage: str, point: Point, clock: Clock = time.process_time) -> dict[str, float]:
    """Seconds that a stage takes once model and data are there, and its peak memory beyond them in MiB, where the system measures it."""
    work = STAGES[stage](point)
    _settle()
    _together()
    before, start = _reset(), clock()
    work()
    _together()
    found = {"seconds": clock() - start}
    return found if before is None else {**found, "mib": _status("VmHWM") - before}


def _settle() -> None:
    """Gives free memory back to the system, so that the next peak starts from what is in use."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
    if trim is not None:
        trim(0)


def _reset() -> float | None:
    """Starts the peak again where Linux lets it; the memory in use, in MiB."""
    if not CLEAR.exists():
        return None
    CLEAR.write_text("5")
    return _status("VmRSS")


def _status(name: str) -> float:
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) / 1024


def _together() -> None:
    if rank_and_world_size()[1] > 1:
        torch.distributed.barrier()


def tiny(point: Point) -> Point:
    """The smallest point of the same kind, to import and to load what the first call needs."""
    return replace(point, layers=1, heads=2, length=8, examples=2 * point.batch)


def warm_up(point: Point) -> None:
    for stage in STAGES if point.processes == 1 else SHARED:
        measured(stage, tiny(point))


def main() -> None:
    point, seed, out = Point(**json.loads(sys.argv[1])), int(sys.argv[2]), Path(sys.argv[3])
    torch.set_num_threads(1)
    warm_up(point)
    found = {stage: measured(stage, point, time.perf_counter) for stage in Random(seed).sample(SHARED, len(SHARED))}
    if rank_and_world_size()[0] == 0:
        write_json(out, found)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
