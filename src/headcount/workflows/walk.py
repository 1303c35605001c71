"""The main job on one model and task, in a run that can be stopped and taken up again:

find → evaluate → score → roles → portraits → prune by several methods at several sizes → keep the best → verify, save, load → measure its speed →
write the report.

Every step is a sentence with the numbers in it; all tables are in the run folder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from headcount.behaviour.base import Corpus
from headcount.behaviour.profiles.profile import LONGEST, SENTENCES, HeadProfiles
from headcount.core.errors import HeadcountError, UnsupportedModel
from headcount.core.evaluation import Evaluation, PairedDifference
from headcount.core.plan import Plan, nearest_whole_units
from headcount.core.role_table import RoleTable
from headcount.core.scores import Scores
from headcount.data.stream import Progress
from headcount.data.task import Task, blocks
from headcount.importance.score import Method
from headcount.importance.verdicts import agreements, verdicts
from headcount.models.gates import HeadGates
from headcount.models.head_map import HeadMap
from headcount.models.observe import model_inputs
from headcount.models.provenance import machine_of, model_record
from headcount.models.state import preserve
from headcount.pruning.recipe import Recipe
from headcount.runs.artifacts import Artifact
from headcount.runs.report.write import write_report
from headcount.runs.results import best_of, format_p, format_speed, method_name, smallest_safe
from headcount.runs.store import Run, describe_run
from headcount.surgery.cost import Cost
from headcount.surgery.load import load
from headcount.surgery.verify import difference, gates_of, run, run_gated
from headcount.workflows.evaluate import evaluate_into
from headcount.workflows.profiles import profiles_into
from headcount.workflows.prune import Pruning, Sizes, Wish, check_wish, compare, estimate_training, grid, rows
from headcount.workflows.roles import roles_into
from headcount.workflows.score import score_into

SCORED, REPORTED, NEW_TOKENS = 256, 500, 16
SCORES = ("gradient", "ablation", "output-norm", "confidence", "random")
METHODS, KEEPS, SEEDS = ("surgeon", "gradient", "l0", "dsp", "random"), (0.125, 0.25, 0.5), 2
Watch = Callable[[str, str], Progress]
"""(a piece of work, what it is counted in) -> what is told how far it is."""


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that was done: a sentence, and the numbers in it by name."""

    model: str
    name: str
    text: str
    numbers: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Analysis:
    """A model and its task, and how much is to be done with them: examples, importances, pruners, shares of heads, seeds."""

    name: str
    model: nn.Module
    task: Task
    corpus: Corpus | None = None
    seed: int = 0
    command: str = ""
    scored: int = SCORED
    reported: int = REPORTED
    by: Sequence[str] = SCORES
    methods: Sequence[str] = METHODS
    keeps: Sequence[int | float] | None = None
    """Numbers of heads that stay, or, as floats below 1, shares of them, by the rule of `prune`: whole KV groups, or PlanError.

    By default the sizes nearest to KEEPS that are whole KV groups."""
    seeds: int = SEEDS
    training_seeds: int | None = None
    """Seeds of methods that train, by default as many as of the others."""
    recipe: Recipe = field(default_factory=Recipe)
    measured: Sizes = field(default_factory=lambda: Sizes((1, 8, 32), (64,)))
    watch: Watch | None = None
    tokenizer: Any = None
    folder: Path | None = None
    """Where the model comes from; its tokenizer goes along with the smaller one."""
    portrayed: int = SENTENCES
    longest: int = LONGEST
    """Tokens of the sentences whose attention maps are kept."""
    config: Mapping[str, Any] = field(default_factory=dict)
    no_roles: str = ""
    """Why there is no corpus, if there is none."""

    def step(self, name: str, text: str, **numbers: Any) -> Step:
        """A step of this job."""
        return Step(self.name, name, text, numbers)

    def progress(self, what: str, unit: str = "examples") -> Progress | None:
        """Where a piece of work says how far it is."""
        return self.watch(what, unit) if self.watch is not None else None

    def batch(self) -> dict[str, Tensor]:
        """One example of the selection split, without its labels where the model can do without them."""
        _, batch = next(next(blocks(self.task, split="selection", limit=1)).batches(1))
        needed = getattr(self.model.config, "is_encoder_decoder", False)
        return {name: value for name, value in model_inputs(batch, self.model).items() if needed or name != "labels"}


