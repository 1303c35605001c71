"""Losses of examples: whatever the head, what the model's own loss is on a batch of that example alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import BertForSequenceClassification

import headcount as hc
from headcount.core.errors import NonFinite, UnsupportedModel
from headcount.data.chunks import select_rows
from headcount.data.evaluate import evaluate
from headcount.data.losses import ExampleLosses, OneByOne, require_finite_losses
from headcount.models.dummy_inputs.text import probe_inputs
from headcount.models.observe import evaluating
from headcount.models.tiny.build import tiny_config, tiny_model

N, LENGTH = 4, 7
SIZES = (7, 3, 5, 2)
"""The real tokens of each example."""


def tokens(seed: int = 0) -> Tensor:
    return torch.randint(3, 60, (N, LENGTH), generator=torch.Generator().manual_seed(seed))


def real() -> Tensor:
    return torch.arange(LENGTH) < torch.tensor(SIZES)[:, None]


def text(labels: Tensor, **more: Tensor) -> dict[str, Tensor]:
    return {"input_ids": tokens().masked_fill(~real(), 0), "attention_mask": real().long(), "labels": labels, **more}


def classified(num_labels: int, labels: Tensor, **options: Any) -> tuple[nn.Module, dict[str, Tensor]]:
    return tiny_model("bert", auto="AutoModelForSequenceClassification", num_labels=num_labels, **options), text(labels)


def spans() -> tuple[nn.Module, dict[str, Tensor]]:
    batch = text(torch.zeros(N))
    ends = {"start_positions": torch.tensor([1, 0, 2, 1]), "end_positions": torch.tensor([5, 2, 4, 1])}
    return tiny_model("bert", auto="AutoModelForQuestionAnswering"), {**{k: v for k, v in batch.items() if k != "labels"}, **ends}


def tagged() -> tuple[nn.Module, dict[str, Tensor]]:
    labels = (tokens(1) % 3).masked_fill(~real(), -100)
    return tiny_model("bert", auto="AutoModelForTokenClassification", num_labels=3), text(labels)


def filled_in() -> tuple[nn.Module, dict[str, Tensor]]:
    requests = real() & (torch.arange(LENGTH) % 3 == 1)
    return tiny_model("bert", auto="AutoModelForMaskedLM"), text(tokens(2).masked_fill(~requests, -100))


def continued(model_type: str) -> tuple[nn.Module, dict[str, Tensor]]:
    return tiny_model(model_type, auto="AutoModelForCausalLM"), text(tokens().masked_fill(~real(), -100))


def translated(model_type: str) -> tuple[nn.Module, dict[str, Tensor]]:
    model = tiny_model(model_type, auto="AutoModelForSeq2SeqLM")
    model.config.decoder_start_token_id = 0
    return model, text(tokens(3).flip(0).masked_fill(~real().flip(0), -100))


def pictures() -> tuple[nn.Module, dict[str, Tensor]]:
    model = tiny_model("vit", auto="AutoModelForImageClassification", num_labels=3)
    return model, {"pixel_values": probe_inputs(model, batch=N)["pixel_values"], "labels": torch.tensor([2, 0, 1, 1])}


CASES: dict[str, Callable[[], tuple[nn.Module, dict[str, Tensor]]]] = {
    "classes": lambda: classified(3, torch.tensor([2, 0, 1, 1])),
    "classes in a column": lambda: classified(3, torch.tensor([[2], [0], [1], [1]])),
    "regression": lambda: classified(1, torch.tensor([0.5, -1.0, 2.0, 0.25])),
    "regression on whole numbers": lambda: classified(1, torch.tensor([0.0, 1.0, 2.0, 3.0])),
    "several labels": lambda: classified(
        3, torch.tensor([[1.0, 0, 1], [0, 0, 0], [0, 1, 0], [1, 1, 1]]), problem_type="multi_label_classification"
    ),
    "tags": tagged,
    "masked tokens": filled_in,
    "next tokens": lambda: continued("llama"),
    "next tokens, other positions": lambda: continued("gpt2"),
    "translation": lambda: translated("marian"),
    "translation, shared table": lambda: translated("t5"),
    "spans": spans,
    "pictures": pictures,
}


@pytest.mark.parametrize("case", CASES)
def test_each_loss_is_the_models_own_on_that_example_alone(case: str) -> None:
    model, batch = CASES[case]()
    losses = ExampleLosses(model)
    with evaluating(model):
        actual = losses(model(**batch), batch)
        alone = [model(**select_rows(batch, [i])).loss for i in range(N)]
    assert losses.reads_logits and not losses.one_by_one
    torch.testing.assert_close(actual.double(), torch.stack(alone).double(), rtol=1e-5, atol=1e-6)
    assert len(set(actual.tolist())) == N


class Ranking(BertForSequenceClassification):
    """Its loss compares what no rule knows: the margin between two logits, scaled by the size of the batch."""

    def forward(self, *args: Any, labels: Tensor | None = None, **kwargs: Any) -> Any:
        output = super().forward(*args, **kwargs)
        if labels is not None:
            margins = torch.nn.functional.softplus(output.logits[:, 0] - output.logits[:, 1] * (labels + 1))
            output["loss"] = margins.mean() + 0.1 * margins.max()
        return output


def ranking() -> nn.Module:
    model = Ranking(tiny_config("bert", {"num_labels": 2}))
    model.load_state_dict(tiny_model("bert", auto="AutoModelForSequenceClassification", num_labels=2).state_dict())
    return model.double().eval()


@pytest.mark.parametrize("by", ["gradient:signed", "ablation", "all-but-one", "fisher"])
def test_a_loss_that_no_rule_explains_is_taken_one_example_at_a_time(by: str) -> None:
    model, batch = ranking(), text(torch.tensor([1, 0, 1, 1]))

    def alone(output: Any, rows: Any) -> Tensor:
        margins = torch.nn.functional.softplus(output.logits[:, 0] - output.logits[:, 1] * (rows["labels"] + 1))
        return 1.1 * margins

    examples = [select_rows(batch, [i]) for i in range(N)]
    known = hc.Task("known", examples, examples, examples, lambda rows: {k: torch.cat([r[k] for r in rows]) for k in rows[0]}, loss=alone)
    scores, expected = hc.score(model, batch, by), hc.score(model, known, by)
    np.testing.assert_allclose(scores.values, expected.values, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(scores.stderr, expected.stderr, rtol=1e-9, atol=1e-12)
    assert scores.conditions["batch_size"] == 1
    np.testing.assert_allclose(evaluate(model, batch).losses, evaluate(model, known).losses, rtol=1e-12)


def test_losses_that_cannot_be_told_apart_ask_for_single_examples() -> None:
    model, batch = ranking(), text(torch.tensor([1, 0, 1, 1]))
    losses = ExampleLosses(model)
    with evaluating(model):
        with pytest.raises(OneByOne):
            losses(model(**batch), batch)
        assert losses.one_by_one
        rows = select_rows(batch, [2])
        assert losses(model(**rows), rows).shape == (1,)


def test_a_loss_of_the_tasks_own_takes_the_place_of_the_models() -> None:
    model, batch = CASES["classes"]()
    losses = ExampleLosses(model, lambda output, rows: 2 * cross_entropy(output.logits, rows["labels"], reduction="none"))
    with evaluating(model):
        output = model(**batch)
        torch.testing.assert_close(losses(output, batch), 2 * ExampleLosses(model)(output, batch).double(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("labels", [True, False])
@pytest.mark.parametrize("by", ["gradient", "ablation"])
def test_a_model_without_a_loss_is_refused_with_a_remedy(by: str, labels: bool) -> None:
    model = tiny_model("bert", auto="AutoModel")
    batch = text(torch.tensor([0, 1, 1, 0]))
    with pytest.raises(UnsupportedModel, match=r"no loss.*AutoModelForSequenceClassification.*or a Task with a loss"):
        hc.score(model, batch if labels else {k: v for k, v in batch.items() if k != "labels"}, by)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_losses_in_half_precision_are_told_apart(dtype: torch.dtype) -> None:
    for seed in range(10):
        logits, labels = 2 * torch.randn(8, 3, generator=torch.Generator().manual_seed(seed)), torch.arange(8) % 3
        output = {"logits": logits.to(dtype), "loss": cross_entropy(logits.to(dtype), labels)}
        losses = ExampleLosses(nn.Module())
        assert output["loss"].dtype == dtype and losses(output, {"labels": labels}).shape == (8,) and not losses.one_by_one


def test_the_rule_that_fits_best_is_taken() -> None:
    """Two rules may be within rounding of each other: full precision tells them apart, half precision does not try to."""
    logits, labels = torch.zeros(2, 4, 5), torch.tensor([[1, 2, 3, 4], [4, 3, 2, 1]])
    logits[:, :, 1] += 1e-3 * torch.arange(8).view(2, 4)
    shifted = cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
    expected = cross_entropy(logits[:, :-1].transpose(1, 2), labels[:, 1:], reduction="none").mean(-1)
    torch.testing.assert_close(ExampleLosses(nn.Module())({"logits": logits, "loss": shifted}, {"labels": labels}), expected)
    with pytest.raises(OneByOne):
        ExampleLosses(nn.Module())({"logits": logits, "loss": shifted.bfloat16()}, {"labels": labels})


def test_later_batches_of_another_kind_are_refused() -> None:
    model, batch = CASES["next tokens"]()
    losses = ExampleLosses(model)
    with evaluating(model):
        losses(model(**batch), batch)
        bare = {k: v for k, v in batch.items() if k != "labels"}
        with pytest.raises(UnsupportedModel, match="one kind at a time"):
            losses(model(**bare), bare)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_loss_that_is_no_number_is_named_by_its_example(value: float) -> None:
    with pytest.raises(NonFinite, match="loss of example 17 is"):
        require_finite_losses(torch.tensor([1.0, value, 2.0]), [12, 17, 13])
