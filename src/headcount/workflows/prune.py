"""Pruning as artifacts of a run: one model by one method with so many heads, evaluated against the dense one, resumable, and a grid of such."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from headcount.core.errors import ArtifactError, HeadcountError, PlanError
from headcount.core.evaluation import Evaluation, PairedDifference, compare_with
from headcount.core.plan import Budget, Plan
from headcount.core.scores import Scores
from headcount.data.evaluate import evaluate, fingerprint_of
from headcount.data.stream import Progress
from headcount.data.task import Task, task_key
from headcount.importance.base import Importance
from headcount.models.head_map import HeadMap
from headcount.models.modules import unwrap
from headcount.models.provenance import model_key, provenance
from headcount.pruning.base import Choice, check_size, read_options, size_option
from headcount.pruning.prune import Method, Pruned, carry_out, check_stand_in, parse_method, prune
from headcount.pruning.repair.means import Ablation
from headcount.pruning.scope import only
from headcount.pruning.training.estimate import estimate_step_seconds
from headcount.pruning.training.fine_tune import Recipe
from headcount.pruning.training.scratch import from_scratch
from headcount.runs.artifacts import Artifact, ArtifactKey, safe_name
from headcount.runs.results import PRUNED, format_length, format_p, format_speed, method_name, outcome, rows_of, smallest_safe, spared
from headcount.runs.store import MODELS, Run
from headcount.runs.sweep import Job, sweep
from headcount.surgery.bench import BATCHES, LENGTHS, bench
from headcount.surgery.cost import Cost, cost
from headcount.surgery.load import load
from headcount.surgery.save import save
from headcount.workflows.evaluate import evaluate_into

__all__ = [
    "KIND",
    "PairedDifference",
    "Pruning",
    "Sizes",
    "TrainingEstimate",
    "Wish",
    "card_sentences",
    "check_methods",
    "check_wish",
    "compare",
    "compare_with",
    "estimate_training",
    "grid",
    "method_name",
    "outcome",
    "parse_method",
    "rows",
    "smallest_safe",
]

KIND = PRUNED
REVISION = 2
"""Raised where a method gives another result than before for the same request, so that a run does not take an older artifact for it."""
WORK, RANK = "work", "rank"


@dataclass(frozen=True, slots=True)
class Wish:
    """One pruned model: the method with its options, how many heads stay, whether it is repaired and recovered, and the seed."""

    method: str
    keep: int
    seed: int = 0
    repair: bool | None = None
    recover: float | str | None = None
    """How long the cut model is fine-tuned: a number of epochs, "300steps", or "auto"."""
    options: Mapping[str, Any] = field(default_factory=dict)
    recipe: Recipe = field(default_factory=Recipe)
    floor: int = 0
    unit: str = "kv_group"
    limit: tuple[str, float] | None = None
    """Instead of a number of heads: parameters, kv_bytes or latency, and how much of it; `keep` is 0 then."""
    kinds: tuple[str, ...] = ()
    """The kinds of attention that may lose heads, whose heads `keep` counts; nothing for all."""
    scratch: Recipe | None = None
    """The control of Voita et al.: draw the weights of the smaller model anew, and train them by this recipe, not by that of the method."""
    protected: tuple[str, ...] = ()
    """Heads that stay whatever their score."""
    ablation: Ablation = "zero"
    """What stands in for a removed head: nothing, or its mean output."""

    @property
    def name(self) -> str:
        """What people call it."""
        parts = [
            self.method,
            *(f"{name}={value}" for name, value in sorted(self.options.items())),
            f"{self.limit[0]} {self.limit[1]:g}"
            if self.limit is not None
            else f"{self.keep} heads"
            if self.keep
            else "heads by its option",
        ]
        parts += [f"of {'+'.join(self.kinds)}"] if self.kinds else []
        parts += [f"sparing {spared(self.protected)}"] if self.protected else []
        parts += [f"floor {self.floor}"] if self.floor else []
        parts += [self.unit] if self.unit != "kv_group" else []
        parts += [f"seed {self.seed}"] if self.seed else []
        parts += ["means stand in"] if self.ablation == "mean" else []
        parts += ["repaired" if self.repair else "not repaired"] if self.repair is not None else []
        parts += [f"recovered {format_length(self.recover)}"] if self.recover else []
        parts += [f"from scratch {format_length(self.scratch.told())}"] if self.scratch else []
        return ", ".join(parts)

    def parts(self) -> dict[str, Any]:
        """The wish as plain data."""
        told = {name: getattr(self, name) for name in ("method", "keep", "seed", "repair", "recover", "floor", "unit")}
        told |= {"limit": list(self.limit)} if self.limit is not None else {}
        told |= {"kinds": list(self.kinds)} if self.kinds else {}
        told |= {"scratch": self.scratch.told()} if self.scratch is not None else {}
        told |= {"normalise": self.scaling} if self.method == RANK else {}
        told |= {"protected": list(self.protected)} if self.protected else {}
        told |= {"ablation": self.ablation} if self.ablation != "zero" else {}
        return {**told, "options": dict(self.options), "recipe": self.recipe.told()}

    @classmethod
    def of(cls, parts: Mapping[str, Any]) -> Wish:
        """The wish that `parts` told."""
        lists: dict[str, Any] = {name: tuple(parts[name]) for name in ("limit", "kinds", "protected") if parts.get(name)}
        recipe, scratch = Recipe(**parts["recipe"]), parts.get("scratch")
        if isinstance(scratch, Mapping):
            lists["scratch"] = Recipe(**scratch)
        elif scratch is not None:  # of an older run, where the control had the recipe of the method
            lists["scratch"] = replace(recipe, epochs=float(scratch), steps=None)
        fields = {name: value for name, value in parts.items() if name != "normalise"}
        return cls(**{**fields, **lists, "recipe": recipe})  # pyright: ignore[reportArgumentType]

    @property
    def own_size(self) -> str:
        """The option by which the method itself decides how many heads stay; "" where `keep` or `limit` does."""
        method = Method.parse(self.method)
        return size_option(method.about, read_options(method.module, self.options, str(method)))

    @property
    def scaling(self) -> str:
        """How the scores of a ranking are normalised."""
        options = {**Method.parse(RANK).about.options, **self.options}
        return Importance.parse(options["by"]).scaling(options["normalise"])

    def n_steps(self, n_examples: int) -> int:
        """How many optimiser steps all of its stages take together on so many training examples."""
        recipes = [self.recipe] if Method.parse(self.method).about.trains else []
        recipes += [self.recipe.lasting(self.recover, "recover")] if self.recover else []
        recipes += [self.scratch] if self.scratch else []
        return sum(recipe.n_steps(n_examples) for recipe in recipes)


@dataclass(frozen=True, slots=True)
class Sizes:
    """What latency is measured for."""

    batches: tuple[int, ...] = BATCHES
    lengths: tuple[int, ...] = LENGTHS
    rounds: int = 5


def check_wish(model: nn.Module, wish: Wish) -> None:
    """Refuses what cannot be carried out, before any work: unknown methods and options, impossible budgets."""
    made = Method.parse(wish.method)
    read_options(made.module, wish.options, str(made))
    if wish.recover is not None:
        wish.recipe.lasting(wish.recover, "recover")
    if wish.scratch and (wish.recover or wish.repair):
        raise PlanError("weights that are drawn anew for the control (scratch) have nothing to repair or to recover; name one of them")
    if wish.scratch and wish.ablation != "zero":
        raise PlanError(
            f"weights that are drawn anew for the control (scratch) hold no {wish.ablation} of removed heads; leave ablation out"
        )
    check_stand_in(model, made, wish.ablation, wish.repair, wish.kinds)
    heads = HeadMap.of(unwrap(model))

    check_size(made, wish.own_size, _budget(wish))
    if wish.own_size:
        only(_budget(wish), heads, wish.kinds)
        return
    budget = only(_budget(wish), heads, wish.kinds)
    if budget.limit is not None:
        if made.about.trains:
            raise PlanError(f"{made} trains for a number of heads; name that number (keep), or a method that does not train")
        return
    flat = Scores(heads.heads, (0.0,) * len(heads), units=heads.units())
    Plan.keep_top(flat, budget)


def _budget(wish: Wish) -> Budget:
    how: dict[str, Any] = {"keep": wish.keep or None} if wish.limit is None else {wish.limit[0]: wish.limit[1]}
    protected: Any = frozenset(wish.protected)
    return Budget(**how, floor=wish.floor, unit=wish.unit, protected=protected)  # pyright: ignore[reportArgumentType]


def _how(wish: Wish, folder: Path | None = None, progress: Progress | None = None) -> dict[str, Any]:
    """What is done to a choice of heads."""
    told = {
        "repair": False if wish.scratch else wish.repair,
        "recover": wish.recover,
        "recipe": wish.recipe,
        "seed": wish.seed,
        "ablation": wish.ablation,
    }
    return {**told, "folder": folder, "progress": progress}


class Pruning:
    """Prunes one model on one task into a run; what is finished is taken from there."""

    def __init__(
        self,
        run: Run,
        model: nn.Module,
        task: Task,
        *,
        limit: int | None = None,
        command: str = "",
        companions: Path | None = None,
        measured: Sizes | None = None,
    ) -> None:
        self.run, self.model, self.task, self.limit, self.command = run, unwrap(model), task, limit, command
        self.companions, self.measured = companions, measured
        self.made = provenance()
        self.shared: dict[Any, Any] = {}
        self.n_heads = len(HeadMap.of(self.model))
        self.base = {**model_key(self.model), **task_key(task), "limit": limit}
        self.base |= {"revision": REVISION}
        self.base |= {split: fingerprint_of(self.model, task, split) for split in ("calibration", "selection", "report")}

    @cached_property
    def whole_cost(self) -> Cost:
        """What the whole model costs."""
        return cost(self.model)

    def dense(self) -> Evaluation:
        """The whole model on the report split."""
        return evaluate_into(self.run, "dense", self.model, self.task, limit=self.limit)

    def spec(self, wish: Wish) -> ArtifactKey:
        """The artifact of a wish."""
        return ArtifactKey(KIND, wish.name, {**self.base, "wish": wish.parts()})

    def job(self, wish: Wish, *, progress: Progress | None = None) -> Job:
        """How a wish is computed, without its model being kept."""
        return Job(self.spec(wish), lambda: self._compute(wish, False, progress))

    def _compute(self, wish: Wish, keep_model: bool, progress: Progress | None) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        spec = self.spec(wish)
        folder = self.run.folder / WORK / spec.digest[:24]
        made = prune(
            self.model,
            self.task,
            wish.method,
            _budget(wish),
            options=dict(wish.options),
            kinds=wish.kinds,
            shared=self.shared,
            **_how(wish, folder, progress),
        )
        if wish.scratch:
            made = self._anew(wish, made, folder, progress)
        left = evaluate(made.model, self.task, limit=self.limit)
        if keep_model:
            self._save(spec, wish, made, left)
        shutil.rmtree(folder, ignore_errors=True)
        return self._content(wish, made, left), {"losses": left.losses} | ({} if left.parts is None else {"parts": left.parts})

    def _again(self, wish: Wish, artifact: Artifact) -> bool:
        """Makes and saves the model of a finished artifact from what was chosen there, if that changed no weights; says whether it could."""
        if "gates" not in artifact.content or wish.scratch:
            return False
        choice = Choice(Plan.removing(artifact.content["removed"], protected=wish.protected), gates=artifact.content["gates"])
        made = carry_out(self.model, self.task, wish.method, choice, **_how(wish))
        self._save(artifact.key, wish, made, outcome(artifact))
        return True

    def _anew(self, wish: Wish, made: Pruned, folder: Path, progress: Progress | None) -> Pruned:
        assert wish.scratch is not None
        recipe = replace(wish.scratch, seed=wish.seed)
        fresh, trained = from_scratch(self.model, made.plan, self.task, recipe, folder=folder / "scratch", progress=progress)
        history = [*made.history, *({"stage": "scratch", **entry} for entry in trained.history)]
        return replace(made, model=fresh, history=history, steps={**made.steps, "scratch": trained.steps})

    def _content(self, wish: Wish, made: Pruned, left: Evaluation) -> dict[str, Any]:
        blocks = {name: {"share": fitted.share, "before": fitted.before, "after": fitted.after} for name, fitted in made.repaired.items()}
        return {
            "wish": wish.parts(),
            "removed": [str(head) for head in made.plan.removed],
            **({} if made.changed_weights else {"gates": made.gates}),
            "history": made.history,
            "steps": made.steps,
            "repaired": blocks,
            "loss": left.loss,
            "metric": left.metric,
            "higher_is_better": left.higher_is_better,
            "value": left.value,
            "n_examples": left.n_examples,
            "data": left.data,
            "cost": cost(made.model).to_dict(),
            "whole_cost": self.whole_cost.to_dict(),
            "trained": bool(Method.parse(wish.method).about.trains == "weights" or wish.recover),
        }

    def _save(self, spec: ArtifactKey, wish: Wish, made: Pruned, left: Evaluation) -> None:
        timings = self._timed(spec, made.plan.removed, lambda: made.model)
        save(
            made.model,
            self.place(spec),
            command=self.command or None,
            cost=(self.whole_cost, cost(made.model)),
            tokenizer=self.companions,
            notes=card_sentences(wish, self.task.name, self.dense(), left, self._change(self.dense(), left), timings),
            overwrite=True,
        )
        self.run.list_model(self.place(spec))

    def _timed(self, spec: ArtifactKey, removed: Sequence[Any], small: Callable[[], nn.Module]) -> list[dict[str, Any]]:
        """How fast a model is, beside the whole one, masked and not; measured once."""
        if self.measured is None:
            return []
        timed = ArtifactKey("bench", spec.name, {"of": spec.digest, **asdict(self.measured)})
        artifact = self.run.find(timed)
        if artifact is None:
            models = {"dense": self.model, "masked": (self.model, Plan.removing(removed)), "removed": small()}
            found = bench(models, batches=self.measured.batches, lengths=self.measured.lengths, rounds=self.measured.rounds)
            artifact = self.run.commit(timed, {"rows": [asdict(timing) for timing in found]}, provenance=self.made)
        self.run.present(artifact)
        return artifact.content["rows"]

    def timings(self, artifact: Artifact) -> list[dict[str, Any]]:
        """How fast the model of a finished artifact is, if that is to be measured."""
        return self._timed(artifact.key, artifact.content["removed"], lambda: load(self.place(artifact.key)))

    def place(self, spec: ArtifactKey) -> Path:
        """Where the model of an artifact is kept."""
        return self.run.folder / MODELS / f"{safe_name(spec.name)}.{spec.digest[:8]}"

    def model_of(self, wish: Wish) -> nn.Module:
        """The model of a finished wish, loaded and checked."""
        return load(self.place(self.spec(wish)))

    def kept(self, wish: Wish, progress: Progress | None = None) -> tuple[Artifact, nn.Module]:
        """The artifact and the model of a wish: loaded if both are there and whole, else made; the artifact stays as it is if it was there."""
        spec, artifact = self.spec(wish), self.run.find(self.spec(wish))
        problem = self.run.problem_of_model(self.place(spec).name)
        if artifact is not None and self.place(spec).is_dir():
            try:
                if problem is not None:
                    raise ArtifactError(problem.text)
                return artifact, self.model_of(wish)
            except ArtifactError as error:
                self.run.warn(f"{error}; the model is made again")
        if artifact is not None and self._again(wish, artifact):
            return artifact, self.model_of(wish)
        try:
            content, arrays = self._compute(wish, True, progress)
        except HeadcountError as error:
            self.run.log(f"failed: {KIND} {wish.name}: {error}")
            raise
        artifact = artifact or self.run.commit(spec, content, arrays, provenance=self.made)
        return artifact, self.model_of(wish)

    def change(self, dense: Evaluation, artifact: Artifact) -> dict[str, PairedDifference]:
        """How a pruned model differs from the dense one on the same examples."""
        return self._change(dense, outcome(artifact))

    def _change(self, dense: Evaluation, other: Evaluation) -> dict[str, PairedDifference]:
        return compare_with(dense, other, self.task.metric.total if self.task.metric else None)


@dataclass(frozen=True, slots=True)
class TrainingEstimate:
    """How much training lies ahead: how many models train, the fewest and most optimiser steps of one, and the seconds of all."""

    models: int
    fewest: int
    most: int
    seconds: float

    @property
    def sentence(self) -> str:
        """The estimate in words."""
        steps = f"{self.fewest}" if self.fewest == self.most else f"{self.fewest} to {self.most}"
        minutes, seconds = divmod(round(self.seconds), 60)
        duration = f"{minutes} min {seconds} s" if minutes else f"{seconds} s"
        who = "1 model trains" if self.models == 1 else f"{self.models} models train, each"
        return f"{who} for {steps} optimiser steps: about {duration} in all on this machine"


def estimate_training(pruning: Pruning, wishes: Sequence[Wish]) -> TrainingEstimate | None:
    """Returns how long the wishes that are not finished will train, from one step that is timed; None where none of them trains."""
    ahead = [wish for wish in wishes if pruning.run.find(pruning.spec(wish)) is None]
    steps = [number for wish in ahead if (number := wish.n_steps(len(pruning.task.calibration)))]
    if not steps:
        return None
    seconds = estimate_step_seconds(pruning.model, pruning.task, ahead[0].recipe)
    return TrainingEstimate(len(steps), min(steps), max(steps), seconds * sum(steps))


def card_sentences(
    wish: Wish, task: str, dense: Evaluation, left: Evaluation, change: Mapping[str, PairedDifference], timings: Sequence[Mapping[str, Any]]
) -> list[str]:
    """What the card of a model says of it: how it was made, what it can do against the whole model, and how fast it is."""
    told = [f"Pruned by {method_name(wish.parts())} (seed {wish.seed})."]
    for name, whole, now in (("metric", dense.value, left.value), ("loss", dense.loss, left.loss)):
        if name in change and whole is not None and now is not None:
            made = change[name]
            told.append(
                f"{left.metric if name == 'metric' else 'loss'} {now:.4g} on {left.n_examples} examples of {task} that no choice was made on, "
                f"the whole model's {whole:.4g}: {made.difference:+.3g} (95 % {made.low:+.3g} to {made.high:+.3g}, {made.by}, {format_p(made.p)})."
            )
    for batch, length in dict.fromkeys((row["batch"], row["length"]) for row in timings):
        here = {row["name"]: row for row in timings if (row["batch"], row["length"]) == (batch, length)}
        parts = [f"{name} {1000 * row['seconds']:.1f} ms ({format_speed(row['speedup'])})" for name, row in here.items()]
        told.append(f"Batch {batch}, length {length}: {', '.join(parts)}; medians of {here['removed']['rounds']}.")
    return told


def grid(
    methods: Sequence[str], keeps: Sequence[int], seeds: int, template: Wish, *, first: int = 0, training_seeds: int | None = None
) -> list[Wish]:
    """All wishes of a comparison, by so many seeds from `first` on; methods without chance in them get one, and random is always among them.

    Methods that train get `training_seeds`, by default as many as the others. A method of which an option decides how many heads stay (`penalty`
    of l0, `stop` of rank) is there once, not for each of `keeps`.
    """
    wanted = list(dict.fromkeys([*methods, "random"]))
    found = []
    for text in wanted:
        method, options = parse_method(text)
        about = Method.parse(method).about
        named = replace(template, method=method, options={**template.options, **options})
        for keep in keeps if not named.own_size else (0,):
            number = (training_seeds or seeds) if about.trains else seeds if about.draws else 1
            found += [replace(named, keep=keep, seed=seed) for seed in range(first, first + number)]
    return found


def check_methods(methods: Sequence[str]) -> None:
    """Refuses unknown methods and options, before a model is opened for them."""
    for text in methods:
        name, options = parse_method(text)
        made = Method.parse(name)
        read_options(made.module, options, str(made))


def compare(
    pruning: Pruning, wishes: Sequence[Wish], *, progress: Progress | None = None
) -> tuple[Evaluation, list[Artifact], dict[str, HeadcountError]]:
    """The dense model, all artifacts of a grid, and what failed; shown in the run's tables."""
    for wish in wishes:
        check_wish(pruning.model, wish)
    dense = pruning.dense()
    artifacts, failed = sweep(pruning.run, [pruning.job(wish) for wish in wishes], provenance=pruning.made, progress=progress)
    pruning.run.present(*artifacts)
    return dense, artifacts, failed


def rows(pruning: Pruning, dense: Evaluation, artifacts: Sequence[Artifact]) -> list[dict[str, Any]]:
    """One row per artifact: method, heads, seed, metric with its change, interval and p-value, parameters."""
    return rows_of(dense, artifacts, pruning.task.metric.total if pruning.task.metric else None, pruning.n_heads)
