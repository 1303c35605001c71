"""Padding on the left: the same example must give the same numbers wherever its padding stands.

Decoders with absolute positions (GPT-2 and relatives) and most encoders count positions from the left edge unless `position_ids` say otherwise,
others read them off the mask or the token ids (OPT, RoBERTa), others have relative positions only. No attribute says which, so it is measured,
once for each model, on one example with and without its padding.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, Literal
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from headcount.core.errors import DataError
from headcount.models.modules import Batch, shifts_labels
from headcount.models.ownership import suspending_hooks
from headcount.models.randomness import pass_rng
from headcount.models.state import preserve

PaddingNeed = Literal["nothing", "positions", "right padding"]
SEQUENCES = (("input_ids", "attention_mask"), ("inputs_embeds", "attention_mask"), ("decoder_input_ids", "decoder_attention_mask"))
"""Each input made of tokens, and its mask."""
CLOSE = {torch.bfloat16: 5e-2, torch.float16: 1e-2}
"""How far outputs may differ by rounding, relative to the largest one; 1e-4 in other dtypes."""
IGNORED = -100
"""The label of tokens that have no loss, as in transformers."""
_NEEDS: WeakKeyDictionary[nn.Module, PaddingNeed] = WeakKeyDictionary()


def with_position_ids_if_needed(model: nn.Module, batch: Batch) -> dict[str, Any]:
    """The batch with `position_ids` where it is padded on the left and the model needs them; others as they are.

    Where position t is trained on the label at t + 1, the first token behind padding has its label ignored, as the first of a row has.

    Raises:
        DataError: padding on the left changes what the model computes, and position ids do not mend it.
    """
    rows = _left_padded_row_mask(batch)
    batch = dict(batch) if rows is None else _ignore_labels_that_padding_predicts(model, batch)
    if rows is None or "position_ids" in batch:
        return batch
    if model not in _NEEDS:
        row = int(rows.int().argmax())
        single = {
            name: value[row : row + 1] if isinstance(value, Tensor) and value.ndim and len(value) == len(rows) else value
            for name, value in batch.items()
        }
        _NEEDS[model] = _measure_padding_need(model, single)
    if _NEEDS[model] == "right padding":
        raise DataError(
            f"an example of the batch is padded on the left, which changes what {type(model).__name__} computes, and it "
            "takes no position_ids that would mend that; pad on the right (tokenizer.padding_side = 'right')"
        )
    return {**batch, "position_ids": position_ids_of(batch["attention_mask"])} if _NEEDS[model] == "positions" else batch


def position_ids_of(attention_mask: Tensor) -> Tensor:
    """The position of each token among the real ones of its row, 0 for padding before them."""
    return (attention_mask.long().cumsum(-1) - 1).clamp(min=0)


def _ignore_labels_that_padding_predicts(model: nn.Module, batch: Batch) -> dict[str, Any]:
    """The batch without labels that padding would have to predict."""
    labels, mask = batch.get("labels"), batch.get("attention_mask")
    if not shifts_labels(model) or not isinstance(labels, Tensor) or not isinstance(mask, Tensor) or labels.shape != mask.shape:
        return dict(batch)
    behind = torch.nn.functional.pad(mask[:, :-1] == 0, (1, 0))
    return {**batch, "labels": labels.masked_fill(behind, IGNORED)}


def _left_padded_row_mask(batch: Batch) -> Tensor | None:
    """Which rows begin with padding; None where none does, or no mask says so."""
    rows = None
    for tokens, mask in SEQUENCES:
        value = batch.get(mask)
        if isinstance(batch.get(tokens), Tensor) and isinstance(value, Tensor) and value.ndim == 2 and not value.is_floating_point():
            begins = (value[:, 0] == 0) & (value != 0).any(-1)
            rows = begins if rows is None else rows | begins
    return rows if rows is not None and bool(rows.any()) else None


def _measure_padding_need(model: nn.Module, padded_example: Batch) -> PaddingNeed:
    """What an example that is padded on the left needs in order to give what it gives without its padding."""
    tries: list[tuple[PaddingNeed, dict[str, Any]]] = [("nothing", dict(padded_example))]
    if "attention_mask" in padded_example and "position_ids" in inspect.signature(model.forward).parameters:
        tries.append(("positions", {**padded_example, "position_ids": position_ids_of(padded_example["attention_mask"])}))
    with preserve(model), suspending_hooks(), torch.no_grad():
        model.eval()
        expected = _logits_or_first_output(model, _strip_left_padding_and_decoder_labels(padded_example))
        for need, batch in tries:
            if _equal_up_to_rounding(_logits_or_first_output(model, batch), expected):
                return need
    return "right padding"


def _strip_left_padding_and_decoder_labels(padded_example: Batch) -> dict[str, Any]:
    """One example without the padding before it; labels have no part in what is compared."""
    batch = {name: value for name, value in padded_example.items() if name != "labels" or "decoder_input_ids" not in padded_example}
    for name in ("attention_mask", "decoder_attention_mask"):
        mask = padded_example.get(name)
        if not isinstance(mask, Tensor) or mask.ndim != 2:
            continue
        start = int((mask[0] != 0).int().argmax())
        decodes = name.startswith("decoder")
        for key, value in batch.items():
            if isinstance(value, Tensor) and value.ndim > 1 and value.shape[1] == mask.shape[1] and key.startswith("decoder") == decodes:
                batch[key] = value[:, start:]
    return batch


def _logits_or_first_output(model: nn.Module, batch: Batch) -> Tensor:
    """The logits of a model, or its first output of floating-point numbers."""
    with pass_rng(model, seed=0, devices=()):
        output = model(**batch)
    values = output.values() if isinstance(output, Mapping) else output
    named = output.get("logits") if isinstance(output, Mapping) else None
    tensors = [value for value in ([named] if named is not None else values) if isinstance(value, Tensor) and value.ndim > 0]
    return next(value for value in tensors if value.is_floating_point())


def _equal_up_to_rounding(padded_output: Tensor, unpadded_output: Tensor) -> bool:
    """Whether two outputs are equal up to rounding, the one with padding cut to the last tokens."""
    if padded_output.ndim > 2 and padded_output.shape[1] > unpadded_output.shape[1]:
        padded_output = padded_output[:, -unpadded_output.shape[1] :]
    if padded_output.shape != unpadded_output.shape:
        return False
    scale = float(unpadded_output.abs().max().clamp(min=1e-30))
    return float((padded_output.double() - unpadded_output.double()).abs().max()) <= CLOSE.get(padded_output.dtype, 1e-4) * scale
