"""Metrics: numbers for a set of examples, made of per-example parts that add up, so that they can be streamed, resampled and compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from headcount.core.stats.metric_parts import f1, matthews, pearson_correlation, perplexity, ratio, sacrebleu_score_of_sums
from headcount.data.losses import token_cross_entropies
from headcount.models.modules import Batch, shifts_labels
from headcount.models.padding import IGNORED

Parts = Callable[[nn.Module, Any, Batch], Float[Tensor, "batch parts"]]
"""(model, its output on the batch, the batch) -> what each example adds."""


@dataclass(frozen=True, slots=True)
class Metric:
    """`total` turns the summed parts of any set of examples ([..., parts]) into the metric's value ([...]).

    `generates` says that `parts` runs the model itself to produce text, so that the metric cannot be read off one forward pass. `chance` turns the
    labels of all examples into the score of the best constant answer to them, which is what knowing nothing of the input is worth.
    """

    name: str
    parts: Parts
    total: Callable[[Float[np.ndarray, "*sets parts"]], Float[np.ndarray, "*sets"]]
    higher_is_better: bool = True
    generates: bool = False
    chance: Callable[[np.ndarray], float] | None = None


def _count_correct_and_all(_model: nn.Module, output: Any, batch: Batch) -> Float[Tensor, "batch 2"]:
    labels = batch["labels"]
    hit = (output.logits.argmax(-1) == labels).double()
    return torch.stack([hit, torch.ones_like(hit)], dim=-1)


def _logits_and_labels_that_they_predict(
    model: nn.Module, output: Any, batch: Batch
) -> tuple[Float[Tensor, "batch token vocab"], Int[Tensor, "batch token"]]:
    """Returns logits and the labels that they predict, shifted by one token in causal language models."""
    if shifts_labels(model):
        return output.logits[:, -batch["labels"].shape[1] : -1], batch["labels"][:, 1:]
    return output.logits, batch["labels"]


def _count_correct_and_all_tokens(model: nn.Module, output: Any, batch: Batch) -> Float[Tensor, "batch 2"]:
    logits, labels = _logits_and_labels_that_they_predict(model, output, batch)
    real = labels != IGNORED
    hit = (logits.argmax(-1) == labels) & real
    return torch.stack([hit.sum(-1), real.sum(-1)], dim=-1).double()


def _sum_losses_and_count_tokens(model: nn.Module, output: Any, batch: Batch) -> Float[Tensor, "batch 2"]:
    logits, labels = _logits_and_labels_that_they_predict(model, output, batch)
    return torch.stack([token_cross_entropies(logits, labels).double().sum(-1), (labels != IGNORED).sum(-1).double()], dim=-1)


def _one_hot_confusion_cells(_model: nn.Module, output: Any, batch: Batch) -> Float[Tensor, "batch classes*classes"]:
    """One-hot [true, predicted], flattened."""
    labels, guess, classes = batch["labels"], output.logits.argmax(-1), output.logits.shape[-1]
    return torch.nn.functional.one_hot(labels * classes + guess, classes * classes).double()


def _moments_of_prediction_and_label(_model: nn.Module, output: Any, batch: Batch) -> Float[Tensor, "batch 6"]:
    x, y = output.logits.squeeze(-1).double(), batch["labels"].double()
    return torch.stack([torch.ones_like(x), x, y, x * x, y * y, x * y], dim=-1)


def majority_accuracy(labels: np.ndarray) -> float:
    """The accuracy of always naming the most frequent label."""
    return float(np.unique(labels, return_counts=True)[1].max() / labels.size)


def perplexity_of_labels(labels: np.ndarray) -> float:
    """The perplexity of always predicting the labels by their frequencies: exp of their entropy."""
    share = np.unique(labels, return_counts=True)[1] / labels.size
    return float(np.exp(-(share * np.log(share)).sum()))


def f1_of_constant_positive(labels: np.ndarray) -> float:
    """F1 of always naming class 1: 2π / (1 + π), π its share."""
    share = float((labels == 1).mean())
    return 2 * share / (1 + share)


def _zero_chance(_labels: np.ndarray) -> float:
    """The score of a constant answer where that has no worth: correlations, BLEU, chrF."""
    return 0.0


GenerateTexts = Callable[[nn.Module, Batch], tuple[list[str], list[str]]]
"""(model, batch) -> the generated text and the reference of each example."""


def _sacrebleu_metric(name: str, scorer: Any, generate: GenerateTexts) -> Metric:
    """A metric of sacrebleu, whose statistics of segments add up."""

    def segment_statistics(model: nn.Module, _output: Any, batch: Batch) -> Float[Tensor, "batch statistics"]:
        generated, references = generate(model, batch)
        return torch.tensor(scorer._extract_corpus_statistics(generated, [references]), dtype=torch.float64)

    return Metric(name, segment_statistics, sacrebleu_score_of_sums(scorer), generates=True, chance=_zero_chance)


def bleu(generate: GenerateTexts) -> Metric:
    """Corpus BLEU from 0 to 100, sacrebleu's own number for any set of examples."""
    from sacrebleu.metrics.bleu import BLEU

    return _sacrebleu_metric("BLEU", BLEU(force=True), generate)


def chrf(generate: GenerateTexts) -> Metric:
    """Corpus chrF from 0 to 100, sacrebleu's own number for any set of examples."""
    from sacrebleu.metrics.chrf import CHRF

    return _sacrebleu_metric("chrF", CHRF(), generate)


ACCURACY = Metric("accuracy", _count_correct_and_all, ratio, chance=majority_accuracy)
TOKEN_ACCURACY = Metric("token accuracy", _count_correct_and_all_tokens, ratio, chance=majority_accuracy)
PERPLEXITY = Metric("perplexity", _sum_losses_and_count_tokens, perplexity, higher_is_better=False, chance=perplexity_of_labels)
F1 = Metric("F1", _one_hot_confusion_cells, f1, chance=f1_of_constant_positive)
MATTHEWS = Metric("Matthews correlation", _one_hot_confusion_cells, matthews, chance=_zero_chance)
PEARSON = Metric("Pearson correlation", _moments_of_prediction_and_label, pearson_correlation, chance=_zero_chance)

BY_NAME: Mapping[str, Metric] = {"accuracy": ACCURACY, "f1": F1, "matthews": MATTHEWS, "pearson": PEARSON}
"""The metrics of classification and regression, as options name them."""
FROM_TEXTS: Mapping[str, Callable[[GenerateTexts], Metric]] = {"bleu": bleu, "chrf": chrf}
"""The metrics of generated text, as options name them."""