def walk(work: Analysis, kept: Run) -> Iterator[Step]:
    """Takes one model the whole way, one step at a time."""
    heads = HeadMap.of(work.model)
    wishes = _wishes(work, heads)
    for wish in wishes:
        check_wish(work.model, wish)
    for name in work.by:
        Method.parse(name)
    _describe(work, heads, kept)
    yield _find(work, heads, sorted({wish.keep for wish in wishes}))
    yield _evaluate(work, heads, kept)
    found = score_into(kept, work.model, work.task, work.by, limit=work.scored, seed=work.seed, progress=work.progress("scoring"))
    yield _score(work, found)
    yield from _look(work, kept)
    options: Any = {"limit": work.reported, "command": work.command, "companions": work.folder, "measured": work.measured}
    pruning = Pruning(kept, work.model, work.task, **options)
    estimate = estimate_training(pruning, wishes)
    if estimate is not None:
        yield work.step("train", estimate.sentence, models=estimate.models, seconds=estimate.seconds)
    dense, artifacts, failed = compare(pruning, wishes, progress=work.progress("pruning", "models"))
    yield _prune(work, pruning, dense, artifacts, failed)
    wish = _best(pruning, dense, artifacts)
    if wish is not None:
        artifact, small, step = _keep(work, pruning, dense, wish)
        yield step
        yield from _prove(work, heads, pruning, artifact, small)
        yield _bench(work, pruning, artifact)
    yield _report(work, kept)


def _describe(work: Analysis, heads: HeadMap, kept: Run) -> None:
    machine = machine_of(work.model)
    config = {
        "by": list(work.by),
        "methods": list(work.methods),
        "keeps": list(KEEPS if work.keeps is None else work.keeps),
        "seeds": work.seeds,
        "recipe": work.recipe.told(),
        **work.config,
    }
    facts: dict[str, Any] = {"command": work.command, "seed": work.seed, "task": work.task.name, "machine": machine, "config": config}
    kept.describe(describe_run(model_record(work.model, work.name), **facts), heads)


def _find(work: Analysis, heads: HeadMap, keeps: Sequence[int]) -> Step:
    heads.verify(work.model)
    layouts = sorted({block.layout for block in heads.blocks})
    kv_heads = sum(block.n_kv_heads for block in heads.blocks)
    text = (
        f"{type(work.model).__name__}: {heads.describe()}, {kv_heads} KV heads, {'/'.join(layouts)} projections; "
        f"each gate changes the output, {sum(block.can_cut for block in heads.blocks)} of {len(heads.blocks)} blocks can be cut; "
        f"{_tell_sizes(work, heads, keeps)}"
    )
    return work.step("find", text, keeps=list(keeps), n_heads=len(heads), n_kv_heads=kv_heads, n_blocks=len(heads.blocks))


def _told(made: Evaluation) -> str:
    metric = "" if made.value is None else f", {made.metric} {made.value:.4g}"
    return f"loss {made.loss:.4g} ± {made.loss_stderr:.1g}{metric}"


def _numbers(made: Evaluation) -> dict[str, Any]:
    return {"loss": made.loss, "loss_stderr": made.loss_stderr, "metric": made.metric, "value": made.value, "n_examples": made.n_examples}


def _evaluate(work: Analysis, heads: HeadMap, kept: Run) -> Step:
    options: Any = {"limit": work.reported, "progress": work.progress("evaluating")}
    whole = evaluate_into(kept, "dense", work.model, work.task, **options)
    with HeadGates(work.model, torch.zeros(len(heads))):
        none = evaluate_into(kept, "without any head", work.model, work.task, under={"gates": "all zero"}, **options)
    text = f"{work.task.name}, {whole.n_examples} examples: {_told(whole)}; without any head: {_told(none)}"
    return work.step("evaluate", text, whole=_numbers(whole), none=_numbers(none))


def _score(work: Analysis, found: dict[str, Scores]) -> Step:
    judged = verdicts(found["ablation"], seed=work.seed) if "ablation" in found else []
    safe = [str(verdict.head) for verdict in judged if verdict.safe]
    first = next(iter(found.values()))
    agreed = {name: made.spearman.value for name, made in agreements(found, seed=work.seed).items()} if judged else {}
    told = ", ".join(f"{name} {value:.2f}" for name, value in agreed.items())
    text = f"on {first.n_examples} calibration examples {first.ranking()[0]} matters most by {first.label}"
    if judged:
        text += f"; {len(safe)} of {len(judged)} heads are safe to remove one at a time (loss + 0.01 at most, 95 %); Spearman with ablation: {told}"
    return work.step("score", text, strongest=str(first.ranking()[0]), safe=safe, agreement=agreed)


