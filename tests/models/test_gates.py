"""Gates as users meet them: per example, differentiable, nested, compiled, checkpointed, generating, distributed, wrapped."""

from __future__ import annotations

import copy
import socket

import datasets
import pytest
import torch
from torch import nn
from toys import examples, shared, task

import headcount as hc
from headcount.core.errors import GateError, HeadcountError, UnknownName, UnsupportedModel, VerificationError
from headcount.data.task import pad
from headcount.models.dummy_inputs.text import probe_inputs
from headcount.models.gates import floating_point_outputs
from headcount.models.observe import mean_outputs, observe
from headcount.models.tiny.build import tiny_model

ENCODER_DECODER = "bart"


def logits(model: nn.Module, batch: dict) -> torch.Tensor:
    return floating_point_outputs(model(**batch))[0]


@pytest.fixture
def bert() -> tuple[nn.Module, dict]:
    model = tiny_model("bert", auto="AutoModelForSequenceClassification")
    return model, probe_inputs(model, batch=3)


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "t5", "swin", "albert", "whisper"])
def test_per_example_gates_give_every_examples_gradient(name: str) -> None:
    model = tiny_model(name)
    batch = probe_inputs(model, batch=3)
    n = len(hc.HeadMap.of(model))
    values = torch.full((3, n), 0.8, dtype=torch.float64, requires_grad=True)
    with hc.HeadGates(model, values):
        out = logits(model, batch)
        total = out.flatten(1).square().sum(1)
    together = torch.autograd.grad(total.sum(), values)[0]
    for row in range(3):
        single = torch.full((n,), 0.8, dtype=torch.float64, requires_grad=True)
        with hc.HeadGates(model, single):
            alone = logits(model, batch)[row].square().sum()
        expected = torch.autograd.grad(alone, single)[0]
        assert together[row] == pytest.approx(expected, rel=1e-5, abs=1e-8)


