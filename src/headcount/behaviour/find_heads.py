"""Finds the heads that do a job: ranked on one half of the examples, as few as nearly suffice, tested on the other half.

    ranking: the score of each head alone;   set k: the first k heads of the ranking, by their mean attention
    chosen: the smallest k with score(k) ≥ (1 − 2 %) · max score;   its score and interval from the other half

Which half an example belongs to is a bit of the hash of its tokens, as for the best heads of roles.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from headcount.behaviour.best_heads import CHOOSING, LEVEL, MEASURING, half_of_example
from headcount.behaviour.head_jobs import HeadJob
from headcount.behaviour.measure import check_finite
from headcount.behaviour.views import corpus_examples, view_name
from headcount.core.errors import DataError, UnsupportedModel
from headcount.core.head_list import ALIGNMENT, HeadList, SetScore
from headcount.core.heads import AttentionBlock, Head, hashed_tie_ranks
from headcount.core.progress import Progress
from headcount.core.stats.betting import upper_bound_of_mean
from headcount.data.checks import check_batch, check_finite_weights
from headcount.data.stream import Reading, stream
from headcount.data.task import CollatedExamples
from headcount.models.head_map import HeadMap
from headcount.models.modules import Batch
from headcount.models.observe import Observation, Observer
from headcount.models.provenance import model_key

WITHIN = 0.02
"""How much worse than the best set, as a share of its score, the smallest set may be."""
MOST_HEADS = 64
"""The largest set that is tried: maps of so many heads are in memory for every example of a batch."""
FEWEST_EXAMPLES = 4
"""Examples that each half needs."""
BATCH_OF_SPEECH = 8
"""Utterances per forward pass: each has as many keys as the encoder has frames."""


@dataclass(frozen=True, slots=True)
class Halves:
    """The examples that choose and those that test, by number."""

    choosing: tuple[int, ...]
    testing: tuple[int, ...]


class HeadSearch:
    """A search for the heads that do a job in a model.

    Args:
        model: The model, unwrapped.
        job: The job with its examples.
        batch_size: Examples per forward pass; None for 8 of speech, 32 of text.
        seed: Settles ties.
        current: Heads that the model lists for the job now, which are tested beside those that are found.

    Raises:
        DataError: a half of the examples has fewer than 4.
        UnsupportedModel: the model has no heads for the job.
    """

    def __init__(self, model: nn.Module, job: HeadJob, *, batch_size: int | None, seed: int, current: Sequence[Head] = ()) -> None:
        self.model, self.job, self.seed, self.current = model, job, seed, tuple(current)
        self.batch_size = batch_size or (BATCH_OF_SPEECH if job.corpus.audio else None)
        self.blocks = [block for block in HeadMap.of(model).blocks if block.n_heads and view_name(model, block) == job.view]
        if not self.blocks:
            raise UnsupportedModel(f"{type(model).__name__} has no heads that could do {job.name}")
        for half, numbers in (("chooses", self.halves.choosing), ("tests", self.halves.testing)):
            if len(numbers) < FEWEST_EXAMPLES:
                raise DataError(
                    f"the half of the examples that {half} has {len(numbers)} of {len(self.job.corpus.sentences)}; each needs {FEWEST_EXAMPLES}. "
                    "Examples with the same tokens are in the same half: give more, and different ones"
                )

    @cached_property
    def heads(self) -> list[Head]:
        """The heads that are ranked."""
        return [head for block in self.blocks for head in block.heads]

    @cached_property
    def halves(self) -> Halves:
        """The halves of the examples."""
        corpus = self.job.corpus
        contents = [side.ids for side in corpus.targets or corpus.sentences]
        numbers = {half: tuple(i for i, ids in enumerate(contents) if half_of_example(ids) == half) for half in (CHOOSING, MEASURING)}
        return Halves(numbers[CHOOSING], numbers[MEASURING])

    @property
    def n_examples_to_read(self) -> int:
        """How many examples are read in all: the choosing half twice."""
        return 2 * len(self.halves.choosing) + len(self.halves.testing)

    def estimate_seconds(self) -> float:
        """Returns how long the search takes, by the first examples."""
        numbers = self.halves.choosing[:2]
        start = time.monotonic()
        self._score_head_sets([(head,) for head in self.heads], numbers, None)
        return (time.monotonic() - start) / len(numbers) * self.n_examples_to_read

    def run(self, progress: Progress | None = None) -> HeadList:
        """Returns the heads, ranked and chosen on one half and tested on the other."""
        check_finite_weights(self.model)
        choosing, testing = self.halves.choosing, self.halves.testing
        advance = _SearchProgress(progress, self.n_examples_to_read)
        alone = self._score_head_sets([(head,) for head in self.heads], choosing, advance)[..., 0].mean(0)
        order = hashed_tie_ranks(self.heads, self.seed)
        ranking = sorted(range(len(self.heads)), key=lambda i: (-alone[i], order[i]))
        ranked = [self.heads[i] for i in ranking]
        sets = [tuple(ranked[:size]) for size in range(1, min(len(ranked), MOST_HEADS) + 1)]
        set_scores = self._score_head_sets(sets, choosing, advance)[..., 0].mean(0)
        chosen = sets[int(np.argmax(set_scores >= (1 - WITHIN) * set_scores.max()))]
        others = {"the best head alone": sets[0], "all heads": tuple(self.heads)} | (
            {"the list so far": self.current} if self.current else {}
        )
        numbers = self._score_head_sets([chosen, *others.values()], testing, advance)
        return HeadList(
            job=self.job.name,
            heads=chosen,
            tested=_mean_score_with_interval(chosen, numbers[:, 0, 0]),
            compared={name: _mean_score_with_interval(heads, numbers[:, 1 + i, 0]) for i, (name, heads) in enumerate(others.items())},
            ranking=tuple((self.heads[i], float(alone[i])) for i in ranking),
            set_scores=tuple(float(score) for score in set_scores),
            metric=self.job.metric,
            n_choosing=len(choosing),
            n_testing=len(numbers),
            baseline=float(numbers[:, 0, 1].mean()),
            boundary_seconds=float(numbers[:, 0, 2].mean()) if self.job.name == ALIGNMENT else None,
            model=model_key(self.model),
            data=advance.joined_fingerprints,
            seed=self.seed,
        )

    def _score_head_sets(
        self, head_sets: Sequence[tuple[Head, ...]], example_numbers: Sequence[int], search_progress: _SearchProgress | None
    ) -> Float[np.ndarray, "example sets score_baseline_further"]:
        """Returns the numbers of every set in the examples that show the job."""
        examples = corpus_examples(self.model, self.job.corpus)
        part = CollatedExamples([examples.examples[number] for number in example_numbers], examples.collate)
        reading = Reading(part, batch_size=self.batch_size, progress=search_progress)
        measured = np.concatenate([chunk["sets"] for chunk in stream(reading, _SetScorer(self, head_sets, example_numbers))])
        if search_progress is not None:
            search_progress.count_finished_pass(reading)
        shows = ~np.isnan(measured[..., 0]).any(1)
        if shows.sum() < FEWEST_EXAMPLES and search_progress is not None:
            raise DataError(
                f"{int(shows.sum())} of {len(example_numbers)} examples show {self.job.name} in {type(self.model).__name__}, and {FEWEST_EXAMPLES} "
                "are needed in each half; the model does not do this job on such input"
            )
        return measured[shows]


class _SearchProgress:
    """Reports the examples that were read in all passes together, and collects the fingerprints of the passes."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self._progress, self._total, self._n_before = progress, total, 0
        self._fingerprints: dict[str, None] = {}

    def __call__(self, n_finished: int, _total: int | None) -> None:
        if self._progress is not None:
            self._progress(self._n_before + n_finished, self._total)

    def count_finished_pass(self, reading: Reading) -> None:
        """Counts a finished pass."""
        self._n_before += reading.examples
        self._fingerprints[reading.fingerprint] = None

    @property
    def joined_fingerprints(self) -> str:
        """The fingerprints of the halves."""
        return " ".join(self._fingerprints)


