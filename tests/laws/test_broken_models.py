"""Every law of model families refuses a gate, a cut or a file that breaks it; a law without a broken example fails here."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import headcount as hc
from headcount.core.errors import HeadcountError, PlanError, VerificationError
from headcount.models.gates import HeadGates
from headcount.models.head_map import HeadMap
from headcount.models.tiny.families import family_variant
from headcount.surgery.cut import cut
from headcount.surgery.load import load
from headcount.testing import laws
from headcount.testing.laws import LAWS, LawBroken, Subject

Change = Callable[[pytest.MonkeyPatch, Subject], object]


@cache
def dense(family: str) -> nn.Module:
    return family_variant(family).build("eager")


def subject_for(message: str) -> Subject:
    """A sound model: GPT-2, which keeps heads for a second cut, or LLaMA, whose frequencies are buffers."""
    return Subject.of(copy.deepcopy(dense("llama-grouped" if message.startswith("a buffer") else "gpt2")))


def add_noise(model: nn.Module) -> nn.Module:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype))
    return model


def add_to_outputs(model: nn.Module) -> nn.Module:
    """Puts a hook on a model that changes its logits and nothing else."""

    def add_one(_module: nn.Module, _inputs: Any, output: Any) -> Any:
        output.logits = output.logits + 1
        return output

    model.register_forward_hook(add_one)
    return model


class GatesWith(HeadGates):
    """Gates that do something else on leaving or with their values."""

    def __init__(self, model: nn.Module, values: torch.Tensor, **options: Any) -> None:
        super().__init__(model, self.change(values), **options)
        self.changed_model = model

    def change(self, values: torch.Tensor) -> torch.Tensor:
        return values

    def leave(self) -> None: ...

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self.leave()


class HalfGates(GatesWith):
    def change(self, values: torch.Tensor) -> torch.Tensor:
        return values / 2 + 0.25


class DrawingGates(GatesWith):
    def leave(self) -> None:
        torch.rand(1)


class HookingGates(GatesWith):
    def leave(self) -> None:
        self.changed_model.register_forward_hook(lambda *_: None)


class ChangingGates(GatesWith):
    def leave(self) -> None:
        add_noise(self.changed_model)


def gates_of(cls: type[GatesWith]) -> Change:
    return lambda patch, _subject: patch.setattr(laws, "HeadGates", cls)


def silence_a_head(_patch: pytest.MonkeyPatch, subject: Subject) -> None:
    for block in subject.heads.blocks:
        subject.model.get_submodule(block.o.path).weight.data.zero_()


def cut_by(change: Callable[..., Any]) -> Change:
    return lambda patch, _subject: patch.setattr(laws, "cut", change)


def cut_and_add_noise(*arguments: Any, **options: Any) -> nn.Module:
    return add_noise(cut(*arguments, **options))


def copy_without_cutting(model: nn.Module, *_: Any, **__: Any) -> nn.Module:
    return copy.deepcopy(model)


def predict_no_parameters(patch: pytest.MonkeyPatch, _subject: Subject) -> None:
    patch.setattr(laws, "cut", copy_without_cutting)
    patch.setattr(laws, "count_removed_parameters", lambda *_: 0)


def cut_the_second_time_less(patch: pytest.MonkeyPatch, subject: Subject) -> None:
    patch.setattr(laws, "largest_relative_difference", lambda *_: 0.0)
    patch.setattr(laws, "cut", lambda model, plan, **options: copy.deepcopy(model) if model is not subject.model else cut(model, plan))


def load_and(change: Callable[[nn.Module], object]) -> Change:
    def load_changed(folder: Path, **options: Any) -> nn.Module:
        model = load(folder, **options)
        change(model)
        return model

    return lambda patch, _subject: patch.setattr(laws, "load", load_changed)


def add_buffer(model: nn.Module) -> None:
    model.register_buffer("more", torch.zeros(1), persistent=False)


def add_parameter(model: nn.Module) -> None:
    model.register_parameter("more", nn.Parameter(torch.zeros(1)))


def change_buffers(model: nn.Module) -> None:
    for buffer in model.buffers():
        buffer.add_(1)


def show_other_heads(patch: pytest.MonkeyPatch, _subject: Subject) -> None:
    """Lets the head map of every other model show one head less."""

    class OtherHeadMap(HeadMap):
        n_calls = 0

        @classmethod
        def of(cls, model: nn.Module, *_: Any) -> Any:
            cls.n_calls += 1
            heads = HeadMap.of(model)
            return heads.heads[cls.n_calls % 2 :]

    patch.setattr(laws, "HeadMap", OtherHeadMap)


def refuse_after(change: Callable[[nn.Module], object]) -> Change:
    def refuse(model: nn.Module, *_: Any, **__: Any) -> None:
        change(model)
        raise PlanError("impossible")

    return cut_by(refuse)


BROKEN: list[tuple[str, str, Change]] = [
    ("every gate acts", "changes nothing in the output", silence_a_head),
    ("gate 1 is the identity", "gates of one changed the output", gates_of(HalfGates)),
    ("leaving restores everything", "the random state changed", gates_of(DrawingGates)),
    ("leaving restores everything", "the model was not left as it was found", gates_of(HookingGates)),
    ("leaving restores everything", "the output changed after leaving", gates_of(ChangingGates)),
    ("gate 0 is no attention", "gating and zeroing probabilities differ", gates_of(HalfGates)),
    ("cut equals gate", "the cut differs from the gates", cut_by(cut_and_add_noise)),
    ("attention maps follow the cut", "differ by .* from those of the heads that stay", cut_by(cut_and_add_noise)),
    ("parameters fall as predicted", "0 parameters went", cut_by(copy_without_cutting)),
    ("parameters fall as predicted", "does not show the heads that stay", predict_no_parameters),
    (
        "cutting twice is cutting once",
        "differs from cutting once",
        lambda patch, subject: cut_by(add_noise_to_second_cuts(subject))(patch, subject),
    ),
    ("cutting twice is cutting once", "leaves other heads", cut_the_second_time_less),
    ("save then load is equal", "the tensors changed between save and load", load_and(add_parameter)),
    ("save then load is equal", "a tensor changed between save and load", load_and(add_noise)),
    ("save then load is equal", "the buffers changed between save and load", load_and(add_buffer)),
    ("save then load is equal", "a buffer changed between save and load", load_and(change_buffers)),
    ("save then load is equal", "the output changed between save and load", load_and(add_to_outputs)),
    ("save then load is equal", "the addresses changed between save and load", show_other_heads),
    ("casts survive saving", "a tensor changed between save and load", load_and(lambda model: model.float())),
    ("impossible plans raise", "was carried out", cut_by(copy_without_cutting)),
    ("impossible plans raise", "an impossible plan changed a tensor", refuse_after(add_noise)),
    ("impossible plans raise", "an impossible plan changed the output", refuse_after(add_to_outputs)),
    ("generation agrees", "the generated tokens differ", cut_by(cut_and_add_noise)),
]
"""By law: what its message says, and what breaks it on a sound model."""


def add_noise_to_second_cuts(subject: Subject) -> Callable[..., nn.Module]:
    def cut_twice(model: nn.Module, plan: hc.Plan, **options: Any) -> nn.Module:
        small = cut(model, plan, **options)
        return small if model is subject.model else add_noise(small)

    return cut_twice


@pytest.mark.parametrize(("law", "message", "change"), BROKEN)
def test_a_broken_law_is_named(law: str, message: str, change: Change, monkeypatch: pytest.MonkeyPatch) -> None:
    subject = subject_for(message)
    change(monkeypatch, subject)
    with pytest.raises(HeadcountError, match=message) as caught:
        LAWS[law](subject)
    assert isinstance(caught.value, VerificationError if law == "every gate acts" else LawBroken)


def test_every_law_has_a_broken_example() -> None:
    assert {law for law, _, _ in BROKEN} == set(LAWS)
