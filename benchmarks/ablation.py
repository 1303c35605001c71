"""Exact ablation of every head against one full evaluation under gates per head: CPU time, interleaved in one run, medians of ratios.

    python benchmarks/ablation.py [--family bert] [--batch 1] [--length 128] [--rounds 5] [--threads 1]

Every round times the ablator on all heads of a fresh batch, and full evaluations of a sample of heads spread evenly over the layers, scaled
to all heads: they all cost the same. The sample is timed in two halves, before and after the ablator, so that a slow moment hits both. The
trial that proves replay on a model happens once per model and is reported by itself.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional as F

import headcount as hc
from headcount.importance.replay.engine import Ablator, Intervention

IMAGE = 224


def _bert(layers: int) -> nn.Module:
    return transformers.BertForSequenceClassification(transformers.BertConfig(num_hidden_layers=layers))


def _roberta(layers: int) -> nn.Module:
    return transformers.RobertaForSequenceClassification(transformers.RobertaConfig(num_hidden_layers=layers))


def _distilbert(layers: int) -> nn.Module:
    return transformers.DistilBertForSequenceClassification(transformers.DistilBertConfig(n_layers=layers))


def _bert_mlm(layers: int) -> nn.Module:
    return transformers.BertForMaskedLM(transformers.BertConfig(num_hidden_layers=layers))


def _vit(layers: int) -> nn.Module:
    return transformers.ViTForImageClassification(transformers.ViTConfig(num_hidden_layers=layers))


def _llama_config(layers: int) -> transformers.LlamaConfig:
    return transformers.LlamaConfig(
        hidden_size=768,
        intermediate_size=2048,
        num_hidden_layers=layers,
        num_attention_heads=12,
        num_key_value_heads=4,
        vocab_size=8000,
    )


def _llama(layers: int) -> nn.Module:
    return transformers.LlamaForCausalLM(_llama_config(layers))


def _llama_classifier(layers: int) -> nn.Module:
    config = _llama_config(layers)
    config.pad_token_id = 0
    return transformers.LlamaForSequenceClassification(config)


def _gpt2(layers: int) -> nn.Module:
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=layers, vocab_size=8000))


def _seq2seq(layers: int, **more: Any) -> dict[str, Any]:
    ends = {"pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1, "forced_eos_token_id": None}
    return {"encoder_layers": layers, "decoder_layers": layers, **ends, **more}


def _marian(layers: int) -> nn.Module:
    shape = {"d_model": 512, "encoder_ffn_dim": 2048, "decoder_ffn_dim": 2048, "encoder_attention_heads": 8, "decoder_attention_heads": 8}
    return transformers.MarianMTModel(transformers.MarianConfig(vocab_size=8000, **_seq2seq(layers, **shape)))


def _bart(layers: int) -> nn.Module:
    shape = {"d_model": 768, "encoder_ffn_dim": 3072, "decoder_ffn_dim": 3072, "encoder_attention_heads": 12, "decoder_attention_heads": 12}
    return transformers.BartForConditionalGeneration(transformers.BartConfig(vocab_size=8000, **_seq2seq(layers, **shape)))


def _t5(layers: int) -> nn.Module:
    config: Any = transformers.T5Config
    return transformers.T5ForConditionalGeneration(config(num_layers=layers, vocab_size=8000, decoder_start_token_id=0))


FAMILIES: dict[str, tuple[Callable[[int], nn.Module], int]] = {
    "bert": (_bert, 12),
    "roberta": (_roberta, 12),
    "distilbert": (_distilbert, 6),
    "bert-mlm": (_bert_mlm, 12),
    "vit": (_vit, 12),
    "llama": (_llama, 12),
    "llama-classifier": (_llama_classifier, 12),
    "gpt2": (_gpt2, 12),
    "marian": (_marian, 6),
    "bart": (_bart, 6),
    "t5": (_t5, 6),
    "demo/entailment": (lambda _: hc.load("demo/entailment"), 4),
    "demo/decoder": (lambda _: hc.load("demo/decoder"), 4),
    "demo/translator": (lambda _: hc.load("demo/translator"), 4),
}
TRANSLATES = ("marian", "bart", "t5", "demo/translator")
PER_TOKEN = ("bert-mlm", "llama", "gpt2", "demo/decoder", *TRANSLATES)


def make_batch(family: str, rows: int, length: int) -> dict[str, Tensor]:
    if family == "vit":
        return {"pixel_values": torch.randn(rows, 3, IMAGE, IMAGE), "labels": torch.randint(0, 2, (rows,))}
    tokens = lambda: torch.randint(5, 200 if family.startswith("demo/") else 8000, (rows, length))  # noqa: E731
    ids = tokens()
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if family in TRANSLATES:
        return batch | {"decoder_input_ids": tokens(), "labels": tokens()}
    return batch | {"labels": tokens() if family in PER_TOKEN else torch.randint(0, 2, (rows,))}


def read(output: Any, batch: Any) -> Tensor:
    """The loss of every example."""
    logits, labels = output.logits, batch["labels"]
    if labels.ndim == 1:
        return F.cross_entropy(logits, labels, reduction="none")
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none").view(labels.shape).mean(-1)


def cpu(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def changes_of(heads: hc.HeadMap) -> list[Intervention]:
    return [
        Intervention(block, tuple(float(i != head) for i in range(block.n_heads)))
        for block in heads.blocks
        for head in range(block.n_heads)
    ]


def one_by_one(model: nn.Module, gates: hc.HeadGates, batch: dict[str, Tensor], chosen: Sequence[int]) -> list[Tensor]:
    found = []
    inputs = {name: value for name, value in batch.items() if name != "labels"}
    for head in chosen:
        values = torch.ones(len(gates.heads))
        values[head] = 0.0
        gates.values = values
        with gates, torch.no_grad():
            found.append(read(model(**inputs), batch))
    return found


def sample(n_heads: int, count: int, turn: int) -> list[int]:
    """Heads spread evenly over the flat order, others in every round."""
    step = n_heads / count
    return [int(place * step + turn * 7 % max(1, int(step))) for place in range(count)]


def measure(options: argparse.Namespace) -> dict[str, Any]:
    build, depth = FAMILIES[options.family]
    model = build(options.layers or depth).eval()
    ablator = Ablator(model, max_tokens=options.max_tokens, withhold=("labels",))
    gates, changes = hc.HeadGates(model), changes_of(ablator.heads)
    batch = make_batch(options.family, options.batch, options.length)
    trial = cpu(lambda: ablator.run(batch, [], read))
    one_by_one(model, gates, batch, [0])
    rounds, worst, effect = [], 0.0, 0.0
    for turn in range(options.rounds):
        batch = make_batch(options.family, options.batch, options.length)
        chosen, found = sample(len(changes), min(options.sample, len(changes)), turn), []
        half, result = len(chosen) // 2, {}
        full = cpu(lambda: found.extend(one_by_one(model, gates, batch, chosen[:half])))  # noqa: B023
        fast = cpu(lambda: result.update(zip(("none", "all"), ablator.run(batch, changes, read), strict=True)))  # noqa: B023
        full += cpu(lambda: found.extend(one_by_one(model, gates, batch, chosen[half:])))  # noqa: B023
        rounds.append((full * len(changes) / len(chosen), fast))
        expected = torch.stack(found)
        worst = max(worst, float(((result["all"][chosen] - expected).abs() / expected.abs()).max()))
        effect = max(effect, float((result["all"] / result["none"] - 1).abs().max()))
    ratios = [full / fast for full, fast in rounds]
    return {
        "family": options.family,
        "shape": f"{options.layers or depth} layers, {len(changes)} heads, batch {options.batch}, "
        + (f"image {IMAGE}" if options.family == "vit" else f"length {options.length}"),
        "conditions": f"float32, {options.threads} threads, CPU time, torch {torch.__version__}, transformers {transformers.__version__}",
        "full_evaluations": f"{min(options.sample, len(changes))} of {len(changes)} heads timed per round, scaled",
        "max_tokens": ablator.max_tokens,
        "ratio": round(statistics.median(ratios), 2),
        "range": [round(min(ratios), 2), round(max(ratios), 2)],
        "full_seconds": round(statistics.median(full for full, _ in rounds), 2),
        "ablator_seconds": round(statistics.median(fast for _, fast in rounds), 2),
        "trial_seconds": round(trial, 2),
        "largest_relative_difference": worst,
        "largest_relative_effect_of_a_head": effect,
        "position_read_in_last_layer": ablator.only_position_read or "all",
        "fallback": ablator.fallback_reason,
        "rounds": options.rounds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--family", choices=list(FAMILIES), default="bert")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--sample", type=int, default=24, help="full evaluations timed per round")
    parser.add_argument("--layers", type=int, default=0, help="another depth than the family's own")
    parser.add_argument("--max-tokens", type=int, default=None)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    print(json.dumps(measure(options), indent=2))


if __name__ == "__main__":
    main()
