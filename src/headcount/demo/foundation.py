"""Find → gate → cut → verify → save → load on two small models built in this process; every number is measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import BertConfig, BertForMaskedLM, LlamaConfig, LlamaForCausalLM

from headcount.gates import HeadGates, output_tensors
from headcount.heads import Head, HeadMap
from headcount.observe import evaluating
from headcount.plan import Budget, Plan
from headcount.scores import Scores
from headcount.surgery import cost, cut, load, removed_parameters, save
from headcount.surgery.verify import difference, gates_of, run, run_gated

VOCABULARY, LENGTH, NEW_TOKENS = 512, 24, 16
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "intermediate_size": 256,
}
SPREAD = 0.1  # of the weights: untrained heads drawn at the usual 0.02 would hardly show


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that was done: a sentence, and the numbers in it by name."""

    model: str
    name: str
    text: str
    numbers: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Job:
    """A model on its way, and the batch on which everything is measured."""

    name: str
    model: nn.Module
    batch: dict[str, Tensor]

    def step(self, name: str, text: str, **numbers: Any) -> Step:
        """A step of this job."""
        return Step(self.name, name, text, numbers)


def small_bert() -> nn.Module:
    """An encoder with 4 layers of 8 heads."""
    return BertForMaskedLM(BertConfig(**SIZES, initializer_range=SPREAD))