class _SetScorer:
    """Measures the mean attention of sets of heads, in the examples of a batch; a set is scored as soon as all its heads have run."""

    def __init__(self, search: HeadSearch, sets: Sequence[tuple[Head, ...]], example_numbers: Sequence[int]) -> None:
        self.model, self.job, self.sets, self.example_numbers = search.model, search.job, sets, example_numbers
        members = {head for heads in sets for head in heads}
        self.blocks = [block for block in search.blocks if members & set(block.heads)]

    def __call__(self, batch: Batch, numbers: list[int]) -> Mapping[str, Tensor]:
        """Returns the numbers of every set, [batch, sets, n]."""
        self.numbers = [self.example_numbers[number] for number in numbers]
        check_batch(self.model, batch, self.numbers)
        self.sums: dict[int, list[Any]] = {}
        self.n_seen = [0] * len(self.sets)
        self.results: dict[int, list[np.ndarray]] = {}
        with Observer(self.model, self._add_attention_of_block, blocks=self.blocks, outputs=False) as observer:
            observer.run(batch)
        if len(self.results) < len(self.sets):
            raise UnsupportedModel(
                f"some attention blocks of {type(self.model).__name__} did not run on this input, so they cannot be observed"
            )
        return {"sets": torch.from_numpy(np.stack([np.stack(self.results[i]) for i in range(len(self.sets))], 1))}

    def _add_attention_of_block(self, observation: Observation) -> None:
        attention, visible, block = observation.attention, observation.visible, observation.block
        assert attention is not None and visible is not None
        if attention.shape[0] != len(self.numbers):
            raise UnsupportedModel(f"block '{block.path}' does not attend example by example, so its heads cannot be compared")
        check_finite(attention, self.numbers, block)
        maps = [self.job.maps_to_average(attention[row], number) for row, number in enumerate(self.numbers)]
        for set_number in range(len(self.sets)):
            self._add_block_to_set(set_number, block, maps)
        complete = [i for i in sorted(self.sums) if self.n_seen[i] == len(self.sets[i])]
        for row, number in enumerate(self.numbers if complete else ()):
            means = torch.stack([self.sums[i][row] / len(self.sets[i]) for i in complete])
            for i, scores in zip(complete, self.job.score_mean_maps(means, visible[row], number), strict=True):
                self.results.setdefault(i, []).append(scores)
        for i in complete:
            del self.sums[i]

    def _add_block_to_set(self, set_number: int, block: AttentionBlock, maps_by_example: Sequence[Tensor]) -> None:
        """Adds the heads of a block that are in a set to its sums."""
        heads = self.sets[set_number]
        positions = [position for position, head in enumerate(block.heads) if head in heads]
        if not positions:
            return
        if self.n_seen[set_number] >= len(heads):
            raise UnsupportedModel(f"block '{block.path}' runs several times in a pass, so its heads have no single attention map")
        sums = [maps[positions].sum(0) for maps in maps_by_example]
        before = self.sums.get(set_number)
        self.sums[set_number] = sums if before is None else [total + now for total, now in zip(before, sums, strict=True)]
        self.n_seen[set_number] += len(positions)


def _mean_score_with_interval(heads: Sequence[Head], scores_by_example: Float[np.ndarray, " example"]) -> SetScore:
    """Returns the mean score of a set over examples; both ends of its interval are bounds by betting, which hold for any scores in [0, 1]."""
    tail = (1 + LEVEL) / 2
    low, high = (
        sign * float(upper_bound_of_mean(sign * (2 * scores_by_example - 1), 1.0, tail)[0]) for sign in (-1, 1)
    )  # of 2 · score − 1, in [−1, 1]
    return SetScore(n_heads=len(heads), score=float(scores_by_example.mean()), low=(1 + low) / 2, high=(1 + high) / 2)
