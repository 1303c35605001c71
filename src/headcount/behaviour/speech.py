"""Speech as a corpus: utterances with what is said in them, and the frames of each word, for the heads of cross-attention.

The sentences of such a corpus are the frames of the encoder, one token each; its targets are the tokens that the decoder writes; their words are
linked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from headcount.behaviour.base import Corpus
from headcount.core.errors import DataError, UnsupportedModel
from headcount.data.metrics import IGNORED
from headcount.data.text.aligned import Aligned
from headcount.data.text.annotated import Annotated, Word
from headcount.models.modules import decoder_start_id, int_attribute, unwrap
from headcount.models.observe import Observation

FRAME_SECONDS = 0.02
"""The length of an encoder frame of Whisper: two frames of features, 10 ms each."""
FEATURE_FRAMES = 2
"""How many frames of features become one of the encoder."""


def read_speech(model: nn.Module, items: Sequence[Mapping[str, Any]]) -> Corpus:
    """Returns the corpus of some utterances for a model that reads speech and writes text, such as Whisper.

    Args:
        model: The model that reads them.
        items: Mappings with `input_features` [mels, frames], and `labels` or `decoder_input_ids`. For words: `word_ids`, the word of each token (None
            or -1 for tokens of no word), and `word_times`, start and end of each word in seconds, or `word_frames`, in frames of the encoder.
            `attention_mask` [frames] tells sound from padding; `words` are the forms of the words, `origin` names the utterance in messages.

    Raises:
        UnsupportedModel: the model does not read speech frame by frame.
        DataError: an utterance lacks something, or its words are out of order or outside of it.
    """
    inner: Any = unwrap(model)
    n_frames = n_encoder_frames(inner)
    sides = [
        _Utterance(str(item.get("origin") or f"utterance {number}"), item).frames_and_tokens(inner, n_frames)
        for number, item in enumerate(items)
    ]
    audio = [{"input_features": _features_without_batch_axis(item["input_features"])} for item in items]
    return Corpus(tuple(side[0] for side in sides), tuple(side[1] for side in sides), audio=audio)


def n_encoder_frames(model: Any) -> int:
    """Returns how many frames the encoder of a model always has; raises UnsupportedModel for one that does not read speech like that."""
    n_frames = int_attribute(model.config, "max_source_positions")
    is_speech = getattr(model, "main_input_name", "") == "input_features" and getattr(model.config, "is_encoder_decoder", False)
    if not is_speech or n_frames is None or not hasattr(model, "_extract_token_timestamps"):
        raise UnsupportedModel(
            f"{type(model).__name__} does not attend from tokens to a fixed number of frames; roles of speech are for Whisper's architecture"
        )
    return n_frames


def hide_silent_frames(corpus: Corpus, observation: Observation, example_numbers: Sequence[int]) -> Observation:
    """Returns what a block of cross-attention did with the frames that hold sound: the others, which no mask hides, are padding."""
    attention, visible = observation.attention, observation.visible
    if not corpus.audio or observation.block.kind != "cross" or attention is None or visible is None:
        return observation
    lengths = torch.tensor([len(corpus.sentences[number].ids) for number in example_numbers], device=visible.device)
    has_sound = (torch.arange(int(lengths.max()), device=visible.device) < lengths[:, None])[:, None]  # [batch, 1, k]
    n_frames = has_sound.shape[-1]
    return replace(
        observation, attention=attention[..., :n_frames].where(has_sound[:, None], 0.0), visible=visible[..., :n_frames] & has_sound
    )


class _Utterance:
    """One mapping, checked; `origin` is for messages."""

    def __init__(self, origin: str, item: Mapping[str, Any]) -> None:
        self.origin, self.item = origin, item

    def frames_and_tokens(self, model: Any, n_encoder_frames: int) -> tuple[Aligned, Aligned]:
        """Returns the frames that hold sound, and the tokens that are written, with the words of both."""
        features = _features_without_batch_axis(self._required_entry("input_features"))
        if features.ndim != 2 or features.shape[1] != FEATURE_FRAMES * n_encoder_frames:
            raise DataError(
                f"{self.origin}: input_features has shape {list(features.shape)}; {type(model).__name__} reads "
                f"[{getattr(model.config, 'num_mel_bins', 'mels')}, {FEATURE_FRAMES * n_encoder_frames}], which its feature extractor makes"
            )
        n_frames = self._count_frames_with_sound(n_encoder_frames)
        tokens, words = self._tokens_and_their_words(decoder_start_id(model))
        spans = self._frame_ranges_of_words(n_frames)
        n_words = max((word for word in words if word is not None), default=-1) + 1
        if spans is not None and len(spans) != n_words:
            raise DataError(
                f"{self.origin} has times for {len(spans)} words, but word_ids names {n_words}; give one pair of times for each"
            )
        forms = [str(form) for form in self.item.get("words") or ()]
        if len(forms) != n_words or not all(forms):
            forms = [f"word{number}" for number in range(n_words)]
        target = _annotate_words(forms, self.origin)
        links = frozenset((word, word) for word in range(len(spans or ())))
        source = _annotate_words(forms, self.origin, target, links)
        word_of_frame: list[int | None] = [None] * n_frames
        for word, span in enumerate(spans or ()):
            word_of_frame[span.start : span.stop] = [word] * len(span)
        frames_of_word = tuple(map(tuple, spans or [range(0)] * n_words))
        ids = [getattr(model.config, f"{name}_token_id", None) for name in ("bos", "eos", "pad", "decoder_start")]
        special = {token for value in ids for token in (value if isinstance(value, list) else [value])}
        has_word_ids = self.item.get("word_ids") is not None
        is_special = [word is None if has_word_ids else token in special for token, word in zip(tokens, words, strict=True)]
        pieces = tuple(tuple(position for position, word in enumerate(words) if word == number) for number in range(n_words))
        frames = _make_aligned([0] * n_frames, word_of_frame, [False] * n_frames, source, frames_of_word)
        return frames, _make_aligned(tokens, words, is_special, target, pieces)

    def _required_entry(self, key: str) -> Any:
        value = self.item.get(key)
        if value is None:
            raise DataError(f"{self.origin} has no {key}; it has {', '.join(self.item) or 'nothing'}")
        return value

    def _count_frames_with_sound(self, n_encoder_frames: int) -> int:
        """Returns how many frames of the encoder hold sound."""
        mask = self.item.get("attention_mask")
        n_frames = n_encoder_frames if mask is None else int(torch.as_tensor(mask).sum()) // FEATURE_FRAMES
        if not 0 < n_frames <= n_encoder_frames:
            raise DataError(
                f"{self.origin}: its attention_mask leaves {n_frames} frames of the encoder's {n_encoder_frames}; leave it out of the data"
            )
        return n_frames

    def _tokens_and_their_words(self, start_token: int | None) -> tuple[list[int], list[int | None]]:
        """Returns the tokens behind the start token, and the word of each."""
        name = "decoder_input_ids" if self.item.get("labels") is None and "decoder_input_ids" in self.item else "labels"
        tokens = _as_flat_list(self._required_entry(name))
        word_ids = self.item.get("word_ids")
        words = [
            None if word is None or word < 0 else int(word)
            for word in ([None] * len(tokens) if word_ids is None else _as_flat_list(word_ids))
        ]
        if len(words) != len(tokens):
            raise DataError(
                f"{self.origin} has {len(words)} word_ids for {len(tokens)} tokens of {name}; give one for each, None for no word"
            )
        pairs = [(int(token), word) for token, word in zip(tokens, words, strict=True) if token != IGNORED]
        pairs = pairs[1:] if pairs and pairs[0] == (start_token, None) else pairs
        spoken = [word for _, word in pairs if word is not None]
        if not pairs or any(after - word not in (0, 1) for word, after in pairwise([-1, *spoken])):
            raise DataError(f"{self.origin}: word_ids must count the words from 0 on, in order, without a gap; got {spoken!s:.80}")
        return [token for token, _ in pairs], [word for _, word in pairs]

    def _frame_ranges_of_words(self, n_frames_with_sound: int) -> list[range] | None:
        """Returns the frames of each word; None where the utterance does not say."""
        times, frames = self.item.get("word_times"), self.item.get("word_frames")
        if times is None and frames is None:
            return None
        try:
            bounds = np.asarray(frames if frames is not None else times, dtype=float).reshape(-1, 2)
        except (TypeError, ValueError) as error:
            raise DataError(f"{self.origin}: times of words are pairs of start and end, got {frames or times!s:.60}") from error
        scaled = bounds if frames is not None else bounds / FRAME_SECONDS
        if not np.isfinite(scaled).all() or (scaled[:, 1] <= scaled[:, 0]).any() or (scaled[1:, 0] < scaled[:-1, 1] - 1).any():
            raise DataError(
                f"{self.origin}: every word must end after it starts, and start when the one before has ended; got {bounds.tolist()!s:.80}"
            )
        spans = [(round(start), max(round(start) + 1, round(end))) for start, end in scaled.tolist()]
        spans = [(max(first, before[1]), after) for before, (first, after) in pairwise([(0, 0), *spans])]
        outside = next((word for word, (first, after) in enumerate(spans) if not 0 <= first < after or first >= n_frames_with_sound), None)
        if outside is not None:
            raise DataError(
                f"{self.origin}: word {outside} is at {bounds[outside].tolist()}, but its sound has {n_frames_with_sound} frames of {FRAME_SECONDS} s"
            )
        return [range(first, min(after, n_frames_with_sound)) for first, after in spans]


def _features_without_batch_axis(features: Any) -> Tensor:
    """Returns the features of one utterance, without the axis of a batch of one."""
    matrix = torch.as_tensor(features)
    return matrix[0] if matrix.ndim == 3 and len(matrix) == 1 else matrix


def _as_flat_list(values: Any) -> list[Any]:
    return values.flatten().tolist() if hasattr(values, "tolist") else list(values)


def _annotate_words(
    word_forms: Sequence[str], origin: str, target: Annotated | None = None, links: frozenset[tuple[int, int]] = frozenset()
) -> Annotated:
    """Returns words in a row, without trees and tags."""
    words, start = [], 0
    for form in word_forms:
        words.append(Word(form, "", "", None, "", start, start + len(form)))
        start += len(form) + 1
    return Annotated(" ".join(word_forms) or "speech", tuple(words), target=target, links=links, origin=origin)


def _make_aligned(
    ids: Sequence[int],
    word_of_token: Sequence[int | None],
    is_special_token: Sequence[bool],
    annotated: Annotated,
    tokens_of_word: tuple[tuple[int, ...], ...],
) -> Aligned:
    return Aligned(
        ids=tuple(ids),
        words=tuple(word_of_token),
        special=tuple(is_special_token),
        segments=tuple(-1 if is_special else 0 for is_special in is_special_token),
        annotated=annotated,
        truncated=False,
        offsets=((0, 0),) * len(ids),
        by_word=tokens_of_word,
        shared=0,
    )
