"""Laws that every importance keeps on every family: a head without effect comes last, batches and their order do not matter."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Mapping
from dataclasses import FrozenInstanceError, fields, is_dataclass, replace
from typing import Any, get_args

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import headcount as hc
from headcount.core.errors import UnknownName
from headcount.core.normalisation import Scaling
from headcount.core.options import options_of
from headcount.core.registry import IMPORTANCES
from headcount.data.chunks import select_rows
from headcount.importance.base import (
    BatchImportance,
    BlockImportance,
    FeatureImportance,
    Importance,
    ImportanceInfo,
    Need,
    WeightImportance,
)
from headcount.importance.score import score_all
from headcount.importance.settings import ScoreSettings
from headcount.models.dummy_inputs.text import probe_inputs
from headcount.models.gates import _uneven_weights_like, floating_point_outputs
from headcount.models.observe import evaluating
from headcount.models.tiny.families import VARIANTS, family_variant
from headcount.models.tiny.float64 import Float64

N = 4
FAMILIES = [v.name for v in VARIANTS]


def variants_of(name: str) -> list[Importance]:
    """A method in each of its variants: every value of every option that takes one of a few."""
    method = Importance.parse(name)
    variants = [replace(method, **{option.name: choice}) for option in options_of(type(method)) for choice in option.choices]
    return list(dict.fromkeys([method, *variants]))


ALL = [method for name in IMPORTANCES.names() for method in variants_of(name)]
SHARED = [method for method in ALL if isinstance(method, BlockImportance | WeightImportance)]
BY_BATCH = [method for method in ALL if isinstance(method, BatchImportance)]
SOME_FAMILIES = ("bert", "gpt2", "llama-grouped", "t5", "vit", "whisper")
"""The families on which importances of whole batches keep the laws too; they cost a pass for every head."""


def outputs_loss(output: Any, batch: Mapping[str, Any]) -> Tensor:
    """A loss of each example that looks at everything the model says."""
    pair = ("text_embeds", "image_embeds")  # CLIP's first output compares all examples with each other
    result = torch.cat([output[n] for n in pair], -1) if all(n in output for n in pair) else floating_point_outputs(output)[0].double()
    return (result * _uneven_weights_like(result[:1])).flatten(1).sum(1)


def methods_on(family: str) -> list[Importance]:
    return SHARED + (BY_BATCH if family in SOME_FAMILIES else [])


def by_hand(examples: list) -> dict[str, Any]:
    return {name: torch.cat([example[name] for example in examples]) for name in examples[0]}


@functools.lru_cache(maxsize=2)
def model_of(name: str) -> nn.Module:
    return family_variant(name).build().eval()


def task_of(model: nn.Module, order: list[int] | None = None) -> hc.Task:
    """Examples that are rows of a probe batch: such a batch fits every family."""
    batch = {name: value for name, value in probe_inputs(model, batch=N).items() if isinstance(value, Tensor)}
    examples = [select_rows(batch, slice(i, i + 1)) for i in (order or range(N))]
    return hc.Task("probe", examples, examples, examples, by_hand, loss=outputs_loss)


def zero_head(model: nn.Module, head: hc.Head) -> None:
    heads = hc.HeadMap.of(model)
    block = heads.block_of(head)
    part = next(s for s in block.slices if s.tensor == f"{block.o.path}.weight")
    rows = torch.tensor(list(part.rows.of(block.position(head))))
    with torch.no_grad():
        dict(model.named_parameters())[part.tensor].index_fill_(part.axis, rows, 0.0)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_head_without_projection_comes_last(name: str) -> None:
    model = family_variant(name).build().eval()
    heads = hc.HeadMap.of(model)
    dead = heads[len(heads) // 2]
    group = next(unit for unit in heads.units() if dead in unit)
    for head in group:
        zero_head(model, head)
    for method, scores in score_all(model, task_of(model), SHARED, ScoreSettings(normalise="none")).items():
        if Importance.parse(method).info.sees_projection and method != "gradient:signed":
            assert set(scores.ranking()[-len(group) :]) == set(group), method
            assert scores[dead] == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("name", FAMILIES)
def test_batches_and_their_order_do_not_matter(name: str) -> None:
    model = model_of(name)
    methods = methods_on(name)
    with Float64():
        batched = score_all(model, task_of(model), methods, ScoreSettings(batch_size=N))
        single = score_all(model, task_of(model), methods, ScoreSettings(batch_size=1))
        turned = score_all(model, task_of(model, [2, 0, 3, 1]), methods, ScoreSettings(batch_size=3))
    for method, scores in batched.items():
        assert np.isfinite(scores.values).all()
        np.testing.assert_allclose(single[method].values, scores.values, rtol=1e-6, atol=1e-9, err_msg=method)
        if method != "gradient:running":
            np.testing.assert_allclose(turned[method].values, scores.values, rtol=1e-6, atol=1e-9, err_msg=method)
            assert len(scores.stderr) == len(scores.values) or "batch" in method
        assert scores.n_examples in (0, N)


@pytest.mark.parametrize("name", FAMILIES)
def test_gradient_is_the_derivative_of_the_gate(name: str) -> None:
    """Central differences of every third gate, through HeadGates, against one backward pass."""
    model = model_of(name)
    task = task_of(model)
    with Float64():
        signed = hc.score(model, task, by="gradient:signed", normalise="none")
    batch = by_hand(list(task.calibration))
    step = 1e-5
    for index in range(0, len(signed.heads), 3):
        gated_losses = []
        for sign in (1, -1):
            values = torch.ones(len(signed.heads), dtype=torch.float64)
            values[index] += sign * step
            with Float64(), evaluating(model), hc.HeadGates(model, values):
                gated_losses.append(outputs_loss(model(**batch), batch).mean())
        slope = float(gated_losses[0] - gated_losses[1]) / (2 * step)
        assert slope == pytest.approx(signed.values[index], rel=2e-4, abs=2e-6), signed.heads[index]


@pytest.mark.parametrize("name", IMPORTANCES.names())
def test_every_method_declares_itself(name: str) -> None:
    method = Importance.parse(name)
    assert type(method).__doc__ and IMPORTANCES.documentation(name) == inspect.getdoc(type(method)), "its docstring is its documentation"
    info = method.info
    assert isinstance(info, ImportanceInfo) and "info" in vars(type(method)), "info is its own"
    assert info.cost and info.source and set(info.needs) <= set(get_args(Need))
    assert sum(isinstance(method, base) for base in (BlockImportance, BatchImportance, WeightImportance)) == 1
    assert method.reads_data != isinstance(method, WeightImportance)
    assert info.normalise in get_args(Scaling) and method.scaling("published") == info.normalise and method.scaling("none") == "none"
    assert not (info.measures_loss and info.describes), "a score tells what is lost or describes a head, not both"


@pytest.mark.parametrize("name", IMPORTANCES.names())
def test_every_field_is_an_option_with_help(name: str) -> None:
    cls = type(Importance.parse(name))
    assert is_dataclass(cls) and [field.name for field in fields(cls)] == [option.name for option in options_of(cls)]
    assert all(option.help and option.type_label for option in options_of(cls))
    with pytest.raises(FrozenInstanceError):
        Importance.parse(name).no_such = 1  # type: ignore[attr-defined]


@pytest.mark.parametrize("method", ALL, ids=str)
def test_text_and_plain_data_give_the_method_back(method: Importance) -> None:
    assert Importance.parse(str(method)) == method and Importance.parse(method) is method
    assert type(method).from_dict(json.loads(json.dumps(method.to_dict()))) == method
    assert hash(method) == hash(Importance.parse(str(method)))
    with pytest.raises(UnknownName, match=f"no option of {method.name} 'no_such'"):
        Importance.parse(f"{method.name}(no_such=1)")


@pytest.mark.parametrize("method", [method for method in ALL if isinstance(method, FeatureImportance)], ids=str)
def test_features_are_combined_with_any_leading_axes(method: FeatureImportance) -> None:
    """The jackknife combines many means at once: each as if it were alone."""
    model = model_of(FAMILIES[0])
    block = hc.HeadMap.of(model).blocks[0]
    width = block.value_dim * (2 if method.name == "fluctuation" else 1)
    features = torch.rand(3, block.n_heads, width, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    together = method.combine(features, model, block)
    assert together.shape == (3, block.n_heads)
    torch.testing.assert_close(together, torch.stack([method.combine(row, model, block) for row in features]))
