"""`score`: runs any number of importances over the data at once and sums them up with their uncertainty."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import fsum
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from headcount.core.arguments import check_arguments
from headcount.core.damage import Damage
from headcount.core.errors import DataError, HeadcountError, NonFinite, OptionError, PlanError
from headcount.core.normalisation import Normalise
from headcount.core.progress import Progress, show_progress
from headcount.core.scores import ROUNDING, Scores
from headcount.core.stats.resampling import pseudovalues
from headcount.core.stats.samples import Samples
from headcount.data.checks import check_finite_weights
from headcount.data.chunks import CHUNK
from headcount.data.draw import limit_split_by_hash
from headcount.data.losses import ExampleLosses
from headcount.data.metrics import ACCURACY, Metric
from headcount.data.stream import ChunkStore, Measured, Reading, stream
from headcount.data.task import Data, Split, Task, document_numbers
from headcount.importance.base import (
    Accumulator,
    BatchImportance,
    BatchMeasurement,
    BlockImportance,
    FeatureImportance,
    Importance,
    ScoreContext,
    WeightImportance,
)
from headcount.importance.columns import MetricChange, RoundingChange, rounding_error
from headcount.importance.race import LOOK, RACE_CHUNK, Race
from headcount.importance.settings import ScoreSettings
from headcount.importance.shared_pass import SharedPass
from headcount.models.head_map import HeadMap
from headcount.models.modules import Batch, device_of, pad_id, unwrap
from headcount.models.ownership import holds_model


@dataclass(frozen=True, slots=True)
class ScoringResult:
    """Scores by label of their method, and the errors of methods that failed alone."""

    scores: dict[str, Scores]
    failures: dict[str, HeadcountError]

    def raise_first_failure(self) -> None:
        """Raises the error of the first method that failed, if any did."""
        for error in self.failures.values():
            raise error


@check_arguments
def score(  # noqa: PLR0913 (a public signature is explicit)
    model: nn.Module,
    data: Data = None,
    by: str | Importance = "gradient",
    *,
    normalise: Normalise = ScoreSettings.normalise,
    split: Split = ScoreSettings.split,
    limit: int | None = ScoreSettings.limit,
    batch_size: int | None = ScoreSettings.batch_size,
    seed: int = ScoreSettings.seed,
    checkpointing: bool = ScoreSettings.checkpointing,
    generate: bool = ScoreSettings.generate,
    adaptive: int | None = ScoreSettings.adaptive,
    progress: bool | Progress = True,
) -> Scores:
    """Returns how much every head of a model matters by one method.

    Args:
        model: a transformer of the transformers library; it is left as it was.
        data: a `Task`, a `datasets.Dataset` of model inputs, or batches with labels. Methods that look at weights alone need none.
        by: the method as text, `"gradient"` or `"gradient:token"`, or as an object, `Gradient("token")`. `headcount ls importance` lists them.
        normalise: `"published"` is the normalisation that belongs to the method (for gradient, Michel et al. 2019 divide by the ℓ2 norm of each
            layer). `"layer"` does so for any method, `"global"` divides by the norm of all scores, `"standard"` gives each layer mean 0 and
            standard deviation 1, `"none"` leaves the values raw. `Scores.normalise` says which was used.
        split: the split of a task to read.
        limit: how many examples to read at most.
        batch_size: examples per batch, by default that of the task; it is halved when memory runs out.
        seed: seed of methods that draw random numbers.
        checkpointing: trades time for memory in the backward pass.
        generate: lets ablations generate text for metrics such as BLEU, which is slow.
        adaptive: stops examining heads once it is clear whether they are among that many lowest units (ablation only).
        progress: a bar on a terminal or in a notebook (True), nothing (False), or a function that is called with (done, total).

    Returns:
        One number per head in the order of `HeadMap.of(model)`, with standard errors and the samples behind them.

    Raises:
        UnknownName: there is no such method, variant, option, normalisation or split.
        OptionError: an argument has the wrong type or is out of range.
        DataError: the method needs data, or the data do not fit the model.
        NonFinite: a number of the method is not finite.
        RoundingError: rounding moves most scores by more than their standard error.

    Example:
        >>> import headcount as hc
        >>> scores = hc.score(hc.load("demo/decoder"), by="magnitude")
        >>> len(scores.ranking()) == len(scores.values)
        True
    """
    settings = ScoreSettings(
        normalise=normalise,
        split=split,
        limit=limit,
        batch_size=batch_size,
        seed=seed,
        checkpointing=checkpointing,
        generate=generate,
        adaptive=adaptive,
    )
    with show_progress(progress, "scoring") as advance:
        (scores,) = score_all(model, data, [by], settings, progress=advance).values()
    return scores


def score_all(
    model: nn.Module,
    data: Data,
    by: Iterable[str | Importance],
    settings: ScoreSettings = ScoreSettings(),
    *,
    progress: Progress | None = None,
) -> dict[str, Scores]:
    """Returns the scores of several methods by label, from one reading of the data; methods that can share a pass do.

    Args:
        model: as for `score`.
        data: as for `score`.
        by: methods as text or objects.
        settings: how the data are read and scores are normalised.
        progress: called with the number of examples done and of all examples, or None where that is unknown.

    Raises:
        HeadcountError: as for `score`; the error of the first method that failed.
    """
    result = compute_scores(model, data, parse_methods(by), settings, progress=progress)
    result.raise_first_failure()
    return result.scores


def parse_methods(by: Iterable[str | Importance]) -> list[Importance]:
    """Returns the importances that a list of texts or objects names.

    Raises:
        OptionError: `by` is a single text.
        UnknownName: no importance has such a name, variant or option.
    """
    if isinstance(by, str):
        raise OptionError(f"by must be a list of importances; got the text '{by}'; write ['{by}']")
    return [Importance.parse(method) for method in by]


@holds_model("scores")
def compute_scores(
    model: nn.Module,
    data: Data,
    methods: Sequence[Importance],
    settings: ScoreSettings,
    *,
    progress: Progress | None = None,
    chunk_store: ChunkStore | None = None,
    earlier_needs: Iterable[str] = (),
) -> ScoringResult:
    """Runs the methods over the data in one pass. This is the engine of `score`, `score_all` and `score_into`.

    A method fails alone if it gives a number that is not finite, or if rounding moves most of its scores by more than their standard error.

    Args:
        model: the model to score.
        data: a task, a dataset or batches; None if no method reads data.
        methods: the importances.
        settings: how the data are read and scores are normalised.
        progress: called with the number of examples done and of all examples.
        chunk_store: stores the results of chunks, so that a pass that was stopped can go on.
        earlier_needs: the `shared_needs` of a pass that stopped, so that the same kernels run again.
    """
    inner = unwrap(model)
    task = data if isinstance(data, Task) else None
    _check_methods(methods, data, settings)
    heads, race = HeadMap.of(inner), None
    if settings.adaptive is not None:
        position = {head: number for number, head in enumerate(heads)}
        race = Race(tuple(tuple(position[head] for head in unit) for unit in heads.units()), settings.adaptive)
    context = ScoreContext(
        inner,
        heads,
        ExampleLosses(inner, task.loss if task else None),
        reading_of(inner, data, settings, progress=progress, chunk_store=chunk_store),
        task.metric if task else None,
        settings.seed,
        settings.generate,
        race,
    )
    check_finite_weights(inner)
    special_ids = task.special_ids if task and task.special_ids else None
    scoring = _ScoringPass(context, methods, checkpointing=settings.checkpointing, special_ids=special_ids, needs=earlier_needs)
    scores = scoring.run()
    scaled = {label: raw.normalise_by(scoring.methods[label].scaling(settings.normalise)) for label, raw in scores.items()}
    return ScoringResult(scaled, scoring.failures)


def _check_methods(methods: Sequence[Importance], data: Data, settings: ScoreSettings) -> None:
    """Raises DataError if data are missing, and PlanError if the methods cannot race, or a race would not use the texts it should generate."""
    streamed = {str(method): method for method in methods if method.reads_data}
    if streamed and data is None:
        raise DataError(f"{next(iter(streamed))} needs data: pass a task, a dataset or batches")
    if settings.adaptive is not None and [method.info.adaptive for method in streamed.values()] != [True]:
        raise PlanError(f"adaptive examines heads by ablation alone, not by {', '.join(streamed) or 'weights'}; score those apart")
    if settings.adaptive is not None and settings.generate:
        raise PlanError("adaptive decides by the loss alone and generates no text; leave adaptive or generate out")


def reading_of(
    model: nn.Module, data: Data, settings: ScoreSettings, *, progress: Progress | None = None, chunk_store: ChunkStore | None = None
) -> Reading:
    """Returns how data are read under these settings; of a report split, which verdicts rest on, a limit draws examples by their content."""
    if settings.split == "report" and isinstance(data, Task):
        data = limit_split_by_hash(data, "report", settings.limit)
    return Reading(
        data,
        split=settings.split,
        limit=settings.limit,
        batch_size=settings.batch_size,
        pad_id=pad_id(model),
        progress=progress,
        chunk_size=CHUNK if settings.adaptive is None else RACE_CHUNK,
        chunk_store=chunk_store,
    )


class _Estimate(NamedTuple):
    """Scores of heads, their standard errors (empty where there are none), and the samples behind them."""

    values: Float[np.ndarray, " heads"]
    stderr: np.ndarray
    samples: Samples | None


class _ChunkDamage(NamedTuple):
    """The rises of the loss of a chunk, and which answers turn wrong (1) or right (−1); None where they are neither right nor wrong."""

    loss_rises: Float[np.ndarray, "examples heads"]
    answer_changes: np.ndarray | None


class _ScoringPass:
    """One pass over the data for several methods."""

    def __init__(
        self,
        context: ScoreContext,
        methods: Iterable[Importance],
        *,
        checkpointing: bool,
        special_ids: frozenset[int] | None,
        needs: Iterable[str],
    ) -> None:
        self.context = context
        self.methods = {str(method): method for method in methods}
        self.streamed = {label: method for label, method in self.methods.items() if method.reads_data}
        by_block = {label: method for label, method in self.streamed.items() if isinstance(method, BlockImportance)}
        self.shared = SharedPass(context, by_block, special_ids=special_ids, checkpointing=checkpointing, needs=needs)
        self.measures: dict[str, Callable[[Batch], BatchMeasurement]] = {}
        self.totals: dict[str, Accumulator] = {}
        self.metrics: dict[str, MetricChange] = {}
        self.rounding: dict[str, RoundingChange] = {}
        self.damages: dict[str, list[_ChunkDamage]] = {}
        self.condition_sums: dict[str, dict[str, list[float]]] = {label: {} for label in self.streamed}
        self.failures: dict[str, HeadcountError] = {}

    def run(self) -> dict[str, Scores]:
        """Returns the scores of every method that did not fail."""
        if self.streamed:
            self._read_data()
        scores = {label: self._scores_of_method(label, method) for label, method in self.methods.items() if label not in self.failures}
        self.failures |= {label: error for label, summary in scores.items() if (error := rounding_error(summary)) is not None}
        return {label: summary for label, summary in scores.items() if label not in self.failures}

    def _read_data(self) -> None:
        """Reads the data until all methods failed, all heads are decided, or no example is left."""
        self.measures = {
            label: method.measure(self.context) for label, method in self.streamed.items() if isinstance(method, BatchImportance)
        }
        race, n_chunks = self.context.race, 0
        for n_chunks, measured in enumerate(stream(self.context.reading, self._measure_batch), 1):
            self._fail_methods_with_nonfinite(measured)
            self._add_chunk(measured)
            if len(self.failures) == len(self.streamed):
                return
            if race is not None and n_chunks % LOOK == 0:
                self._update_race(race)
                if not race.undecided_head_positions:
                    return
        if race is not None and n_chunks % LOOK and self.context.reading.examples > 1:
            self._update_race(race)

    def _update_race(self, race: Race) -> None:
        """Lets the race decide what the examples so far decide."""
        (totals,) = self.totals.values()
        samples = totals.samples()
        assert samples is not None
        race.decide_from_loss_rises(samples)

    def _measure_batch(self, batch: Batch, numbers: list[int]) -> dict[str, Tensor]:
        """Returns the numbers of one batch as the arrays that are stored for a chunk."""
        arrays = self.shared(batch, numbers)
        for label, measure in self.measures.items():
            measurement = measure(batch)
            weights = torch.ones(measurement.values.shape[0], 1) if measurement.weights is None else measurement.weights
            arrays |= {label: measurement.values, f"{label}/weight": weights}
            if measurement.metric is not None and measurement.metric_base is not None:
                arrays |= {f"{label}/metric": measurement.metric, f"{label}/metric_base": measurement.metric_base}
            if measurement.rounding is not None:
                arrays[f"{label}/{ROUNDING}"] = measurement.rounding
            arrays |= {f"{label}/condition/{name}": values for name, values in measurement.conditions.items()}
        return arrays

    def _fail_methods_with_nonfinite(self, measured: Measured) -> None:
        """Stops methods that gave numbers that are not finite, naming example and head."""
        for label in self.streamed.keys() - self.failures.keys():
            bad = np.argwhere(~np.isfinite(measured[label]))
            if len(bad):
                first = self.context.reading.examples - len(measured[label])
                example, head = first + int(bad[0][0]), self.context.heads[int(bad[0][1])]
                self.failures[label] = NonFinite(
                    f"{label} of {head} is no finite number on example {example}; look at the model's outputs there"
                )

    def _add_chunk(self, measured: Measured) -> None:
        """Adds the numbers of a chunk to the totals of every method that did not fail."""
        for label, method in self.streamed.items():
            if label in self.failures:
                continue
            if label not in self.totals:
                self.totals[label] = method.make_accumulator(*measured[label].shape[1:])
            self.totals[label].update(measured[label], measured[f"{label}/weight"])
            self._add_further_columns(label, measured)
            if method.info.measures_loss and self.context.race is None:
                self.damages.setdefault(label, []).append(_damage_of_chunk(label, measured, self.context.metric))

    def _add_further_columns(self, label: str, measured: Measured) -> None:
        """Adds what a method measured beside its scores: conditions, effects of rounding, changes of the metric."""
        prefix = f"{label}/condition/"
        for key in measured:
            if key.startswith(prefix):
                self.condition_sums[label].setdefault(key.removeprefix(prefix), []).append(measured[key].sum())
        if (changes := measured.get(f"{label}/{ROUNDING}")) is not None:
            self.rounding.setdefault(label, RoundingChange(changes.shape[1])).update(changes)
        if (changed := measured.get(f"{label}/metric")) is not None:
            assert self.context.metric is not None
            change = self.metrics.setdefault(label, MetricChange(self.context.metric, *changed.shape[1:]))
            change.update(changed, measured[f"{label}/metric_base"])

    def _scores_of_method(self, label: str, method: Importance) -> Scores:
        """Returns the scores of one method before they are normalised."""
        if isinstance(method, WeightImportance):
            values = method.of_model(self.context).double().cpu().numpy()
            return self._build_scores(method, values, np.zeros_like(values))
        totals = self.totals[label]
        values, stderr, samples = self._estimate_scores(method, totals)
        scores = self._build_scores(method, values, stderr, n_examples=totals.n, samples=samples)
        columns: dict[str, tuple[float, ...]] = {}
        directions: dict[str, bool] = {}
        if label in self.metrics:
            columns |= self.metrics[label].columns()
            directions = self.metrics[label].higher_is_keep_by_column(method.info.higher_is_keep)
        if label in self.rounding:
            columns |= self.rounding[label].columns()
        conditions = {name: fsum(sums) / totals.n for name, sums in self.condition_sums[label].items()}
        if self.context.race is not None and samples is not None:
            columns = {"examples": tuple(np.broadcast_to(samples.weights, samples.sums.shape).sum(0).tolist())}
            conditions |= self.context.race.decisions_as_conditions(scores.heads)
        conditions = {**scores.conditions, **conditions}
        return replace(scores, columns=columns, directions=directions, conditions=conditions, damage=self._damage_of_method(label))

    def _damage_of_method(self, label: str) -> Damage | None:
        """Returns the damage of every example under the interventions of a method that measures it; None of others, and of a race."""
        if label not in self.damages:
            return None
        chunks, reading = self.damages[label], self.context.reading
        answers = [chunk.answer_changes for chunk in chunks if chunk.answer_changes is not None]
        return Damage.in_hash_order(
            reading.hashes,
            np.concatenate([chunk.loss_rises for chunk in chunks]),
            np.concatenate(answers) if len(answers) == len(chunks) else None,
            document_numbers(reading.data, reading.split, reading.examples),
        )

    def _estimate_scores(self, method: Importance, totals: Accumulator) -> _Estimate:
        """Returns values, standard errors (none of a single example) and samples."""
        samples = totals.samples()
        if not isinstance(method, FeatureImportance):
            return _Estimate(totals.mean(), totals.stderr() if totals.n > 1 else np.array([]), samples)
        assert samples is not None
        combine = partial(self._combine_features, method)
        if totals.n < 2:
            return _Estimate(combine(samples.means()), np.array([]), None)
        samples = pseudovalues(samples, combine)
        return _Estimate(samples.means(), samples.stderr(), samples)

    def _combine_features(
        self, method: FeatureImportance, features: Float[np.ndarray, "*leading heads features"]
    ) -> Float[np.ndarray, "*leading heads"]:
        """Turns mean features [..., heads, features] into scores [..., heads], block by block."""
        heads, parts = self.context.heads, []
        widest = max((block.value_dim for block in heads.blocks), default=1)
        for block in heads.blocks:
            width = block.value_dim * (features.shape[-1] // widest)
            block_features = torch.from_numpy(features[..., heads.positions(block), :width])
            parts.append(method.combine(block_features, self.context.model, block).numpy())
        return np.concatenate(parts, axis=-1)

    def _build_scores(
        self, method: Importance, values: np.ndarray, stderr: np.ndarray, *, n_examples: int = 0, samples: Samples | None = None
    ) -> Scores:
        """Returns scores with everything that is known about their conditions."""
        context, reading = self.context, self.context.reading
        task = reading.data if isinstance(reading.data, Task) else None
        return Scores(
            heads=context.heads.heads,
            values=tuple(values.tolist()),
            method=str(method),
            higher_is_keep=method.info.higher_is_keep,
            units=context.heads.units(),
            stderr=tuple(stderr.tolist()),
            n_examples=n_examples,
            samples=samples,
            data=reading.fingerprint if n_examples else "",
            seed=context.seed,
            conditions={
                "model": type(context.model).__name__,
                "dtype": str(next(context.model.parameters()).dtype).removeprefix("torch."),
                "device": device_of(context.model).type,
                "attention": getattr(context.model.config, "_attn_implementation", "eager"),
                "split": reading.split if task else "",
                "task": task.name if task else "",
                "batch_size": reading.batch_size or "auto",
                "torch": torch.__version__,
            },
            describes=method.info.describes,
        )


def _damage_of_chunk(label: str, measured: Measured, metric: Metric | None) -> _ChunkDamage:
    """Returns the rises of the loss of a chunk, and which answers turn wrong (1) or right (−1), where they are right or wrong."""
    changed, base = measured.get(f"{label}/metric"), measured.get(f"{label}/metric_base")
    losses = measured[label].astype(np.float32)
    if changed is None or base is None or metric is None or metric.name != ACCURACY.name or (base[:, 1] != 1).any():
        return _ChunkDamage(losses, None)
    return _ChunkDamage(losses, (base[:, None, 0] - changed[..., 0]).astype(np.int8))
