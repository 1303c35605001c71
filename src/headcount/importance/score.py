"""`score`: runs any number of importance methods over the data at once and sums them up with their uncertainty."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from math import fsum
from typing import Any, TypedDict, Unpack

import numpy as np
import torch
from torch import nn

from headcount.core.errors import DataError, HeadcountError, NonFinite, PlanError
from headcount.core.registry import IMPORTANCES, Variant
from headcount.core.scores import ROUNDING, Normalise, Scaling, Scores, check_normalise
from headcount.core.stats.resampling import pseudovalues
from headcount.core.stats.samples import Samples
from headcount.core.stats.totals import Totals
from headcount.data.checks import check_weights
from headcount.data.losses import ExampleLosses
from headcount.data.metrics import Metric
from headcount.data.stream import Measured, Memory, Progress, Reading, stream
from headcount.data.task import BLOCK, Data, Split, Task
from headcount.importance.base import About, Work
from headcount.importance.metric_change import MetricChange
from headcount.importance.race import LOOK, RACE_BLOCK, Race
from headcount.importance.rounding import RoundingChange, check_rounding
from headcount.importance.shared_pass import SharedPass
from headcount.models.head_map import HeadMap
from headcount.models.modules import device_of, pad_id, unwrap
from headcount.models.ownership import holds


class Method(Variant):
    """An importance by its name and variant; `module` is its file."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> Method:
        """The method that `name` or `name:variant` names."""
        return cls.find(IMPORTANCES, text)

    @property
    def about(self) -> About:
        """What the method declares."""
        return self.module.ABOUT

    def scaling(self, normalise: Normalise) -> Scaling:
        """How scores are normalised on a request: "published" stands for what the method declares."""
        check_normalise(normalise)
        return self.about.normalise if normalise == "published" else normalise

    @property
    def reads_data(self) -> bool:
        """Whether the method needs examples, not weights alone."""
        return not self.has("of_model")

    def has(self, function: str) -> bool:
        """Whether the method's file holds a function of that name."""
        return hasattr(self.module, function)

    def totals(self, shape: tuple[int, ...]) -> Any:
        """What sums up a stream of numbers of that shape per example."""
        return self.module.totals(shape[0], self.variant) if self.has("totals") else Totals(*shape)


class Options(TypedDict, total=False):
    """How data are read and scores given: all keyword arguments of `score`."""

    normalise: Normalise
    split: Split
    limit: int | None
    batch_size: int | None
    seed: int
    checkpointing: bool
    generate: bool
    adaptive: int | None
    progress: Progress | None
    memory: Memory | None
    needs: Iterable[str]


def score(model: nn.Module, data: Data = None, by: str = "gradient", **options: Unpack[Options]) -> Scores:
    """How much every head matters by one method, `name` or `name:variant`; `headcount ls importance` lists them.

    `data` is a Task, a datasets.Dataset of model inputs, or batches; methods that look at weights alone take none.
    `normalise` is by default what was published with the method ("published"): for gradient, Michel et al. 2019 divide by the ℓ2 norm of each
    layer. "layer" does so for any method, "global" divides by the norm of all scores, "standard" makes mean 0 and deviation 1 of each layer, "none"
    gives the raw values; `Scores.normalise` says which was used. Of a task, the `split` calibration is read unless another is named; `limit` reads
    that many examples. `batch_size` falls by halves when memory runs out.
    `checkpointing` trades time for memory in the backward pass. `generate` lets ablations generate text for metrics such as BLEU.
    `adaptive=k` (ablation alone) stops examining heads once it is clear whether they are among the k lowest units.
    `progress` is called with the number of examples done and of all, if known. `memory` keeps the results of blocks (headcount.runs.chunks);
    `needs` are those of methods that shared the pass once, so that it is the same pass again, to the bit.
    """
    return next(iter(score_all(model, data, [by], **options).values()))


def score_all(model: nn.Module, data: Data, by: Iterable[str], **options: Unpack[Options]) -> dict[str, Scores]:
    """The scores of several methods by name, from one reading of the data; methods that need the same forward or backward pass share it."""
    found, failed = score_each(model, data, by, **options)
    for error in failed.values():
        raise error
    return found


