"""Jobs that some heads of a model do, and how well a set of heads does each: read from the mean attention of the set, example by example."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from headcount.behaviour.base import Corpus, ProbeRole
from headcount.behaviour.bias import Sieved, count_strongest_key_hits, expected_chance_hits
from headcount.behaviour.speech import FRAME_SECONDS
from headcount.behaviour.timestamps import WordRows, normalise_attention, token_start_frames
from headcount.behaviour.views import ViewName, build_view
from headcount.core.errors import DataError, UnsupportedModel, unknown_name_error
from headcount.core.head_list import ALIGNMENT, JOBS
from headcount.core.registry import ROLES


@dataclass(frozen=True, kw_only=True)
class HeadJob:
    """A job, the examples that show it, the attention that it is about, and what its score is."""

    name: str
    corpus: Corpus
    view: ViewName
    metric: str

    def maps_to_average(self, attention: Float[Tensor, "heads q k"], example_number: int) -> Float[Tensor, "heads row key"]:
        """Returns what is averaged over the heads of a set, from their attention in one example."""
        raise NotImplementedError(f"{type(self).__name__} has no maps_to_average")

    def score_mean_maps(
        self, mean_map_of_set: Float[Tensor, "sets row key"], visible: Bool[Tensor, "q k"], example_number: int
    ) -> Float[np.ndarray, "sets score_baseline_further"]:
        """Returns a row for the mean map of each set: its score in [0, 1], the score of attention that knows nothing, and further numbers.

        All are NaN where the example does not show the job.
        """
        raise NotImplementedError(f"{type(self).__name__} has no score_mean_maps")


def make_head_job(model: nn.Module, job_name: str, speech_corpus: Corpus | None, seed: int) -> HeadJob:
    """Returns a job for a model: alignment on a corpus of speech, the others on sequences of their own.

    Raises:
        UnknownName: there is no such job.
        DataError: the corpus has no speech, or an utterance no times of words.
        UnsupportedModel: the model cannot do the job.
    """
    if job_name not in JOBS:
        raise unknown_name_error("job", job_name, JOBS)
    if job_name == ALIGNMENT:
        return AlignmentJob.for_speech(model, speech_corpus or Corpus())
    role: Any = ROLES.parse(job_name, ProbeRole)
    sequences = role.probe(model, seed)
    if sequences is None:
        raise UnsupportedModel(
            f"{type(model).__name__} has no {job_name} heads to find: they are found on random tokens, which needs a decoder of text with enough "
            "tokens and positions"
        )
    metric = "share of the tokens that show it whose strongest key is the right one"
    return RoleJob(name=job_name, corpus=sequences, view="source", metric=metric, role=role)


@dataclass(frozen=True, kw_only=True)
class AlignmentJob(HeadJob):
    """Which frames a token is about: the score is the share of the frames of words that dynamic time warping assigns to a token of their word.

    The baseline divides the sound evenly among the tokens.
    """

    median_width: int

    @classmethod
    def for_speech(cls, model: Any, corpus: Corpus) -> AlignmentJob:
        """Returns the job on a corpus whose utterances all have words with times."""
        if not corpus.audio:
            raise DataError("alignment heads are found on speech: utterances with input_features, tokens, and the times of words")
        silent = next((number for number, side in enumerate(corpus.sentences) if not side.annotated.links), None)
        if silent is not None:
            raise DataError(f"utterance {silent} has no words with times; give word_ids and word_times (or word_frames), or leave it out")
        metric = "share of the frames of words that are assigned to their word"
        return cls(name=ALIGNMENT, corpus=corpus, view="cross", metric=metric, median_width=model.config.median_filter_width)

    def maps_to_average(self, attention: Float[Tensor, "heads q k"], example_number: int) -> Float[Tensor, "heads row key"]:
        """Returns the normalised attention to the frames that hold sound: of the queries that predict the tokens of words, and of the one after.

        Token t is predicted at place t, behind the start token.
        """
        pieces = self.corpus.targets[example_number].by_word
        rows = slice(pieces[0][0], pieces[-1][-1] + 2)
        return normalise_attention(attention[:, rows, : len(self.corpus.sentences[example_number].ids)], self.median_width)

    def score_mean_maps(
        self, mean_map_of_set: Float[Tensor, "sets row key"], visible: Bool[Tensor, "q k"], example_number: int
    ) -> Float[np.ndarray, "sets score_baseline_further"]:
        """Returns the share of frames, that of the baseline, and the mean error of the starts of words in seconds."""
        starts, words = token_start_frames(mean_map_of_set.double().cpu().numpy()), self._word_rows(example_number)
        even = words.share_of_frames_at_own_word(
            np.linspace(0, mean_map_of_set.shape[2], mean_map_of_set.shape[1]).round().astype(int)[None]
        )
        return np.stack(
            [
                words.share_of_frames_at_own_word(starts),
                even.repeat(len(starts)),
                words.mean_word_start_errors_in_frames(starts) * FRAME_SECONDS,
            ],
            1,
        )

    def _word_rows(self, example_number: int) -> WordRows:
        source, pieces = self.corpus.sentences[example_number], self.corpus.targets[example_number].by_word
        first_token = pieces[0][0]
        return WordRows(
            first_rows=np.array([word[0] - first_token for word in pieces]),
            rows_after=np.array([word[-1] + 1 - first_token for word in pieces]),
            frames=np.array([(frames[0], frames[-1] + 1) for frames in source.by_word]),
        )


@dataclass(frozen=True, kw_only=True)
class RoleJob(HeadJob):
    """A role that is tested on sequences of its own: the score is the share of its queries whose strongest key is in the sieve.

    The baseline is a key drawn at random.
    """

    role: ProbeRole

    def maps_to_average(self, attention: Float[Tensor, "heads q k"], example_number: int) -> Float[Tensor, "heads row key"]:
        """Returns the attention as it is."""
        return attention.float()

    def score_mean_maps(
        self, mean_map_of_set: Float[Tensor, "sets row key"], visible: Bool[Tensor, "q k"], example_number: int
    ) -> Float[np.ndarray, "sets score_baseline_further"]:
        """Returns the share of the queries with a sieve whose strongest ordinary key is in it, and that of a random key."""
        tokens = build_view(self.corpus, self.view, [example_number], (visible.shape[0], visible.shape[1]))
        sieved = Sieved.from_sieves_and_mask(self.role.sieve(tokens)[..., None].to(visible.device), visible[None])
        keys, is_restricted = tokens.keys.ordinary.to(visible.device), torch.ones(1, dtype=torch.bool, device=visible.device)
        hits = count_strongest_key_hits(mean_map_of_set[None], sieved, keys, is_restricted)[0]
        chance = expected_chance_hits(sieved, keys, is_restricted).expand_as(hits)
        shares = torch.cat([hits, chance], 1) / sieved.tokens[0]  # 0 / 0 is NaN where no query has a sieve
        return shares.double().cpu().numpy()
