"""Text to tokens; whatever is wrong with it raises before a model runs."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np

from headcount.core.errors import DataError
from headcount.data.checks import input_vocabulary_size, n_positions, output_vocabulary_size, text_config
from headcount.data.losses import accepts_argument
from headcount.data.metrics import Metric
from headcount.data.task import Example, Split, Task, Texts, pad
from headcount.data.task_builder import TaskRequest
from headcount.data.text.unknown_tokens import unknown_id, warn_of_unknown
from headcount.models.modules import unwrap

UNLIMITED = 10**6
"""Tokenizers without a limit state a number beyond this one."""


class Packed(Sequence[Example]):
    """Examples in flat arrays: four bytes a token, whatever their number."""

    def __init__(self, examples: Iterable[Example]) -> None:
        self._flat: dict[str, array[Any]] = {}
        self._ends: dict[str, array[int]] = {}
        self._number = 0
        for example in examples:
            for name, value in example.items():
                self._append_value(name, value)
            self._number += 1

    def count_token_and_all(self, token_id: int, *, excluded_ids: Collection[int]) -> tuple[int, int]:
        """Returns how often a token occurs in the inputs, and how many input tokens there are that are not excluded."""
        ids = np.frombuffer(self._flat.get("input_ids", array("i")), dtype=np.int32)
        return int((ids == token_id).sum()), int((~np.isin(ids, list(excluded_ids))).sum())

    def _append_value(self, name: str, value: Any) -> None:
        if isinstance(value, list):
            self._ends.setdefault(name, array("q", [0]))
            self._flat.setdefault(name, array("i")).extend(value)
            self._ends[name].append(len(self._flat[name]))
        else:
            self._flat.setdefault(name, array("d" if isinstance(value, float) else "q")).append(value)

    def __len__(self) -> int:
        return self._number

    def __getitem__(self, index: int) -> Example:  # pyright: ignore[reportIncompatibleMethodOverride]
        if not -self._number <= index < self._number:
            raise IndexError(f"no example {index} of {self._number}")
        index %= self._number
        return {
            name: flat[index] if (ends := self._ends.get(name)) is None else flat[ends[index] : ends[index + 1]].tolist()
            for name, flat in self._flat.items()
        }


def check_tokenizer(request: TaskRequest) -> None:
    """Raises DataError unless the tokenizer can be the one of the model."""
    tokenizer, size = request.tokenizer, input_vocabulary_size(request.model)
    if tokenizer is None or not callable(getattr(tokenizer, "convert_ids_to_tokens", None)):
        raise DataError(f"task '{request.name}' needs the model's tokenizer, got {type(tokenizer).__name__}")
    if size is not None and len(tokenizer) > size:
        raise DataError(f"the tokenizer knows {len(tokenizer)} tokens, but the model's vocabulary has {size}: it belongs to another model")
    config = text_config(request.model)
    for name in ("pad", "cls", "sep", "eos"):
        ours, theirs = getattr(tokenizer, f"{name}_token_id", None), getattr(config, f"{name}_token_id", None)
        if _special_ids_contradict(name, ours, theirs, tokenizer):
            raise DataError(
                f"the tokenizer's {name} token is {ours} ({getattr(tokenizer, f'{name}_token')!r}), but the model's configuration says {theirs}: "
                f"it belongs to another model. If they do belong together, set model.config.{name}_token_id = {ours}"
            )


def _special_ids_contradict(name: str, tokenizer_id: int | None, config_id: Any, tokenizer: Any) -> bool:
    allowed = config_id if isinstance(config_id, list) else [config_id]
    if tokenizer_id is None or tokenizer_id in allowed or not all(isinstance(token, int) and token >= 0 for token in allowed):
        return False
    # Decoders often pad with their end-of-text token, which is masked anyway.
    return not (name == "pad" and tokenizer_id in (tokenizer.eos_token_id, tokenizer.unk_token_id, tokenizer.bos_token_id))


def max_example_tokens(request: TaskRequest, *, decoder: bool = False) -> int | None:
    """Returns how many tokens an example may have: `max_length`, or what model and tokenizer allow; None for any number."""
    room = n_positions(request.model, decoder=decoder)
    if request.max_length is None:
        stated = getattr(request.tokenizer, "model_max_length", None) or UNLIMITED
        return min((n for n in (room, stated if stated < UNLIMITED else None) if n is not None), default=None)
    if room is not None and request.max_length > room:
        raise DataError(f"max_length is {request.max_length}, but the model has positions for {room} tokens; give {room} or less")
    return request.max_length


def encode(
    request: TaskRequest, items: Iterable[tuple[str, Any]], *, add_special_tokens: bool = True, is_target: bool = False
) -> Iterator[dict[str, Any]]:
    """Yields the model's inputs for each (position in the data, text or (text, text)), in order.

    `is_target` tokenises texts that a decoder is to produce.
    """
    limit = max_example_tokens(request, decoder=is_target)
    options = {**truncation_arguments(request, limit), "add_special_tokens": add_special_tokens, "verbose": False}
    remaining = iter(items)
    while piece := list(islice(remaining, 512)):
        texts = [text for _, text in piece]
        if is_target:
            encoded = request.tokenizer(text_target=texts, **options)
        elif isinstance(texts[0], tuple):
            encoded = request.tokenizer([a for a, _ in texts], [b for _, b in texts], **options)
        else:
            encoded = request.tokenizer(texts, **options)
        names = [name for name in encoded if name != "attention_mask" and (name == "input_ids" or accepts_argument(request.model, name))]
        for row, (position, _) in enumerate(piece):
            check_tokens(request, encoded["input_ids"][row], position, limit, is_target=is_target)
            yield {name: list(encoded[name][row]) for name in names}


def truncation_arguments(request: TaskRequest, max_tokens: int | None) -> dict[str, Any]:
    """Returns the arguments of a tokenizer that cut texts to `max_tokens` tokens, if the request says so."""
    return {"truncation": True, "max_length": max_tokens} if request.truncate and max_tokens else {"truncation": False}


def check_tokens(request: TaskRequest, ids: Sequence[int], position: str, max_tokens: int | None, *, is_target: bool = False) -> None:
    """Raises DataError for a text without tokens, too long, or beyond the vocabulary."""
    size = output_vocabulary_size(request.model) if is_target else input_vocabulary_size(request.model)
    if not ids:
        raise DataError(f"{position}: the text is empty, so it has no token; remove it")
    if max_tokens is not None and len(ids) > max_tokens:
        raise DataError(
            f"{position} has {len(ids)} tokens, but at most {max_tokens} are allowed; to cut texts: max_length={max_tokens}, truncate=True"
        )
    if size is not None and max(ids) >= size:
        raise DataError(f"{position}: token id {max(ids)}, but the model's vocabulary ends at {size - 1}; use the model's own tokenizer")


def padding_token_id(request: TaskRequest) -> int:
    """Returns the token that fills short rows, which is masked: the model's (some find the end of a text by it), the tokenizer's, or 0."""
    config = text_config(request.model)
    tokens = (getattr(config, "pad_token_id", None), getattr(request.tokenizer, "pad_token_id", None))
    return next((value for value in tokens if isinstance(value, int) and value >= 0), 0)


def special_ids(request: TaskRequest) -> frozenset[int]:
    """Returns the tokenizer's special tokens."""
    return frozenset(getattr(request.tokenizer, "all_special_ids", None) or ())


