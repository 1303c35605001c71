"""Data whose rows name documents: no split divides one, certificates resample them, and few of them give no verdict."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import headcount as hc
from headcount.core.errors import DataError
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
