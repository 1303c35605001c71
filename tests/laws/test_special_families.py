"""Families whose heads live beside something else: sparse attention, position biases, a second stream, kept features."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import CLIPTextConfig, OmDetTurboConfig, OmDetTurboForObjectDetection, SwinConfig

import headcount as hc
from headcount.core.errors import UnsupportedModel
from headcount.models.dummy_inputs.text import probe_inputs
from headcount.models.gates import floating_point_outputs
from headcount.models.tiny.build import tiny_model
from headcount.models.tiny.draw import draw_weights
from headcount.surgery.verify import forward_outputs, largest_relative_difference
from headcount.testing.calls import outputs_loss, probe_task
from headcount.testing.fingerprint import require_unchanged
from headcount.testing.laws import Subject, check_model, uneven_plan

SILENT = {
    "big_bird": {"gate 0 is no attention", "generation agrees"},
    "bigbird_pegasus": {"gate 0 is no attention"},
    "layoutlmv3": {"generation agrees"},
    "lilt": {"generation agrees"},
}
"""Laws that say nothing: sparse attention takes several softmaxes, and some models do not generate."""


@pytest.mark.parametrize("model_type", SILENT)
def test_every_law(model_type: str) -> None:
    results = list(check_model(tiny_model(model_type)))
    assert [result for result in results if not result.passed] == []
    assert {result.law for result in results if not result.applies} == SILENT[model_type]


@pytest.mark.parametrize("same", [True, False], ids=["same heads in every layer", "uneven"])
def test_a_cut_layoutlmv3_returns_attention(same: bool) -> None:
    """Position biases, which only come in, were returned in place of the attention maps, as T5 returns its bias to the next layer."""
    model = tiny_model("layoutlmv3")
    batch = probe_inputs(model)
    blocks = hc.HeadMap.of(model).blocks
    plan = hc.Plan.removing([block.heads[1] for block in blocks]) if same else uneven_plan(blocks)
    small = hc.cut(model, plan)
    with torch.no_grad():
        maps = small(**batch, output_attentions=True).attentions
    for block, actual in zip(blocks, maps, strict=True):
        assert actual.shape[1] == len(plan.kept_positions(block))
        assert torch.allclose(actual.sum(-1), torch.ones_like(actual.sum(-1)))


def test_gates_of_lilt_act_on_text_and_layout() -> None:
    """Heads of the layout share the attention scores of the text's heads; only the text's were gated."""
    model = tiny_model("lilt")
    batch = probe_inputs(model)
    observed: dict[str, Tensor] = {}

    def keep(name: str) -> Any:
        return lambda _module, args: observed.update({name: args[0]})

    attention = model.encoder.layer[0].attention
    with hc.mask(model, ["L0H2"]):
        handles = [getattr(attention, name).dense.register_forward_pre_hook(keep(name)) for name in ("output", "layout_output")]
        forward_outputs(model, batch)
    for handle in handles:
        handle.remove()
    for merged in observed.values():
        per_head = merged.unflatten(-1, (6, -1)).abs().amax((0, 1, 3))
        assert per_head[2] == 0 and per_head[[0, 1, 3, 4, 5]].min() > 0

    task = probe_task(batch)
    scores = hc.score(model, task, "ablation")
    plain = outputs_loss(_outputs(model, batch), batch).mean()
    with hc.mask(model, ["L0H2"]):
        rise = outputs_loss(_outputs(model, batch), batch).mean() - plain
    assert scores["L0H2"] == pytest.approx(float(rise), rel=1e-6)


def _outputs(model: nn.Module, batch: dict[str, Any]) -> Any:
    with torch.no_grad():
        return model(**batch)


@pytest.mark.parametrize("by", ["gradient", "wanda", "lrp"])
def test_what_sees_one_stream_of_lilt_is_refused(by: str) -> None:
    model = tiny_model("lilt")
    batch = probe_inputs(model)
    with pytest.raises(UnsupportedModel, match=r"layout_output\.dense"):
        hc.score(model, probe_task(batch), by)
    with pytest.raises(UnsupportedModel, match=r"layout_output\.dense"):
        hc.repair(model, uneven_plan(Subject.of(model).cuttable), [batch])
    with pytest.raises(UnsupportedModel, match=r"layout_output\.dense"):
        hc.mask(model, ["L0H0"], how="mean", data=[batch])


def omdet() -> nn.Module:
    """OmDet-Turbo with one layer of each kind; its text tower keeps the features of classes and tasks."""
    backbone = SwinConfig(
        image_size=32, patch_size=4, embed_dim=12, depths=[1] * 4, num_heads=[2] * 4, out_features=["stage2", "stage3", "stage4"]
    )
    text = CLIPTextConfig(
        hidden_size=24, intermediate_size=24, projection_dim=24, num_hidden_layers=1, num_attention_heads=4, max_position_embeddings=8,
        vocab_size=60, bos_token_id=0, eos_token_id=59,
    )  # fmt: skip
    config = OmDetTurboConfig(
        backbone_config=backbone.to_dict(), text_config=text.to_dict(), apply_layernorm_after_vision_backbone=False, image_size=32,
        text_projection_in_dim=24, text_projection_out_dim=24, class_embed_dim=24, task_encoder_hidden_dim=24,
        encoder_hidden_dim=16, decoder_hidden_dim=16, vision_features_channels=[16] * 3, encoder_in_channels=[24, 48, 96],
        encoder_dim_feedforward=24, encoder_attention_heads=2, decoder_num_heads=2, decoder_num_layers=1, decoder_dim_feedforward=24,
        num_queries=5, num_projection_layers=1, disable_custom_kernels=True,
    )  # fmt: skip
    torch.manual_seed(0)
    model = OmDetTurboForObjectDetection(config)
    draw_weights(model, torch.Generator().manual_seed(0))
    return model.double().eval()


def detections() -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(0)
    return {
        "pixel_values": torch.randn(2, 3, 32, 32, generator=draw, dtype=torch.float64),
        "classes_input_ids": torch.randint(3, 50, (4, 6), generator=draw),
        "classes_attention_mask": torch.ones(4, 6, dtype=torch.long),
        "tasks_input_ids": torch.randint(3, 50, (2, 6), generator=draw),
        "tasks_attention_mask": torch.ones(2, 6, dtype=torch.long),
        "classes_structure": torch.tensor([2, 2]),
    }


def test_features_that_omdet_keeps_do_not_hide_gates() -> None:
    """Text features of an earlier pass were served under gates, and those made under gates afterwards."""
    model, batch = omdet(), detections()
    plain = floating_point_outputs(_outputs(model, batch))
    with require_unchanged(model, "mask"), hc.mask(model, ["language.L0H0"]) as gates:
        first = floating_point_outputs(_outputs(model, batch))
        gates.values = torch.ones(len(gates.heads))
        opened = floating_point_outputs(_outputs(model, batch))
    assert largest_relative_difference(first, plain) > 1e-3
    assert largest_relative_difference(opened, plain) == 0
    assert largest_relative_difference(floating_point_outputs(_outputs(model, batch)), plain) == 0

    once: nn.Module = hc.cut(model, hc.Plan.removing(["language.L0H0"]), inputs=batch)
    assert largest_relative_difference(floating_point_outputs(_outputs(once, batch)), first) < 1e-9
    twice = hc.cut(once, hc.Plan.removing(["language.L0H2"]), inputs=batch)
    with hc.mask(model, ["language.L0H0", "language.L0H2"]):
        both = floating_point_outputs(_outputs(model, batch))
    assert largest_relative_difference(floating_point_outputs(_outputs(twice, batch)), both) < 1e-9
