"""Certificates: bounds, verdicts and sizes in order, on planted evaluations."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from drawn import rng

from headcount.core.certificate import Certificate, certify_task, join_verdicts
from headcount.core.errors import ArtifactError, DataError, OptionError
from headcount.core.evaluation import Evaluation
from headcount.core.margin import Margin
from headcount.core.stats.metric_parts import f1, find_metric_of_sums, perplexity, ratio
from headcount.runs.report.certificates import describe_clip, describe_smallest_margin, describe_verdict, headline

ONE_POINT = Margin.parse("1pt")


def answers(n: int, *, lost: int, won: int, right: float = 0.9) -> tuple[Evaluation, Evaluation]:
    """Two models that are right on most of n examples; the smaller one loses and wins some answers."""
    dense = np.zeros(n)
    dense[: round(right * n)] = 1
    small = dense.copy()
    small[:lost] = 0
    small[n - won :] = 1
    return evaluation_of(dense), evaluation_of(small)


def evaluation_of(correct: np.ndarray) -> Evaluation:
    parts = np.stack([correct, np.ones_like(correct)], axis=1)
    return Evaluation("t", "report", len(correct), 1.0 - correct, "accuracy", True, float(correct.mean()), parts, "data")


def test_equal_models_are_certified_and_a_bad_one_is_worse() -> None:
    certified = certify_task(*answers(2000, lost=20, won=20), ratio, ONE_POINT)
    assert certified.verdict == "certified"
    assert 0 < certified.quality.bound < 0.01
    assert certified.quality.p is not None and certified.quality.p <= 0.05
    worse = certify_task(*answers(2000, lost=100, won=0), ratio, ONE_POINT)
    assert worse.verdict == "worse"
    assert worse.quality.at_least > 0.01


def test_few_examples_are_undecided_and_say_how_many_would_decide() -> None:
    undecided = certify_task(*answers(200, lost=2, won=2), ratio, ONE_POINT)
    assert undecided.verdict == "undecided"
    assert undecided.quality.n_needed is not None and 500 < undecided.quality.n_needed < 2500
    hopeless = certify_task(*answers(200, lost=3, won=0), ratio, ONE_POINT)
    assert hopeless.verdict == "undecided"
    assert hopeless.quality.n_needed is None  # the observed loss is above the margin


def test_the_number_that_would_decide_does_decide() -> None:
    first = certify_task(*answers(200, lost=2, won=2), ratio, ONE_POINT).quality
    assert first.n_needed is not None
    times = -(-first.n_needed // 200)
    assert certify_task(*answers(200 * times, lost=2 * times, won=2 * times), ratio, ONE_POINT).verdict == "certified"


def test_a_verdict_and_its_bound_agree() -> None:
    random = rng(5)
    for _ in range(60):
        n = int(random.integers(150, 1500))
        bound = certify_task(*answers(n, lost=int(random.integers(0, 30)), won=int(random.integers(0, 14))), ratio, ONE_POINT).quality
        assert (bound.verdict == "certified") == (bound.bound <= 0.01), bound
        assert (bound.verdict == "worse") == (bound.at_least >= 0.01), bound


def test_flipped_examples_are_listed() -> None:
    task = certify_task(*answers(100, lost=3, won=2), ratio)
    assert task.right_to_wrong == (0, 1, 2)
    assert task.wrong_to_right == (98, 99)
    assert task.verdict is None and task.quality.verdict is None


def confusions(true: np.ndarray, guess: np.ndarray) -> Evaluation:
    parts = np.eye(4)[true * 2 + guess]
    return Evaluation("t", "report", len(true), (true != guess).astype(float), "F1", True, float(f1(parts.sum(0))), parts, "data")


def test_a_resampled_metric_does_not_take_what_did_not_occur_for_impossible() -> None:
    true = (np.arange(600) % 4 == 0).astype(int)
    same = certify_task(confusions(true, true), confusions(true, true), f1, ONE_POINT).quality
    assert same.loss == 0
    assert same.bound > 0.005  # not 0: three unchanged examples count as changed
    assert same.procedure == "paired bootstrap"


def test_a_resampled_metric_is_undecided_with_few_examples_or_a_rare_class() -> None:
    for true in ((np.arange(200) % 2), (np.arange(600) < 20).astype(int)):
        quality = certify_task(confusions(true, true), confusions(true, true), f1, Margin.parse("20pt")).quality
        assert quality.verdict == "undecided"
        assert "too few" in quality.reason


def test_perplexity_bets_on_the_mean_loss() -> None:
    tokens, losses = np.full(800, 32.0), rng(0).gamma(3.0, 1.0, 800)
    dense = np.stack([losses * tokens, tokens], axis=1)
    small = dense.copy()
    small[:, 0] += rng(1).normal(0.002, 0.01, 800) * tokens

    def window(parts: np.ndarray) -> Evaluation:
        return Evaluation(
            "t", "report", 800, parts[:, 0] / parts[:, 1], "perplexity", False, float(perplexity(parts.sum(0))), parts, "data"
        )

    quality = certify_task(window(dense), window(small), perplexity, Margin.parse("1%")).quality
    assert quality.procedure == "betting"
    assert quality.clip == 0.5
    assert 0.001 < quality.loss / quality.dense < 0.004
    assert quality.verdict == "certified" if quality.bound < 0.01 * quality.dense else quality.verdict == "undecided"
    assert quality.margin_size == pytest.approx(0.01 * quality.dense)
    assert quality.relative_bound == pytest.approx(quality.bound / quality.dense)


def test_documents_are_resampled_and_thirty_are_needed() -> None:
    dense, small = answers(2000, lost=0, won=0)
    few = [replace(one, documents=np.arange(2000) % 10) for one in (dense, small)]
    many = [replace(one, documents=np.arange(2000) % 400) for one in (dense, small)]
    undecided = certify_task(few[0], few[1], ratio, ONE_POINT)
    assert undecided.verdict == "undecided" and "10 documents" in undecided.quality.reason and undecided.n_documents == 10
    assert certify_task(many[0], many[1], ratio, Margin.parse("2pt")).verdict == "certified"


def test_margins_that_do_not_fit_are_refused() -> None:
    dense, small = answers(500, lost=1, won=1)
    plain = [replace(one, metric="", value=None, parts=None) for one in (dense, small)]
    with pytest.raises(OptionError, match="a loss has no points"):
        certify_task(plain[0], plain[1], None, ONE_POINT)
    with pytest.raises(OptionError, match="loss_margin must be a share"):
        certify_task(dense, small, ratio, ONE_POINT, loss_margin=ONE_POINT)
    random = rng(2).integers(0, 2, (2, 400))
    chance = replace(confusions(*random), metric="Matthews correlation")
    with pytest.raises(OptionError, match="may be 0"):
        certify_task(chance, chance, find_metric_of_sums("Matthews correlation"), Margin.parse("1%"))


def test_different_examples_and_metrics_without_parts_are_refused() -> None:
    dense, small = answers(500, lost=1, won=1)
    with pytest.raises(DataError, match="different examples"):
        certify_task(dense, replace(small, data="other"), ratio)
    with pytest.raises(DataError, match="different metrics"):
        certify_task(dense, replace(small, metric="F1"), ratio)
    with pytest.raises(DataError, match="example by example"):
        certify_task(replace(dense, parts=None), small, ratio)


def test_all_margins_and_tasks_must_hold() -> None:
    assert join_verdicts([]) is None
    assert join_verdicts(["certified", "certified"]) == "certified"
    assert join_verdicts(["certified", "undecided"]) == "undecided"
    assert join_verdicts(["certified", "undecided", "worse"]) == "worse"
    dense, small = answers(2000, lost=5, won=5)
    task = certify_task(dense, replace(small, losses=small.losses + 1.0), ratio, ONE_POINT, loss_margin=Margin.parse("1%"))
    assert task.quality.verdict == "certified"
    assert task.verdict == "worse"


def test_a_certificate_is_plain_data() -> None:
    task = certify_task(*answers(500, lost=3, won=2), ratio, ONE_POINT)
    certificate = Certificate("small", "dense", "1pt", (task,), names=("a", "b"))
    text = json.dumps(certificate.to_dict(), allow_nan=False)
    assert Certificate.from_dict(json.loads(text)) == certificate
    with pytest.raises(ArtifactError, match="no certificate"):
        Certificate.from_dict({"small": "x"})


def test_the_order_of_a_file_certifies_nothing() -> None:
    """Harm that comes last in a file, as in one that is sorted by label, has the same bound as harm that is spread."""
    n, alike = 2000, 0
    dense = Evaluation("t", "report", n, np.full(n, 0.5), data="sorted")
    harmed = np.where(np.arange(n) < n // 2, 0.0, 0.5)
    for number in range(5):
        of_data = replace(dense, data=f"sorted {number}")
        sorted_last = certify_task(of_data, replace(of_data, losses=dense.losses + harmed), None, Margin.parse("20%")).quality
        alike += sorted_last.verdict == "worse" and sorted_last.bound > 0.25
    assert alike == 5
    tokens = np.full(n, 32.0)
    parts = np.stack([2.0 * tokens, tokens], axis=1)
    text = Evaluation("t", "report", n, parts[:, 0] / tokens, "perplexity", False, float(perplexity(parts.sum(0))), parts, "sorted")
    worse = replace(text, parts=parts + np.stack([harmed / 5 * tokens, 0 * tokens], axis=1))
    assert certify_task(text, worse, perplexity, Margin.parse("3%")).verdict == "worse"


def test_a_bound_in_words_is_never_below_the_bound() -> None:
    for lost in range(2, 40, 3):
        task = certify_task(*answers(1000, lost=lost, won=4), ratio, Margin.parse("9pt"))
        parts = headline(task).split()
        assert parts[:2] == ["at", "most"] and 100 * task.quality.bound <= float(parts[2]) < 109 * task.quality.bound + 0.1
        assert describe_smallest_margin(task.quality).startswith(f"{parts[2]}pt")
    assert headline(task).endswith("points worse by accuracy (95 %, one-sided, n = 1000)")
    assert describe_verdict(task.quality) == "certified: it loses less than the margin of 9pt"
    assert task.by_loss is not None and describe_clip(task, task.by_loss) == "counting up to 2 nats per example"


def test_what_no_data_like_these_can_decide_has_no_smallest_margin() -> None:
    dense, small = (replace(answer, documents=np.arange(2000) % 10) for answer in answers(2000, lost=2, won=2))
    assert describe_smallest_margin(certify_task(dense, small, ratio).quality) == (
        "none: 10 documents are too few for a verdict, which needs 30"
    )


def test_a_margin_beyond_what_one_example_counts_is_undecided() -> None:
    dense = Evaluation("t", "report", 1000, np.full(1000, 3.0))
    quality = certify_task(dense, replace(dense, losses=np.full(1000, 9.0)), None, Margin.parse("90%")).quality
    assert quality.verdict == "undecided" and "counts up to 2 nats" in quality.reason and quality.n_needed is None


def test_the_number_that_would_decide_is_one_of_examples_also_of_documents() -> None:
    dense, small = answers(2000, lost=30, won=25)
    plain = certify_task(dense, small, ratio, Margin.parse("0.6pt")).quality
    by_document = certify_task(
        *(replace(one, documents=np.arange(2000) // 4) for one in (dense, small)), ratio, Margin.parse("0.6pt")
    ).quality
    assert plain.verdict == by_document.verdict == "undecided"
    assert plain.n_needed is not None and by_document.n_needed is not None and by_document.n_needed > plain.n_needed / 2


def test_the_bound_of_a_loss_is_of_the_mean_over_examples_also_of_documents_that_differ_in_size() -> None:
    """40 documents of 51 examples that lose 0.2 nats, and 2,000 of one example that lose nothing."""
    documents = np.concatenate([np.repeat(np.arange(40), 51), np.arange(40, 2040)])
    dense = Evaluation("t", "report", 4040, np.full(4040, 1.0), data="data", documents=documents)
    small = replace(dense, losses=dense.losses + np.where(documents < 40, 0.2, 0.0))
    quality = certify_task(dense, small, None, Margin.parse("5%")).quality
    assert quality.loss == pytest.approx(quality.small - quality.dense)
    assert quality.at_least < quality.loss < quality.bound and quality.verdict != "certified"
    alike = certify_task(*(replace(one, documents=np.arange(4040) // 4) for one in (dense, small)), None).quality
    assert alike.loss == pytest.approx(quality.loss)


def test_the_loss_beside_a_perplexity_is_clipped_per_token() -> None:
    tokens = np.full(500, 32.0)
    parts = np.stack([2.0 * tokens, tokens], axis=1)
    dense = Evaluation("t", "report", 500, np.full(500, 2.0), "perplexity", False, float(perplexity(parts.sum(0))), parts, "data")
    rises = np.where(np.arange(500) < 50, 2.0, 0.0)
    worse = replace(dense, losses=dense.losses + rises, parts=parts + np.stack([rises * tokens, 0 * tokens], axis=1))
    task = certify_task(dense, worse, perplexity)
    assert task.by_loss is not None and task.by_loss.clip == 0.5
    assert task.by_loss.loss == pytest.approx(0.05)
    assert headline(task).endswith("n = 500, counting up to 0.5 nats per token)")
