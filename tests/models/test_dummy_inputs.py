"""Cuts without inputs: dummy inputs follow the configuration and the signature, and what still fails names the inputs to pass."""

from __future__ import annotations

import pytest
import torch
import transformers
from torch import nn

import headcount as hc
from headcount.core.errors import ProbeError, VerificationError
from headcount.models.dummy_inputs.text import probe_inputs
from headcount.models.tiny.build import build_model, tiny_config
from headcount.surgery.cost import cost


def build(name: str, **attributes: object) -> nn.Module:
    """A tiny model of a class; dotted attributes of its configuration are set as they are, special tokens included."""
    model_class = getattr(transformers, name)
    config = tiny_config(model_class.config_class)
    for path, value in attributes.items():
        *owners, attribute = path.split("__")
        owner = config
        for part in owners:
            owner = getattr(owner, part)
        setattr(owner, attribute, value)
    return build_model(model_class, config)


def cut_first_head_of_each_block(model: nn.Module) -> nn.Module:
    """Cuts one KV group of every block, proven on dummy inputs."""
    heads = hc.HeadMap.of(model)
    return hc.cut(model, hc.Plan.removing([head for block in heads.blocks for head in block.groups()[0]]))


SHORT = {
    "BertForMaskedLM": {"max_position_embeddings": 7},
    "RobertaForMaskedLM": {"max_position_embeddings": 7},
    "GPT2LMHeadModel": {"n_positions": 7},
    "BartForConditionalGeneration": {"max_position_embeddings": 7},
    "CLIPModel": {"text_config__max_position_embeddings": 7},
    "XLMWithLMHeadModel": {"max_position_embeddings": 5},
}
FOREIGN_END = {
    "CLIPModel": {"text_config__eos_token_id": 49407},
    "CLIPTextModelWithProjection": {"eos_token_id": 49407},
    "SiglipModel": {"text_config__eos_token_id": 49407},
    "OwlViTModel": {"text_config__eos_token_id": 49407},
}
CHOICES = ("BertForMultipleChoice", "RobertaForMultipleChoice", "AlbertForMultipleChoice", "BigBirdForMultipleChoice")
CODEBOOKS = ("MusicgenForCausalLM", "DiaForConditionalGeneration", "CsmBackboneModel", "CsmDepthDecoderForCausalLM")
MISSING = (
    "DecisionTransformerModel",
    "IdeficsForVisionText2Text",
    "InstructBlipVideoForConditionalGeneration",
    "LayoutLMv3ForTokenClassification",
    "LlamaForSequenceClassification",
    "Pop2PianoForConditionalGeneration",
    "Wav2Vec2ForXVector",
)


@pytest.mark.parametrize(
    ("name", "attributes"), [*SHORT.items(), *FOREIGN_END.items()], ids=lambda value: value if isinstance(value, str) else ""
)
def test_cut_follows_the_configuration(name: str, attributes: dict[str, object]) -> None:
    cut_first_head_of_each_block(build(name, **attributes))


@pytest.mark.parametrize("name", [*CHOICES, *CODEBOOKS])
def test_cut_follows_the_signature(name: str) -> None:
    cut_first_head_of_each_block(build(name))


@pytest.mark.parametrize("name", MISSING)
def test_gates_act_on_dummy_inputs(name: str) -> None:
    model = build(name)
    hc.HeadMap.of(model).verify(model)


def test_choices_are_an_axis() -> None:
    batch = probe_inputs(build("BertForMultipleChoice"), batch=3)
    assert batch["input_ids"].shape == batch["attention_mask"].shape == (3, 2, 9)
    assert not torch.equal(batch["input_ids"][:, 0], batch["input_ids"][:, 1])


class Particular(transformers.BertModel):
    """A model that needs an input of which no rule knows."""

    def forward(self, input_ids=None, attention_mask=None, graph=None, output_attentions=None, labels=None, **kwargs):
        if graph is None:
            raise KeyError("graph")
        return super().forward(input_ids=input_ids, attention_mask=attention_mask, **kwargs)


@pytest.fixture(scope="module")
def particular() -> nn.Module:
    return build_model(Particular, tiny_config("bert"))


@pytest.mark.parametrize(
    "call",
    [
        lambda model, inputs: hc.cut(model, hc.Plan.removing(["L0H1"]), inputs=inputs),
        lambda model, inputs: hc.HeadMap.of(model).verify(model, inputs),
        lambda model, inputs: cost(model, inputs),
    ],
    ids=["cut", "verify", "cost"],
)
def test_failure_names_the_inputs(particular: nn.Module, call) -> None:
    with pytest.raises(
        ProbeError, match=r"does not run on dummy inputs \(input_ids \(2, 9\).*KeyError.*pass inputs=.*attention_mask, graph$"
    ):
        call(particular, None)
    given = {"input_ids": torch.tensor([[5, 6]])}
    with pytest.raises(ProbeError, match=r"does not run on the inputs \(input_ids \(1, 2\)\).*pass inputs="):
        call(particular, given)
    call(particular, {**probe_inputs(particular), "graph": 1})


class NotFinite(transformers.BertModel):
    """A model whose outputs are NaN."""

    def forward(self, input_ids=None, attention_mask=None, **kwargs):
        output = super().forward(input_ids=input_ids, attention_mask=attention_mask, **kwargs)
        return {"last_hidden_state": output.last_hidden_state * float("nan")}


def test_gates_are_not_proven_by_numbers_that_are_not_finite() -> None:
    model = build_model(NotFinite, tiny_config("bert"))
    with pytest.raises(VerificationError, match="not finite"):
        hc.HeadMap.of(model).verify(model)
