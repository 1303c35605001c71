"""The noise that stands for rounding: as large as what float32 really does, and nothing where nothing is rounded."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import headcount as hc
from headcount.core.errors import RoundingError
from headcount.importance.relevance.noise import RoundingNoise
from headcount.importance.relevance.relevance import relevance
from headcount.models.dummy_inputs.text import probe_inputs
from headcount.models.tiny.families import family_variant
from headcount.models.tiny.float64 import Float64


def shares(model: nn.Module, batch: dict[str, Any], **options: Any) -> Tensor:
    """The size of each head's relevance as a share of all, by example."""
    sizes = relevance(model, batch, rule="epsilon", **options).heads.abs()
    return sizes / sizes.sum(-1, keepdim=True)


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "modernbert", "t5", "vit"])
def test_noise_is_as_large_as_the_rounding_of_float32(name: str) -> None:
    single = family_variant(name).build(dtype=torch.float32)
    batch = probe_inputs(single, batch=16)
    double = copy.deepcopy(single).double()
    plain = shares(single, batch)
    with Float64():
        exact = shares(double, {key: value.double() if value.is_floating_point() else value for key, value in batch.items()})
    error, noise = (float((other - plain).abs().median()) for other in (exact, shares(single, batch, noise_seed=0)))
    assert 0 < error < 1e-3
    assert 0.25 < noise / error < 6  # 0.9 to 1.6 on every instruction set that was tried


def test_noise_leaves_masks_and_the_model_alone() -> None:
    noise = RoundingNoise(0)
    mask = torch.tensor([0.0, torch.finfo(torch.float32).min])
    for name in ("add", "mul", "where", "masked_fill", "clone"):
        assert noise.add_noise_to_result(name, mask) is mask
    values = torch.linspace(-3, 3, 1001)
    moved = noise.add_noise_to_result("mm", values)
    ulp = torch.finfo(torch.float32).eps * values.abs()
    assert float((moved != values).float().mean()) > 0.3 and bool(((moved - values).abs() <= 2 * ulp).all())
    assert bool((noise.add_noise_to_result("mm", torch.zeros(3)) == 0).all())
    model = family_variant("bert").build(dtype=torch.float32)
    batch, before = probe_inputs(model), copy.deepcopy(model.state_dict())
    outputs = [model(**batch).logits, relevance(model, batch, noise_seed=0), model(**batch).logits]
    assert torch.equal(outputs[0], outputs[2])
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_epsilon_shows_rounding_beside_its_scores() -> None:
    model = family_variant("gpt2").build(dtype=torch.float32)
    data = [probe_inputs(model, batch=16)]
    scores = hc.score(model, data, by="lrp:epsilon")
    assert all(0 < rounding < error for rounding, error in zip(scores.columns["rounding"], scores.stderr, strict=True))
    assert scores.heads_within_rounding() == () and "rounding moves scores by up to" in scores._repr_html_()
    assert scores.columns == hc.score(model, data, by="lrp:epsilon").columns, "the same noise each time"
    double = hc.score(copy.deepcopy(model).double(), data, by="lrp:epsilon")
    assert max(double.columns["rounding"]) < 1e-6 * max(scores.columns["rounding"])
    scaled = scores.normalise_by("layer")
    ratios = [a / b for a, b in zip(scaled.columns["rounding"], scores.columns["rounding"], strict=True)]
    assert ratios == pytest.approx([a / b for a, b in zip(scaled.values, scores.values, strict=True)])
    assert "rounding" not in hc.score(model, data, by="lrp:alpha-beta").columns


def test_scores_that_are_rounding_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = family_variant("bert").build(dtype=torch.float32)
    data = [probe_inputs(model, batch=4)]
    monkeypatch.setattr(RoundingNoise, "add_noise", lambda self, values: values * (1 + torch.rand(values.shape).to(values)))
    with pytest.raises(RoundingError, match=r"rounding in float32 moves lrp:epsilon of \d+ of 12 heads .* load the model in a wider dtype"):
        hc.score(model, data, by="lrp:epsilon")
