"""hc.certify on embedded models, from Python."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import headcount as hc
from headcount.core.errors import DataError, OptionError
from headcount.data.draw import limit_splits_by_hash
from headcount.importance.score import reading_of
from headcount.importance.settings import ScoreSettings
from headcount.workflows.certify import certify


@pytest.fixture(scope="module")
def entailment() -> tuple[Any, Any]:
    model = hc.load("demo/entailment")
    return model, hc.open_task("demo/entailment(size=700)", model, hc.load_tokenizer("demo/entailment"))


@pytest.fixture(scope="module")
def certificate(entailment: tuple[Any, Any]) -> Any:
    model, task = entailment
    return hc.certify(hc.cut(model, hc.Plan.removing(["L0H1"])), model, task, margin="5pt", progress=False)


def test_one_head_less_is_certified_with_its_flips(entailment: tuple[Any, Any], certificate: Any) -> None:
    model, task = entailment
    (only,) = certificate.tasks
    assert certificate.verdict == "certified"
    assert only.n_examples == len(task.report)  # the whole report split
    dense, small = (hc.evaluate(each, task, progress=False) for each in (model, hc.cut(model, hc.Plan.removing(["L0H1"]))))
    assert only.quality.dense == dense.value and only.quality.small == small.value
    assert only.quality.bound >= only.quality.loss == pytest.approx(dense.value - small.value)
    lost = [i for i in range(dense.n_examples) if dense.parts[i, 0] > small.parts[i, 0]]
    assert list(only.right_to_wrong) == lost
    assert only.by_loss is not None and only.by_loss.procedure == "betting" and only.by_loss.verdict is None


def test_without_heads_the_model_is_worse(entailment: tuple[Any, Any]) -> None:
    model, task = entailment
    nothing = hc.cut(model, hc.Plan.removing([str(head) for head in hc.HeadMap.of(model)]))
    assert certify(nothing, model, task, margin="1%", progress=False).verdict == "worse"


def test_a_limit_reads_fewer_examples_and_widens_the_bound(entailment: tuple[Any, Any], certificate: Any) -> None:
    model, task = entailment
    few = hc.certify(hc.cut(model, hc.Plan.removing(["L0H1"])), model, task, margin="0.1pt", limit=64, progress=False)
    assert few.tasks[0].n_examples == 64
    assert few.tasks[0].quality.bound > certificate.tasks[0].quality.bound
    assert few.verdict in ("undecided", "worse")


def test_all_tasks_must_hold(entailment: tuple[Any, Any]) -> None:
    model, task = entailment
    small = hc.cut(model, hc.Plan.removing(["L0H1"]))
    both = hc.certify(small, model, [task, "demo/entailment(size=300)"], margin="5pt", limit=300, progress=False)
    assert len(both.tasks) == 2
    assert (both.verdict == "certified") == all(each.verdict == "certified" for each in both.tasks)


def test_bounds_of_translation_and_language_models() -> None:
    translator = hc.load("demo/translator")
    task = hc.open_task("demo/translation", translator, hc.load_tokenizer("demo/translator"), limit=32)
    bleu = hc.certify(hc.cut(translator, hc.Plan.removing(["enc.L0H1"])), translator, task, margin="1pt", progress=False).tasks[0].quality
    assert (bleu.quantity, bleu.procedure, bleu.verdict) == ("BLEU", "paired bootstrap", "undecided")
    assert "256" in bleu.reason
    decoder = hc.load("demo/decoder")
    stories = hc.open_task("demo/stories", decoder, hc.load_tokenizer("demo/decoder"), limit=64)
    perplexity = hc.certify(hc.cut(decoder, hc.Plan.removing([str(head) for head in hc.HeadMap.of(decoder).units()[0]])), decoder, stories,
                            margin="50%", progress=False).tasks[0].quality  # fmt: skip
    assert (perplexity.quantity, perplexity.procedure) == ("perplexity", "betting")
    assert perplexity.bound >= perplexity.loss


def test_wrong_requests_are_errors_before_any_work(entailment: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    model, task = entailment
    monkeypatch.setattr(torch.nn.Module, "__call__", lambda *_: pytest.fail("a model ran before the request was checked"))
    with pytest.raises(OptionError, match=r"option margin of certify must be a text or Margin; got 1; write '1%'"):
        hc.certify(model, model, task, margin=1)  # pyright: ignore[reportArgumentType]
    with pytest.raises(OptionError, match="must name a task"):
        hc.certify(model, model, [], margin="1%")
    with pytest.raises(OptionError, match="loss_margin must be a share"):
        hc.certify(model, model, task, margin="1%", loss_margin="1pt")
    with pytest.raises(OptionError, match="option limit of certify must be an int or none of at least 1; got 0"):
        hc.certify(model, model, task, margin="1%", limit=0)
    with pytest.raises(DataError, match="different labels"):
        hc.certify(hc.load("demo/entailment-english"), _with_labels(), task, margin="1%")


def _with_labels() -> Any:
    model = hc.load("demo/entailment")
    model.config.id2label = {0: "x", 1: "y", 2: "z"}  # pyright: ignore[reportAttributeAccessIssue]
    return model


def test_a_limit_does_not_take_the_first_examples_of_a_file(entailment: tuple[Any, Any]) -> None:
    """A report split that is sorted, the examples that the smaller model loses last: few of them are not all unharmed."""
    model, task = entailment
    nothing = hc.cut(model, hc.Plan.removing([str(head) for head in hc.HeadMap.of(model)]))
    dense, small = (hc.evaluate(each, task, progress=False).parts[:, 0] for each in (model, nothing))
    order = sorted(range(len(task.report)), key=lambda number: dense[number] - small[number])
    sorted_task = replace(task, report=[task.report[number] for number in order], texts=None)
    assert hc.certify(nothing, model, sorted_task, margin="5pt", limit=100, progress=False).verdict == "worse"
    sample = limit_splits_by_hash(sorted_task, 100)
    contents = [str(example) for example in sample.report]
    assert contents == [str(example) for example in sorted_task.report if str(example) in set(contents)], "in their order"
    assert set(contents) == {str(example) for example in limit_splits_by_hash(task, 100).report}, "whatever the order of the file"
    assert set(map(str, limit_splits_by_hash(task, 40).report)) < set(contents), "fewer of the same"
    data = reading_of(model, sorted_task, ScoreSettings(split="report", limit=100)).data
    assert list(map(str, data.report)) == contents, "single heads are judged on the same"