def make_task(request: TaskRequest, examples: Mapping[Split, Packed], metric: Metric, texts: Texts | None = None) -> Task:
    """Returns the task of tokenised examples, which are padded to batches."""
    fill = padding_token_id(request)
    _warn_of_unknown(request, examples.values(), texts)
    return Task(
        request.name,
        examples["calibration"],
        examples["selection"],
        examples["report"],
        collate=lambda rows: pad(rows, fill),
        metric=metric,
        special_ids=special_ids(request),
        texts=texts,
    )


def _warn_of_unknown(request: TaskRequest, examples: Iterable[Packed], texts: Texts | None) -> None:
    unknown = unknown_id(request.tokenizer)
    if unknown is None:
        return
    special = special_ids(request) - {unknown}
    counts = [packed.count_token_and_all(unknown, excluded_ids=special) for packed in examples]
    total = sum(count for count, _ in counts), sum(number for _, number in counts)
    warn_of_unknown(f"task '{request.name}'", request.tokenizer, total, lambda: texts.read("calibration") if texts else ())


def check_head(request: TaskRequest, class_name_parts: Sequence[str], class_to_load: str) -> None:
    """Raises DataError for a model whose head is made for another task, or that has none; `class_to_load` is an Auto class, or `demo/NAME`."""
    name = type(unwrap(request.model)).__name__
    others = ("Classification", "MaskedLM", "CausalLM", "LMHead", "QuestionAnswering", "MultipleChoice", "ConditionalGeneration", "MTModel")
    fits = any(part in name for part in class_name_parts)
    if not accepts_argument(request.model, "labels") or (not fits and any(part in name for part in others)):
        remedy = f"load {class_to_load}, which was trained for it" if class_to_load.startswith("demo/") else f"load it as {class_to_load}"
        option = f" (auto={class_to_load})" if class_to_load.startswith("Auto") else ""
        raise DataError(f"task '{request.name}' needs a model with another head than {name}; {remedy}{option}")
