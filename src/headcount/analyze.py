"""The main job on one model and task: find → evaluate → score → plan → cut → verify → evaluate → save → load; every number is measured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from headcount.data import Task, blocks
from headcount.evaluate import Evaluation, evaluate_into
from headcount.gates import HeadGates
from headcount.heads import HeadMap
from headcount.importance import agreements, score_into, verdicts
from headcount.observe import on_device
from headcount.plan import Budget, Plan
from headcount.runs import Run, describe_run
from headcount.runs.weights import made_on, model_record
from headcount.scores import Scores
from headcount.stats import paired_t
from headcount.surgery import cost, cut, load, removed_parameters, save
from headcount.surgery.verify import difference, gates_of, run, run_gated

SCORED, REPORTED, NEW_TOKENS = 256, 500, 16
METHODS = ("gradient", "ablation", "output-norm", "random")


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that was done: a sentence, and the numbers in it by name."""

    model: str
    name: str
    text: str
    numbers: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Job:
    """A model on its way and its task; `scored` examples of calibration and `reported` ones of the report split are read."""

    name: str
    model: nn.Module
    task: Task
    seed: int = 0
    command: str = ""
    scored: int = SCORED
    reported: int = REPORTED

    def step(self, name: str, text: str, **numbers: Any) -> Step:
        """A step of this job."""
        return Step(self.name, name, text, numbers)

    def batch(self) -> dict[str, Tensor]:
        """One example of the selection split, without its labels where the model can do without them."""
        _, batch = next(next(blocks(self.task, split="selection", limit=1)).batches(1))
        needed = getattr(self.model.config, "is_encoder_decoder", False)
        return {name: value for name, value in on_device(batch, self.model).items() if needed or name != "labels"}


def _find(work: Job, heads: HeadMap) -> Step:
    heads.verify(work.model)
    layouts = sorted({block.layout for block in heads.blocks})
    kv_heads = sum(block.n_kv_heads for block in heads.blocks)
    text = (
        f"{type(work.model).__name__}: {heads.describe()}, {kv_heads} KV heads, {'/'.join(layouts)} projections; "
        f"each gate changes the output, {sum(block.can_cut for block in heads.blocks)} of {len(heads.blocks)} blocks can be cut"
    )
    return work.step("find", text, n_heads=len(heads), n_kv_heads=kv_heads, n_blocks=len(heads.blocks))


def _told(made: Evaluation) -> str:
    metric = "" if made.value is None else f", {made.metric} {made.value:.4g}"
    return f"loss {made.loss:.4g} ± {made.loss_stderr:.1g}{metric}"


def _numbers(made: Evaluation) -> dict[str, Any]:
    return {"loss": made.loss, "loss_stderr": made.loss_stderr, "metric": made.metric, "value": made.value, "n_examples": made.n_examples}


def _evaluate(work: Job, whole: Evaluation, none: Evaluation) -> Step:
    text = f"{work.task.name}, {whole.n_examples} examples: {_told(whole)}; without any head: {_told(none)}"
    return work.step("evaluate", text, whole=_numbers(whole), none=_numbers(none))


def _score(work: Job, found: dict[str, Scores]) -> Step:
    judged = verdicts(found["ablation"], seed=work.seed)
    safe = [str(verdict.head) for verdict in judged if verdict.safe]
    best = found["gradient"].ranking()[0]
    agreed = {name: made.spearman.value for name, made in agreements(found, seed=work.seed).items()}
    told = ", ".join(f"{name} {value:.2f}" for name, value in agreed.items())
    text = (
        f"on {found['gradient'].n_examples} calibration examples {best} matters most; {len(safe)} of {len(judged)} heads are safe to remove one at a "
        f"time (loss + 0.01 at most, 95 %); Spearman with ablation: {told}"
    )
    return work.step("score", text, strongest=str(best), safe=safe, agreement=agreed)


def _plan(work: Job, heads: HeadMap, plan: Plan) -> Step:
    unit = "whole KV groups" if any(block.group_size > 1 for block in heads.blocks) else "single heads"
    removed = [str(head) for head in plan.removed]
    text = f"remove {len(removed)} of {len(heads)}, in {unit}, the lowest by gradient: {', '.join(removed)}"
    return work.step("plan", text, n_removed=len(removed), removed=removed)


def _cut(work: Job, plan: Plan, heads: HeadMap, batch: dict[str, Tensor]) -> tuple[nn.Module, Step]:
    before = cost(work.model, batch)
    small = cut(work.model, plan, inputs=batch)
    after = cost(small, batch)
    predicted = removed_parameters(heads, plan)
    text = (
        f"{before.parameters:,} → {after.parameters:,} parameters ({predicted:,} fewer were predicted), "
        f"{before.flops:,} → {after.flops:,} FLOPs per {before.tokens} tokens, "
        f"{before.kv_bytes_per_token:,} → {after.kv_bytes_per_token:,} bytes of KV cache per token"
    )
    return small, work.step("cut", text, before=before.to_dict(), after=after.to_dict(), predicted=predicted)


