"""Token timestamps equal those of transformers: the filter, the path, and the starts of tokens from the attention of a model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from speaking import utterances, whisper
from transformers.generation.utils import GenerateEncoderDecoderOutput
from transformers.models.whisper.generation_whisper import _dynamic_time_warping, _median_filter

from headcount.behaviour.head_jobs import AlignmentJob
from headcount.behaviour.speech import read_speech
from headcount.behaviour.timestamps import WordRows, normalise_attention, token_start_frames
from headcount.behaviour.views import corpus_examples


@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (9, 1), (5, 5), (12, 40), (30, 12)], ids=str)
@pytest.mark.parametrize("kind", ["drawn", "ties", "equal"])
def test_the_path_is_that_of_transformers(shape: tuple[int, int], kind: str) -> None:
    rng = np.random.default_rng(0)
    scores = {
        "drawn": rng.normal(size=(3, *shape)),
        "ties": rng.integers(0, 3, size=(3, *shape)).astype(float),
        "equal": np.zeros((3, *shape)),
    }[kind]
    starts = token_start_frames(scores)
    for number in range(3):
        tokens, frames = _dynamic_time_warping(-scores[number])
        is_start = np.pad(np.diff(tokens), (1, 0), constant_values=1).astype(bool)
        assert starts[number].tolist() == frames[is_start].tolist()


def test_the_filter_is_that_of_transformers_and_knows_frames_that_all_tokens_see_alike() -> None:
    attention = torch.rand(4, 6, 20, dtype=torch.float64)
    weights = attention[None]
    expected = (weights - weights.mean(-2, keepdim=True)) / weights.std(-2, keepdim=True, unbiased=False)
    assert torch.equal(normalise_attention(attention, 7), _median_filter(expected, 7)[0])
    assert torch.allclose(normalise_attention(attention[..., :3], 7), expected[0, ..., :3])  # too short for the filter
    attention[..., 5] = 0.25
    assert normalise_attention(attention, 1)[..., 5].eq(0).all() and normalise_attention(attention, 7).isfinite().all()


def test_starts_of_tokens_are_the_timestamps_of_transformers() -> None:
    """On the same heads of the same model, utterance by utterance, with silence cropped."""
    model, spoken = whisper(), utterances(6)
    heads = [[0, 1], [0, 4], [1, 2]]
    corpus = read_speech(model, spoken)
    job = AlignmentJob.for_speech(model, corpus)
    examples = corpus_examples(model, corpus)
    for number in range(len(spoken)):
        batch = examples.collate([examples.examples[number]])
        with torch.no_grad():
            crosses = model(**batch, output_attentions=True).cross_attentions
        tokens = batch["decoder_input_ids"][:, :-1]  # the end is written, and never read
        outputs = GenerateEncoderDecoderOutput(
            sequences=batch["decoder_input_ids"],  # pyright: ignore[reportArgumentType]
            cross_attentions=(tuple(cross[:, :, : tokens.shape[1]] for cross in crosses),),  # pyright: ignore[reportArgumentType]
        )
        n_frames = [int(spoken[number]["attention_mask"].sum())]
        # the last token before the words is no prompt: its end is the start of the first word
        expected = model._extract_token_timestamps(outputs, heads, num_frames=n_frames, num_input_ids=2)[0, 2:-1] / 0.02
        attention = torch.stack([crosses[layer][0, head] for layer, head in heads])
        starts = token_start_frames(job.maps_to_average(attention, number).mean(0, keepdim=True).numpy())[0]
        assert starts.tolist() == expected.round().long().tolist()


def test_words_are_judged_by_their_frames() -> None:
    words = WordRows(np.array([0, 2]), np.array([2, 3]), np.array([[1, 4], [6, 10]]))
    starts: Any = np.array([[0, 2, 5, 12], [0, 2, 8, 12], [0, 1, 3, 9]])
    assert words.share_of_frames_at_own_word(starts).tolist() == [1.0, 5 / 7, 5 / 7]
    assert words.mean_word_start_errors_in_frames(starts).tolist() == [1.0, 2.0, 3.0]
