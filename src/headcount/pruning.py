"""Pruning as cells of a run: one model by one method with so many heads, evaluated against the dense one, resumable, and a grid of such."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from headcount.archs.modules import unwrap
from headcount.data import Task, told_of
from headcount.errors import ArtefactError, HeadcountError, PlanError
from headcount.evaluate import Evaluation, evaluate, evaluate_into, fingerprint_of
from headcount.heads import HeadMap
from headcount.plan import Budget, Plan
from headcount.pruners import Method, Pruned, prune
from headcount.pruners._contract import read_options
from headcount.runs.cells import Cell, Spec, safe_name
from headcount.runs.store import Run
from headcount.runs.sweep import Job, sweep
from headcount.runs.weights import determined_by, made_on
from headcount.stats import mcnemar, paired_bootstrap, paired_t
from headcount.stream import Progress
from headcount.surgery import cost, load, save
from headcount.training import Recipe

KIND = "pruned"
MODELS, WORK = "models", "work"


@dataclass(frozen=True, slots=True)
class Wish:
    """One pruned model: the method with its options, how many heads stay, whether it is repaired and recovered, and the seed."""

    method: str
    keep: int
    seed: int = 0
    repair: bool | None = None
    recover: float | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    recipe: Recipe = field(default_factory=Recipe)
    floor: int = 0
    unit: str = "kv_group"
    limit: tuple[str, float] | None = None
    """Instead of a number of heads: parameters, kv_bytes or latency, and how much of it; `keep` is 0 then."""

    @property
    def name(self) -> str:
        """What people call it."""
        parts = [
            self.method,
            *(f"{name}={value}" for name, value in sorted(self.options.items())),
            f"{self.keep} heads" if self.limit is None else f"{self.limit[0]} {self.limit[1]:g}",
        ]
        parts += [f"seed {self.seed}"] if self.seed else []
        parts += ["repaired" if self.repair else "not repaired"] if self.repair is not None else []
        parts += [f"recovered {self.recover:g}"] if self.recover else []
        return ", ".join(parts)

    def parts(self) -> dict[str, Any]:
        """The wish as plain data."""
        told = {name: getattr(self, name) for name in ("method", "keep", "seed", "repair", "recover", "floor", "unit")}
        told |= {"limit": list(self.limit)} if self.limit is not None else {}
        return {**told, "options": dict(self.options), "recipe": self.recipe.told()}


@dataclass(frozen=True, slots=True)
class Change:
    """The difference of a metric or loss from the dense model's on the same examples: interval and p-value, by which test."""

    difference: float
    low: float
    high: float
    p: float
    by: str


def check_wish(model: nn.Module, wish: Wish) -> None:
    """Refuses what cannot be carried out, before any work: unknown methods and options, impossible budgets."""
    made = Method.parse(wish.method)
    read_options(made.module, wish.options, str(made))
    if wish.recover is not None and not wish.recover > 0:
        raise PlanError(f"recover is a number of epochs above 0, got {wish.recover}")
    heads = HeadMap.of(unwrap(model))
    from headcount.scores import Scores

    if _budget(wish).limit is not None:
        if made.about.trains:
            raise PlanError(f"{made} trains for a number of heads; name --keep, or a method that does not train")
        return
    flat = Scores(heads.heads, (0.0,) * len(heads), units=heads.units())
    Plan.keep_top(flat, _budget(wish))


def _budget(wish: Wish) -> Budget:
    how: dict[str, Any] = {"keep": wish.keep} if wish.limit is None else {wish.limit[0]: wish.limit[1]}
    return Budget(**how, floor=wish.floor, unit=wish.unit)  # pyright: ignore[reportArgumentType]


def compare_with(dense: Evaluation, other: Evaluation, total: Any = None, *, seed: int = 0) -> dict[str, Change]:
    """The change of the loss (paired t), and of the metric: McNemar for right or wrong, else a paired bootstrap."""
    shift = paired_t(other.losses - dense.losses)
    found = {"loss": Change(shift.difference, shift.low, shift.high, shift.p, "paired t")}
    if dense.parts is None or other.parts is None or total is None:
        return found
    drawn = paired_bootstrap(dense.parts, other.parts, total, seed=seed)
    p, by = drawn.p, "paired bootstrap"
    if dense.metric == "accuracy" and dense.parts.shape[1] == 2 and set(np.unique(dense.parts[:, 1])) == {1.0}:
        p, by = mcnemar(dense.parts[:, 0], other.parts[:, 0]).p, "McNemar"
    return {**found, "metric": Change(drawn.difference, drawn.low, drawn.high, p, by)}