@holds("scores")
def score_each(
    model: nn.Module, data: Data, by: Iterable[str], **options: Unpack[Options]
) -> tuple[dict[str, Scores], dict[str, HeadcountError]]:
    """Like score_all, but a method fails alone that meets a number that is not finite, or whose scores drown in rounding: scores and failures
    by method."""
    inner = unwrap(model)
    normalise = options.get("normalise", "published")
    check_normalise(normalise)
    methods = [Method.parse(text) for text in by]
    task = data if isinstance(data, Task) else None
    reading = reading_of(inner, data, options)
    losses = ExampleLosses(inner, task.loss if task else None)
    metric = task.metric if task else None
    work = Work(inner, HeadMap.of(inner), losses, reading, metric, options.get("seed", 0), generate=options.get("generate", False))
    check_weights(inner)
    special_ids = task.special_ids if task and task.special_ids else None
    run = _Run(work, methods, special_ids, options)
    made = {name: scores.normalise_by(Method.parse(name).scaling(normalise)) for name, scores in run.scores().items()}
    return made, run.failed


def reading_of(model: nn.Module, data: Data, options: Options) -> Reading:
    """How data are read under these options."""
    return Reading(
        data,
        split=options.get("split", "calibration"),
        limit=options.get("limit"),
        batch_size=options.get("batch_size"),
        pad_id=pad_id(model),
        progress=options.get("progress"),
        block_size=BLOCK if options.get("adaptive") is None else RACE_BLOCK,
        memory=options.get("memory"),
    )


