"""Classes that take a part of their type's configuration, or settings that the other classes of their type do not have."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers

import headcount as hc
from headcount.core.errors import ProbeError
from headcount.models.dummy_inputs.text import probe_inputs
from headcount.models.tiny.build import build_model, tiny_config, tiny_config_of_class, tiny_model
from headcount.models.tiny.overrides import ARGUMENTS, CLASS_OVERRIDES, PARTS
from headcount.surgery.verify import forward_outputs

SMALL = 5_000_000
ANNOTATED = {
    "Aimv2TextModel": "text_config",
    "MistralLarge4TextModel": "text_config",
    "PPFormulaNetVisionModel": "vision_config",
    "Qwen3OmniMoeCode2Wav": "code2wav_config",
}
OF_TYPES_WITH_OVERRIDES = (
    "EfficientLoFTRModel",
    "EsmFold2Model",
    "Granite4VisionModel",
    "InklingModel",
    "NeuCodecModel",
    "Sapiens2ForPointmapEstimation",
    "T5Gemma2Encoder",
    "Xcodec2Model",
)


def build(name: str) -> transformers.PreTrainedModel:
    model_class = getattr(transformers, name)
    return build_model(model_class, tiny_config_of_class(model_class))


@pytest.mark.parametrize("name", sorted({*CLASS_OVERRIDES, *PARTS, *ARGUMENTS}))
def test_classes_of_the_tables_build(name: str) -> None:
    assert sum(parameter.numel() for parameter in build(name).parameters()) < SMALL


@pytest.mark.parametrize(("name", "part"), sorted((ANNOTATED | PARTS).items()))
def test_a_class_takes_its_part_of_the_configuration(name: str, part: str) -> None:
    model_class = getattr(transformers, name)
    complete, own = tiny_config(model_class.config_class), tiny_config_of_class(model_class)
    assert own.to_dict() == getattr(complete, part).to_dict()


@pytest.mark.parametrize("name", OF_TYPES_WITH_OVERRIDES)
def test_classes_whose_type_needs_overrides_build(name: str) -> None:
    model = build(name)
    assert sum(parameter.numel() for parameter in model.parameters()) < SMALL
    assert list(hc.HeadMap.of(model).blocks)


def test_settings_of_a_class_reach_a_model_by_its_auto_class_and_leave_the_others() -> None:
    assert tiny_model("reformer", auto="AutoModelForCausalLM").config.is_decoder
    assert not tiny_model("reformer", auto="AutoModelForSequenceClassification").config.is_decoder


@pytest.mark.parametrize("name", ["Aimv2TextModel", "MistralLarge4TextModel"])
def test_a_part_of_a_family_is_loaded_with_its_own_configuration(name: str, tmp_path: Path) -> None:
    """transformers reads the folder of such a class as that of the whole family, which lacks what the part needs."""
    model = build(name)
    block = hc.HeadMap.of(model).blocks[0]
    for number, saved in enumerate((model, hc.cut(model, hc.Plan.removing(block.groups()[0])))):
        again = hc.load(hc.save(saved, tmp_path / str(number)), model_kwargs={"experts_implementation": "eager"})
        assert type(again) is type(model)
        assert type(again.config) is type(model.config)
        batch = probe_inputs(saved)
        assert all(map(torch.equal, forward_outputs(again, batch), forward_outputs(saved, batch)))


def test_a_model_without_a_type_is_named_by_its_class() -> None:
    with pytest.raises(ProbeError, match=r"^Qwen3OmniMoeCode2Wav: no rule makes the required input codes"):
        probe_inputs(build("Qwen3OmniMoeCode2Wav"))