def small_llama() -> nn.Module:
    """A decoder with 4 layers of 8 query heads on 4 key-value heads."""
    tokens = {"bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0}
    return LlamaForCausalLM(LlamaConfig(**SIZES, num_key_value_heads=4, initializer_range=SPREAD, **tokens))


MODELS: dict[str, Callable[[], nn.Module]] = {"bert": small_bert, "llama": small_llama}


def job(name: str, *, seed: int = 0, device: torch.device | str = "cpu", dtype: str = "float32") -> Job:
    """The model of that name with weights and one sequence of tokens drawn from `seed`; the caller's random state stays."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = MODELS[name]()
        tokens = torch.randint(2, VOCABULARY, (1, LENGTH))
    return Job(name, model.to(device=device, dtype=getattr(torch, dtype)).eval(), {"input_ids": tokens.to(device)})


def effects(model: nn.Module, heads: HeadMap, batch: dict[str, Tensor]) -> list[float]:
    """The largest change of the output when a head is gated to zero, for every head: one pass, one row of gates per head."""
    rows = {name: value.expand(len(heads) + 1, *value.shape[1:]) for name, value in batch.items()}
    gates = torch.cat([torch.ones(1, len(heads)), 1 - torch.eye(len(heads))])
    with evaluating(model), HeadGates(model, gates):
        logits = output_tensors(model(**rows))[0].double()
    return (logits[1:] - logits[:1]).abs().flatten(1).amax(1).tolist()


def _find(work: Job, heads: HeadMap) -> Step:
    heads.verify(work.model, work.batch)
    layouts = sorted({block.layout for block in heads.blocks})
    kv_heads = sum(block.n_kv_heads for block in heads.blocks)
    text = (
        f"{type(work.model).__name__}: {heads.describe()}, {kv_heads} KV heads, {'/'.join(layouts)} projections; "
        f"each gate changes the output, {sum(block.can_cut for block in heads.blocks)} of {len(heads.blocks)} blocks can be cut"
    )
    return work.step("find", text, n_heads=len(heads), n_kv_heads=kv_heads, n_blocks=len(heads.blocks))


def _gate(work: Job, heads: HeadMap, before: list[Tensor], scores: Scores) -> Step:
    ranking = scores.ranking()
    value: dict[Head, float] = dict(zip(scores.heads, scores.values, strict=True))
    strong, weak = ranking[0], ranking[-1]
    restored = all(torch.equal(a, b) for a, b in zip(run(work.model, work.batch), before, strict=True))
    text = (
        f"{strong} matters most: without it a logit moves by {value[strong]:.3g}; {weak} least: {value[weak]:.3g}; "
        f"afterwards the model is {'as before, bit for bit' if restored else 'CHANGED'}"
    )
    numbers = {"strongest": str(strong), "weakest": str(weak), "largest_effect": value[strong], "smallest_effect": value[weak]}
    return work.step("gate", text, **numbers, restored=restored)


def _plan(work: Job, heads: HeadMap, plan: Plan) -> Step:
    unit = "whole KV groups" if any(block.group_size > 1 for block in heads.blocks) else "single heads"
    removed = [str(head) for head in plan.removed]
    text = f"remove {len(removed)} of {len(heads)}, in {unit}: {', '.join(removed)}"
    return work.step("plan", text, n_removed=len(removed), removed=removed)


def _cut(work: Job, plan: Plan, heads: HeadMap) -> tuple[nn.Module, Step]:
    before = cost(work.model, work.batch)
    small = cut(work.model, plan, inputs=work.batch)
    after = cost(small, work.batch)
    predicted = removed_parameters(heads, plan)
    text = (
        f"{before.parameters:,} → {after.parameters:,} parameters ({predicted:,} fewer were predicted), "
        f"{before.flops:,} → {after.flops:,} FLOPs per {before.tokens} tokens, "
        f"{before.kv_bytes_per_token:,} → {after.kv_bytes_per_token:,} bytes of KV cache per token"
    )
    return small, work.step("cut", text, before=before.to_dict(), after=after.to_dict(), predicted=predicted)


def _verify(work: Job, plan: Plan, small: nn.Module) -> Step:
    gap = difference(run(small, work.batch), run_gated(work.model, plan, work.batch))
    effect = difference(run(small, work.batch), run(work.model, work.batch))
    text = f"cut and gated outputs differ by {gap:.2g} (relative), while the plan itself moves the output by {effect:.2g}"
    return work.step("verify", text, difference=gap, effect=effect)


def _generate(work: Job, heads: HeadMap, plan: Plan, small: nn.Module) -> Step:
    options = {"max_new_tokens": NEW_TOKENS, "do_sample": False, "attention_mask": torch.ones_like(work.batch["input_ids"])}
    with HeadGates(work.model, gates_of(heads, plan)):
        gated = work.model.generate(**work.batch, **options)  # pyright: ignore[reportCallIssue]
    tokens = small.generate(**work.batch, **options)  # pyright: ignore[reportCallIssue]
    same = torch.equal(gated, tokens)
    text = f"{tokens.shape[1] - LENGTH} new tokens with caches are {'the same' if same else 'DIFFERENT'} in the cut and the gated model"
    return work.step("generate", text, same_tokens=same, n_tokens=tokens.shape[1] - LENGTH)


def _save(work: Job, small: nn.Module, folder: Path, command: str | None) -> Step:
    save(small, folder, command=command, overwrite=True)
    files = sorted(path for path in folder.iterdir() if path.is_file())
    size = sum(path.stat().st_size for path in files)
    return work.step("save", f"{folder}: {', '.join(path.name for path in files)}; {size:,} bytes", folder=str(folder), bytes=size)


def _load(work: Job, small: nn.Module, folder: Path) -> Step:
    back = load(folder).to(next(small.parameters()).device)
    ours, theirs = small.state_dict(), back.state_dict()
    weights = ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)
    outputs = all(torch.equal(a, b) for a, b in zip(run(small, work.batch), run(back, work.batch), strict=True))
    addresses = HeadMap.of(back).heads == HeadMap.of(small).heads
    text = (
        f"{len(theirs)} tensors {'equal bit for bit' if weights else 'DIFFER'}, outputs {'equal bit for bit' if outputs else 'DIFFER'}, "
        f"{len(HeadMap.of(back))} heads {'under their old addresses' if addresses else 'under OTHER addresses'}"
    )
    return work.step("load", text, equal_weights=weights, equal_outputs=outputs, same_addresses=addresses)


def walk(work: Job, folder: Path, command: str | None = None) -> Iterator[Step]:
    """Takes one model the whole way, one step at a time."""
    heads = HeadMap.of(work.model)
    yield _find(work, heads)
    before = run(work.model, work.batch)
    values = tuple(effects(work.model, heads, work.batch))
    scores = Scores(heads.heads, values, method="largest change of an output when gated to zero", units=heads.units())
    yield _gate(work, heads, before, scores)
    plan = Plan.keep_top(scores, Budget(fraction=0.5, floor=2))
    yield _plan(work, heads, plan)
    small, step = _cut(work, plan, heads)
    yield step
    yield _verify(work, plan, small)
    if hasattr(small, "generate") and heads.blocks[0].kind == "decoder-self":
        yield _generate(work, heads, plan, small)
    yield _save(work, small, folder, command)
    yield _load(work, small, folder)


def walk_all(
    out: Path, *, seed: int = 0, device: torch.device | str = "cpu", dtype: str = "float32", command: str | None = None
) -> Iterator[Step]:
    """Takes every model the whole way; each is saved in a folder of its name under `out`, over what was saved there before."""
    for name in MODELS:
        yield from walk(job(name, seed=seed, device=device, dtype=dtype), out / name, command)