class _Run:
    """One pass over the data for several methods."""

    def __init__(self, work: Work, methods: Iterable[Method], special_ids: frozenset[int] | None, options: Options) -> None:
        adaptive, checkpointing = options.get("adaptive"), options.get("checkpointing", False)
        self.work = work
        self.methods = {str(method): method for method in methods}
        self.streamed = {name: method for name, method in self.methods.items() if method.reads_data}
        of_block = {name: method for name, method in self.streamed.items() if method.has("of_block")}
        self.shared = SharedPass(work, of_block, special_ids, checkpointing, options.get("needs", ()))
        self.totals: dict[str, Any] = {}
        self.metrics: dict[str, MetricChange] = {}
        self.asides: dict[str, list[float]] = {}
        self.rounding: dict[str, RoundingChange] = {}
        self.failed: dict[str, HeadcountError] = {}
        self.race = self._race(adaptive) if adaptive is not None else None

    def _race(self, k: int) -> Race:
        if [method.name for method in self.streamed.values()] != ["ablation"]:
            raise PlanError(f"adaptive examines heads by ablation alone, not by {', '.join(self.streamed) or 'weights'}; score those apart")
        place = {head: number for number, head in enumerate(self.work.heads)}
        return Race(tuple(tuple(place[head] for head in unit) for unit in self.work.heads.units()), k)

    def scores(self) -> dict[str, Scores]:
        """The scores of every method."""
        if self.streamed:
            self._stream()
        left = {name: method for name, method in self.methods.items() if name not in self.failed}
        scores = {name: self._of_data(name) if name in self.streamed else self._of_model(method) for name, method in left.items()}
        self.failed |= {name: error for name, made in scores.items() if (error := check_rounding(made)) is not None}
        return {name: made for name, made in scores.items() if name not in self.failed}

    def _stream(self) -> None:
        if self.work.reading.data is None:
            raise DataError(f"{next(iter(self.streamed))} needs data: pass a task, a dataset or batches")
        for method in self.streamed.values():
            if method.has("prepare"):
                method.module.prepare(self.work, method.variant)
        number = 0
        for number, measured in enumerate(stream(self.work.reading, self._measure), 1):
            self._check(measured)
            self._take(measured)
            if len(self.failed) == len(self.streamed):
                return
            if self.race is not None and number % LOOK == 0 and self._decided(self.race):
                return
        if self.race is not None and number % LOOK and self.work.reading.examples > 1:
            self._decided(self.race)

    def _decided(self, race: Race) -> bool:
        """Looks at the race and leaves out what is decided; whether nothing is left to do."""
        (name,) = self.streamed
        race.look(self.totals[name].samples())
        self.work.kept[f"{self.methods[name].name}:{self.methods[name].variant}"].active = race.active
        return not race.active

    def _take(self, measured: Measured) -> None:
        for name, method in self.streamed.items():
            if name in self.failed:
                continue
            if name not in self.totals:
                self.totals[name] = method.totals(measured[name].shape[1:])
                if f"{name}/metric" in measured and self.race is None:
                    self.metrics[name] = MetricChange(self._metric, *measured[f"{name}/metric"].shape[1:])
            self.totals[name].update(measured[name], measured[f"{name}/weight"])
            for key in measured:
                if key.startswith(f"{name}/") and measured[key].ndim == 1:
                    self.asides.setdefault(key, []).append(measured[key].sum())
            if (changes := measured.get(f"{name}/{ROUNDING}")) is not None:
                self.rounding.setdefault(name, RoundingChange(changes.shape[1])).update(changes)
            if name in self.metrics:
                self.metrics[name].update(measured[f"{name}/metric"], measured[f"{name}/metric_base"])

    @property
    def _metric(self) -> Metric:
        assert self.work.metric is not None
        return self.work.metric

    def _measure(self, batch: Any, numbers: list[int]) -> dict[str, torch.Tensor]:
        found = self.shared(batch, numbers)
        for name, method in self.streamed.items():
            if method.has("of_batch"):
                made = method.module.of_batch(self.work, batch, method.variant)
                parts = {"": made} if not isinstance(made, Mapping) else dict(made)
                parts.setdefault("weight", torch.ones(parts[""].shape[0], 1))
                found |= {f"{name}/{part}" if part else name: values for part, values in parts.items()}
        return found

    def _check(self, measured: Measured) -> None:
        """Stops methods that gave numbers that are not finite, naming example and head."""
        for name in self.streamed.keys() - self.failed.keys():
            bad = np.argwhere(~np.isfinite(measured[name]))
            if len(bad):
                first = self.work.reading.examples - len(measured[name])
                example, head = first + int(bad[0][0]), self.work.heads[int(bad[0][1])]
                self.failed[name] = NonFinite(
                    f"{name} of {head} is no finite number on example {example}; look at the model's outputs there"
                )

    def _of_data(self, name: str) -> Scores:
        method, totals = self.methods[name], self.totals[name]
        values, stderr, samples = self._summed(method, totals)
        scores = self._scores(method, values, stderr, n=totals.n, samples=samples)
        columns = {key: column for made in (self.metrics, self.rounding) if name in made for key, column in made[name].columns().items()}
        directions = self.metrics[name].directions(method.about.higher_is_keep) if name in self.metrics else {}
        if self.race is not None and samples is not None:
            columns = {"examples": tuple(np.broadcast_to(samples.weights, samples.sums.shape).sum(0).tolist())}
            scores = replace(scores, conditions={**scores.conditions, **self.race.decisions(scores.heads)})
        asides = {key.partition("/")[2]: fsum(sums) / totals.n for key, sums in self.asides.items() if key.startswith(f"{name}/")}
        return replace(scores, columns=columns, directions=directions, conditions={**scores.conditions, **asides})

    def _summed(self, method: Method, totals: Any) -> tuple[np.ndarray, np.ndarray, Samples | None]:
        """Values, standard errors (none of a single example) and samples."""
        samples = totals.samples()
        if method.has("combine"):
            combine = partial(self._combine, method)
            if totals.n < 2:
                return combine(samples.means()), np.array([]), None
            samples = pseudovalues(samples, combine)
            return samples.means(), samples.stderr(), samples
        return totals.mean(), totals.stderr() if totals.n > 1 else np.array([]), samples

    def _combine(self, method: Method, features: np.ndarray) -> np.ndarray:
        """Mean features [..., heads, width] -> scores [..., heads], block by block."""
        parts = []
        for block in self.work.heads.blocks:
            span = self.work.heads.positions(block)
            width = block.value_dim * (features.shape[-1] // self.shared.width)
            mine = torch.from_numpy(features[..., span, :width])
            parts.append(method.module.combine(mine, self.work.model, block, method.variant).numpy())
        return np.concatenate(parts, axis=-1)

    def _of_model(self, method: Method) -> Scores:
        values = method.module.of_model(self.work, method.variant).double().cpu().numpy()
        return self._scores(method, values, np.zeros_like(values), n=0, samples=None)

    def _scores(self, method: Method, values: np.ndarray, stderr: np.ndarray, *, n: int, samples: Samples | None) -> Scores:
        work, reading = self.work, self.work.reading
        return Scores(
            heads=work.heads.heads,
            values=tuple(values.tolist()),
            method=str(method),
            higher_is_keep=method.about.higher_is_keep,
            units=work.heads.units(),
            stderr=tuple(stderr.tolist()),
            n_examples=n,
            samples=samples,
            data=reading.fingerprint if n else "",
            seed=work.seed,
            conditions=_conditions(work, reading),
            describes=method.about.describes,
        )


def _conditions(work: Work, reading: Reading) -> dict[str, Any]:
    parameter = next(work.model.parameters())
    return {
        "model": type(work.model).__name__,
        "dtype": str(parameter.dtype).removeprefix("torch."),
        "device": device_of(work.model).type,
        "attention": getattr(work.model.config, "_attn_implementation", "eager"),
        "split": reading.split if isinstance(reading.data, Task) else "",
        "task": reading.data.name if isinstance(reading.data, Task) else "",
        "batch_size": reading.batch_size or "auto",
        "torch": torch.__version__,
    }
