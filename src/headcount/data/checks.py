"""Checks of a batch and a model before anything is computed, with errors that name the example.

transformers accepts attention masks of the wrong length, rows without a visible token and labels that are all ignored, and computes something.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from headcount.core.errors import DataError, NonFinite
from headcount.data.losses import IGNORED
from headcount.models.modules import Batch, int_attribute, shifts_labels, unwrap
from headcount.models.padding import SEQUENCES

OTHER_MODALITIES = ("pixel_values", "pixel_values_videos", "input_features", "input_values", "flattened_patches", "visual_feats")


def config_of(model: nn.Module) -> Any:
    """Returns the configuration of a model, however it is wrapped."""
    return unwrap(model).config


def text_config(model: nn.Module) -> Any:
    """Returns the configuration of the part of a model that reads text."""
    config = config_of(model)
    return config.get_text_config() if hasattr(config, "get_text_config") else config


def input_vocabulary_size(model: nn.Module) -> int | None:
    """Returns how many tokens the input embeddings hold; None for a model without such a table."""
    try:
        rows = int_attribute(unwrap(model).get_input_embeddings(), "num_embeddings")  # pyright: ignore[reportCallIssue]
    except (AttributeError, NotImplementedError, TypeError):
        rows = None
    return rows or int_attribute(text_config(model), "vocab_size")


def output_vocabulary_size(model: nn.Module) -> int | None:
    """Returns how many tokens a language model can predict, which can differ from its inputs in an encoder–decoder."""
    return int_attribute(text_config(model), "decoder_vocab_size") or input_vocabulary_size(model)


def n_positions(model: nn.Module, *, decoder: bool = False) -> int | None:
    """Returns how many tokens a model has positions for; None where any length will do (relative positions without a table, ALiBi)."""
    config = text_config(model)
    if getattr(config, "alibi", False) is True or getattr(config, "position_biased_input", True) is False:
        return None
    side = ("max_decoder_position_embeddings", "max_target_positions") if decoder else ("max_encoder_position_embeddings",)
    # XLNet has no limit, and says so by a property that also logs.
    names = [
        name for name in (*side, "max_position_embeddings") if not isinstance(inspect.getattr_static(type(config), name, None), property)
    ]
    rows = next((n for name in names if (n := int_attribute(config, name)) and n > 0), None)
    return None if rows is None else rows - _count_unused_positions(unwrap(model))


def _count_unused_positions(model: nn.Module) -> int:
    """Rows of the position table that no token uses: RoBERTa and its relatives count from the padding token's id on."""
    embeddings = getattr(getattr(model, "base_model", model), "embeddings", None)
    padding = getattr(getattr(embeddings, "position_embeddings", None), "padding_idx", None)
    return 0 if padding is None else int(padding) + 1


def n_classes(model: nn.Module) -> int | None:
    """Returns the number of labels of a model with a classification head; None for another head."""
    return int_attribute(config_of(model), "num_labels") if "Classification" in type(unwrap(model)).__name__ else None


def check_batch(model: nn.Module, batch: Batch, example_numbers: Sequence[int] | None = None) -> None:
    """Raises DataError for a batch that the model cannot run, or would run into nonsense; its rows are counted from 0 unless their
    `example_numbers` in the data are given."""
    numbers = range(2**60) if example_numbers is None else example_numbers
    for name, mask in SEQUENCES:
        tokens = batch.get(name)
        if isinstance(tokens, Tensor):
            _require_nonempty(tokens, name, numbers)
            _check_mask(tokens, batch, numbers, tokens_name=name, mask_name=mask)
            _check_length(model, tokens, batch.get(mask), name, numbers)
            if not tokens.is_floating_point():
                _check_ids(model, batch, name, numbers)
    _check_finite(batch, numbers)
    labels = batch.get("labels")
    if isinstance(labels, Tensor) and labels.ndim and not labels.is_floating_point():
        if labels.ndim == 2 and getattr(config_of(model), "is_encoder_decoder", False):
            _check_length(model, labels, labels != IGNORED, "labels", numbers)
        _check_labels(model, labels, numbers)


def _first_row_with_true(flags: Tensor) -> int:
    """The first row in which anything is true."""
    return int(flags.flatten(1).any(-1).int().argmax()) if flags.ndim > 1 else int(flags.int().argmax())


def _require_nonempty(tokens: Tensor, tokens_name: str, example_numbers: Sequence[int]) -> None:
    if not tokens.numel():
        raise DataError(
            f"{tokens_name} of the batch that begins at example {example_numbers[0]} is empty: its shape is {tuple(tokens.shape)}; leave it out"
        )