def _look(work: Analysis, kept: Run) -> Iterator[Step]:
    """What heads do and what they attend to; where the model or its data do not show that, why."""
    if work.corpus is None:
        yield work.step("roles", f"left out: {work.no_roles or 'no text was given'}")
        return
    try:
        yield _roles(
            work,
            roles_into(kept, work.model, work.corpus, seed=work.seed, batch_size=work.task.batch_size, progress=work.progress("roles")),
        )
    except UnsupportedModel as error:
        kept.log(f"failed: roles: {error}")
        yield work.step("roles", f"left out: {error}")
    asked: Any = {"seed": work.seed, "limit": work.portrayed, "longest": work.longest, "batch_size": work.task.batch_size}
    asked |= {"progress": work.progress("portraits")}
    yield _portray(work, profiles_into(kept, work.model, work.corpus, work.tokenizer, **asked))


def _portray(work: Analysis, made: HeadProfiles) -> Step:
    told = made.content
    text = f"what each head attends to on {told['n_sentences']} texts, {len(told['sentences'])} of them whole" if told["heads"] else ""
    return work.step("portraits", ". ".join(filter(None, [text, *(note.rstrip(".") for note in made.notes)])), notes=made.notes)


def _roles(work: Analysis, table: RoleTable) -> Step:
    labels = table.labels()
    some = [head for head, found in labels.items() if found]
    counts = {role: sum(role in found for found in labels.values()) for role in table.roles()}
    most = sorted((role for role in counts if counts[role]), key=lambda role: (-counts[role], role))[:5]
    text = f"{len(some)} of {len(labels)} heads have one of the {len(counts)} roles tested"
    if most:
        told = ", ".join(f"{role} ({counts[role]})" for role in most)
        text += f", {len(table.multifunctional())} more than one; most often {told}"
    return work.step(
        "roles", text, heads=len(some), multifunctional=len(table.multifunctional()), counts={k: v for k, v in counts.items() if v}
    )


def _tell_sizes(work: Analysis, heads: HeadMap, keeps: Sequence[int]) -> str:
    """The sizes to prune to, and, where they were not asked for, the rule by which they were chosen."""
    numbers = ", ".join(map(str, keeps))
    if work.keeps is not None:
        return f"pruned to {numbers} heads"
    largest = max(len(unit) for unit in heads.units())
    units = "heads" if largest == 1 else f"KV groups of up to {largest} heads"
    return f"pruned to {numbers} heads, the whole {units} nearest to {', '.join(f'{100 * share:g} %' for share in KEEPS)}"


def _wishes(work: Analysis, heads: HeadMap) -> list[Wish]:
    if work.keeps is None:
        unit_sizes = [len(unit) for unit in heads.units()]
        keeps = sorted({nearest_whole_units(share, unit_sizes) for share in KEEPS})
    else:
        keeps = sorted({heads_kept(keep, len(heads)) for keep in work.keeps})
    template = Wish("random", 1, recipe=work.recipe)
    return grid(work.methods, keeps, work.seeds, template, first=work.seed, training_seeds=work.training_seeds)


def _prune(work: Analysis, pruning: Pruning, dense: Evaluation, artifacts: Sequence[Artifact], failed: dict[str, HeadcountError]) -> Step:
    table = rows(pruning, dense, artifacts)
    safe = smallest_safe(table)
    least = min((row["keep"] for row in table), default=0)
    best = sorted((row for row in table if row["keep"] == least), key=lambda row: row["loss"])
    told = ", ".join(f"{row['method']} {row['value'] if row['value'] is not None else row['loss']:.4g}" for row in _by_method(best))
    small = min((number for number in safe.values() if number), default=None)
    text = f"{len(artifacts)} models by {len(safe)} methods; with {least} heads {dense.metric or 'loss'} is: {told}"
    text += f"; no significant loss down to {small} heads" if small else "; every size tried loses significantly"
    text += f"; {len(failed)} failed" if failed else ""
    return work.step("prune", text, artifacts=len(artifacts), smallest=safe, failed={name: str(error) for name, error in failed.items()})


