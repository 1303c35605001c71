"""Cut models as users meet them: in place, in half precision, trained, adapted, compiled, exported, generating."""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from packaging.version import Version
from torch import nn

import headcount as hc
from headcount.core.errors import PlanError, VerificationError
from headcount.models.dummy_inputs.text import probe_inputs
from headcount.models.tiny.build import tiny_model
from headcount.surgery import reshape as reshaping
from headcount.surgery.cost import cost
from headcount.surgery.cut import count_removed_parameters, cut
from headcount.surgery.export.onnx import Onnx
from headcount.surgery.verify import computing_in_float32, forward_outputs, largest_relative_difference, run_gated
from headcount.testing.laws import emptying_plan, uneven_plan

# The releases whose configurations can say how many heads of which size there are, and whose static caches follow the model.
PLAIN_SINCE = {"vit": "5.10", "deit": "5.10", "dinov2": "5.18"}
STATIC_CACHE_FOLLOWS = Version("5.15")
cut_module = sys.modules["headcount.surgery.cut"]  # `headcount.surgery.cut` of the package is its function


def classifier(name: str = "bert", **options: object) -> nn.Module:
    return tiny_model(name, auto="AutoModelForSequenceClassification", **options)  # type: ignore[arg-type]


def half_cut(model: nn.Module) -> tuple[nn.Module, hc.Plan]:
    plan = uneven_plan([block for block in hc.HeadMap.of(model).blocks if block.can_cut])
    return cut(model, plan), plan


def test_a_cut_leaves_the_original_alone() -> None:
    model = classifier()
    before, batch = copy.deepcopy(model.state_dict()), probe_inputs(model)
    plain = forward_outputs(model, batch)
    small, plan = half_cut(model)
    assert all(torch.equal(a, b) for a, b in zip(before.values(), model.state_dict().values(), strict=True))
    assert largest_relative_difference(plain, forward_outputs(model, batch)) == 0
    assert not hasattr(model.config, "headcount")
    assert type(small) is type(model)
    assert len(hc.HeadMap.of(small)) == 12 - len(plan.removed)


def test_in_place_returns_the_same_object() -> None:
    model = classifier()
    batch, plan = probe_inputs(model), hc.Plan.removing(["L0H1", "L1H0", "L1H5"])
    expected = run_gated(model, plan, batch)
    assert cut(model, plan, in_place=True) is model
    assert largest_relative_difference(forward_outputs(model, batch), expected) < 1e-12