class Pruning:
    """Prunes one model on one task into a run; what is finished is taken from there."""

    def __init__(self, run: Run, model: nn.Module, task: Task, *, limit: int | None = None, command: str = "") -> None:
        self.run, self.model, self.task, self.limit, self.command = run, unwrap(model), task, limit, command
        self.made = made_on()
        self.n_heads = len(HeadMap.of(self.model))
        self.base = {**determined_by(self.model), **told_of(task), "limit": limit}
        self.base |= {split: fingerprint_of(self.model, task, split) for split in ("calibration", "selection", "report")}

    def dense(self) -> Evaluation:
        """The whole model on the report split."""
        return evaluate_into(self.run, "dense", self.model, self.task, limit=self.limit)

    def spec(self, wish: Wish) -> Spec:
        """The cell of a wish."""
        return Spec(KIND, wish.name, {**self.base, "wish": wish.parts()})

    def job(self, wish: Wish, *, keep_model: bool = False, progress: Progress | None = None) -> Job:
        """How a wish is computed."""
        return Job(self.spec(wish), lambda: self._compute(wish, keep_model, progress))

    def _compute(self, wish: Wish, keep_model: bool, progress: Progress | None) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        spec = self.spec(wish)
        folder = self.run.folder / WORK / spec.key[:24]
        made = prune(
            self.model,
            self.task,
            wish.method,
            _budget(wish),
            options=dict(wish.options),
            repair=wish.repair,
            recover=wish.recover,
            recipe=wish.recipe,
            seed=wish.seed,
            folder=folder,
            progress=progress,
        )
        left = evaluate(made.model, self.task, limit=self.limit)
        if keep_model:
            self._save(spec, made)
        shutil.rmtree(folder, ignore_errors=True)
        return self._content(wish, made, left), {"losses": left.losses} | ({} if left.parts is None else {"parts": left.parts})

    def _content(self, wish: Wish, made: Pruned, left: Evaluation) -> dict[str, Any]:
        blocks = {name: {"share": fitted.share, "before": fitted.before, "after": fitted.after} for name, fitted in made.repaired.items()}
        return {
            "wish": wish.parts(),
            "removed": [str(head) for head in made.plan.removed],
            "history": made.history,
            "repaired": blocks,
            "loss": left.loss,
            "metric": left.metric,
            "higher_is_better": left.higher_is_better,
            "value": left.value,
            "n_examples": left.n_examples,
            "data": left.data,
            "cost": cost(made.model).to_dict(),
        }

    def _save(self, spec: Spec, made: Pruned) -> None:
        save(made.model, self.place(spec), command=self.command or None, cost=(cost(self.model), cost(made.model)), overwrite=True)

    def place(self, spec: Spec) -> Path:
        """Where the model of a cell is kept."""
        return self.run.folder / MODELS / f"{safe_name(spec.name)}.{spec.key[:8]}"

    def model_of(self, wish: Wish) -> nn.Module:
        """The model of a finished wish, loaded and checked."""
        return load(self.place(self.spec(wish)))

    def kept(self, wish: Wish, progress: Progress | None = None) -> tuple[Cell, nn.Module]:
        """The cell and the model of a wish: loaded if both are there and whole, else made; the cell stays as it is if it was there."""
        spec, cell = self.spec(wish), self.run.find(self.spec(wish))
        if cell is not None and self.place(spec).is_dir():
            try:
                return cell, self.model_of(wish)
            except ArtefactError as error:
                self.run.warn(f"{error}; the model is made again")
        content, arrays = self._compute(wish, True, progress)
        cell = cell or self.run.commit(spec, content, arrays, made=self.made)
        return cell, self.model_of(wish)

    def change(self, dense: Evaluation, cell: Cell) -> dict[str, Change]:
        """How a pruned model differs from the dense one on the same examples."""
        return compare_with(dense, outcome(cell), self.task.metric.total if self.task.metric else None)


