"""What a method file holds: `ABOUT`, and one of three functions.

- `of_block(seen, variant)` for what can be read off one forward (and backward) pass; methods share that pass. It returns one number per example
  and head, [batch, heads], or (numbers, weights) for a weighted mean over examples; [batch, heads, features] if the module also has
  `combine(features, model, block, variant)`, which makes the score of each head of a block out of mean features.
- `of_batch(work, batch, variant)` for methods that run the model themselves; returns [batch, heads], or a mapping with that under "" and,
  under "metric" and "metric_base", what each example adds to the metric with each head changed [batch, heads, parts] and without [batch, parts];
  the score is then the rise of the loss, so that its direction gives that of the metric. Under "rounding" [batch, heads] may stand by how much
  each number changes when results are rounded differently; it becomes a column of the scores (see `_rounding`).
  Anything else of shape [batch] is averaged into the conditions of the scores, such as the leakage of relevance.
- `of_model(work, variant)` for methods that need no data; returns [heads].

Optional: `per_example(values, variant)`, applied once all calls of a block are summed; `totals(n_heads, variant)`, another way to sum up the
stream; `prepare(work, variant)`, run once before the data.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from headcount.core.scores import Scaling
from headcount.data.losses import ExampleLosses
from headcount.data.metrics import Metric
from headcount.data.stream import Reading
from headcount.models.head_map import HeadMap
from headcount.models.observe import Observation

__all__ = ["About", "Need", "Observation", "Work", "per_token"]

Need = Literal["weights", "outputs", "attention", "gradient", "labels"]


@dataclass(frozen=True, slots=True)
class About:
    """What a method declares: inputs, direction, cost in passes, where it comes from.

    `adds` says that the numbers of a block that runs several times in a pass add up, as gradients do; else their mean is taken.
    `sees_projection` says that a head whose part of the output projection is zero must come out last. `measures_loss` says that a
    score is the rise of the loss without the head, so that a head is safe to remove where that is small. `describes` says that a score
    describes the head, and nothing about what is lost without it. `normalise` is the normalisation that the source publishes as a part of the
    method; rankings use it unless another is named.
    """

    needs: frozenset[Need]
    higher_is_keep: bool
    cost: str
    source: str
    variants: tuple[str, ...] = ("",)
    adds: bool = False
    sees_projection: bool = True
    measures_loss: bool = False
    describes: bool = False
    normalise: Scaling = "none"


@dataclass(frozen=True, slots=True)
class Work:
    """What a method can use beside the batch."""

    model: nn.Module
    heads: HeadMap
    losses: ExampleLosses
    reading: Reading
    metric: Metric | None = None
    seed: int = 0
    kept: dict[str, Any] = field(default_factory=dict)
    """What `prepare` puts away for `of_batch`, by the method's own keys."""
    generate: bool = False
    """Whether metrics that need generated text are worth their time."""


def per_token(
    values: Float[Tensor, "batch q heads"], queries: Bool[Tensor, "batch q"]
) -> tuple[Float[Tensor, "batch heads"], Float[Tensor, "batch 1"]]:
    """The mean over each example's real tokens, weighted by their number, so that the mean over examples is one over all tokens."""
    number = queries.sum(-1, keepdim=True)
    total = torch.where(queries.unsqueeze(-1), values, 0).sum(1)
    return total / number.clamp(min=1), number.to(values.dtype)
