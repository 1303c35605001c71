"""What left padding needs is measured on the model itself: its own hooks run, those of open contexts rest, and it stays as it was."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from test_left_padding import labelled, turned
from torch import nn

import headcount as hc
from headcount.models import padding
from headcount.models.gates import HeadGates
from headcount.models.observe import Observer, mean_outputs
from headcount.models.padding import with_position_ids_if_needed
from headcount.models.tiny.build import tiny_model
from headcount.models.tiny.float64 import Float64


def left_padded(model: Any) -> dict[str, Any]:
    return turned(labelled(model))


@pytest.mark.parametrize("name", ["bloom", "t5"])
def test_a_cut_model_runs_with_the_hooks_that_a_cut_gave_it(name: str) -> None:
    """ALiBi and T5's bias come from outside the blocks; hooks of a cut model take the heads that stay."""
    model = tiny_model(name)
    batch = labelled(model)
    heads = hc.HeadMap.of(model)
    small = hc.cut(model, hc.Plan.removing([heads.blocks[0].heads[0], heads.blocks[-1].heads[1]]))
    with Float64():
        expected, actual = (torch.tensor(hc.score(small, [each], "gradient").values) for each in (batch, turned(batch)))
    torch.testing.assert_close(actual, expected, rtol=1e-6, atol=1e-6 * float(expected.abs().max()))


@pytest.mark.parametrize("how", ["zero", "uniform"])
def test_gates_for_every_example_do_not_meet_the_measurement(how: Any) -> None:
    model = tiny_model("gpt2")
    batch = left_padded(model)
    gates = torch.ones(2, len(hc.HeadMap.of(model)), dtype=torch.float64)
    gates[1, 0] = 0.0
    with HeadGates(model, gates, how=how):
        inputs = with_position_ids_if_needed(model, batch)
    assert "position_ids" in inputs and padding._NEEDS[model] == "positions"


def test_observers_see_their_own_batches_alone() -> None:
    model = tiny_model("gpt2")
    rows: list[int] = []
    with Observer(model, lambda seen: rows.append(len(seen.queries)), attention=True) as observer:
        observer.run(left_padded(model))
    assert rows == [2] * len(observer.blocks)
    means = mean_outputs(model, [left_padded(model)])
    again = mean_outputs(tiny_model("gpt2"), [left_padded(model)])
    assert all(torch.equal(means[path], again[path]) for path in means)


def test_a_pass_of_another_worker_stays_gated_during_the_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers of the owner run under its gates; one that measures must not take them off for the other."""
    from contextvars import copy_context

    model = tiny_model("gpt2")
    batch, plain = left_padded(model), {name: value for name, value in labelled(model).items() if name != "labels"}
    gates = torch.zeros(len(hc.HeadMap.of(model)), dtype=torch.float64)
    meanwhile: list[torch.Tensor] = []
    first_output = padding._logits_or_first_output

    def output_with_a_worker_beside_it(*args: Any) -> torch.Tensor:
        if not meanwhile:
            context = outside.copy()
            worker = threading.Thread(target=lambda: meanwhile.append(context.run(logits)))
            worker.start()
            worker.join(60)
        return first_output(*args)

    def logits() -> torch.Tensor:
        with torch.no_grad():
            return model(**plain).logits

    monkeypatch.setattr(padding, "_logits_or_first_output", output_with_a_worker_beside_it)
    with HeadGates(model, gates):
        outside, expected = copy_context(), logits()
        with_position_ids_if_needed(model, batch)
    assert meanwhile and torch.equal(meanwhile[0], expected)


def test_the_measurement_leaves_modes_hooks_and_attributes_as_they_were() -> None:
    class Writing(nn.Module):
        """Writes into itself on every pass, as models that choose their attention by the length do."""

        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner, self.longest = inner, 0

        def forward(self, hidden: torch.Tensor) -> torch.Tensor:
            self.longest = max(self.longest, hidden.shape[1])
            return self.inner(hidden)

    model: Any = tiny_model("gpt2").train()
    model.transformer.ln_f = Writing(model.transformer.ln_f)
    passes: list[bool] = []
    model.register_forward_hook(lambda module, *_: passes.append(module.training))
    modes, hooks = [module.training for module in model.modules()], dict(model._forward_hooks)
    with_position_ids_if_needed(model, left_padded(model))
    assert model.transformer.ln_f.longest == 0
    assert [module.training for module in model.modules()] == modes and dict(model._forward_hooks) == hooks
    assert passes and not any(passes), "hooks of others belong to the model, and dropout is off"
