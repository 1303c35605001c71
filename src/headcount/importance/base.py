"""Base classes of importances. A method is a frozen dataclass that derives from one of four:

- `BlockImportance`: what one forward (and backward) pass shows of each attention block; all such methods share that pass.
- `FeatureImportance`: a block importance whose score is a function of mean features of a head.
- `BatchImportance`: runs the model itself.
- `WeightImportance`: looks at the weights alone and needs no data.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from typing import ClassVar, Literal, NamedTuple, Protocol, get_args

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from headcount.core.errors import unknown_name_error
from headcount.core.heads import AttentionBlock
from headcount.core.normalisation import Normalise, Scaling
from headcount.core.options import Configurable
from headcount.core.registry import IMPORTANCES
from headcount.core.scores import check_normalise
from headcount.core.stats.samples import Samples
from headcount.core.stats.totals import Totals
from headcount.data.losses import ExampleLosses
from headcount.data.metrics import Metric
from headcount.data.stream import Reading
from headcount.importance.race import Race
from headcount.models.head_map import HeadMap
from headcount.models.modules import Batch
from headcount.models.observe import Observation

Need = Literal["weights", "outputs", "attention", "gradient", "labels"]


@dataclass(frozen=True, slots=True)
class ImportanceInfo:
    """What a method needs and is.

    Attributes:
        needs: what the pass over the data must provide; other fields of an `Observation` can be None.
        higher_is_keep: whether heads with high scores are kept first.
        cost: the cost in passes, in words.
        source: the paper, or "control".
        sums_calls: numbers of a block that runs several times in one pass are added, as gradients are; otherwise they are averaged.
        sees_projection: a head whose part of the output projection is zero must come out last.
        measures_loss: a score is the rise of the loss without the head; the rise of every example is kept (`Scores.damage`).
        describes: the score describes a head and says nothing about what is lost without it.
        adaptive: the method leaves out the heads that `ScoreContext.race` has decided, so that `adaptive=k` can be asked for.
        normalise: the normalisation that the source publishes as a part of the method; rankings use it unless another is named.
    """

    needs: Set[Need]
    higher_is_keep: bool
    cost: str
    source: str
    sums_calls: bool = False
    sees_projection: bool = True
    measures_loss: bool = False
    describes: bool = False
    adaptive: bool = False
    normalise: Scaling = "none"

    def __post_init__(self) -> None:
        for need in self.needs:
            if need not in get_args(Need):
                raise unknown_name_error("need of an importance", need, get_args(Need))


@dataclass(frozen=True, slots=True)
class ScoreContext:
    """What a method can use beside a batch: the model, its heads, and how the data are read.

    `generate` allows metrics that generate text. `race` is set in an adaptive pass and knows which heads are still examined.
    """

    model: nn.Module
    heads: HeadMap
    losses: ExampleLosses
    reading: Reading
    metric: Metric | None = None
    seed: int = 0
    generate: bool = False
    race: Race | None = None


@dataclass(frozen=True, slots=True)
class BatchMeasurement:
    """What a `BatchImportance` measures on one batch.

    Attributes:
        values: one number per example and head, averaged over examples.
        weights: weights of that average, [batch, 1 | heads]; 1 by default.
        metric: what each example adds to the task's metric under the intervention on each head. The values must then be rises of the loss.
        metric_base: what each example adds to the metric without an intervention.
        rounding: by how much each value changes when results are rounded differently.
        conditions: further numbers per example, [batch], whose means stand in the conditions of the scores.
    """

    values: Float[Tensor, "batch heads"]
    weights: Tensor | None = None
    metric: Float[Tensor, "batch heads parts"] | None = None
    metric_base: Float[Tensor, "batch parts"] | None = None
    rounding: Float[Tensor, "batch heads"] | None = None
    conditions: Mapping[str, Tensor] = field(default_factory=dict)


class WeightedValues(NamedTuple):
    """Numbers of each example and head, and the weights of the examples in their mean, [batch, 1 | heads]."""

    values: Float[Tensor, "batch heads *features"]
    weights: Float[Tensor, "batch heads"] | Float[Tensor, "batch 1"]


class Accumulator(Protocol):
    """Sums up a stream of numbers per example; `Totals` is the usual one."""

    n: int

    def update(self, values: Float[np.ndarray, "examples heads *features"], weights: np.ndarray, /) -> None:
        """Adds examples, in order."""
        ...

    def mean(self) -> Float[np.ndarray, "heads ..."]:
        """The mean per head."""
        ...

    def stderr(self) -> Float[np.ndarray, "heads ..."]:
        """The standard error of the mean; empty where there is none."""
        ...

    def samples(self) -> Samples | None:
        """The grouped sums behind the mean; None where nothing can be resampled."""
        ...


@dataclass(frozen=True)
class Importance(Configurable):
    """A method that gives each head one number. Derive from one of its four children."""

    info: ClassVar[ImportanceInfo]
    reads_data: ClassVar[bool] = True
    """Whether the method needs examples, not weights alone."""

    @property
    def rule(self) -> str:
        """The rule that figures and tables name, of a method whose default variant does not; empty for all others."""
        return ""

    @staticmethod
    def parse(text: str | Importance) -> Importance:
        """Returns the importance that a text describes, `gradient:token`; an object is returned as it is.

        Raises:
            UnknownName: no importance has that name, variant or option.
            OptionError: the value of an option does not fit.
        """
        return IMPORTANCES.parse(text, Importance)

    def scaling(self, normalise: Normalise) -> Scaling:
        """Returns how scores are normalised on a request: "published" stands for what the method declares."""
        check_normalise(normalise)
        return self.info.normalise if normalise == "published" else normalise

    def make_accumulator(self, n_heads: int, *n_features: int) -> Accumulator:
        """Returns the accumulator for numbers of that shape per example, [heads] or [heads, features]."""
        return Totals(n_heads, *n_features)


@dataclass(frozen=True)
class BlockImportance(Importance, ABC):
    """An importance that is read off one pass, block by block; several share the pass."""

    @abstractmethod
    def of_block(self, observation: Observation) -> Tensor | tuple[Tensor, Tensor]:
        """Returns numbers [batch, heads], or (numbers, weights [batch, 1 | heads]) for a weighted mean over examples."""

    def per_example(self, values: Float[Tensor, "batch heads *features"]) -> Float[Tensor, "batch heads *features"]:
        """Returns the numbers of each example, from the sums over all calls of each block."""
        return values


@dataclass(frozen=True)
class FeatureImportance(BlockImportance, ABC):
    """A block importance whose `of_block` gives features [batch, heads, features], of whose means the score is a function."""

    @abstractmethod
    def combine(
        self, features: Float[Tensor, "*leading heads features"], model: nn.Module, block: AttentionBlock
    ) -> Float[Tensor, "*leading heads"]:
        """Returns the score of each head of a block from mean features."""


@dataclass(frozen=True)
class BatchImportance(Importance, ABC):
    """An importance that runs the model itself."""

    @abstractmethod
    def measure(self, context: ScoreContext) -> Callable[[Batch], BatchMeasurement]:
        """Returns the function that measures one batch; what is needed once, such as means over the data, is computed here."""


@dataclass(frozen=True)
class WeightImportance(Importance, ABC):
    """An importance that needs no data."""

    reads_data: ClassVar[bool] = False

    @abstractmethod
    def of_model(self, context: ScoreContext) -> Float[Tensor, " heads"]:
        """Returns the score of every head in flat order."""


def per_token(values: Float[Tensor, "batch q heads *features"], queries: Bool[Tensor, "batch q"]) -> WeightedValues:
    """Returns the mean over each example's real tokens, weighted by their number: the mean over examples is then one over all tokens."""
    is_real = queries.reshape(*queries.shape, *[1] * (values.ndim - 2))
    total = torch.where(is_real, values, 0).sum(1)
    return WeightedValues(total / is_real.sum(1).clamp(min=1), queries.sum(-1, keepdim=True).to(values.dtype))