@pytest.mark.parametrize("in_place", [True, False])
def test_a_cut_that_differs_is_refused_and_undone(in_place: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong slice (of keys only) is caught by the proof, and the model is as before."""
    model = tiny_model("t5")
    batch, before = probe_inputs(model), copy.deepcopy(model.state_dict())
    plain, attributes = forward_outputs(model, batch), {n: dict(vars(m.config)) for n, m in model.named_modules() if hasattr(m, "config")}
    original = reshaping._slice_tensors

    def wrong(target: nn.Module, part: reshaping.Cut, slices: list) -> None:
        others = tuple((h + 1) % part.block.n_heads for h in part.heads)
        shifted = reshaping.Cut(part.block, others, tuple(sorted(others)))
        original(target, part, [s for s in slices if ".k." not in s.tensor])
        original(target, shifted, [s for s in slices if ".k." in s.tensor])

    monkeypatch.setattr(reshaping, "_slice_tensors", wrong)
    with pytest.raises(VerificationError, match="differs from the gated model by"):
        cut(model, hc.Plan.removing(["enc.L0H0", "cross.L1H2"]), in_place=in_place)
    assert list(before) == list(model.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(before.values(), model.state_dict().values(), strict=True))
    assert largest_relative_difference(plain, forward_outputs(model, batch)) == 0
    assert not any(m._forward_pre_hooks or m._forward_hooks for m in model.modules())
    assert attributes == {n: dict(vars(m.config)) for n, m in model.named_modules() if hasattr(m, "config")}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["bert", "llama", "gpt2"])
def test_every_dtype(name: str, dtype: torch.dtype) -> None:
    model = tiny_model(name, dtype=dtype)
    small, plan = half_cut(model)
    assert {p.dtype for p in small.parameters()} == {dtype}
    assert len(hc.HeadMap.of(small)) == 12 - len(plan.removed)


def test_tied_projections_are_refused() -> None:
    model = classifier()
    first, second = (model.get_submodule(block.q.path) for block in hc.HeadMap.of(model).blocks)
    second.weight = first.weight
    with pytest.raises(PlanError, match="tied to another module"):
        cut(model, hc.Plan.removing(["L0H0"]))


def test_full_width_norms_are_gate_only() -> None:
    model = tiny_model("olmo2")
    heads = hc.HeadMap.of(model)
    heads.verify(model)
    assert all("normalised over all heads" in block.gate_only for block in heads.blocks)
    with pytest.raises(PlanError, match="can be gated but not cut: queries and keys are normalised over all heads"):
        cut(model, hc.Plan.removing(["L0H0"]))


def test_the_configuration_tells_the_truth() -> None:
    model = tiny_model("llama", num_key_value_heads=2)
    mixed = cut(model, hc.Plan.removing(["L0H0", "L0H1", "L0H2"]))
    first, second = (mixed.get_submodule(block.path) for block in hc.HeadMap.of(mixed).blocks)
    assert (first.config.num_attention_heads, first.config.num_key_value_heads, first.num_key_value_groups) == (3, 1, 3)
    assert second.config.num_attention_heads == 6
    mixed.set_attn_implementation("eager")
    assert first.config._attn_implementation == "eager"
    uniform = cut(model, hc.Plan.removing([f"L{layer}H{head}" for layer in (0, 1) for head in range(3, 6)]))
    assert (uniform.config.num_attention_heads, uniform.config.num_key_value_heads, uniform.config.head_dim) == (3, 1, 8)


@pytest.mark.parametrize("name", ["llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3_text", "phi3", "vit", "deit", "dinov2", "t5"])
def test_a_uniform_cut_loads_plainly(name: str, tmp_path: Path) -> None:
    model = tiny_model(name)
    going = [f"{block.name}H{index}" for block in hc.HeadMap.of(model).blocks for index in range(3)]
    small = cut(model, hc.Plan.removing(going))
    hc.save(small, tmp_path / "out")
    says_so = "plain `from_pretrained` of transformers loads it too" in (tmp_path / "out" / "README.md").read_text()
    if Version(transformers.__version__) < Version(PLAIN_SINCE.get(name, "5.3")):
        assert not says_so
        with pytest.raises(RuntimeError):
            type(model).from_pretrained(tmp_path / "out")
        return
    plain = type(model).from_pretrained(tmp_path / "out")
    assert largest_relative_difference(forward_outputs(plain, probe_inputs(model)), forward_outputs(small, probe_inputs(model))) < 1e-9
    assert says_so


def test_cost_falls() -> None:
    model = tiny_model("llama", num_key_value_heads=2, dtype=torch.float32)
    plan = hc.Plan.removing([f"L1H{i}" for i in range(3)])
    before, after = cost(model), cost(cut(model, plan))
    assert before.parameters - after.parameters == count_removed_parameters(hc.HeadMap.of(model), plan)
    assert before.bytes - after.bytes == 4 * count_removed_parameters(hc.HeadMap.of(model), plan)
    assert before.kv_bytes_per_token == 2 * 2 * 16 * 4
    assert after.kv_bytes_per_token == 3 * 16 * 4
    assert after.flops < before.flops
    assert (before.heads, after.heads) == (12, 9)


@pytest.mark.parametrize("name", ["gpt2", "llama", "qwen3", "gemma3_text", "gpt_neox", "opt", "bloom", "bart", "t5", "marian"])
@pytest.mark.parametrize("mode", ["greedy", "beams", "no cache", "static cache"])
def test_generation_with_an_empty_first_layer(name: str, mode: str) -> None:
    model = tiny_model(name)
    if mode == "static cache" and not model._can_compile_fullgraph:
        pytest.skip("the family has no static cache")
    prompt = {k: v for k, v in probe_inputs(model).items() if k == "input_ids"}
    decoder = next(block for block in hc.HeadMap.of(model).blocks if block.kind == "decoder-self")
    plan = emptying_plan(decoder)
    extra = {"greedy": {}, "beams": {"num_beams": 3}, "no cache": {"use_cache": False}, "static cache": {"cache_implementation": "static"}}
    options = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False, **extra[mode]}
    if model.config.is_encoder_decoder:
        options["decoder_start_token_id"] = 0
    with hc.mask(model, plan.removed):
        expected = model.generate(**prompt, **options)
    small = cut(model, plan)
    if mode == "static cache" and name != "gemma3_text" and Version(transformers.__version__) < STATIC_CACHE_FOLLOWS:
        with pytest.raises(RuntimeError, match="same slice shapes"):
            small.generate(**prompt, **options)
        return
    assert torch.equal(small.generate(**prompt, **options), expected)


def test_a_cut_model_trains(tmp_path: Path) -> None:
    small, _ = half_cut(classifier(dtype=torch.float32))
    small = cut(small, emptying_plan(hc.HeadMap.of(small).blocks[0]))
    batch = probe_inputs(small, batch=4)
    rows = [{**{k: v[i] for k, v in batch.items()}, "labels": torch.tensor(i % 2)} for i in range(4)]
    before = {name: p.clone() for name, p in small.named_parameters()}
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path),
        num_train_epochs=2,
        learning_rate=1e-2,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        save_strategy="epoch",
    )
    transformers.Trainer(model=small, args=arguments, train_dataset=rows).train()
    changed = [name for name, p in small.named_parameters() if p.numel() and not torch.equal(p, before[name])]
    assert any("query" in name for name in changed)
    checkpoint = sorted(tmp_path.glob("checkpoint-*"))[-1]
    with pytest.warns(UserWarning, match="no heads.json"):
        again = hc.load(checkpoint)
    assert largest_relative_difference(forward_outputs(again, batch), forward_outputs(small, batch)) == 0


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_cut_model_takes_an_adapter() -> None:
    peft = pytest.importorskip("peft")
    small, plan = half_cut(classifier(dtype=torch.float32))
    batch, plain = probe_inputs(small), forward_outputs(small, probe_inputs(small))
    adapted = peft.get_peft_model(small, peft.LoraConfig(target_modules=["query", "value"], init_lora_weights=False))
    assert len(hc.HeadMap.of(adapted)) == 12 - len(plan.removed)
    assert largest_relative_difference(plain, forward_outputs(adapted, batch)) > 1e-3
    merged = adapted.merge_and_unload()
    assert hc.HeadMap.of(merged).blocks[0].can_cut


@pytest.mark.parametrize("name", ["bert", "t5", "gpt2", "llama"])
def test_a_cut_model_compiles_and_exports(name: str) -> None:
    model = tiny_model(name, dtype=torch.float32)
    small, _ = half_cut(model)
    small = cut(small, emptying_plan(hc.HeadMap.of(small).blocks[0]))
    batch = {**probe_inputs(small), "use_cache": False} if name != "bert" else probe_inputs(small)
    expected = forward_outputs(small, batch)
    assert largest_relative_difference(forward_outputs(torch.compile(small, backend="aot_eager"), batch), expected) < 1e-5
    small.eval()
    exported = torch.export.export(small, (), batch, strict=False).module()
    with torch.no_grad():
        assert largest_relative_difference([exported(**batch).logits], [expected[0]]) < 1e-5


@pytest.mark.parametrize("name", ["bert", "gpt2", "mistral", "t5", "vit"])
def test_onnx_gives_the_same_logits(name: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    small, _ = half_cut(tiny_model(name, dtype=torch.float32))
    small = cut(small, emptying_plan(hc.HeadMap.of(small).blocks[0]))
    exported = Onnx().write(small, tmp_path / "model.onnx")
    assert exported.difference < 1e-4
    assert exported.dynamic, exported.reason
    assert (tmp_path / "model.onnx").is_file()
    with pytest.raises(hc.HeadcountError, match="exists already"):
        hc.export(small, tmp_path / "model.onnx", to="onnx")
    with pytest.raises(hc.HeadcountError, match="needs float32"):
        hc.export(small.half(), tmp_path / "half.onnx", to="onnx")


@pytest.mark.parametrize("name", ["bert", "gpt2", "mistral", "t5", "falcon", "swin", "bloom"])
def test_portable_keeps_shapes_and_outputs(name: str, tmp_path: Path) -> None:
    model = tiny_model(name)
    small, _ = half_cut(model)
    small = cut(small, emptying_plan(hc.HeadMap.of(small).blocks[0]))
    batch = probe_inputs(model)
    assert hc.export(small, tmp_path / "out") == tmp_path / "out"
    plain = type(model).from_pretrained(tmp_path / "out")
    assert {n: p.shape for n, p in plain.named_parameters()} == {n: p.shape for n, p in model.named_parameters()}
    assert largest_relative_difference(forward_outputs(plain, batch), forward_outputs(small, batch)) < 1e-9


class PackedLinear(nn.Module):
    """Shaped like a layer quantised to four bits: the weight is a packed column of bytes."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.weight = nn.Parameter(torch.zeros(layer.weight.numel() // 2, 1, dtype=torch.uint8), requires_grad=False)
        self.dense = [layer]

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return self.dense[0](states)


def test_quantised_models_can_be_gated_and_say_why_not_cut() -> None:
    model = classifier()
    block = hc.HeadMap.of(model).blocks[0]
    model.set_submodule(block.k.path, PackedLinear(model.get_submodule(block.k.path)))
    hc.HeadMap.of(model).verify(model)
    with pytest.raises(PlanError, match="is quantised or packed; load the model in a floating-point dtype"):
        cut(model, hc.Plan.removing(["L0H0"]))
    assert len(hc.HeadMap.of(cut(model, hc.Plan.removing(["L1H0"])))) == 11


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_offloaded_models_can_be_gated_and_say_why_not_cut() -> None:
    accelerate = pytest.importorskip("accelerate")
    model = tiny_model("llama", dtype=torch.float32)
    plain = forward_outputs(model, probe_inputs(model))
    offloaded = accelerate.cpu_offload(model, execution_device=torch.device("cpu"))
    heads = hc.HeadMap.of(offloaded)
    heads.verify(offloaded)
    with hc.mask(offloaded, ["L0H0"]):
        assert largest_relative_difference(plain, forward_outputs(offloaded, probe_inputs(offloaded))) > 1e-3
    with pytest.raises(PlanError, match="offloaded to the meta device; load the model onto one device first"):
        cut(offloaded, hc.Plan.removing(["L0H0"]))


def test_a_model_without_weights_is_refused() -> None:
    dense = classifier()
    with torch.device("meta"):
        model = type(dense)(dense.config)
    with pytest.raises(PlanError, match="no weights to cut"):
        cut(model, hc.Plan.removing(["L0H0"]))


@pytest.mark.parametrize("name", ["llama", "bert", "t5", "gpt2", "swin"])
@pytest.mark.parametrize("in_place", [False, True])
def test_the_proof_in_float32_converts_one_layer_at_a_time(name: str, in_place: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse_copy(*_: object) -> None:
        raise AssertionError("the whole model was copied to float32")

    monkeypatch.setattr(cut_module, "copy_in_float32", refuse_copy)
    model = tiny_model(name, dtype=torch.bfloat16)
    heads = hc.HeadMap.of(model)
    small = hc.cut(model, hc.Plan.removing(heads.units()[0]), in_place=in_place)
    assert {p.dtype for p in small.parameters()} == {torch.bfloat16}
    hooks = [hook for module in small.modules() for hook in (*module._forward_hooks.values(), *module._forward_pre_hooks.values())]
    assert not any("convert" in hook.__qualname__ or "put_back" in hook.__qualname__ for hook in hooks if hasattr(hook, "__qualname__"))


def test_tensors_are_as_before_after_a_pass_in_float32() -> None:
    model = tiny_model("llama", dtype=torch.bfloat16)
    before = {name: (parameter, parameter.data_ptr()) for name, parameter in model.named_parameters()}
    batch = probe_inputs(model)
    exact = copy.deepcopy(model).float()
    with computing_in_float32(model):
        outputs = forward_outputs(model, batch)
    assert largest_relative_difference(outputs, forward_outputs(exact, batch)) < 1e-6
    with pytest.raises(KeyboardInterrupt), computing_in_float32(model):
        model.get_submodule("model.layers.1.mlp").register_forward_pre_hook(interrupt_pass)
        forward_outputs(model, batch)
    assert {name: (parameter, parameter.data_ptr()) for name, parameter in model.named_parameters()} == before


def interrupt_pass(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("in_place", [False, True])
def test_an_error_below_the_rounding_of_bfloat16_is_found(in_place: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    right = cut_module._cut_in_place

    def cut_slightly_wrong(model: torch.nn.Module, *arguments: Any) -> None:
        right(model, *arguments)
        weight: Any = model.get_submodule("model.layers.0.self_attn.o_proj").weight
        model.get_submodule("model.layers.0.self_attn.o_proj").weight = torch.nn.Parameter(weight.data * 1.02)

    model = tiny_model("llama", dtype=torch.bfloat16)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    monkeypatch.setattr(cut_module, "_cut_in_place", cut_slightly_wrong)
    with pytest.raises(VerificationError, match="in float32"):
        hc.cut(model, hc.Plan.removing(["L1H0"]), in_place=in_place)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
