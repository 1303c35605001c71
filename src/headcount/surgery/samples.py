"""Batches on which an exported model is compared with its source: real examples of several lengths, single texts and pairs, and probes."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from headcount.core.errors import DataError
from headcount.data.checks import n_positions, text_config
from headcount.data.chunks import batches
from headcount.data.task import Data
from headcount.models.dummy_inputs.text import probe_inputs
from headcount.models.modules import pad_id

TensorBatch = dict[str, Tensor]
RawBatch = Mapping[str, Any]
TEXT = ("input_ids", "attention_mask", "token_type_ids", "decoder_input_ids", "decoder_attention_mask")
"""Inputs of shape [batch, tokens]."""
LENGTHS = (3, 11, 6)
"""Tokens of the texts that are drawn from a tokenizer's vocabulary."""
LONGEST = 64
DATA_BATCHES, DATA_ROWS = 3, 8


def comparison_batches(
    model: nn.Module, *, tokenizer: Any = None, data: Data = None, inputs: RawBatch | Sequence[RawBatch] | None = None
) -> list[TensorBatch]:
    """Batches of the same inputs, those that an export must take: what tokenizer and data give, and what the forward pass needs.

    The first is a probe, or the first of `inputs`. Where a tokenizer is given, texts of its own vocabulary are encoded by it, alone and as pairs;
    `data` is a task or batches. `inputs` replaces all of these.
    """
    if inputs is not None:
        samples = [_keep_forward_inputs(model, batch) for batch in ([inputs] if isinstance(inputs, Mapping) else inputs)]
        odd = next((batch for batch in samples if batch.keys() != samples[0].keys()), None) if samples else {}
        if odd is not None:
            raise DataError(f"inputs must be one batch, or several with the same names; got {', '.join(odd) or 'none'}")
        first_row = {name: value[:1] for name, value in samples[0].items()}
        return [*samples, first_row] if len(next(iter(samples[0].values()))) > 1 else samples
    probes = [
        _build_probe_batch(model, n_rows=2, n_tokens=9, seed=0),
        _build_probe_batch(model, n_rows=3, n_tokens=6, seed=1),
        _build_probe_batch(model, n_rows=2, n_tokens=9, seed=2),
    ]
    real = [_keep_forward_inputs(model, batch) for batch in _random_text_batches(model, tokenizer, probes[0])]
    real += [_keep_forward_inputs(model, batch) for batch in _report_split_batches(model, data)]
    names = dict.fromkeys(name for batch in (probes[0], *real) for name in batch)
    if real and not any("token_type_ids" in batch for batch in real):
        names.pop("token_type_ids", None)  # who feeds the file has only what the tokenizer gives
    return [_add_missing_inputs(model, batch, names) for batch in (*probes, *real)]


def names_of_varying_inputs(samples: Sequence[TensorBatch]) -> list[str]:
    """The inputs that have more than one value among the samples: equality is shown for these alone."""
    return [name for name in samples[0] if len(torch.cat([batch[name].flatten() for batch in samples]).unique()) > 1]


def _build_probe_batch(model: nn.Module, *, n_rows: int, n_tokens: int, seed: int) -> TensorBatch:
    """A probe batch, with two segments in every row where the model tells segments apart."""
    probe = _keep_forward_inputs(model, probe_inputs(model, batch=n_rows, length=n_tokens, seed=seed))
    segments = getattr(text_config(model), "type_vocab_size", 0) or 0
    if "token_type_ids" in inspect.signature(model.forward).parameters and segments > 1 and "input_ids" in probe:
        half = probe["input_ids"].shape[1] // 2
        probe.setdefault("token_type_ids", torch.zeros_like(probe["input_ids"]))[:, half:] = 1
    return probe


def _keep_forward_inputs(model: nn.Module, batch: RawBatch) -> TensorBatch:
    """What the forward pass takes of a batch, without labels: with them the first output is a loss."""
    accepted = inspect.signature(model.forward).parameters
    device = next(model.parameters()).device
    return {
        name: value.to(device) for name, value in batch.items() if isinstance(value, Tensor) and name in accepted and "label" not in name
    }


def _random_text_batches(model: nn.Module, tokenizer: Any, probe: TensorBatch) -> Iterator[RawBatch]:
    """Texts of the tokenizer's vocabulary as it encodes them: of several lengths, padded together where it can pad, and pairs of them."""
    if not callable(getattr(tokenizer, "convert_ids_to_tokens", None)) or not set(probe) <= set(TEXT):
        return
    draw, special = torch.Generator().manual_seed(0), set(tokenizer.all_special_ids)
    ordinary = [number for number in range(len(tokenizer)) if number not in special]
    texts = [
        tokenizer.decode([ordinary[i] for i in torch.randint(len(ordinary), (n,), generator=draw)]) for n in (*LENGTHS, *LENGTHS[::-1])
    ]
    room = min(LONGEST, n_positions(model) or LONGEST, tokenizer.model_max_length)
    options = {"truncation": True, "max_length": room, "return_tensors": "pt"}
    firsts, seconds = texts[: len(LENGTHS)], texts[len(LENGTHS) :]
    if tokenizer.pad_token is None:
        yield from (tokenizer(text, **options) for text in firsts)
        yield from (tokenizer(first, second, **options) for first, second in zip(firsts, seconds, strict=True))
        return
    yield tokenizer(firsts, padding=True, **options)
    yield tokenizer(firsts[0], **options)
    yield tokenizer(firsts, seconds, padding=True, **options)


def _report_split_batches(model: nn.Module, data: Data) -> Iterator[RawBatch]:
    """The first batches of the report split; decoders read what their labels make of it."""
    if data is None:
        return
    shift = getattr(model, "prepare_decoder_input_ids_from_labels", None)
    for batch in list(batches(data, split="report", limit=DATA_BATCHES * DATA_ROWS, pad_id=pad_id(model)))[:DATA_BATCHES]:
        some = {name: value[:DATA_ROWS] if isinstance(value, Tensor) and value.ndim else value for name, value in batch.items()}
        if callable(shift) and isinstance(some.get("labels"), Tensor) and "decoder_input_ids" not in some:
            some["decoder_input_ids"] = shift(labels=some["labels"])
        yield some


def _add_missing_inputs(model: nn.Module, batch: TensorBatch, input_names: Collection[str]) -> TensorBatch:
    """The batch with all of `input_names`: masks of ones, one segment, and what else is missing from a probe of its shape."""
    tokens = batch.get("input_ids")
    complete = dict(batch)
    if tokens is not None:
        complete = {"attention_mask": torch.ones_like(tokens), "token_type_ids": torch.zeros_like(tokens), **batch}
    if not set(input_names) <= complete.keys():
        rows, length = tokens.shape if tokens is not None else (len(next(iter(batch.values()))), 9)
        complete = {**_build_probe_batch(model, n_rows=rows, n_tokens=length, seed=0), **complete}
    return {name: complete[name] for name in input_names}
