"""Fast ablation gives what gates give, on every family, and leaves the model as it found it."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headcount.core.errors import GateError
from headcount.core.plan import Plan
from headcount.importance.replay.engine import Ablator, Intervention
from headcount.importance.replay.packing import packed_linears
from headcount.models.dummy_inputs.text import probe_inputs
from headcount.models.gates import HeadGates, floating_point_outputs
from headcount.models.head_map import HeadMap
from headcount.models.observe import mean_outputs
from headcount.models.tiny.build import tiny_model
from headcount.models.tiny.families import VARIANTS, family_variant
from headcount.surgery.cut import cut
from headcount.testing.laws import uneven_plan

# GPT-Neo attends in float32 whatever its weights are, so that rows round differently in batches of different size.
TOLERANCE = {"gpt_neo": 2e-6}
ROWS = 3
SMALL = 120  # max_tokens: several changes in a pass, several passes in a block


class Interruption(Exception):
    pass


def read(output: Any, batch: Mapping[str, Any]) -> Tensor:
    rows = next(value for name, value in batch.items() if name in ("input_ids", "pixel_values", "input_features", "input_values")).shape[0]
    return torch.cat([t.flatten(1).double() for t in floating_point_outputs(output) if t.ndim and t.shape[0] == rows], dim=1)


def logits(output: Any, _batch: Mapping[str, Any]) -> Tensor:
    return output.logits


def single(heads: HeadMap, *, keep: bool = False) -> list[Intervention]:
    """One change per head: it alone goes, or it alone of its block stays."""
    return [
        Intervention(block, tuple(float((i == head) == keep) for i in range(block.n_heads)))
        for block in heads.blocks
        for head in range(block.n_heads)
    ]


def by_gates(
    model: nn.Module, batch: dict[str, Any], interventions: Sequence[Intervention], reader: Any = read, how: Any = "zero", means: Any = None
) -> Tensor:
    gates, results = HeadGates(model, how=how, means=means), []
    for intervention in interventions:
        values = torch.ones(len(gates.heads), dtype=torch.float64)
        values[gates.heads.positions(intervention.block)] = torch.tensor(intervention.gates, dtype=torch.float64)
        gates.values = values
        with gates, torch.no_grad():
            results.append(reader(model(**batch), batch))
    return torch.stack(results)


def relative(ours: Tensor, theirs: Tensor) -> float:
    return float((ours - theirs).abs().max() / theirs.abs().max())


def state(model: nn.Module) -> list[Any]:
    return [
        (module.training, "forward" in module.__dict__, len(module._forward_hooks), len(module._forward_pre_hooks))
        for module in model.modules()
    ] + [getattr(model.config, "_attn_implementation", None)]


@functools.lru_cache(maxsize=2)
def family(name: str) -> tuple[nn.Module, dict[str, Any]]:
    model = family_variant(name).build(None)
    return model, probe_inputs(model, batch=ROWS)


@pytest.mark.parametrize("name", [v.name for v in VARIANTS])
def test_every_head_alone_equals_gates(name: str) -> None:
    model, batch = family(name)
    ablator = Ablator(model, max_tokens=SMALL)
    interventions = single(ablator.heads)
    interventions = interventions if len(interventions) < 80 else interventions[::25]
    before = state(model)
    baseline, results = ablator.run(batch, interventions, read)
    assert state(model) == before
    with torch.no_grad():
        assert relative(baseline, read(model(**batch), batch)) < TOLERANCE.get(name, 1e-10)
    assert results.shape == (len(interventions), *baseline.shape)
    assert relative(results, by_gates(model, batch, interventions)) < TOLERANCE.get(name, 1e-9)
    assert bool(ablator.fallback_reason) == (name in ("albert", "clip"))


@pytest.mark.parametrize("name", ["bert", "bloom", "llama-grouped", "marian", "t5", "vit"])
def test_all_but_one_equals_gates(name: str) -> None:
    model, batch = family(name)
    ablator = Ablator(model, max_tokens=SMALL)
    interventions = single(ablator.heads, keep=True)
    assert relative(ablator.run(batch, interventions, read)[1], by_gates(model, batch, interventions)) < 1e-9


@pytest.mark.parametrize("how", ["mean", "uniform"])
@pytest.mark.parametrize("name", ["albert", "bert", "bloom", "deberta-v2", "gpt_oss", "llama-grouped", "marian", "t5", "vit"])
def test_other_interventions_equal_gates(name: str, how: Any) -> None:
    model, batch = family(name)
    means = mean_outputs(model, [batch]) if how == "mean" else None
    ablator = Ablator(model, how=how, means=means, max_tokens=SMALL)
    interventions = single(ablator.heads)[::5]
    before = state(model)
    results = ablator.run(batch, interventions, read)[1]
    assert state(model) == before
    assert relative(results, by_gates(model, batch, interventions, read, how, means)) < 1e-9
    assert bool(ablator.fallback_reason) == (name == "albert")


CLASSIFIERS = [("bert", "first"), ("roberta", "first"), ("electra", "first"), ("distilbert", "first"), ("gpt2", "last"), ("llama", "last")]


@pytest.mark.parametrize(("name", "reads"), CLASSIFIERS)
def test_a_classifier_needs_one_position_of_its_last_layer(name: str, reads: str) -> None:
    model = tiny_model(name, auto="AutoModelForSequenceClassification")
    model.config.pad_token_id = 0  # without one, decoders refuse to classify several examples
    batch = probe_inputs(model, batch=ROWS)
    ablator = Ablator(model, max_tokens=SMALL)
    interventions = single(ablator.heads)
    results = ablator.run(batch, interventions, logits)[1]
    assert ablator.only_position_read == reads
    assert relative(results, by_gates(model, batch, interventions, logits)) < 1e-9


def test_a_batch_read_elsewhere_is_not_narrowed() -> None:
    model = tiny_model("bert")
    batch = probe_inputs(model, batch=ROWS)
    ablator = Ablator(model)
    interventions = single(ablator.heads)[:2]
    ablator.run(batch, interventions, lambda output, _: output.logits[:, 0])
    assert ablator.only_position_read == "first"
    results = ablator.run(batch, interventions, lambda output, _: output.logits[:, 3])[1]
    assert relative(results, by_gates(model, batch, interventions, lambda output, _: output.logits[:, 3])) < 1e-9


def test_positions_alike_are_still_read() -> None:
    model = tiny_model("bert")
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(1e-13)  # all positions give the same logits to rounding, and all are read
    ablator = Ablator(model)
    ablator.run(probe_inputs(model, batch=ROWS), [], logits)
    assert not ablator.only_position_read


def test_labels_make_decoder_inputs_and_can_be_withheld() -> None:
    model = tiny_model("marian")
    batch = probe_inputs(model, batch=ROWS)
    batch = {name: batch[name] for name in ("input_ids", "attention_mask")} | {"labels": batch["decoder_input_ids"]}
    ablator = Ablator(model, max_tokens=SMALL)
    interventions = single(ablator.heads)[::4]
    assert relative(ablator.run(batch, interventions, logits)[1], by_gates(model, batch, interventions, logits)) < 1e-9
    encoder = tiny_model("bert")
    inputs = probe_inputs(encoder, batch=ROWS)

    def loss(output: Any, stacked: Mapping[str, Any]) -> Tensor:
        assert "loss" not in output
        return output.logits.gather(-1, stacked["labels"].unsqueeze(-1)).squeeze(-1)

    _, results = Ablator(encoder, withhold=("labels",)).run(
        {**inputs, "labels": inputs["input_ids"]}, single(HeadMap.of(encoder))[:3], loss
    )
    assert results.shape == (3, *inputs["input_ids"].shape)


def test_batches_of_other_shapes_follow_the_first() -> None:
    model = tiny_model("llama")
    ablator = Ablator(model, max_tokens=64)
    interventions = single(ablator.heads)[::3]
    for rows, length in ((1, 5), (4, 11), (2, 9)):
        batch = probe_inputs(model, batch=rows, length=length, seed=rows)
        assert relative(ablator.run(batch, interventions, read)[1], by_gates(model, batch, interventions)) < 1e-9
        plain = {"input_ids": batch["input_ids"]}
        assert relative(ablator.run(plain, interventions, read)[1], by_gates(model, plain, interventions)) < 1e-9


@pytest.mark.parametrize("name", ["bert", "llama-grouped", "t5", "gpt2"])
def test_cut_models(name: str) -> None:
    model, batch = family(name)
    blocks = HeadMap.of(model).blocks
    small = cut(model, Plan.removing([*uneven_plan(blocks[1:]).removed, *blocks[0].heads]), inputs=batch)
    ablator = Ablator(small, max_tokens=SMALL)
    interventions = single(ablator.heads)
    assert relative(ablator.run(batch, interventions, read)[1], by_gates(small, batch, interventions)) < 1e-9
    assert not ablator.fallback_reason


@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 2e-6), (torch.bfloat16, 5e-2)])
@pytest.mark.parametrize("name", ["bert", "llama"])
def test_other_precisions(name: str, dtype: torch.dtype, limit: float) -> None:
    model = tiny_model(name, dtype=dtype)
    batch = probe_inputs(model, batch=ROWS)
    ablator = Ablator(model, max_tokens=SMALL)
    interventions = single(ablator.heads)
    assert relative(ablator.run(batch, interventions, read)[1], by_gates(model, batch, interventions)) < limit
    assert not ablator.fallback_reason


@pytest.mark.parametrize("name", ["bert", "marian"])
def test_packed_weights_are_exact_enough(name: str) -> None:
    wide = {"bert": {"hidden_size": 192, "intermediate_size": 384}, "marian": {"d_model": 192}}
    model = tiny_model(name, dtype=torch.float32, **wide[name])
    batch = probe_inputs(model, batch=ROWS)
    before = state(model)
    with packed_linears(model):
        assert state(model) != before
    assert state(model) == before
    ablator = Ablator(model)
    interventions = single(ablator.heads)
    assert relative(ablator.run(batch, interventions, read)[1], by_gates(model, batch, interventions)) < 2e-6
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.data.mul_(0.9)
    assert relative(ablator.run(batch, interventions, read)[1], by_gates(model, batch, interventions)) < 2e-6


@pytest.mark.parametrize(("error", "how"), [(Interruption, "zero"), (KeyboardInterrupt, "uniform")])
@pytest.mark.parametrize("calls", [1, 30])
def test_an_exception_leaves_the_model_as_it_was(error: type[BaseException], how: Any, calls: int) -> None:
    model = tiny_model("marian").train()
    batch, calls_left = probe_inputs(model, batch=ROWS), [calls]

    def fail(output: Any, _batch: Mapping[str, Any]) -> Tensor:
        calls_left[0] -= 1
        if calls_left[0] <= 0:
            raise error
        return output.logits

    before = state(model)
    ablator = Ablator(model, how=how, max_tokens=SMALL)
    with pytest.raises(error):
        ablator.run(batch, single(ablator.heads), fail)
        ablator.run(batch, single(ablator.heads), fail)
    assert state(model) == before


def test_reads_can_be_several_tensors_and_no_change_is_a_baseline() -> None:
    model, batch = family("bert")
    ablator = Ablator(model)

    def both(output: Any, _batch: Mapping[str, Any]) -> dict[str, Tensor]:
        return {"best": output.logits.argmax(-1), "first": output.logits[:, 0]}

    baseline, results = ablator.run(batch, single(ablator.heads)[:4], both)
    assert results["best"].shape == (4, *baseline["best"].shape)
    assert results["first"].dtype == torch.float64
    assert ablator.run(batch, [], read)[1].shape[0] == 0


def test_wrong_gates_are_refused() -> None:
    model, batch = family("bert")
    ablator = Ablator(model)
    with pytest.raises(GateError, match="6 heads, but an intervention gives 2 gates"):
        ablator.run(batch, [Intervention(ablator.heads.blocks[0], (0.0, 1.0))], read)
