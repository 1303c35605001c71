"""Padding on the left must not change what an example gives: neither scores nor losses, in any family; else it is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import headcount as hc
from headcount.core.errors import DataError
from headcount.data.evaluate import evaluate
from headcount.importance.score import score_all
from headcount.models.dummy_inputs.request import N_PADDED
from headcount.models.dummy_inputs.text import probe_inputs
from headcount.models.padding import position_ids_of
from headcount.models.tiny.build import tiny_model
from headcount.models.tiny.float64 import Float64

# Positions counted from the left edge unless `position_ids` say otherwise.
ABSOLUTE = [
    "gpt2",
    "gpt_neo",
    "gpt_bigcode",
    "biogpt",
    "ctrl",
    "openai-gpt",
    "codegen",
    "bert",
    "distilbert",
    "albert",
    "electra",
    "deberta-v2",
]
# Positions relative to each other, or read off mask or tokens.
OTHERS = ["llama", "gpt_neox", "falcon", "bloom", "opt", "roberta", "mpnet", "t5"]
# Encoders that take no position ids.
REFUSED = ["bart", "marian", "pegasus"]


def labelled(model: Any) -> dict[str, Any]:
    """A batch whose second example is padded on the right, with labels."""
    batch = probe_inputs(model)
    key = "decoder_input_ids" if "decoder_input_ids" in batch else "input_ids"
    labels = batch[key].clone()
    labels[1, -N_PADDED:] = -100
    return {**batch, "labels": labels}


def turned(batch: dict[str, Any]) -> dict[str, Any]:
    """The same examples, the second one padded on the left."""
    shape, decodes = batch["input_ids"].shape, "decoder_input_ids" in batch
    moved = {key: value.clone() for key, value in batch.items()}
    for key, value in moved.items():
        if value.shape == shape and not (decodes and (key.startswith("decoder") or key == "labels")):
            value[1] = value[1].roll(N_PADDED)
    return moved


@pytest.mark.parametrize("name", [*ABSOLUTE, *OTHERS])
def test_left_padding_changes_no_score(name: str) -> None:
    model = tiny_model(name)
    right_padded = labelled(model)
    left_padded = turned(right_padded)
    methods = ["gradient", "output-norm", "confidence", "ablation"]
    with Float64():
        scores, moved = (score_all(model, [batch], methods) for batch in (right_padded, left_padded))
        losses = [evaluate(model, [batch]).losses for batch in (right_padded, left_padded)]
    for method in methods:
        expected = torch.tensor(scores[method].values, dtype=torch.float64)
        actual = torch.tensor(moved[method].values, dtype=torch.float64)
        torch.testing.assert_close(actual, expected, rtol=1e-6, atol=1e-6 * float(expected.abs().max()))
    torch.testing.assert_close(*map(torch.as_tensor, losses), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", REFUSED)
def test_left_padding_that_cannot_be_mended_is_refused(name: str) -> None:
    model = tiny_model(name)
    batch = labelled(model)
    hc.score(model, [batch])
    for call in (hc.score, evaluate):
        with pytest.raises(DataError, match=r"an example of the batch is padded on the left, .* pad on the right"):
            call(model, [turned(batch)])
    assert not any(module.training or module._forward_hooks for module in model.modules())


def test_positions_count_real_tokens() -> None:
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
    assert position_ids_of(mask).tolist() == [[0, 0, 0, 1, 2], [0, 1, 2, 2, 2], [0, 1, 2, 3, 4]]


def test_given_positions_are_left_alone() -> None:
    model = tiny_model("gpt2")
    left_padded = turned(labelled(model))
    with_positions = {**left_padded, "position_ids": torch.arange(left_padded["input_ids"].shape[1]).expand(2, -1)}
    assert hc.score(model, [with_positions]).values != hc.score(model, [left_padded]).values
