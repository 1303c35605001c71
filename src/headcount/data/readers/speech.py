"""Recordings with the times of their words, from a file of JSON lines, as what a model of speech reads."""

from __future__ import annotations

import hashlib
import json
import wave
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from headcount.core.errors import ArtifactError, DataError
from headcount.core.files import is_file
from headcount.data.readers.lines import read_lines_without_gaps
from headcount.data.readers.processor import IMAGE_FILE, TOKENIZER_FILES, read_processor

EXAMPLE = '{"audio": "a.wav", "words": [{"word": "hello", "start": 0.12, "end": 0.48}]}'
FEATURE_SECONDS = 0.01
"""The length of a frame of features of Whisper."""


@dataclass(frozen=True, slots=True)
class Recording:
    """One line of a file: the path of a recording and its words, or the tokens of these; `origin` is for messages."""

    origin: str
    audio: Path
    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SpeechReader:
    """Makes the inputs of a model from recordings: by a feature extractor, and a tokenizer where words are given as text."""

    extractor: Any
    tokenizer: Any = None
    language: str | None = None

    @classmethod
    def of_folder(cls, folder: Path, *, language: str | None = None, trust: bool = False) -> SpeechReader:
        """Returns the reader of a model folder.

        Raises:
            ArtifactError: the folder has no feature extractor, or one that cannot be read.
        """
        from transformers import AutoFeatureExtractor

        if not (folder / IMAGE_FILE).is_file():
            raise ArtifactError(
                f"{folder} holds no feature extractor ({IMAGE_FILE}), so no recording can be read; save the one of the model there"
            )
        try:
            extractor = AutoFeatureExtractor.from_pretrained(folder, trust_remote_code=trust)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ArtifactError(
                f"{folder / IMAGE_FILE} cannot be read: {' '.join(str(error).split())[:200]}; put the model's there"
            ) from error
        has_tokenizer = any((folder / name).is_file() for name in TOKENIZER_FILES)
        return cls(extractor, read_processor(folder, trust=trust) if has_tokenizer else None, language)

    @classmethod
    def of_processor(cls, processor: Any, *, language: str | None = None) -> SpeechReader:
        """Returns the reader of a processor, or of a feature extractor alone."""
        extractor = getattr(processor, "feature_extractor", processor)
        if not hasattr(extractor, "hop_length"):
            raise DataError(
                f"recordings are read by a processor with a feature extractor, such as WhisperProcessor; got {type(processor).__name__}"
            )
        return cls(extractor, getattr(processor, "tokenizer", None), language)

    def read(self, recording: Recording) -> dict[str, Any]:
        """Returns the features, tokens and times of the words of a recording."""
        rate, hop = self.extractor.sampling_rate, self.extractor.hop_length
        if abs(hop / rate - FEATURE_SECONDS) > 1e-9:
            raise DataError(
                f"the feature extractor has frames of {hop / rate:.4g} s; token timestamps of transformers count on {FEATURE_SECONDS} s"
            )
        sound = self.extractor(_read_wave(recording, rate), sampling_rate=rate, return_attention_mask=True, return_tensors="np")
        features = {name: sound[name][0] for name in ("input_features", "attention_mask")}
        return {"origin": recording.origin, **features, **self._labels_and_word_times(recording)}

    def _labels_and_word_times(self, recording: Recording) -> dict[str, Any]:
        values = recording.values
        if "labels" in values:
            return {name: values[name] for name in ("labels", "word_ids", "word_times", "word_frames") if name in values}
        if self.tokenizer is None:
            raise DataError(f"{recording.origin} has words, but the model has no tokenizer for them; give labels, word_ids and word_times")
        try:
            words = [(str(word["word"]), float(word["start"]), float(word["end"])) for word in values["words"]]
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"{recording.origin}: a word lacks or misstates word, start or end; write {EXAMPLE}") from error
        if self.language is not None and hasattr(self.tokenizer, "set_prefix_tokens"):
            self.tokenizer.set_prefix_tokens(language=self.language, task="transcribe")
        labels, word_ids = list(self.tokenizer("").input_ids), []
        end = [labels.pop()] if labels and labels[-1] == self.tokenizer.eos_token_id else []
        word_ids = [None] * len(labels)
        for number, (form, _, _) in enumerate(words):
            pieces = self.tokenizer(f" {form.strip()}", add_special_tokens=False).input_ids
            if not form.strip() or not pieces:
                raise DataError(f"{recording.origin}: word {number} is {form!r}, which has no token; leave it out")
            labels += pieces
            word_ids += [number] * len(pieces)
        times = [(start, stop) for _, start, stop in words]
        return {
            "labels": [*labels, *end],
            "word_ids": [*word_ids, *[None] * len(end)],
            "word_times": times,
            "words": [form for form, _, _ in words],
        }


def read_recordings(path: Path, limit: int | None = None) -> list[Recording]:
    """Returns the recordings that a file names, at most `limit`: those whose lines have the smallest hashes. No sound is read.

    Raises:
        DataError: the file is missing, empty or no JSON lines, a line lacks something, or a recording does not exist.
    """
    recordings = list(_read_recording_lines(path))
    if not recordings:
        raise DataError(f"{path} is empty; write a line for each recording: {EXAMPLE}")
    order = sorted(range(len(recordings)), key=lambda i: (hashlib.sha256(json.dumps(recordings[i].values).encode()).digest(), i))
    return [recordings[i] for i in sorted(order[:limit])]


def _read_recording_lines(path: Path) -> Iterator[Recording]:
    for number, text in read_lines_without_gaps(path):
        origin = f"{path}, line {number}"
        try:
            values = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{origin} is no JSON: {error}; write a line for each recording: {EXAMPLE}") from error
        if not isinstance(values, dict) or not isinstance(values.get("audio"), str) or not ({"words", "labels"} & values.keys()):
            raise DataError(f"{origin} names no audio, or no words; write {EXAMPLE}")
        audio = path.parent / values["audio"]
        if not is_file(audio):
            raise DataError(f"{origin}: there is no file {audio}; name recordings by their path from the folder of {path.name}")
        yield Recording(origin, audio, values)


def _read_wave(recording: Recording, sampling_rate: int) -> Float[np.ndarray, " samples"]:
    """Returns the samples of a WAV file with 16 bits, between -1 and 1, its channels averaged."""
    remedy = f"convert it: ffmpeg -i {recording.audio.name} -ar {sampling_rate} -ac 1 -c:a pcm_s16le out.wav"
    try:
        with wave.open(str(recording.audio)) as file:
            form, samples = file.getparams(), file.readframes(file.getnframes())
    except (wave.Error, EOFError, OSError) as error:
        raise DataError(f"{recording.origin}: {recording.audio} is no WAV file ({error}); {remedy}") from error
    if form.sampwidth != 2 or form.framerate != sampling_rate:
        raise DataError(
            f"{recording.origin}: {recording.audio} has {8 * form.sampwidth} bits at {form.framerate} Hz, not 16 at {sampling_rate}; {remedy}"
        )
    if not samples:
        raise DataError(f"{recording.origin}: {recording.audio} is empty; leave it out")
    return np.frombuffer(samples, dtype="<i2").reshape(-1, form.nchannels).mean(1).astype(np.float32) / 2**15