def test_gradients_equal_finite_differences(bert: tuple[nn.Module, dict]) -> None:
    model, batch = bert
    heads = hc.HeadMap.of(model)
    values = torch.rand(len(heads), dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()

    def loss(gates: torch.Tensor) -> torch.Tensor:
        with hc.HeadGates(model, gates):
            return logits(model, batch).square().sum()

    assert torch.autograd.gradcheck(loss, (values,), atol=1e-6)


def test_rows_of_gates_act_on_their_own_example(bert: tuple[nn.Module, dict]) -> None:
    model, batch = bert
    n = len(hc.HeadMap.of(model))
    values = torch.ones(3, n, dtype=torch.float64)
    values[1] = 0.0
    with torch.no_grad():
        plain = logits(model, batch)
        with hc.HeadGates(model, values):
            mixed = logits(model, batch)
        with hc.HeadGates(model, torch.zeros(n)):
            none = logits(model, batch)
    assert torch.equal(mixed[[0, 2]], plain[[0, 2]])
    assert torch.allclose(mixed[1], none[1], atol=1e-12)
    assert not torch.allclose(none[1], plain[1], atol=1e-3)


def test_nested_contexts_compose(bert: tuple[nn.Module, dict]) -> None:
    model, batch = bert
    n = len(hc.HeadMap.of(model))
    a, b = (torch.rand(n, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2))
    with torch.no_grad():
        with hc.HeadGates(model, a), hc.HeadGates(model, b):
            nested = logits(model, batch)
        with hc.HeadGates(model, a * b):
            product = logits(model, batch)
    assert torch.allclose(nested, product, atol=1e-12)


def test_values_can_change_while_the_context_is_open(bert: tuple[nn.Module, dict]) -> None:
    model, batch = bert
    n = len(hc.HeadMap.of(model))
    with torch.no_grad(), hc.HeadGates(model) as gates:
        plain = logits(model, batch)
        gates.values = torch.zeros(n)
        assert not torch.allclose(plain, logits(model, batch), atol=1e-3)
        with pytest.raises(GateError, match="must have shape"):
            gates.values = torch.zeros(n + 1)
        with pytest.raises(GateError, match="finite"):
            gates.values = torch.full((n,), float("nan"))


def test_mask_names_heads_and_refuses_unknown_ones(bert: tuple[nn.Module, dict]) -> None:
    model, batch = bert
    with torch.no_grad():
        plain = logits(model, batch)
        with hc.mask(model, ["L0H1", hc.Head("", 1, 0)]):
            assert not torch.allclose(plain, logits(model, batch), atol=1e-4)
    with pytest.raises(hc.HeadcountError, match=r"no head L7H0\. It has 12 heads"):
        hc.mask(model, ["L7H0"])
    with pytest.raises(UnknownName, match=r"no how of mask .logits."):
        hc.mask(model, ["L0H0"], how="logits")  # type: ignore[arg-type]
    with pytest.raises(GateError, match="needs data="):
        hc.mask(model, ["L0H0"], how="mean")


def test_mean_puts_the_mean_output_in_place(bert: tuple[nn.Module, dict]) -> None:
    """On a batch of one real token per example, that is the same for all, the mean is the output itself."""
    model, batch = bert
    one = {"input_ids": batch["input_ids"][:1, :1].repeat(3, 1), "attention_mask": torch.ones(3, 1, dtype=torch.long)}
    with torch.no_grad():
        plain = logits(model, one)
        with hc.mask(model, list(hc.HeadMap.of(model)), "mean", data=[one]):
            assert torch.allclose(plain, logits(model, one), atol=1e-12)
        with hc.mask(model, list(hc.HeadMap.of(model)), "zero"):
            assert not torch.allclose(plain, logits(model, one), atol=1e-3)


def test_means_are_over_a_task_a_dataset_or_a_batch() -> None:
    model = shared("encoder")
    rows = examples("encoder", 40)
    complete = pad(rows, model.config.pad_token_id)
    expected = mean_outputs(model, [complete])
    given = (complete, task("encoder", rows=rows), task("encoder", rows=rows, batch_size=7), datasets.Dataset.from_list(rows), [complete])
    for data in given:
        means = hc.mask(model, ["L0H0"], "mean", data=data).means
        assert means is not None and all(torch.allclose(means[path], expected[path], atol=1e-12) for path in expected)
    for bad in ("text", [["text"]], rows[0]["input_ids"]):
        with pytest.raises(HeadcountError, match=r"data must yield batches|option data of mask must be"):
            hc.mask(model, ["L0H0"], "mean", data=bad)


def test_means_ignore_padding_and_batching(bert: tuple[nn.Module, dict]) -> None:
    model, batch = bert
    complete = mean_outputs(model, [batch])
    rows = mean_outputs(model, [{k: v[i : i + 1] for k, v in batch.items()} for i in range(3)])
    changed = dict(batch, input_ids=torch.where(batch["attention_mask"] == 0, 7, batch["input_ids"]))
    for path, mean in complete.items():
        assert torch.allclose(mean, rows[path], atol=1e-12)
        assert torch.allclose(mean, mean_outputs(model, [changed])[path], atol=1e-12)
    with pytest.raises(GateError, match="reached no token"):
        mean_outputs(model, [])


@pytest.mark.parametrize("name", ["bert", "gpt2", "bloom", "t5", "mpnet", "swin", "deberta-v2", "gpt_neo", "falcon", "gpt_oss"])
def test_uniform_attention_is_uniform_over_visible_keys(name: str) -> None:
    model = tiny_model(name)
    batch = probe_inputs(model)
    heads = hc.HeadMap.of(model)
    with hc.HeadGates(model, torch.zeros(len(heads)), how="uniform"):
        observed = next(iter(observe(model, [batch], outputs=False)))
    assert len(observed) >= len(heads.blocks)
    plain = next(iter(observe(model, [batch], outputs=False)))
    for ours, theirs in zip(observed, plain, strict=True):
        visible = theirs.attention > 1e-30
        expected = visible / visible.sum(-1, keepdim=True)
        assert torch.allclose(ours.attention.double(), expected.double(), atol=1e-6)
        assert not torch.allclose(theirs.attention.double(), expected.double(), atol=1e-3)


@pytest.mark.parametrize("name", ["bert", "llama", ENCODER_DECODER, "whisper"])
def test_observed_attention_is_what_the_model_reports(name: str) -> None:
    model = tiny_model(name, attn="eager")
    batch = probe_inputs(model)
    with torch.no_grad():
        out = model(**batch, output_attentions=True)
    reported = {
        "encoder-self": out.get("encoder_attentions") or out.get("attentions"),
        "decoder-self": out.get("decoder_attentions") or out.get("attentions"),
        "cross": out.get("cross_attentions"),
    }
    fast = tiny_model(name, attn="sdpa")
    observed = next(iter(observe(fast, [batch])))
    assert fast.config._attn_implementation == "sdpa"
    assert len(observed) == len(hc.HeadMap.of(fast).blocks)
    for one in observed:
        expected = reported[one.block.kind][one.block.layer]
        assert torch.allclose(one.attention.to(expected), expected, atol=1e-6)
        assert one.outputs.shape[2:] == (one.block.n_heads, one.block.value_dim)


def test_observations_carry_padding_and_special_tokens() -> None:
    model = tiny_model("bert")
    model.config.cls_token_id = 5
    batch = probe_inputs(model)
    batch["input_ids"][:, 0] = 5
    for one in next(iter(observe(model, [batch]))):
        assert torch.equal(one.queries, batch["attention_mask"].bool())
        assert torch.equal(one.keys, batch["attention_mask"].bool())
        assert one.special[:, 0].all()


def test_observing_chosen_blocks_leaves_the_model_alone() -> None:
    model = tiny_model("llama").train()
    batch = probe_inputs(model)
    chosen = hc.HeadMap.of(model).blocks[1:]
    stream = observe(model, [batch, batch], blocks=chosen, outputs=False)
    assert [one.block.layer for one in next(stream)] == [1]
    assert model.training
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())
    with pytest.raises(GateError, match="nothing to observe"):
        next(observe(model, [batch], attention=False, outputs=False))


