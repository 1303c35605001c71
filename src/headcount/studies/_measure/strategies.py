"""Models pruned by several strategies to several sizes and trained alike, in pairs with random heads, with each other and with the dense model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING

from headcount.core.budget import Budget
from headcount.core.errors import OptionError
from headcount.core.evaluation import Evaluation
from headcount.core.stats.corrected_rows import add_q_values
from headcount.core.survivors import mean_survivors_by_kind
from headcount.models.head_map import HeadMap
from headcount.models.modules import unwrap
from headcount.pruning.base import Pruner
from headcount.pruning.methods.layers import LayersPruner
from headcount.pruning.recipe import Recipe
from headcount.pruning.spec import PruneSpec
from headcount.studies._base import Effort, LoadedModel, StudyContext
from headcount.studies._gated import allow_other_model
from headcount.studies._grid import estimate_grid_effort, run_grid
from headcount.studies._results import describe_study_run
from headcount.studies._rows import ControlledRow, DifferenceRow
from headcount.studies._tuning import CLASSIFIER, load_as_classifier
from headcount.workflows.grid import Grid, GridPoint, curve_point_minus_dense
from headcount.workflows.prune import Pruning

if TYPE_CHECKING:
    from headcount.studies.strategies import Strategies

RANDOM = "random"
ALL = "all"
"""Stands for all kinds of attention together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyRow(ControlledRow):
    """One strategy within one kind of attention at one number of heads.

    Attributes:
        strategy: The pruner.
        kind: The attention that may lose heads; `all` if any may. `n_kept` heads of it stay.
        share_removed: The share of its heads that goes.
        layers: The mean number of heads that stay in every layer.
    """

    strategy: str
    kind: str
    share_removed: float
    layers: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyPair(DifferenceRow):
    """The difference of a strategy from another one at the same number of heads of the same attention."""

    kind: str
    n_kept: int
    strategy: str
    other: str


@dataclass(frozen=True, slots=True)
class StrategyResult:
    """The dense model after the same training as the pruned ones, over seeds; a row for every strategy, and one for every pair."""

    model: str
    dense: Evaluation
    dense_seeds: tuple[float, ...]
    is_dense_trained: bool
    rows: list[StrategyRow]
    pairs: list[StrategyPair]
    has_one_kind: bool = False
    """Whether heads at random within each type of attention were left out, because the model has one type."""


def build_strategy_requests(study: Strategies, heads: HeadMap, first_seed: int) -> list[PruneSpec]:
    """Returns the requests of all strategies, kinds of attention, sizes and seeds; with training, also of the dense model by each seed."""
    kinds = tuple(dict.fromkeys(block.kind for block in heads.blocks))
    recipe = Recipe(rate=study.rate, train_batch=study.train_batch)
    template = PruneSpec.of(RANDOM, Budget(keep=1), repair=study.repair, recover=study.recover, recipe=recipe)
    groups: list[tuple[str, ...]] = [()]
    if study.by_kind and len(kinds) > 1:
        groups += [(kind,) for kind in kinds]
    pruners, seeds = dict.fromkeys(map(Pruner.parse, (*study.strategies, RANDOM))), range(first_seed, first_seed + study.seeds)
    if len(kinds) == 1:
        pruners.pop(Pruner.parse("random:type"), None)
    for pruner in pruners:
        if pruner.sizing_option_text or pruner.info.trains:
            raise OptionError(f"strategies are pruners that choose a number of heads without training; {pruner} is none of these")
    specs = [
        replace(template, method=pruner, kinds=group, seed=seed).resized(keep)
        for group in groups
        for pruner in pruners
        for keep in study.keep
        for seed in seeds
    ]
    if study.recover is not None:
        specs += [replace(template, seed=seed).resized(len(heads)) for seed in seeds]
    return specs


def open_model_to_prune(study: Strategies, context: StudyContext) -> LoadedModel:
    """Returns the model of a study, or the pre-trained one that it names, with an untrained head for the classes of the study's model.

    Raises:
        OptionError: the pre-trained model has a head already, or that of the study has no classes.
    """
    if not study.pretrained:
        return context.loaded
    own: object = unwrap(context.loaded.model)
    if CLASSIFIER not in type(own).__name__:
        raise OptionError(f"pretrained={study.pretrained} gets a head for classes like that of {context.model_name}, which has none")
    labels: dict[int, str] = dict(getattr(own, "config").id2label)  # noqa: B009 - not every module has a configuration
    return load_as_classifier(context, study.pretrained, [labels[number] for number in sorted(labels)])