def _by_method(table: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The first row of every method."""
    return list({row["method"]: row for row in reversed(table)}.values())[::-1]


def _best(pruning: Pruning, dense: Evaluation, artifacts: Sequence[Artifact]) -> Wish | None:
    """What the model that is kept was asked for, if any lost a head."""
    best = best_of(rows(pruning, dense, artifacts))
    return Wish.of(artifacts[best.at].content["wish"]) if best is not None else None


def _keep(work: Analysis, pruning: Pruning, dense: Evaluation, wish: Wish) -> tuple[Artifact, nn.Module, Step]:
    """Makes the best model, or loads it where it is finished, and says what it costs and saves."""
    artifact, small = pruning.kept(wish, progress=work.progress("the best model"))
    change: PairedDifference = pruning.change(dense, artifact)["loss"]
    before, after, n_left = Cost(**artifact.content["whole_cost"]), Cost(**artifact.content["cost"]), len(HeadMap.of(small))
    text = (
        f"{method_name(wish.parts())}, {n_left} heads: loss {artifact.content['loss']:.4g} ({change.difference:+.3g}, 95 % {change.low:+.3g} … "
        f"{change.high:+.3g}, {format_p(change.p)}); {before.parameters:,} → {after.parameters:,} parameters, "
        f"{before.flops:,} → {after.flops:,} FLOPs of a pass over {before.tokens} tokens"
    )
    if before.kv_bytes_per_token:
        text += f", {before.kv_bytes_per_token:,} → {after.kv_bytes_per_token:,} bytes of KV cache per token"
    numbers = {"removed": artifact.content["removed"], "before": before.to_dict(), "after": after.to_dict(), "change": asdict(change)}
    return (
        artifact,
        small,
        work.step("keep", text, method=wish.method, keep=n_left, folder=str(pruning.place(artifact.spec)), **numbers),
    )


def _prove(work: Analysis, heads: HeadMap, pruning: Pruning, artifact: Artifact, small: nn.Module) -> Iterator[Step]:
    """The saved model against the one in memory, and, where its weights are the dense model's, against the gated one."""
    batch, plan = work.batch(), Plan.removing(artifact.content["removed"])
    back = load(pruning.place(artifact.spec)).to(next(small.parameters()).device)
    ours, theirs = small.state_dict(), back.state_dict()
    weights = ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)
    outputs = all(torch.equal(a, b) for a, b in zip(run(small, batch), run(back, batch), strict=True))
    text = (
        f"{len(theirs)} tensors {'equal bit for bit' if weights else 'DIFFER'}, outputs {'equal bit for bit' if outputs else 'DIFFER'}, "
        f"{len(HeadMap.of(back))} heads under their old addresses"
    )
    yield work.step("load", text, equal_weights=weights, equal_outputs=outputs)
    gap = difference(run(small, batch), run_gated(work.model, plan, batch))
    yield work.step(
        "verify",
        f"the cut was proven equal to the gates before it was saved; repair and training move its output by {gap:.2g} from the masked dense model's",
        effect=gap,
    )
    if hasattr(small, "generate") and heads.blocks[0].kind == "decoder-self":
        yield _generate(work, heads, plan, small, batch)


def _generate(work: Analysis, heads: HeadMap, plan: Plan, small: nn.Module, batch: dict[str, Tensor]) -> Step:
    options = {"max_new_tokens": NEW_TOKENS, "min_new_tokens": NEW_TOKENS, "do_sample": False}
    prompt = {name: value[:, : value.shape[1] // 2] for name, value in batch.items()}
    with preserve(work.model), HeadGates(work.model, gates_of(heads, plan)):
        gated = work.model.generate(**prompt, **options)  # pyright: ignore[reportCallIssue]
    with preserve(small):
        tokens = small.generate(**prompt, **options)  # pyright: ignore[reportCallIssue]
    same = int((gated[0] == tokens[0]).sum()) - prompt["input_ids"].shape[1]
    return work.step(
        "generate", f"{NEW_TOKENS} new tokens with caches, {same} of them those of the dense model under gates", same_tokens=same
    )


def _bench(work: Analysis, pruning: Pruning, artifact: Artifact) -> Step:
    timings = pruning.timings(artifact)
    faster = [row for row in timings if row["name"] == "removed"]
    told = ", ".join(f"{format_speed(row['speedup'])} at batch {row['batch']}" for row in faster)
    return work.step("bench", f"the smaller model is {told} (length {faster[0]['length']}, median of {faster[0]['rounds']})", rows=timings)


def _report(work: Analysis, kept: Run) -> Step:
    path = write_report(kept)
    return work.step("report", f"{path} ({path.stat().st_size / 1e6:.1f} MB): open it in a browser", path=str(path))