def _check_mask(tokens: Tensor, batch: Batch, example_numbers: Sequence[int], *, tokens_name: str, mask_name: str) -> None:
    """A mask has one entry for each token; those of three and four axes have a row of them for each query."""
    mask = batch.get(mask_name)
    if not isinstance(mask, Tensor) or batch.get("past_key_values") is not None:
        return
    shape = tokens.shape[:2] if tokens_name == "inputs_embeds" else tokens.shape
    fits = mask.shape == shape if mask.ndim <= len(shape) else mask.shape[0] in (1, shape[0]) and mask.shape[-1] == shape[-1]
    if not fits:
        raise DataError(
            f"{mask_name} of the batch that begins at example {example_numbers[0]} has shape {tuple(mask.shape)}, "
            f"but {tokens_name} has {tuple(shape)}; a mask has one entry for each token"
        )
    if mask.shape == shape and not mask.is_floating_point():
        hidden = ~(mask != 0).any(-1)
        if hidden.any():
            raise DataError(
                f"example {example_numbers[_first_row_with_true(hidden)]}: its {mask_name} is all zeros, "
                "so no token can be seen; remove it from the data"
            )


def _check_length(model: nn.Module, tokens: Tensor, mask: Tensor | None, tokens_name: str, example_numbers: Sequence[int]) -> None:
    limit = n_positions(model, decoder=tokens_name in ("decoder_input_ids", "labels"))
    length = tokens.shape[1] if tokens_name == "inputs_embeds" else tokens.shape[-1]
    if limit is None or length <= limit:
        return
    row = int(mask.sum(-1).argmax()) if isinstance(mask, Tensor) and mask.ndim == 2 else 0
    raise DataError(
        f"example {example_numbers[row]} has {length} tokens in {tokens_name}, but {type(unwrap(model)).__name__} has positions for {limit}; "
        f"shorten it, or truncate texts: max_length={limit}, truncate=True"
    )


def _check_ids(model: nn.Module, batch: Batch, tokens_name: str, example_numbers: Sequence[int]) -> None:
    size = output_vocabulary_size(model) if tokens_name.startswith("decoder") else input_vocabulary_size(model)
    if size is None or any(modality in batch for modality in OTHER_MODALITIES):  # placeholders of images may lie beyond the vocabulary
        return
    bad = (batch[tokens_name] < 0) | (batch[tokens_name] >= size)
    if bad.any():
        raise DataError(
            f"example {example_numbers[_first_row_with_true(bad)]}: token id {int(batch[tokens_name][bad][0])} in {tokens_name}, "
            f"but the model's vocabulary ends at {size - 1}; use the tokenizer that belongs to the model"
        )


def _check_finite(batch: Batch, example_numbers: Sequence[int]) -> None:
    for name, value in batch.items():
        if isinstance(value, Tensor) and value.is_floating_point() and value.ndim and "mask" not in name:
            bad = ~torch.isfinite(value)
            if bad.any():
                raise DataError(
                    f"example {example_numbers[_first_row_with_true(bad)]}: {name} holds {value[bad][0].item()}; inputs must be finite numbers"
                )


def _check_labels(model: nn.Module, labels: Tensor, example_numbers: Sequence[int]) -> None:
    used = labels[:, 1:] if labels.ndim == 2 and shifts_labels(model) else labels
    ignored = used == IGNORED if labels.ndim == 1 else (used == IGNORED).flatten(1).all(-1)
    if ignored.any():
        note = " after the first, which nothing predicts" if used is not labels else ""
        raise DataError(
            f"example {example_numbers[_first_row_with_true(ignored)]}: all its labels{note} are {IGNORED}, which means ignored, so it "
            "has no loss; remove it"
        )
    size, names = _label_limit_and_description(model, labels)
    bad = (used != IGNORED) & ((used < 0) | (used >= size)) if size is not None else torch.zeros(1, dtype=torch.bool)
    if bad.any():
        raise DataError(
            f"example {example_numbers[_first_row_with_true(bad)]}: label {int(used[bad][0])} is none of the model's {size}{names}; correct "
            "it, or load the model with more labels"
        )


def _label_limit_and_description(model: nn.Module, labels: Tensor) -> tuple[int | None, str]:
    """Returns how many labels there are, None where labels are not class numbers, and what they are, for a message."""
    size = n_classes(model)
    if size is not None:
        several = size > 1 and labels.shape[-1:] == (size,) and labels.ndim == 2 and "Sequence" in type(unwrap(model)).__name__
        return (None, "") if size == 1 or several else (size, f" labels: id2label is {config_of(model).id2label}")
    name = type(unwrap(model)).__name__
    speaks = any(part in name for part in ("LM", "ConditionalGeneration", "MTModel"))
    return (output_vocabulary_size(model) if speaks and labels.ndim == 2 else None), " tokens"


def check_finite_weights(model: nn.Module) -> None:
    """Raises NonFinite naming the first weight, or stored buffer, that holds NaN or infinity."""
    stored = set(model.state_dict()) if any(True for _ in model.buffers()) else set()
    named = [*model.named_parameters(), *((name, value) for name, value in model.named_buffers() if name in stored)]
    for name, value in named:
        if not value.is_floating_point() or value.is_meta:
            continue
        wide = value.float() if value.element_size() == 1 else value  # float8 has no isfinite
        if torch.isfinite(wide.detach().sum()):  # a sum of finite values can overflow, one of others is never finite
            continue
        bad = ~torch.isfinite(wide)
        if bad.any():
            raise NonFinite(
                f"weight '{name}' holds {int(bad.sum())} of {value.numel()} values that are not finite (the first is {wide[bad][0].item()}); "
                "the file is damaged, or training diverged"
            )
