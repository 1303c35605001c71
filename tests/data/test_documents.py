"""Data whose rows name documents: no split divides one, certificates resample them, and few of them give no verdict."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headcount as hc
from headcount.core.errors import DataError
from headcount.core.evaluation import Evaluation, loss_and_metric_of_pruned_minus_dense, score_interval
from headcount.core.stats.metric_parts import ratio
from headcount.runs.artifacts import Artifact, ArtifactKey
from headcount.runs.results import EVALUATION, pack_evaluation, unpack_evaluation


def open_documents(folder: Path, n_documents: int, *, column: str | None = "article") -> tuple[Any, hc.Task]:
    """The embedded entailment model, and a table of four sentences of each document."""
    model, tokenizer = hc.load("demo/entailment"), hc.load_tokenizer("demo/entailment")
    lines = [
        f"anna sees the cat {'really ' * (number % 5)}of ben\tthe cat {'really ' * turn}sleeps\t{(number + turn) % 3}\tarticle {number}"
        for number in range(n_documents)
        for turn in range(4)
    ]
    path = folder / f"{n_documents}.tsv"
    path.write_text("\n".join(["sentence1\tsentence2\tlabel\tarticle", *lines]) + "\n", encoding="utf-8")
    return model, hc.open_task("classification", model, tokenizer, train=path, document_column=column)


@pytest.mark.filterwarnings("ignore::headcount.core.errors.UnknownTokens")
def test_documents_are_read_kept_whole_and_resampled(tmp_path: Path) -> None:
    model, task = open_documents(tmp_path, 400)
    counts = {split: Counter(names) for split, names in task.documents.items()}
    assert len(counts) == 3 and all(set(count.values()) == {4} for count in counts.values()), "no document is divided"
    few = hc.evaluate(model, task, limit=6, progress=False)
    assert few.documents is not None and few.documents.tolist() == [0, 0, 0, 0, 1, 1]
    content, arrays = pack_evaluation(few)
    assert unpack_evaluation(Artifact(ArtifactKey(EVALUATION, "dense", {}), content, arrays)).documents.tolist() == few.documents.tolist()  # pyright: ignore[reportOptionalMemberAccess]
    small = hc.cut(model, hc.Plan.removing(["L0H1"]))
    certified = hc.certify(small, model, task, margin="50pt", progress=False).tasks[0]
    assert certified.n_documents is not None and certified.n_documents == certified.n_examples / 4 >= 30
    assert certified.quality.procedure == "paired bootstrap" and certified.verdict == "certified"
    undecided = hc.certify(small, model, task, margin="50pt", limit=80, progress=False).tasks[0]
    assert (undecided.n_documents, undecided.verdict) == (20, "undecided") and "20 documents are too few" in undecided.quality.reason


@pytest.mark.filterwarnings("ignore::headcount.core.errors.UnknownTokens")
def test_without_the_option_the_column_is_not_read_and_a_wrong_name_is_an_error(tmp_path: Path) -> None:
    assert open_documents(tmp_path, 40, column=None)[1].documents == {}
    with pytest.raises(DataError, match=r"no column 'artcle' for the document\. Did you mean 'article'"):
        open_documents(tmp_path, 40, column="artcle")
    with pytest.raises(DataError, match="does not use document_column"):
        hc.open_task("demo/entailment", hc.load("demo/entailment"), hc.load_tokenizer("demo/entailment"), document_column="x")


def test_paired_differences_count_documents_not_examples() -> None:
    """Copies of every example in its document tell nothing new: the interval stays that of the documents."""
    draw = np.random.default_rng(0)
    right = draw.integers(0, 2, (2, 240)).astype(float)

    def evaluation(correct: np.ndarray, copies: int, *, named: bool) -> Evaluation:
        every = np.repeat(correct, copies)
        parts, numbers = np.stack([every, np.ones_like(every)], axis=1), np.repeat(np.arange(len(correct)), copies)
        return Evaluation("t", "report", len(every), 1 - every, "accuracy", True, every.mean(), parts, "data", numbers if named else None)

    few, many = ([evaluation(each, copies, named=True) for each in right] for copies in (1, 8))
    for name in ("loss", "metric"):
        first, second = loss_and_metric_of_pruned_minus_dense(*few, ratio)[name], loss_and_metric_of_pruned_minus_dense(*many, ratio)[name]
        assert (first.low, first.high, first.p) == pytest.approx((second.low, second.high, second.p))
    plain = [evaluation(each, 8, named=False) for each in right]
    narrow, wide = loss_and_metric_of_pruned_minus_dense(*plain, ratio), loss_and_metric_of_pruned_minus_dense(*many, ratio)
    assert wide["metric"].by == "paired bootstrap" and narrow["metric"].by == "Tango"
    assert wide["loss"].high - wide["loss"].low > 2 * (narrow["loss"].high - narrow["loss"].low)  # pyright: ignore[reportOptionalOperand]
    ends = score_interval(many[0], ratio), score_interval(plain[0], ratio)
    assert ends[0][1] - ends[0][0] > 2 * (ends[1][1] - ends[1][0])  # pyright: ignore[reportOptionalOperand]
