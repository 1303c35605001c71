"""Losses and scores of float64 models are computed in float64, not rounded to float32 on the way."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers.utils import ModelOutput

import headcount as hc
from headcount.data.evaluate import evaluate
from headcount.data.losses import RULES
from headcount.models.dummy_inputs.text import probe_inputs
from headcount.models.tiny.build import tiny_model

DRAW = torch.Generator().manual_seed(0)


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=DRAW, dtype=torch.float64)


CASES: dict[str, tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]] = {
    "_class_losses": ({"logits": normal(3, 4)}, {"labels": torch.tensor([0, 3, 1])}),
    "_squared_errors": ({"logits": normal(3, 1)}, {"labels": normal(3)}),
    "_multilabel_losses": ({"logits": normal(3, 4)}, {"labels": torch.tensor([[0.0, 1, 1, 0]] * 3)}),
    "_unshifted_token_losses": ({"logits": normal(3, 5, 7)}, {"labels": torch.randint(7, (3, 5), generator=DRAW)}),
    "_next_token_losses": ({"logits": normal(3, 5, 7)}, {"labels": torch.randint(7, (3, 5), generator=DRAW)}),
    "_span_losses": (
        {"start_logits": normal(3, 6), "end_logits": normal(3, 6)},
        {"start_positions": torch.tensor([1, 2, 3]), "end_positions": torch.tensor([4, 5, 5])},
    ),
}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_every_rule_keeps_float64(rule: Any) -> None:
    output, batch = CASES[rule.__name__]
    losses = rule(ModelOutput(**output), batch)[0]
    single = rule(ModelOutput(**{name: value.float() for name, value in output.items()}), batch)[0]
    assert losses.dtype == torch.float64 and single.dtype == torch.float32
    gap = (losses - single.double()).abs()
    assert bool((gap > 0).any()) and float(gap.max()) < 1e-5
    torch.testing.assert_close(losses, rule(ModelOutput(**{name: value + 0.0 for name, value in output.items()}), batch)[0], rtol=0, atol=0)


def test_a_small_change_of_a_float64_model_is_seen() -> None:
    """A change of 1e-10 is lost in float32."""
    model = tiny_model("gpt2")
    batch = probe_inputs(model)
    batch["labels"] = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    before = evaluate(model, [batch]).losses
    norms = hc.score(model, [batch], by="activation-norm").values
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1 + 1e-10)
    after = evaluate(model, [batch]).losses
    moved = hc.score(model, [batch], by="activation-norm").values
    changes = torch.as_tensor(after) - torch.as_tensor(before)
    assert bool((changes != 0).all()) and float(changes.abs().max()) < 1e-8
    assert all(0 < abs(a - b) < 1e-7 for a, b in zip(norms, moved, strict=True))