@pytest.mark.parametrize("reentrant", [True, False])
def test_gradient_checkpointing(reentrant: bool) -> None:
    model = tiny_model("bert", auto="AutoModelForSequenceClassification").train()
    batch = probe_inputs(model)
    n = len(hc.HeadMap.of(model))

    def gradient() -> torch.Tensor:
        values = torch.full((2, n), 0.7, dtype=torch.float64, requires_grad=True)
        with hc.HeadGates(model, values):
            logits(model, batch).square().sum().backward()
        return values.grad

    plain = gradient()
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    if reentrant:
        model.enable_input_require_grads()
    assert torch.allclose(gradient(), plain, atol=1e-10)


@pytest.mark.parametrize("beams", [1, 3])
def test_generate_with_per_example_gates(beams: int) -> None:
    model = tiny_model(ENCODER_DECODER)
    batch = {k: v for k, v in probe_inputs(model).items() if not k.startswith("decoder")}
    n = len(hc.HeadMap.of(model))
    values = torch.stack([torch.ones(n), torch.arange(n) % 2]).double()
    options = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False, "num_beams": beams}
    with hc.HeadGates(model, values):
        together = model.generate(**batch, **options)
    for row in range(2):
        with hc.HeadGates(model, values[row]):
            alone = model.generate(**{k: v[row : row + 1] for k, v in batch.items()}, **options)
        assert torch.equal(together[row], alone[0])