def _verify(work: Job, plan: Plan, small: nn.Module, batch: dict[str, Tensor]) -> Step:
    gap = difference(run(small, batch), run_gated(work.model, plan, batch))
    effect = difference(run(small, batch), run(work.model, batch))
    text = f"cut and gated outputs differ by {gap:.2g} (relative), while the plan itself moves the output by {effect:.2g}"
    return work.step("verify", text, difference=gap, effect=effect)


def _generate(work: Job, heads: HeadMap, plan: Plan, small: nn.Module, batch: dict[str, Tensor]) -> Step:
    options = {"max_new_tokens": NEW_TOKENS, "min_new_tokens": NEW_TOKENS, "do_sample": False}
    prompt = {name: value[:, : value.shape[1] // 2] for name, value in batch.items()}
    with HeadGates(work.model, gates_of(heads, plan)):
        gated = work.model.generate(**prompt, **options)  # pyright: ignore[reportCallIssue]
    tokens = small.generate(**prompt, **options)  # pyright: ignore[reportCallIssue]
    same = torch.equal(gated, tokens)
    text = f"{NEW_TOKENS} new tokens with caches are {'the same' if same else 'DIFFERENT'} in the cut and the gated model"
    return work.step("generate", text, same_tokens=same, n_tokens=NEW_TOKENS)


def _compare(work: Job, whole: Evaluation, left: Evaluation) -> Step:
    change = paired_t(left.losses - whole.losses)
    text = f"the cut model: {_told(left)}; loss {change.difference:+.4g} (95 % {change.low:+.3g} … {change.high:+.3g}, p = {change.p:.2g})"
    return work.step("compare", text, **_numbers(left), rise=change.difference, low=change.low, high=change.high, p=change.p)


def _save(work: Job, small: nn.Module, folder: Path) -> Step:
    save(small, folder, command=work.command or None, overwrite=True)
    files = sorted(path for path in folder.iterdir() if path.is_file())
    size = sum(path.stat().st_size for path in files)
    return work.step("save", f"{folder}: {', '.join(path.name for path in files)}; {size:,} bytes", folder=str(folder), bytes=size)


def _load(work: Job, small: nn.Module, folder: Path, batch: dict[str, Tensor]) -> Step:
    back = load(folder).to(next(small.parameters()).device)
    ours, theirs = small.state_dict(), back.state_dict()
    weights = ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)
    outputs = all(torch.equal(a, b) for a, b in zip(run(small, batch), run(back, batch), strict=True))
    addresses = HeadMap.of(back).heads == HeadMap.of(small).heads
    text = (
        f"{len(theirs)} tensors {'equal bit for bit' if weights else 'DIFFER'}, outputs {'equal bit for bit' if outputs else 'DIFFER'}, "
        f"{len(HeadMap.of(back))} heads {'under their old addresses' if addresses else 'under OTHER addresses'}"
    )
    return work.step("load", text, equal_weights=weights, equal_outputs=outputs, same_addresses=addresses)


def walk(work: Job, run: Run) -> Iterator[Step]:
    """Takes one model the whole way, one step at a time; results are kept in the run, the cut model in its folder `model`."""
    heads, batch = HeadMap.of(work.model), work.batch()
    _describe(work, heads, run)
    yield _find(work, heads)
    whole = evaluate_into(run, "whole", work.model, work.task, limit=work.reported)
    with HeadGates(work.model, torch.zeros(len(heads))):
        none = evaluate_into(run, "without any head", work.model, work.task, under={"gates": "all zero"}, limit=work.reported)
    yield _evaluate(work, whole, none)
    found = score_into(run, work.model, work.task, METHODS, limit=work.scored, seed=work.seed)
    yield _score(work, found)
    plan = Plan.keep_top(found["gradient"], Budget(fraction=0.5, floor=2))
    yield _plan(work, heads, plan)
    small, step = _cut(work, plan, heads, batch)
    yield step
    yield _verify(work, plan, small, batch)
    if hasattr(small, "generate") and heads.blocks[0].kind == "decoder-self":
        yield _generate(work, heads, plan, small, batch)
    yield _compare(work, whole, evaluate_into(run, "cut", small, work.task, limit=work.reported))
    yield _save(work, small, run.folder / "model")
    yield _load(work, small, run.folder / "model", batch)


def _describe(work: Job, heads: HeadMap, run: Run) -> None:
    machine = {name: value for name, value in made_on().items() if name != "versions"}
    facts: dict[str, Any] = {"command": work.command, "seed": work.seed, "task": work.task.name, "machine": machine}
    run.describe(describe_run(model_record(work.model, work.name), **facts), heads)
