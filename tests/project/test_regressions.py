"""Defects that were found and mended, each with the test that failed before."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from packaging.version import Version
from torch import nn

import headcount as hc
from headcount.core.errors import ArtifactError, HeadNameError, OptionError, PlanError, UnknownName, UnsupportedModel, VerificationError
from headcount.core.heads import Head
from headcount.core.scores import Scores
from headcount.models.archs.geometry import NotUnderstood, _kv_rows_of_empty_block
from headcount.models.dummy_inputs.text import probe_inputs
from headcount.models.gates import floating_point_outputs
from headcount.models.observe import mean_outputs, observe
from headcount.models.tiny.build import tiny_model
from headcount.surgery.cost import cost
from headcount.surgery.cut import cut
from headcount.surgery.export import portable
from headcount.surgery.export.onnx import Onnx
from headcount.surgery.verify import forward_outputs, largest_relative_difference
from headcount.testing.laws import emptying_plan, uneven_plan


def uniform(model: nn.Module, number: int = 3) -> hc.Plan:
    return hc.Plan.removing([head for block in hc.HeadMap.of(model).blocks for group in block.groups()[:number] for head in group])


@pytest.mark.parametrize("name", ["llama", "t5", "vit", "qwen3"])
def test_a_uneven_cut_after_a_uniform_one_loads_and_exports(name: str, tmp_path: Path) -> None:
    model = tiny_model(name)
    batch = probe_inputs(model)
    first = cut(model, uniform(model))
    for middle in (first, hc.load(hc.save(first, tmp_path / "first"))):
        block = hc.HeadMap.of(middle).blocks[-1]
        small = cut(middle, hc.Plan.removing(block.groups()[0]))
        again = hc.load(hc.save(small, tmp_path / "small", overwrite=(tmp_path / "small").exists()))
        assert largest_relative_difference(forward_outputs(again, batch), forward_outputs(small, batch)) == 0
        assert hc.HeadMap.of(again).heads == hc.HeadMap.of(small).heads
        for source in (middle, again):
            out = hc.export(source, tmp_path / "whole", overwrite=(tmp_path / "whole").exists())
            complete = type(model).from_pretrained(out)
            assert {n: p.shape for n, p in complete.named_parameters()} == {n: p.shape for n, p in model.named_parameters()}
            assert largest_relative_difference(forward_outputs(complete, batch), forward_outputs(source, batch)) < 1e-9


@pytest.mark.parametrize("name", ["deepseek_v2", "deepseek_v3"])
def test_latent_attention_keeps_its_sizes(name: str, tmp_path: Path) -> None:
    model = tiny_model(name, dtype=torch.float32)
    small = cut(model, uniform(model))
    assert getattr(small.config, "head_dim", None) == getattr(model.config, "head_dim", None)
    again = hc.load(hc.save(small, tmp_path / "out"))
    assert largest_relative_difference(forward_outputs(again, probe_inputs(model)), forward_outputs(small, probe_inputs(model))) < 1e-6


@pytest.mark.parametrize("name", ["fsmt", "mlcd_vision_model", "bert"])
def test_rows_of_gates_follow_examples_in_time_first_models(name: str) -> None:
    if name not in transformers.CONFIG_MAPPING:
        pytest.skip(f"this release has no {name}")
    model = tiny_model(name)
    batch = probe_inputs(model, batch=2, length=8)
    n = len(hc.HeadMap.of(model))
    values = torch.ones(2, n, dtype=torch.float64)
    values[1] = 0.0
    with torch.no_grad():
        plain = floating_point_outputs(model(**batch))[0]
        with hc.HeadGates(model, values):
            mixed = floating_point_outputs(model(**batch))[0]
    assert torch.allclose(mixed[0], plain[0], atol=1e-12)
    assert not torch.allclose(mixed[1], plain[1], atol=1e-3)


def test_a_cut_t5_serves_several_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    model = tiny_model("t5")
    small = cut(model, uneven_plan(hc.HeadMap.of(model).blocks))
    batches = [probe_inputs(small, length=length, seed=length) for length in (6, 9)]
    with torch.no_grad():
        expected = [small(**batch).logits for batch in batches]
    wrong = []
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def work(position: int) -> None:
        with torch.no_grad():
            for _ in range(40):
                if not torch.allclose(small(**batches[position]).logits, expected[position], atol=1e-9):
                    wrong.append(position)

    try:
        threads = [threading.Thread(target=work, args=(position,)) for position in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert not wrong


@pytest.mark.parametrize("name", ["gpt2", "openai-gpt", "codegen", "llama", "bloom", "gpt_neo"])
def test_uniform_attention_keeps_causality(name: str) -> None:
    model = tiny_model(name)
    batch = probe_inputs(model)
    batch["attention_mask"] = torch.ones_like(batch["input_ids"])
    other = dict(batch, input_ids=batch["input_ids"].clone())
    other["input_ids"][:, -1] = (other["input_ids"][:, -1] + 1) % 50 + 5
    with torch.no_grad(), hc.HeadGates(model, torch.zeros(len(hc.HeadMap.of(model))), how="uniform"):
        first, second = model(**batch).logits, model(**other).logits
    assert torch.allclose(first[:, :-1], second[:, :-1], atol=1e-9)
    assert not torch.allclose(first[:, -1], second[:, -1], atol=1e-3)


def test_an_interrupted_pass_leaves_no_function_mode() -> None:
    from torch.overrides import _get_current_function_mode_stack

    model = tiny_model("bert", attn="eager")
    batch = probe_inputs(model)
    block = hc.HeadMap.of(model).blocks[0]

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    handle = model.get_submodule(block.v.path).register_forward_hook(interrupt)
    with pytest.raises(KeyboardInterrupt), hc.mask(model, ["L0H0"], "uniform"):
        model(**batch)
    handle.remove()
    assert not _get_current_function_mode_stack()


def test_what_does_not_run_proves_nothing() -> None:
    model = tiny_model("llava")
    vision = next(block for block in hc.HeadMap.of(model).blocks if "vision" in block.path)
    text = {"input_ids": torch.randint(5, 50, (2, 7)), "attention_mask": torch.ones(2, 7, dtype=torch.long)}
    with pytest.raises(VerificationError, match="do not reach block"):
        cut(model, hc.Plan.removing(vision.heads[:1]), inputs=text)
    broken = tiny_model("bert")
    with torch.no_grad():
        next(p for n, p in broken.named_parameters() if "word_embeddings" in n).fill_(float("nan"))
    with pytest.raises(VerificationError, match="no finite number"):
        cut(broken, hc.Plan.removing(["L0H0"]))


def test_bloom_that_slices_its_output_projection_is_refused() -> None:
    model = tiny_model("bloom", pretraining_tp=2, slow_but_exact=True)
    with pytest.raises(hc.HeadcountError, match="used functionally"):
        hc.HeadMap.of(model)


def test_costs_are_measured() -> None:
    eager, sdpa = (cost(tiny_model("llama", attn=attn, num_key_value_heads=2)) for attn in ("eager", "sdpa"))
    assert eager.flops == sdpa.flops
    assert eager.tokens == 18
    latent = tiny_model("deepseek_v3", dtype=torch.float32)
    with torch.no_grad():
        cache = latent(**probe_inputs(latent), use_cache=True).past_key_values
    per_token = sum(t.numel() * t.element_size() for layer in cache.layers for t in (layer.keys, layer.values)) // (2 * 9)
    assert cost(latent).kv_bytes_per_token == per_token
    assert cost(tiny_model("bert")).kv_bytes_per_token == 0


def test_saving_through_a_link_and_into_impossible_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("bert", dtype=torch.float32)
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    hc.save(model, tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real" / "heads.json").is_file()
    assert (tmp_path / "real" / "model.safetensors").stat().st_mode & 0o044 == 0o666 & ~_umask() & 0o044
    (tmp_path / "file").write_text("")
    with pytest.raises(ArtifactError, match="is a file, not a folder"):
        hc.save(model, tmp_path / "file" / "below")
    monkeypatch.chdir(tmp_path / "real")
    with pytest.raises(ArtifactError, match="the folder you are in"):
        hc.save(model, ".", overwrite=True)


def _umask() -> int:
    import os

    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_an_interrupt_between_renames_restores_the_old_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("bert", dtype=torch.float32)
    out = hc.save(model, tmp_path / "out")
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    rename = Path.rename

    def interrupted(self: Path, target: Path) -> Path:
        if target == out and self.name.endswith(".complete"):
            raise KeyboardInterrupt
        return rename(self, target)

    monkeypatch.setattr("headcount.core.folders._swap_names", lambda *_: False)
    monkeypatch.setattr(Path, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        hc.save(model, out, overwrite=True)
    monkeypatch.undo()
    assert before == {path.name: path.read_bytes() for path in out.iterdir()}
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_hub_options_reach_the_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model = tiny_model("bert", dtype=torch.float32)
    hc.save(cut(model, hc.Plan.removing(["L0H0"])), tmp_path / "snapshot" / "sub")
    observed = {}

    def download(name: str, **options: object) -> str:
        observed.update(options, name=name)
        return str(tmp_path / "snapshot")

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    again = hc.load("someone/model", revision="v2", token="secret", subfolder="sub")
    assert len(hc.HeadMap.of(again)) == 11
    assert {key: observed[key] for key in ("name", "revision", "token")} == {"name": "someone/model", "revision": "v2", "token": "secret"}
    hc.register()
    try:
        plain = type(model).from_pretrained(tmp_path / "snapshot", subfolder="sub")
    finally:
        from headcount.surgery.load import unregister

        unregister()
    assert len(hc.HeadMap.of(plain)) == 11


def test_observations_from_labels_are_shifted_as_the_model_shifts_them() -> None:
    model = tiny_model("bart")
    start = model.config.decoder_start_token_id
    batch = probe_inputs(model)
    labels = torch.randint(5, 50, batch["decoder_input_ids"].shape)
    labels[1, -2:] = -100
    given = {k: v for k, v in batch.items() if not k.startswith("decoder")}
    observed = next(o for o in next(iter(observe(model, [given | {"labels": labels}]))) if o.block.kind == "decoder-self")
    assert observed.special is not None
    assert observed.special[:, 0].all() == (start is not None)
    assert observed.queries.tolist()[1] == [True] * (labels.shape[1] - 2) + [False] * 2  # as many as without the padding


def test_a_text_mask_does_not_reach_another_tower() -> None:
    model = tiny_model("clip")
    vision = probe_inputs(model)["pixel_values"]
    tokens = next(iter(observe(model, [probe_inputs(model)])))
    length = next(o.outputs.shape[1] for o in tokens if "vision" in o.block.path)
    batch = probe_inputs(model, length=length) | {"pixel_values": vision}
    for observed in next(iter(observe(model, [batch], attention=False))):
        if "vision" in observed.block.path:
            assert observed.queries.all()
            assert observed.special is None


def test_special_tokens_are_unknown_where_nothing_names_them() -> None:
    model = tiny_model("bert")
    for name in ("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"):
        setattr(model.config, name, None)
    assert all(o.special is None for o in next(iter(observe(model, [probe_inputs(model)]))))


def test_gates_that_are_open_forbid_a_cut() -> None:
    model = tiny_model("bert")
    for how in ("zero", "uniform"):
        with hc.mask(model, ["L0H0"], how), pytest.raises(PlanError, match="leave their context"):  # pyright: ignore[reportArgumentType]
            cut(model, hc.Plan.removing(["L1H0"]))
    assert len(hc.HeadMap.of(cut(model, hc.Plan.removing(["L1H0"])))) == 11


def test_a_portable_export_that_differs_says_what_was_not_made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    small = cut(tiny_model("bert"), hc.Plan.removing(["L1H0"]))
    monkeypatch.setattr(portable, "restore_dense_shapes", lambda _: tiny_model("bert", seed=1))
    with pytest.raises(VerificationError, match=r"the portable model differs from the smaller one .* Nothing was written\."):
        hc.export(small, tmp_path / "made")
    assert not (tmp_path / "made").exists()


def test_a_score_of_no_head_says_which_heads_there_are() -> None:
    scores = hc.Scores((Head("", 0, 0), Head("", 0, 1), Head("", 1, 0)), (1.0, 2.0, 3.0))
    assert scores["L1H0"] == 3.0
    with pytest.raises(HeadNameError, match=r"no score of head L99H0: there are 3 heads, L0 x 2, L1 x 1\. Name one of scores\.heads"):
        scores["L99H0"]
    long = hc.Scores(tuple(Head("", layer, 0) for layer in range(40)), (0.0,) * 40)
    with pytest.raises(HeadNameError, match=r"L11 x 1 and 28 blocks more\."):
        long["L0H1"]


def test_verify_keeps_mixed_modes() -> None:
    model = tiny_model("bert").train()
    model.bert.eval()
    hc.HeadMap.of(model).verify(model)
    assert model.training
    assert not model.bert.training


def test_an_emptied_block_has_nothing_that_waits_for_a_gradient() -> None:
    model = tiny_model("bert", auto="AutoModelForSequenceClassification")
    small = cut(model, emptying_plan(hc.HeadMap.of(model).blocks[0])).train()
    floating_point_outputs(small(**probe_inputs(small)))[0].square().sum().backward()
    assert all(p.grad is not None for p in small.parameters() if p.requires_grad)


def test_marian_and_whisper_load_as_other_classes(tmp_path: Path) -> None:
    marian = tiny_model("marian", dtype=torch.float32)
    folder = hc.save(cut(marian, hc.Plan.removing(["enc.L0H0", "cross.L1H2"])), tmp_path / "marian")
    assert len(hc.HeadMap.of(hc.load(folder, auto="AutoModel"))) == 34
    whisper = tiny_model("whisper", dtype=torch.float32)
    folder = hc.save(cut(whisper, hc.Plan.removing(["enc.L0H0"])), tmp_path / "whisper")
    assert len(hc.HeadMap.of(hc.load(folder, auto="AutoModelForAudioClassification", new_layers=True))) == 11


def test_bert2bert_has_the_stacks_of_an_encoder_decoder() -> None:
    config = transformers.EncoderDecoderConfig.from_encoder_decoder_configs(tiny_model("bert").config, tiny_model("bert").config)
    names = [block.name for block in hc.HeadMap.of(transformers.EncoderDecoderModel(config)).blocks]
    assert names == ["enc.L0", "enc.L1", "dec.L0", "dec.L1", "cross.L0", "cross.L1"]


def test_plans_take_numbers_and_names_as_people_give_them() -> None:
    heads = tuple(Head("", 0, i) for i in range(6))
    scores = Scores(heads, tuple(float(i) for i in range(6)))
    assert len(hc.Plan.keep_top(scores, np.int64(3)).removed) == 3
    assert heads[0] not in hc.Plan.keep_top(scores, hc.Budget(keep=3, protected=["L0H0"])).removed
    with pytest.raises(PlanError, match="whole number"):
        hc.Plan.keep_top(scores, 3.0)
    with pytest.raises(OptionError, match="plan of cut must be a Plan"):
        cut(tiny_model("bert"), ["L0H1"])
    assert hc.Plan.removing("L0H1") == hc.Plan.removing(["L0H1"])


def test_units_of_mixed_sizes_fill_a_budget_exactly() -> None:
    heads = tuple(Head("", layer, i) for layer in range(4) for i in range(3 if layer < 2 else 2))
    units = tuple(tuple(h for h in heads if h.layer == layer) for layer in range(4))
    random = Random(0)
    scores = Scores(heads, tuple(random.random() for _ in heads), units=units)
    for keep in (2, 3, 4, 5, 6, 7, 8, 10):
        assert len(hc.Plan.keep_top(scores, keep).removed) == 10 - keep
    with pytest.raises(PlanError, match="nearest are 8 and 10"):
        hc.Plan.keep_top(scores, 9)


def test_a_v4_pruned_folder_says_how_to_import_it() -> None:
    with pytest.raises(ArtifactError, match="headcount load-legacy"):
        hc.load(Path(__file__).parents[1] / "golden" / "v4" / "bert" / "pruned")


def test_unknown_auto_classes_are_named(tmp_path: Path) -> None:
    folder = hc.save(tiny_model("bert", dtype=torch.float32), tmp_path / "out")
    with pytest.raises(UnknownName, match="Did you mean 'AutoModelForMaskedLM'"):
        hc.load(folder, auto="AutoModelForMaskedML")


def test_remote_code_runs_only_when_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "model"
    tiny_model("bert", dtype=torch.float32).save_pretrained(folder)
    (folder / "modeling_own.py").write_text("from transformers import BertForMaskedLM\nclass OwnModel(BertForMaskedLM):\n    own = True\n")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"auto_map": {"AutoModelForMaskedLM": "modeling_own.OwnModel"}}))
    with pytest.raises(ArtifactError, match="asks for remote code"):
        hc.load(folder)
    assert hc.load(folder, trust_remote_code=True).own


def test_onnx_files_of_others_are_never_overwritten(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    model = tiny_model("bert", dtype=torch.float32)
    path = tmp_path / "mine.onnx"
    path.write_text("precious")
    with pytest.raises(ArtifactError, match="was not written by headcount"):
        hc.export(model, path, "onnx", overwrite=True)
    assert path.read_text() == "precious"
    exported = Onnx().write(model, tmp_path / "model.onnx")
    assert all(Path(name).is_file() for name in exported.files)
    hc.export(model, tmp_path / "model.onnx", Onnx(), overwrite=True)


FORGETFUL = ["bert", "distilbert", "gpt2", "llama", "t5", "bart", "vit", "modernbert", "deberta-v2", "mpnet", "bloom", "falcon", "opt", "whisper",
             "wav2vec2", "clip", "swin"]  # fmt: skip


@pytest.mark.skipif(Version(transformers.__version__) < Version("5.10"), reason="measured on newer releases")
@pytest.mark.parametrize("name", FORGETFUL)
def test_transformers_swallows_head_mask(name: str) -> None:
    """What docs/migration.md says: the old argument is accepted and changes nothing."""
    model = tiny_model(name)
    batch = probe_inputs(model)
    with torch.no_grad():
        plain, masked = model(**batch), model(**batch, head_mask=torch.zeros(2, 6, dtype=torch.float64))
    assert largest_relative_difference(floating_point_outputs(masked), floating_point_outputs(plain)) == 0


def test_means_are_not_touched_by_padding_in_time_first_models() -> None:
    if "fsmt" not in transformers.CONFIG_MAPPING:
        pytest.skip("this release has no fsmt")
    model = tiny_model("fsmt")
    batch = probe_inputs(model, batch=2, length=8)
    block = hc.HeadMap.of(model).blocks[0]
    observed = next(o for o in next(iter(observe(model, [batch], attention=False))) if o.block == block)
    assert observed.outputs.shape[:2] == batch["input_ids"].shape
    assert torch.equal(observed.queries, batch["attention_mask"].bool())
    assert set(mean_outputs(model, [batch])) == {b.path for b in hc.HeadMap.of(model).blocks}


def test_magnitude_reads_heads_that_can_only_be_gated_and_refuses_adapters() -> None:
    from peft import LoraConfig, get_peft_model

    model = tiny_model("olmo2")
    block = hc.HeadMap.of(model).blocks[0]
    assert block.gate_only
    attention = model.get_submodule(block.path)
    rows = slice(0, block.head_dim)
    parts = [attention.q_proj.weight[rows], attention.k_proj.weight[rows], attention.v_proj.weight[rows], attention.o_proj.weight[:, rows]]
    norm = torch.cat([part.double().flatten() for part in parts]).norm().item()
    assert hc.score(model, None, "magnitude").values[0] == pytest.approx(norm)
    adapted: Any = get_peft_model(model, LoraConfig(target_modules=["q_proj"]))
    with pytest.raises(UnsupportedModel, match="merge it first"):
        hc.score(adapted, None, "magnitude")


def test_a_sink_is_no_key_under_adapters() -> None:
    from peft import LoraConfig, get_peft_model

    from headcount.models.dummy_inputs.text import probe_inputs
    from headcount.models.observe import observe

    model = tiny_model("gpt_oss")
    batch = probe_inputs(model)
    adapted: Any = get_peft_model(model, LoraConfig(target_modules=["q_proj", "v_proj"], init_lora_weights=True))
    (observation,) = observe(adapted, [batch])
    length = batch["input_ids"].shape[1]
    assert all(one.block.sink and one.attention is not None and one.attention.shape[-2:] == (length, length) for one in observation)


def test_a_teacher_of_one_number_teaches() -> None:
    from types import SimpleNamespace

    from headcount.pruning.training.trainer import mean_divergence_from_teacher

    teacher = tiny_model("bert", auto="AutoModelForSequenceClassification", num_labels=1)
    batch = {"input_ids": torch.tensor([[5, 6, 7], [8, 9, 10]]), "labels": torch.zeros(2)}
    with torch.no_grad():
        logits = teacher(input_ids=batch["input_ids"]).logits
    inputs = {"input_ids": batch["input_ids"]}
    assert mean_divergence_from_teacher(teacher, SimpleNamespace(logits=logits + 2), inputs).item() == pytest.approx(4)
    assert mean_divergence_from_teacher(teacher, SimpleNamespace(logits=logits), inputs).item() == 0


@pytest.mark.parametrize("by", ["ablation:mean", "all-but-one:mean"])
def test_means_of_heads_that_see_windows(by: str) -> None:
    model = tiny_model("swin", auto="AutoModelForImageClassification", num_labels=2)
    batch = {"pixel_values": probe_inputs(model, batch=2)["pixel_values"], "labels": torch.tensor([0, 1])}
    scores = hc.score(model, batch, by)
    head = scores.heads[0]
    others = [other for other in scores.heads if other.layer == head.layer and other != head]
    removed_heads = [head] if by == "ablation:mean" else others
    with torch.no_grad():
        complete = model.eval()(**batch).loss.item()
        with hc.mask(model, removed_heads, how="mean", data=[batch]):
            remaining = model(**batch).loss.item()
    assert scores[head] == pytest.approx(remaining - complete, rel=1e-3, abs=1e-6)


def test_scores_of_one_batch_have_verdicts_without_spread() -> None:
    from headcount.importance.rankings import agreements, rank_heads, stabilities

    model = tiny_model("bert", auto="AutoModelForSequenceClassification", num_labels=2)
    batch = {"input_ids": torch.arange(5, 29).view(8, 3), "labels": torch.arange(8) % 2}
    scores = {by: hc.score(model, batch, by) for by in ("gradient:batch", "ablation")}
    assert all(row.is_lowest is None and row.low is None for row in rank_heads(scores["gradient:batch"]))
    assert stabilities(scores["gradient:batch"]) == () and set(agreements(scores)) == {"gradient:batch"}


def test_scores_of_a_run_are_for_its_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from headcount.app.main import main

    run, out = tmp_path / "run", tmp_path / "out"
    words = ["cut", "demo/entailment", "--keep", "50%", "--out", str(out), "--overwrite", "-q"]
    for by, code in (("demo/entailment-english", 1), ("demo/entailment", 0)):
        scores_file = run / Path(by).name
        assert main(["score", by, "--by", "magnitude", "--out", str(scores_file), "-q"]) == 0
        capsys.readouterr()
        assert main([*words, "--scores", str(scores_file)]) == code
        assert ("holds scores of other weights" in capsys.readouterr().err) == bool(code)
    assert main([*words, "--scores", str(run / "entailment-english" / "scores.parquet")]) == 0, "a table can be carried over"


def test_a_projection_that_holds_no_whole_heads_is_told_with_the_size_of_a_head() -> None:
    """The message named the size of a head as a number of heads."""
    module = nn.Module()
    module.head_dim, module.k_proj = 7, nn.Linear(8, 16)  # pyright: ignore[reportArgumentType]
    with pytest.raises(NotUnderstood, match="'k_proj' has a width of 16, which is no whole number of heads of 7"):
        _kv_rows_of_empty_block(module, "k_proj")