def outcome(cell: Cell) -> Evaluation:
    """The evaluation in a cell of a pruned model."""
    told = cell.content
    return Evaluation(
        task="",
        split="report",
        n_examples=told["n_examples"],
        losses=cell.arrays["losses"],
        metric=told["metric"],
        higher_is_better=told["higher_is_better"],
        value=told["value"],
        parts=cell.arrays.get("parts"),
        data=told["data"],
    )


def grid(methods: Sequence[str], keeps: Sequence[int], seeds: int, template: Wish) -> list[Wish]:
    """All wishes of a comparison; methods without chance in them get one seed, and random is always among them."""
    wanted = list(dict.fromkeys([*methods, "random"]))
    found = []
    for text in wanted:
        method, options = parse_method(text)
        several = Method.parse(method).about.trains or Method.parse(method).name in ("random", "layers", "role")
        for keep in keeps:
            found += [
                replace(template, method=method, options={**template.options, **options}, keep=keep, seed=seed)
                for seed in range(seeds if several else 1)
            ]
    return found


def parse_method(text: str) -> tuple[str, dict[str, str]]:
    """A method and its options: `name`, `name:variant`, or `name(option=value;…)`; the name of an importance stands for rank by it."""
    name, _, rest = text.strip().partition("(")
    options: dict[str, str] = {}
    if rest:
        if not rest.endswith(")"):
            raise PlanError(f"options of a method stand in brackets, as in rank(by=fisher;again=true); got {text}")
        for pair in filter(None, (part.strip() for part in rest[:-1].split(";"))):
            key, equals, value = pair.partition("=")
            if not equals:
                raise PlanError(f"an option of a method is name=value, got '{pair}'")
            options[key.strip()] = value.strip()
    from headcount.importance import METHODS
    from headcount.pruners import PRUNERS

    base = name.partition(":")[0]
    if base not in PRUNERS.names() and base in METHODS.names():
        return "rank", {"by": name, **options}
    return name, options


def compare(
    pruning: Pruning, wishes: Sequence[Wish], *, progress: Progress | None = None
) -> tuple[Evaluation, list[Cell], dict[str, HeadcountError]]:
    """The dense model, all cells of a grid, and what failed; shown in the run's tables."""
    for wish in wishes:
        check_wish(pruning.model, wish)
    dense = pruning.dense()
    cells, failed = sweep(pruning.run, [pruning.job(wish) for wish in wishes], made=pruning.made, progress=progress)
    pruning.run.present(*cells)
    return dense, cells, failed


def rows(pruning: Pruning, dense: Evaluation, cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """One row per cell: method, heads, seed, metric with its change, interval and p-value, parameters."""
    found = []
    for cell in cells:
        change = pruning.change(dense, cell)
        wish = cell.content["wish"]
        found.append(
            {
                "method": method_name(wish),
                "keep": wish["keep"] or pruning.n_heads - len(cell.content["removed"]),
                "seed": wish["seed"],
                "loss": cell.content["loss"],
                "value": cell.content["value"],
                **{f"{what} {name}": value for what, made in change.items() for name, value in asdict(made).items()},
                "parameters": cell.content["cost"]["parameters"],
            }
        )
    return found


def method_name(wish: Mapping[str, Any]) -> str:
    """How a table calls the method of a wish, with its options and what follows it."""
    options = dict(wish["options"])
    name = options.pop("by", wish["method"]) if wish["method"] == "rank" else wish["method"]
    name += f"({';'.join(f'{key}={value}' for key, value in sorted(options.items()))})" if options else ""
    name += "" if wish["repair"] is None else " + repair" if wish["repair"] else " without repair"
    return name + (f" + recover {wish['recover']:g}" if wish["recover"] else "")


def smallest_safe(table: Sequence[Mapping[str, Any]], *, alpha: float = 0.05) -> dict[str, int | None]:
    """By method, the fewest heads with no significant loss: no seed's p-value below alpha with the loss risen."""
    found: dict[str, int | None] = {}
    for method in dict.fromkeys(row["method"] for row in table):
        mine = [row for row in table if row["method"] == method]
        safe = [
            keep
            for keep in sorted({row["keep"] for row in mine})
            if all(row["loss p"] >= alpha or row["loss difference"] <= 0 for row in mine if row["keep"] == keep)
        ]
        found[method] = safe[0] if safe else None
    return found
