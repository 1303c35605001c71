"""When each token is spoken, by dynamic time warping over cross-attention: the arithmetic of transformers' token timestamps, for many heads at once.

    z = (a − mean over tokens) / (standard deviation over tokens),   median of z over neighbouring frames,   mean over heads,
    then the monotone path through tokens × frames with the largest sum

The row of a query starts at its first frame on the path. A query attends to what it predicts, so that is the end of the token that it has just read,
and the start of the next one.

Radford et al. 2022, "Robust Speech Recognition via Large-Scale Weak Supervision"; transformers' `WhisperGenerationMixin._extract_token_timestamps`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from torch import Tensor, nn

DIAGONAL, NEXT_TOKEN, NEXT_FRAME = 0, 1, 2
"""The steps of a path: to the next token and frame, to the next token, to the next frame."""


def normalise_attention(attention: Float[Tensor, "heads token frame"], median_width: int) -> Float[Tensor, "heads token frame"]:
    """Returns the attention of heads, standardised over tokens and smoothed over frames; 0 where all tokens attend to a frame equally."""
    deviation = attention.std(-2, keepdim=True, unbiased=False)
    standardised = (attention - attention.mean(-2, keepdim=True)) / deviation.where(deviation > 0, 1.0)
    reach = median_width // 2
    if standardised.shape[-1] <= reach:
        return standardised
    padded = nn.functional.pad(standardised, (reach, reach), mode="reflect")
    return padded.unfold(-1, median_width, 1).sort()[0][..., reach]


def token_start_frames(scores: Float[np.ndarray, "sets token frame"]) -> Int[np.ndarray, "sets token"]:
    """Returns the first frame of each token on the path of the largest sum, for several matrices of equal shape at once.

    Costs are added in float32 and ties go to the next frame, as in transformers.
    """
    n_sets, n_tokens, n_frames = scores.shape
    steps = _last_steps_of_cheapest_paths(-scores.astype(np.float64))
    starts = np.zeros((n_sets, n_tokens), dtype=np.int64)
    rows = np.arange(n_sets)
    token, frame = np.full(n_sets, n_tokens), np.full(n_sets, n_frames)
    for _ in range(n_tokens + n_frames):
        is_inside = (token > 0) & (frame > 0)
        starts[rows[is_inside], token[is_inside] - 1] = frame[is_inside] - 1
        step = steps[token + frame, rows, token]
        token = np.where(is_inside & (step != NEXT_FRAME), token - 1, token)
        frame = np.where(is_inside & (step != NEXT_TOKEN), frame - 1, frame)
    return starts


def _last_steps_of_cheapest_paths(costs: Float[np.ndarray, "sets token frame"]) -> Int[np.ndarray, "diagonal sets token+1"]:
    """Returns the last step of the cheapest path to every cell, by token + frame and token, computed one antidiagonal of all matrices at a time."""
    n_sets, n_tokens, n_frames = costs.shape
    by_diagonal = np.zeros((n_tokens + n_frames + 1, n_sets, n_tokens + 1))
    for token in range(n_tokens):
        by_diagonal[token + 2 : token + 2 + n_frames, :, token + 1] = costs[:, token].T
    steps = np.full(by_diagonal.shape, NEXT_FRAME, dtype=np.int8)
    before, last = (np.full((n_sets, n_tokens + 1), np.inf, dtype=np.float32) for _ in range(2))
    before[:, 0] = 0.0  # the path begins in front of the first token and frame
    for diagonal in range(2, n_tokens + n_frames + 1):
        low, high = max(1, diagonal - n_frames), min(n_tokens, diagonal - 1) + 1
        both, token, frame = before[:, low - 1 : high - 1], last[:, low - 1 : high - 1], last[:, low:high]
        is_diagonal, is_token = (both < token) & (both < frame), (token < both) & (token < frame)
        steps[diagonal, :, low:high] = np.where(is_diagonal, DIAGONAL, np.where(is_token, NEXT_TOKEN, NEXT_FRAME))
        cheapest = np.where(is_diagonal, both, np.where(is_token, token, frame))
        current = np.full_like(last, np.inf)
        current[:, low:high] = by_diagonal[diagonal, :, low:high] + cheapest
        before, last = last, current
    return steps


@dataclass(frozen=True, slots=True)
class WordRows:
    """The words of an utterance: the rows of their tokens among those that are warped, and the frames in which they are spoken.

    A token lasts from the start of its row to the start of the row behind it. `first_rows` and `rows_after` bound the rows of each word,
    `frames` are [first, one after the last].
    """

    first_rows: Int[np.ndarray, " words"]
    rows_after: Int[np.ndarray, " words"]
    frames: Int[np.ndarray, "words 2"]

    def share_of_frames_at_own_word(self, row_start_frames: Int[np.ndarray, "sets row"]) -> Float[np.ndarray, " sets"]:
        """Returns which share of the frames of words is assigned to a token of their own word."""
        first, after = row_start_frames[:, self.first_rows], row_start_frames[:, self.rows_after]
        common = np.minimum(after, self.frames[:, 1]) - np.maximum(first, self.frames[:, 0])
        return np.clip(common, 0, None).sum(-1) / (self.frames[:, 1] - self.frames[:, 0]).sum()

    def mean_word_start_errors_in_frames(self, row_start_frames: Int[np.ndarray, "sets row"]) -> Float[np.ndarray, " sets"]:
        """Returns by how many frames the start of a word is missed on average, without the first word, which starts at 0 on every path."""
        errors = np.abs(row_start_frames[:, self.first_rows] - self.frames[:, 0])[:, 1:]
        return errors.mean(-1) if errors.shape[1] else np.zeros(len(row_start_frames))
