"""No public call changes a model, and no result depends on the passes before it: all families, and models that change themselves when they run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import headcount as hc
from headcount.behaviour.base import Corpus, make_wordless_sequence
from headcount.core.errors import UnsupportedModel
from headcount.data.evaluate import evaluate
from headcount.models import state
from headcount.models.dummy_inputs.text import probe_inputs
from headcount.models.tiny.build import tiny_model
from headcount.models.tiny.families import VARIANTS, family_variant
from headcount.pruning.recipe import Recipe
from headcount.pruning.training.fine_tune import fine_tune
from headcount.surgery.verify import forward_outputs, largest_relative_difference, run_gated
from headcount.testing.calls import probe_task, require_calls_change_nothing
from headcount.testing.fingerprint import ModelChanged, require_unchanged
from headcount.testing.laws import DoesNotApply, Subject, emptying_plan, uneven_plan

DYNAMIC = {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}, "max_position_embeddings": 16}
LONGROPE = {
    "rope_parameters": {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0] * 4,
        "long_factor": [3.0] * 4,
        "original_max_position_embeddings": 16,
    },
    "max_position_embeddings": 64,
}
# Model type, configuration, tokens of the inputs: what changes in a plain pass over them.
CHANGING = {
    "attention of BigBird, short": ("big_bird", {}, 9),
    "attention of BigBird, long": ("big_bird", {}, 40),
    "attention of BigBird-Pegasus, short": ("bigbird_pegasus", {}, 9),
    "attention of BigBird-Pegasus, long": ("bigbird_pegasus", {}, 40),
    "frequencies of dynamic rotary positions": ("llama", DYNAMIC, 24),
    "frequencies of longrope": ("phi3", LONGROPE, 24),
    "table of sinusoidal positions": ("m2m_100", {"max_position_embeddings": 4}, 24),
    "lengths and pooling of Funnel": ("funnel", {}, 24),
    "router of Switch": ("switch_transformers", {}, 9),
    "deltas of multimodal positions": ("qwen2_vl", {}, 9),
    "windows of Swin": ("swin", {}, 9),
}


def _plan(subject: Subject) -> hc.Plan | None:
    try:
        return uneven_plan(subject.cuttable)
    except DoesNotApply:
        return None


def _change_nothing(model: nn.Module, batch: dict[str, Any] | None = None) -> str:
    subject = Subject.of(model, batch)
    return require_calls_change_nothing(subject.model, subject.batch, _plan(subject))


@pytest.mark.parametrize("name", [v.name for v in VARIANTS])
def test_no_call_changes_a_model(name: str) -> None:
    assert _change_nothing(family_variant(name).build())


@pytest.mark.parametrize("name", ["bert", "llama-grouped", "vit"])
def test_no_costly_call_changes_a_model(name: str) -> None:
    """Pruning, roles, relevance and entropy."""
    subject = Subject.of(family_variant(name).build())
    completed = require_calls_change_nothing(subject.model, subject.batch, None, costly=True)
    assert "prune by ranking" in completed and "score by lrp" in completed


@pytest.mark.parametrize("what", CHANGING)
def test_no_call_changes_a_model_that_changes_itself(what: str) -> None:
    model_type, overrides, length = CHANGING[what]
    model = tiny_model(model_type, **overrides)
    assert _change_nothing(model, probe_inputs(model, length=length))


@pytest.mark.parametrize("what", ["attention of BigBird, short", "frequencies of dynamic rotary positions", "windows of Swin"])
def test_the_law_notices_a_model_that_was_not_put_back(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model_type, overrides, length = CHANGING[what]
    model = tiny_model(model_type, **overrides)
    batch = probe_inputs(model, length=length)
    monkeypatch.setattr(state.ModelState, "restore", lambda self: None)
    with pytest.raises(ModelChanged, match="changed"), require_unchanged(model, "run"):
        forward_outputs(model, batch)


def test_a_router_keeps_its_precision() -> None:
    """Switch Transformers turns its router to float32 for good in the first pass."""
    model = tiny_model("switch_transformers", dtype=torch.bfloat16)
    with require_unchanged(model, "verify"):
        hc.HeadMap.of(model).verify(model)
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}


def _rows(batch: dict[str, Any], row: int) -> dict[str, Any]:
    return {name: value[row : row + 1] if isinstance(value, Tensor) else value for name, value in batch.items()}


@pytest.mark.parametrize(("model_type", "overrides", "lengths"), [("big_bird", {}, (40, 9)), ("llama", DYNAMIC, (20, 40))])
def test_a_pass_does_not_depend_on_those_before(model_type: str, overrides: dict[str, Any], lengths: tuple[int, int]) -> None:
    """A short input left BigBird without sparse attention, a long one dynamic rotary positions with other frequencies."""
    model = tiny_model(model_type, **overrides)
    first, second = (probe_inputs(model, length=length) for length in lengths)
    expected = forward_outputs(model, first)
    forward_outputs(model, second)
    assert all(torch.equal(a, b) for a, b in zip(forward_outputs(model, first), expected, strict=True))


def test_scores_do_not_depend_on_the_order_of_examples() -> None:
    models = [tiny_model("big_bird") for _ in range(2)]
    first, second = (_rows(probe_inputs(models[0], length=length), 0) for length in (9, 40))
    tasks = [_uneven_task(first, second), _uneven_task(second, first)]
    losses = [evaluate(model, task, batch_size=1).losses for model, task in zip(models, tasks, strict=True)]
    np.testing.assert_array_equal(losses[0], losses[1][::-1])
    scores = [hc.score(model, task, "gradient", batch_size=1).values for model, task in zip(models, tasks, strict=True)]
    np.testing.assert_allclose(scores[0], scores[1], rtol=1e-9)


def _uneven_task(*examples: dict[str, Any]) -> hc.Task:
    task = probe_task(examples[0])
    rows = list(examples)
    return hc.Task("uneven", rows, rows, rows, lambda chosen: chosen[0], loss=task.loss)


@pytest.mark.parametrize("model_type", ["big_bird", "bigbird_pegasus"])
def test_a_cut_of_sparse_attention_equals_the_gates_on_short_and_long_inputs(model_type: str, tmp_path: Any) -> None:
    """The proof runs sparse attention; the cut model still switches to full attention on a short input, as the dense one does."""
    model = tiny_model(model_type)
    short, long = probe_inputs(model, length=9), probe_inputs(model)
    assert long["input_ids"].shape[1] > 28
    dense = forward_outputs(model, long)
    blocks = Subject.of(model).cuttable
    for plan in (uneven_plan(blocks), emptying_plan(blocks[0])):
        small = hc.cut(model, plan)
        loaded = hc.load(hc.save(small, tmp_path / f"{len(plan.removed)}"))
        for batch in (short, long, short):
            expected = run_gated(model, plan, batch)
            assert largest_relative_difference(forward_outputs(small, batch), expected) < 1e-9
            assert largest_relative_difference(forward_outputs(loaded, batch), expected) < 1e-9
    assert largest_relative_difference(forward_outputs(model, long), dense) == 0


def test_attention_that_a_switch_hides_is_refused() -> None:
    model = tiny_model("big_bird")
    with pytest.raises(UnsupportedModel, match="original_full"), hc.mask(model, ["L0H0"], how="uniform"):
        forward_outputs(model, probe_inputs(model, length=9))


def test_training_on_short_batches_keeps_sparse_attention() -> None:
    model = tiny_model("big_bird", auto="AutoModelForSequenceClassification", num_labels=2, dtype=torch.float32)
    batch = probe_inputs(model, length=9)
    examples = [{**_rows(batch, row % 2), "labels": torch.tensor([row % 2])} for row in range(8)]
    join = probe_task(batch).collate
    fine_tune(model, hc.Task("short", examples, examples, examples, join), Recipe(epochs=1, train_batch=4))
    assert type(model.bert.encoder.layer[0].attention.self).__name__ == "BigBirdBlockSparseAttention"


def test_pruning_and_roles_leave_the_model_as_it_was() -> None:
    """Distillation set the dense model to eval mode, and its configuration got a problem type from the labels."""
    model = tiny_model("bert", auto="AutoModelForSequenceClassification", num_labels=2, dtype=torch.float32).train()
    batch = probe_inputs(model)
    examples = [{**_rows(batch, row % 2), "labels": torch.tensor([row % 2])} for row in range(8)]
    task = hc.Task("labelled", examples, examples, examples, probe_task(batch).collate)
    recipe = Recipe(epochs=1, train_batch=4, distil=0.5)
    calls = {
        "prune by rank, recovered": lambda: hc.prune(model, task, "gradient", 8, recover=1, recipe=recipe),
        "prune by surgeon": lambda: hc.prune(model, task, "surgeon", 8),
        "prune by dsp": lambda: hc.prune(model, task, "dsp", 8, recipe=Recipe(epochs=1, train_batch=4)),
        "roles": lambda: hc.roles(
            model, Corpus((make_wordless_sequence([5, 6, 7, 8, 5]), make_wordless_sequence([9, 10, 11, 9]))), only=["local", "same"]
        ),
    }
    for name, call in calls.items():
        with require_unchanged(model, name, random_numbers=False):  # training seeds them
            call()


def test_passes_that_return_attention_leave_no_hooks() -> None:
    """transformers puts hooks on for good when a pass returns attention maps, and a flag on the model; a second set would give every map twice."""
    model = tiny_model("llama", attn="eager")
    batch = {**probe_inputs(model), "output_attentions": True}
    with require_unchanged(model, "run"):
        forward_outputs(model, batch)
    for _ in range(2):
        with torch.no_grad():
            assert len(model(**batch).attentions) == 2
    with require_unchanged(model, "run"):
        forward_outputs(model, batch)