def label_strategy(pruner: Pruner) -> str:
    """Returns a pruner in tables: its text, with the layers that go first also where these are the default."""
    return f"layers:{pruner.strategy}" if isinstance(pruner, LayersPruner) else str(pruner)


def estimate_effort(study: Strategies, context: StudyContext) -> Effort:
    """Returns the evaluations and the training steps of all models."""
    specs = build_strategy_requests(study, context.loaded.heads, context.seed)
    return estimate_grid_effort(context, specs, other_subject=study.pretrained)


def measure_strategies(study: Strategies, context: StudyContext) -> StrategyResult:
    """Prunes the model of a study by every strategy to every size, trains all alike, and compares the results."""
    describe_study_run(context, context.loaded, {"study": study.name, "strategies": list(study.strategies), "seeds": study.seeds})
    subject = open_model_to_prune(study, context)
    specs, run = build_strategy_requests(study, subject.heads, context.seed), context.required_run
    allow_other_model(run, subject.model)
    task = context.task if subject is context.loaded else context.sources.open_task(subject)
    pruning = Pruning(run, subject.model, task, limit=context.limit, command=context.command, seed=context.seed)
    grid = run_grid(context, pruning, specs)
    result = summarise_grid(grid, subject.name, is_dense_trained=study.recover is not None, seed=context.seed)
    has_one_kind = len({block.kind for block in subject.heads.blocks}) == 1 and "random:type" in study.strategies
    return replace(result, has_one_kind=has_one_kind)


def summarise_grid(grid: Grid, model_name: str, *, is_dense_trained: bool, seed: int = 0) -> StrategyResult:
    """Returns the rows and pairs of a grid; with `is_dense_trained`, its random request that keeps all heads is the trained dense model."""
    specs = {id(point): PruneSpec.from_dict(point.artifacts[0].content["spec"]) for point in grid.points}
    trained = [point for point in grid.points if is_dense_trained and point.n_kept == len(grid.heads)]
    points = [point for point in grid.points if point not in trained]
    dense = trained[0].evaluation if trained else grid.dense

    def strategy_kind_and_size(point: GridPoint) -> tuple[str, str, int]:
        spec = specs[id(point)]
        kind = spec.kinds[0] if spec.kinds else ALL
        counts = mean_survivors_by_kind(grid.heads.blocks, point.survivors)
        return label_strategy(spec.method), kind, round(sum(number for name, number in counts.items() if kind in (ALL, name)))

    by_key = {strategy_kind_and_size(point): point for point in points}
    n_sizes = Counter((strategy, kind) for strategy, kind, _ in by_key)
    rows, pairs = [], []
    for (strategy, kind, n_kept), point in by_key.items():
        control = None if strategy == RANDOM else by_key.get((RANDOM, kind, n_kept))
        n_free = sum(block.n_heads for block in grid.heads.blocks if kind in (ALL, block.kind))
        rows.append(
            StrategyRow(
                strategy=strategy,
                kind=kind,
                n_kept=n_kept,
                share_removed=1 - n_kept / n_free,
                scores=point.scores,
                change=curve_point_minus_dense(dense, point.evaluation, grid.task, n_sizes=n_sizes[strategy, kind], seed=seed),
                against_random=None if control is None else grid.point_minus_control(point, control, seed=seed),
                layers=mean_survivors_by_kind(grid.heads.blocks, point.survivors, by_layer=True),
            )
        )
    for (first, kind, n_kept), (second, other_kind, n_other) in combinations(by_key, 2):
        if (kind, n_kept) == (other_kind, n_other) and RANDOM not in (first, second):
            change = grid.point_minus_control(by_key[first, kind, n_kept], by_key[second, kind, n_kept], seed=seed)
            pairs.append(StrategyPair(kind=kind, n_kept=n_kept, strategy=first, other=second, change=change))
    values = trained[0].values if trained else (grid.dense.score,)
    return StrategyResult(model_name, dense, values, bool(trained), add_q_values(sort_by_kind_and_size(rows)), add_q_values(pairs))


def sort_by_kind_and_size(rows: Sequence[StrategyRow]) -> list[StrategyRow]:
    """Returns the rows by kind of attention and number of heads, most first, strategies in their order."""
    kinds = list(dict.fromkeys(row.kind for row in rows))
    return sorted(rows, key=lambda row: (kinds.index(row.kind), -row.n_kept))
