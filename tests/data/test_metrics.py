from __future__ import annotations

from collections.abc import Callable
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from headcount.data import metrics
from headcount.data.metrics import Metric

WORDS = ["the", "a", "boat", "dog", "Haus", "größer", "runs", ",", ".", "3.5", "don't", "(yes)", "日本", "semi-final", '"so"']


def _sentences(random: Random, number: int) -> list[str]:
    return [" ".join(random.choices(WORDS, k=random.randint(0, 12))) for _ in range(number)]


def _near(random: Random, text: str) -> str:
    """The text with some words changed: some n-grams match, some do not."""
    return " ".join(random.choice(WORDS) if random.random() < 0.3 else word for word in text.split())


def _texts() -> tuple[list[str], list[str]]:
    random = Random(5)
    sentences = _sentences(random, 200)
    return [_near(random, text) for text in sentences], sentences


def _parts(metric: Metric, logits: torch.Tensor, labels: torch.Tensor) -> np.ndarray:
    """The sum over batches of unequal size."""
    model = nn.Linear(1, 1)
    cuts = zip(logits.split([30, 1, logits.shape[0] - 31]), labels.split([30, 1, labels.shape[0] - 31]), strict=True)
    return sum(metric.parts(model, SimpleNamespace(logits=x), {"labels": y}).sum(0).numpy() for x, y in cuts)  # pyright: ignore[reportReturnType]


@pytest.mark.parametrize(("make", "name"), [(metrics.bleu, "corpus_bleu"), (metrics.chrf, "corpus_chrf")])
@pytest.mark.parametrize("kept", [slice(None), slice(0, 1), slice(40, 90)])
def test_text_metrics_equal_sacrebleu(make: Callable[[Any], Metric], name: str, kept: slice) -> None:
    import sacrebleu

    spoken_text, expected = (side[kept] for side in _texts())
    rows = iter([(spoken_text[i : i + 7], expected[i : i + 7]) for i in range(0, len(spoken_text), 7)])
    metric = make(lambda _model, _batch: next(rows))
    sums = sum(metric.parts(nn.Identity(), None, {}).sum(0) for _ in range(0, len(spoken_text), 7))
    assert metric.generates
    assert (
        float(metric.total(np.asarray(sums)))
        == getattr(sacrebleu, name)(spoken_text, [expected], **({"force": True} if "bleu" in name else {})).score
    )


def test_text_metrics_take_many_sets_at_once() -> None:
    spoken_text, expected = _texts()
    metric = metrics.bleu(lambda _model, _batch: (spoken_text, expected))
    parts = metric.parts(nn.Identity(), None, {}).numpy()
    sets = np.stack([[parts[:50].sum(0), parts[50:].sum(0)], [parts[:9].sum(0), parts.sum(0)]])
    assert metric.total(sets).shape == (2, 2)
    assert metric.total(sets)[1, 1] == metric.total(parts.sum(0))


@pytest.mark.parametrize("classes", [2, 4])
def test_classification_metrics_equal_sklearn(classes: int) -> None:
    from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

    torch.manual_seed(1)
    logits, labels = torch.randn(90, classes), torch.randint(0, classes, (90,))
    guess = logits.argmax(-1)
    assert metrics.ACCURACY.total(_parts(metrics.ACCURACY, logits, labels)) == pytest.approx(accuracy_score(labels, guess), abs=1e-12)
    assert metrics.MATTHEWS.total(_parts(metrics.MATTHEWS, logits, labels)) == pytest.approx(matthews_corrcoef(labels, guess), abs=1e-12)
    if classes == 2:
        assert metrics.F1.total(_parts(metrics.F1, logits, labels)) == pytest.approx(f1_score(labels, guess), abs=1e-12)


def test_undefined_correlations_are_zero() -> None:
    logits = torch.tensor([[1.0, 0.0]]).repeat(40, 1)
    labels = torch.arange(40) % 2
    assert metrics.MATTHEWS.total(_parts(metrics.MATTHEWS, logits, labels)) == 0
    assert metrics.F1.total(_parts(metrics.F1, logits, labels)) == 0
    assert metrics.PEARSON.total(_parts(metrics.PEARSON, logits[:, :1], labels.float())) == 0


def test_pearson_equals_scipy() -> None:
    from scipy.stats import pearsonr

    torch.manual_seed(2)
    labels = torch.rand(70) * 5
    logits = (labels + torch.randn(70))[:, None]
    ours = metrics.PEARSON.total(_parts(metrics.PEARSON, logits, labels))
    assert ours == pytest.approx(pearsonr(logits[:, 0].double(), labels.double())[0], abs=1e-10)


def test_every_named_metric_says_where_better_is() -> None:
    assert all(metric.higher_is_better for metric in metrics.BY_NAME.values())
    assert not metrics.PERPLEXITY.higher_is_better