@pytest.mark.parametrize("when", ["before", "inside"])
def test_torch_compile(when: str, bert: tuple[nn.Module, dict]) -> None:
    """Code compiled before the gates were put on must not run without them."""
    model, batch = bert
    values = torch.rand(len(hc.HeadMap.of(model)), dtype=torch.float64)
    with torch.no_grad():
        plain = logits(model, batch)
        with hc.HeadGates(model, values):
            gated = logits(model, batch)
        compiled = torch.compile(model, backend="eager")
        if when == "before":
            assert torch.allclose(logits(compiled, batch), plain, atol=1e-10)
        with hc.HeadGates(compiled, values):
            assert torch.allclose(logits(compiled, batch), gated, atol=1e-10)
        assert torch.allclose(logits(compiled, batch), plain, atol=1e-10)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention(bert: tuple[nn.Module, dict]) -> None:
    model, batch = bert
    model = model.float()
    values = torch.rand(len(hc.HeadMap.of(model)))
    flex = copy.deepcopy(model)
    flex.set_attn_implementation("flex_attention")
    # Not compiled: torch's kernels fail or are wrong on some processors with one thread (AVX2, AVX-512), without any gate.
    with torch.no_grad(), torch.compiler.set_stance("force_eager"):
        assert torch.allclose(logits(flex, batch), logits(model, batch), atol=1e-4)
        with hc.HeadGates(model, values):
            expected = logits(model, batch)
        with hc.HeadGates(flex, values):
            assert torch.allclose(logits(flex, batch), expected, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_every_dtype(dtype: torch.dtype) -> None:
    model = tiny_model("llama", dtype=dtype, num_key_value_heads=2)
    batch = probe_inputs(model)
    heads = hc.HeadMap.of(model)
    heads.verify(model)
    with torch.no_grad():
        plain = logits(model, batch)
        with hc.HeadGates(model, torch.ones(len(heads), dtype=torch.float64)):
            assert torch.equal(logits(model, batch), plain)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_wrapped_by_ddp() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    torch.distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=0, world_size=1)
    try:
        model = tiny_model("bert", auto="AutoModelForSequenceClassification")
        batch = probe_inputs(model)
        wrapped = nn.parallel.DistributedDataParallel(model)
        values = torch.full((12,), 0.5, dtype=torch.float64, requires_grad=True)
        with hc.HeadGates(wrapped, values):
            logits(wrapped, batch).square().sum().backward()
        assert values.grad.abs().min() > 0
        assert all(p.grad is not None for n, p in model.named_parameters() if "query" in n)
    finally:
        torch.distributed.destroy_process_group()


def test_wrapped_by_peft(bert: tuple[nn.Module, dict]) -> None:
    peft = pytest.importorskip("peft")
    model, batch = bert
    plain_heads = hc.HeadMap.of(model)
    wrapped = peft.get_peft_model(model, peft.LoraConfig(target_modules=["query", "value"]))
    heads = hc.HeadMap.of(wrapped)
    assert heads.heads == plain_heads.heads
    heads.verify(wrapped, batch)
    with pytest.raises(hc.HeadcountError, match="merge it first"):
        hc.cut(wrapped, hc.Plan.removing(["L0H0"]))
    with pytest.raises(hc.HeadcountError, match="merge it first"):
        hc.save(wrapped, "nowhere")
    merged = wrapped.merge_and_unload()
    assert len(hc.HeadMap.of(hc.cut(merged, hc.Plan.removing(["L0H0"])))) == 11


def test_a_dead_head_is_named(bert: tuple[nn.Module, dict]) -> None:
    model, _ = bert
    block = hc.HeadMap.of(model).blocks[1]
    with torch.no_grad():
        model.get_parameter(f"{block.o.path}.weight")[:, block.o.rows.keep([4])] = 0.0
    with pytest.raises(VerificationError, match="gating L1H4 changes nothing"):
        hc.HeadMap.of(model).verify(model)


@pytest.mark.parametrize("model", [nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2))])
def test_what_is_no_transformer_is_refused(model: nn.Module) -> None:
    with pytest.raises(UnsupportedModel, match="has no config"):
        hc.HeadMap.of(model)


def test_importing_patches_nothing() -> None:
    import transformers

    assert not hasattr(transformers.PreTrainedModel.from_pretrained.__func__, "headcount_original")
