"""Training on transformers' Trainer: gates in anybody's training, recipes, errors, distillation, the control from scratch."""

from __future__ import annotations

import copy
import itertools
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from toys import build, examples, padder, shared, task
from transformers import Trainer, TrainerCallback, TrainingArguments

import headcount as hc
from headcount.core.budget import Budget
from headcount.core.errors import ArtifactError, DataError, NonFinite, OptionError, UnsupportedModel
from headcount.data.evaluate import evaluate
from headcount.models.gates import floating_point_outputs
from headcount.pruning.base import PruneContext
from headcount.pruning.methods.dsp import DSP, SubsetGates
from headcount.pruning.methods.l0 import L0, HardConcrete
from headcount.pruning.recipe import Recipe
from headcount.pruning.training.fine_tune import _build_trainer, fine_tune, train_from_scratch
from headcount.pruning.training.gates import GateCallback
from headcount.pruning.training.trainer import (
    LengthGroupedSampler,
    last_intact_checkpoint,
    list_finished_checkpoints,
    mean_divergence_from_teacher,
)

ROWS = 32
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def context_of(model: Any, kind: str = "encoder") -> PruneContext:
    return PruneContext(model, hc.HeadMap.of(model), task(kind, ROWS), Budget(keep=4))


def subset_gates(model: Any, kind: str = "encoder", number: int = 4, **options: Any) -> SubsetGates:
    return SubsetGates(context_of(model, kind), DSP(init="none", **options), number)


def without_dropout(kind: str = "encoder") -> Any:
    model = build(kind)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return model


def arguments(folder: Path, **options: Any) -> TrainingArguments:
    given = {
        "max_steps": 4,
        "per_device_train_batch_size": 8,
        "report_to": [],
        "use_cpu": True,
        "save_strategy": "no",
        "disable_tqdm": True,
    }
    return TrainingArguments(str(folder), **{**given, "dataloader_pin_memory": False, "logging_steps": 1, **options})


def trainer(model: Any, gates: GateCallback, folder: Path, *callbacks: TrainerCallback, kind: str = "encoder", **options: Any) -> Trainer:
    rows: Any = examples(kind, ROWS)
    return Trainer(
        model=model,
        args=arguments(folder, **options),
        train_dataset=rows,
        eval_dataset=rows[:8],
        data_collator=padder(kind),
        callbacks=[gates, *callbacks],
    )


def arguments_of(recipe: Recipe, parts: int) -> TrainingArguments:
    return arguments(Path("unused"), per_device_train_batch_size=recipe.train_batch // parts, **(recipe.training_arguments or {}))


class Watch(TrainerCallback):
    """Notes the gates that acted in each pass of a model, and whether it was in training."""

    def __init__(self, model: Any, gates: GateCallback) -> None:
        self.seen: list[tuple[bool, Tensor]] = []
        self.gates, self.model = gates, model
        self.events: list[str] = []

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self.model.register_forward_hook(
            lambda *_: self.seen.append((self.model.training, self.gates._gates.values.detach().clone()))  # pyright: ignore[reportCallIssue]
        )

    def on_evaluate(self, *_: Any, **__: Any) -> None:
        self.events.append("evaluate")

    def on_log(self, *_: Any, logs: Any = None, **__: Any) -> None:
        self.events.append("log")


def test_gates_are_sampled_in_training_hard_in_evaluation_and_off_afterwards(tmp_path: Path) -> None:
    model = build("encoder")
    gates = GateCallback(model, subset_gates(model, settle=0.0, cool=1.0, tau_end=0.5))
    watch = Watch(model, gates)
    running = trainer(model, gates, tmp_path, watch, eval_strategy="steps", eval_steps=2)
    running.train()
    trained = [values for training, values in watch.seen if training]
    tested = [values for training, values in watch.seen if not training]
    assert len(trained) == 4 and len(tested) == 2
    assert all(float(values.sum()) == pytest.approx(4) and bool(((values > 1e-3) & (values < 0.999)).any()) for values in trained)
    assert all(not torch.equal(a, b) for a, b in itertools.pairwise(trained)), "a new sample at every step"
    assert all(set(values.tolist()) == {0.0, 1.0} and float(values.sum()) == 4 for values in tested)
    assert {"evaluate", "log"} <= set(watch.events)
    assert [entry["tau"] for entry in gates.history if "loss" in entry] and "gap" in gates.history[0]
    assert not any(hook for module in model.modules() for hook in module._forward_pre_hooks.values()), "the model is left as it was found"
    batch = padder("encoder")(examples("encoder", 4))
    with hc.HeadGates(model, torch.ones(len(hc.HeadMap.of(model)))):
        floating_point_output = floating_point_outputs(model.eval()(**batch))[0]
    assert torch.equal(floating_point_output, floating_point_outputs(model(**batch))[0])


class Kept(TrainerCallback):
    """Keeps the gradient of the gates as it is before they move."""

    def __init__(self, gates: GateCallback) -> None:
        self.gates, self.found = gates, []

    def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
        self.found.append(self.gates.gating.parameters["w"].grad.clone())


@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_accumulation_gives_the_gradient_of_one_big_batch(kind: str) -> None:
    """Also where a model takes the number of items and ignores it, as BERT does: the gradient would be four times too large."""
    actual = []
    for parts in (1, 4):
        model = without_dropout(kind)
        gates = GateCallback(model, subset_gates(model, kind, 2, cool=0.5, tau_end=0.5))
        remaining = Kept(gates)
        with gates:
            recipe = Recipe(train_batch=8, rate=1e-5, training_arguments={"gradient_accumulation_steps": parts, "max_steps": 2})
            running = _build_trainer(model, task(kind, ROWS), recipe, arguments_of(recipe, parts), gates, None, None)
            running.add_callback(remaining)
            running.train()
        actual.append(remaining.found)
    for one, parts in zip(*actual, strict=True):
        assert bool((one != 0).any()) and torch.allclose(one, parts, rtol=1e-4, atol=1e-9)


def test_fine_tuning_in_parts_is_fine_tuning_at_once() -> None:
    """The batch of a recipe is that of a step; with a loss of its own too, and with a teacher."""
    for distil, options in (
        (0.0, {}),
        (0.5, {}),
        (0.5, {"loss": lambda output, batch: torch.nn.functional.cross_entropy(output.logits, batch["labels"], reduction="none")}),
    ):
        made = []
        for more in ({}, {"gradient_accumulation_steps": 4}):
            model = without_dropout()
            data = task("encoder", ROWS, **options)
            made.append(
                (
                    model,
                    fine_tune(
                        model, data, Recipe(train_batch=8, epochs=1.0, distil=distil, training_arguments=more), teacher=shared("encoder")
                    ).steps,
                )
            )
        (one, steps), (parts, again) = made
        assert steps == again == 4
        for a, b in zip(one.parameters(), parts.parameters(), strict=True):
            assert torch.allclose(a, b, atol=1e-6)


def test_gradient_checkpointing_changes_nothing(tmp_path: Path) -> None:
    actual = []
    for number, on in enumerate((False, True)):
        model = without_dropout()
        gates = GateCallback(model, subset_gates(model))
        trainer(model, gates, tmp_path / str(number), gradient_checkpointing=on).train()
        actual.append(gates.gating.parameters["w"].detach())
    assert torch.allclose(*actual, rtol=1e-9) and bool((actual[0] != 0).all())


def test_bf16_works_and_fp16_is_refused(tmp_path: Path) -> None:
    model = build("encoder").float()
    gating = HardConcrete(context_of(model), L0(), 4)
    start = gating.log_a.detach().clone()
    trainer(model, GateCallback(model, gating), tmp_path, bf16=True).train()
    assert bool(torch.isfinite(gating.log_a.detach()).all()) and bool((gating.log_a.detach() != start).any())
    callback = GateCallback(model, gating)
    refused = arguments(tmp_path)
    refused.fp16 = True
    with pytest.raises(UnsupportedModel, match="fp16 scales gradients"):
        callback.on_train_begin(refused, Any, Any)  # pyright: ignore[reportArgumentType]
    with pytest.raises(UnsupportedModel, match="load_best_model_at_end"):
        trainer(model, callback, tmp_path, load_best_model_at_end=True, eval_strategy="steps", save_strategy="steps").train()


class Broken:
    """Gates that break at a step: their values, or the gradient of one."""

    def __init__(self, number: int, where: str) -> None:
        self.w, self.where = torch.ones(number, dtype=torch.float64, requires_grad=True), where
        self.parameters = {"w": self.w}

    def sample(self, step: int, _steps: int) -> Tensor:
        values = self.w * 1.0
        if step == 2:
            bad = torch.zeros_like(values)
            bad[3] = torch.nan
            if self.where == "value":
                return values + bad
        return values

    def gates_for_evaluation(self) -> Tensor:
        return self.w.detach()

    def penalty(self, *_: Any) -> None: ...

    def gate_optimiser(self) -> torch.optim.Optimizer:
        return torch.optim.SGD([self.w], 0.01)

    def log_numbers(self) -> dict[str, float]:
        return {}


class Poison(TrainerCallback):
    def __init__(self, gates: GateCallback) -> None:
        self.gates = gates

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == 2 and self.gates._leaf is not None:
            self.gates._leaf.register_hook(lambda slope: slope.index_fill(0, torch.tensor([5]), torch.nan))


def test_what_is_not_finite_is_named(tmp_path: Path) -> None:
    model = build("encoder")
    heads = hc.HeadMap.of(model)
    with GateCallback(model, Broken(len(heads), "value")) as gates, pytest.raises(NonFinite, match=f"gate of {heads[3]} .* at step 2"):
        trainer(model, gates, tmp_path).train()
    with (
        GateCallback(model, Broken(len(heads), "")) as gates,
        pytest.raises(NonFinite, match=f"gradient of the gate of {heads[5]} .*step 2"),
    ):
        trainer(model, gates, tmp_path, Poison(gates)).train()
    assert not any(module._forward_pre_hooks for module in model.modules()), "the context took the gates off"


def test_a_plain_trainer_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    complete, ends = [], []
    for stop in (None, 2):
        model = build("encoder")
        gating = subset_gates(model)
        folder = tmp_path / str(stop)
        running = trainer(model, GateCallback(model, gating), folder, save_strategy="steps", save_steps=2)
        running.train()
        if stop:
            model = build("encoder")
            gating = subset_gates(model)
            running = trainer(model, GateCallback(model, gating), folder, save_strategy="steps", save_steps=2)
            running.train(resume_from_checkpoint=str(folder / "checkpoint-2"))
        complete.append([parameter.detach() for parameter in model.parameters()])
        ends.append(gating.w.detach())
    assert torch.equal(*ends) and all(torch.equal(a, b) for a, b in zip(*complete, strict=True))
    (folder / "checkpoint-2" / "gates.safetensors").unlink()
    with GateCallback(model, gating) as gates, pytest.raises(ArtifactError, match="holds no gates"):
        trainer(model, gates, folder).train(resume_from_checkpoint=str(folder / "checkpoint-2"))


# Recipes.


def test_a_recipe_trains_and_leaves_the_model_as_a_model() -> None:
    model = build("decoder")
    cache = model.config.use_cache
    before = evaluate(model, task("decoder", ROWS)).loss
    observed_values: list[tuple[int, int]] = []
    trained = fine_tune(
        model, task("decoder", ROWS), Recipe(epochs=8, rate=1e-3, train_batch=8), progress=lambda *told: observed_values.append(told)
    )
    assert trained.steps == 32 and observed_values[-1] == (256, 256) and {"step", "loss", "learning_rate"} <= trained.history[0].keys()
    assert evaluate(model, task("decoder", ROWS)).loss < before and model.config.use_cache == cache and not model.training


def test_trainer_arguments_are_passed_through() -> None:
    trained = fine_tune(
        build("encoder"),
        task("encoder", ROWS),
        Recipe(train_batch=8, training_arguments={"max_steps": 3, "logging_steps": 1, "max_grad_norm": 1e-9}),
    )
    assert trained.steps == 3 and [entry["step"] for entry in trained.history] == [1, 2, 3]


def test_training_stays_where_the_model_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model on the CPU is trained there, also on a machine that has more."""
    module = sys.modules["headcount.pruning.training.fine_tune"]  # the package has the function under this name

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    requests = {}
    monkeypatch.setattr(module, "TrainingArguments", lambda **settings: requests.update(settings))
    module._training_arguments(build("encoder"), Recipe(), 0, tmp_path, task("encoder"), save=False)
    assert requests["use_cpu"] and not requests["dataloader_pin_memory"]
    module._training_arguments(build("encoder").to("meta"), Recipe(), 0, tmp_path, task("encoder"), save=False)
    assert not requests["use_cpu"]


@pytest.mark.parametrize("kind", ["encoder", "decoder", "marian"])
def test_distillation_brings_a_model_to_its_teacher(kind: str) -> None:
    """All weight on the teacher, labels made wrong: only the teacher can have taught it."""
    teacher = shared(kind)
    student = build(kind)
    with torch.no_grad():
        for parameter in student.parameters():
            parameter += 0.02 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0), dtype=parameter.dtype)
    batch = padder(kind)(examples(kind, ROWS))

    def apart() -> float:
        with torch.no_grad():
            return float(mean_divergence_from_teacher(teacher, student.eval()(**batch), batch))

    before = apart()
    fine_tune(student, task(kind, ROWS), Recipe(epochs=10, rate=5e-4, train_batch=8, distil=1.0), teacher=teacher)
    assert apart() < 0.6 * before


def test_the_teacher_of_a_recovery_is_none_of_the_choice() -> None:
    recipe = Recipe(steps=2, train_batch=8)
    plain, distilled = (
        hc.prune(shared("encoder"), task("encoder", ROWS), "l0", 6, recover="2steps", recipe=replace(recipe, distil=distil), progress=False)
        for distil in (0.0, 0.9)
    )
    assert plain.plan == distilled.plan and plain.steps == distilled.steps == {"choose": 2, "recover": 2}
    losses = [[entry["loss"] for entry in pruned.history if entry.get("stage") == "recover"] for pruned in (plain, distilled)]
    assert losses[0] != losses[1], "the recovery learns from the dense model"


def test_divergence_counts_the_tokens_that_are_predicted() -> None:
    """In a causal model a label is predicted by the token before it; ignored ones do not count."""
    teacher, model = shared("decoder"), without_dropout("decoder")
    with torch.no_grad():
        next(model.parameters()).mul_(1.1)
    ids = torch.randint(3, 90, (2, 6), generator=torch.Generator().manual_seed(0))
    labels = ids.clone()
    labels[:, :4] = -100
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}
    with torch.no_grad():
        given, wanted = (m.eval()(**batch).logits[:, 3:5].log_softmax(-1) for m in (model, teacher))
        expected = (wanted.exp() * (wanted - given)).sum(-1).mean()
        actual = mean_divergence_from_teacher(teacher, model(**batch), batch)
    assert float(actual) == pytest.approx(float(expected), rel=1e-5) and float(actual) > 0


BAD: Mapping[str, tuple[Recipe, str]] = {
    "few": (Recipe(train_batch=64), "batches of 64 .* has 32 examples of calibration; give more data"),
    "parts": (
        Recipe(train_batch=9, training_arguments={"gradient_accumulation_steps": 2}),
        "9 examples cannot be shared evenly .* multiple of 2",
    ),
    "no teacher": (Recipe(train_batch=8, distil=0.5), "needs a teacher"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_trained_is_refused(name: str) -> None:
    recipe, messages = BAD[name]
    with pytest.raises(DataError, match=messages):
        fine_tune(shared("encoder"), task("encoder", ROWS), recipe)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"epochs": 0}, "option epochs of recipe must be a float or none above 0; got 0"),
        ({"distil": 1.5}, "option distil of recipe .* got 1.5"),
    ],
)
def test_a_recipe_refuses_values_out_of_range(values: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        Recipe(train_batch=8, **values)


def test_bad_examples_and_numbers_are_named() -> None:
    rows = examples("encoder", ROWS)
    rows[17] = {**rows[17], "labels": 9}
    model = build("encoder")
    with pytest.raises(DataError, match="example 17: label 9 is none of the model's 3"):
        fine_tune(model, task("encoder", rows=rows), Recipe(train_batch=8))
    assert not model.training
    with pytest.raises(NonFinite, match=r"training loss is (nan|inf) at step \d"):
        fine_tune(
            build("encoder"),
            task("encoder", ROWS),
            Recipe(train_batch=8, epochs=20, rate=1e18, warmup=0, training_arguments={"max_grad_norm": 0}),
        )
    with torch.no_grad():
        next(model.parameters())[0] = torch.nan
    with pytest.raises(NonFinite):
        fine_tune(model, task("encoder", ROWS), Recipe(train_batch=8))


def test_a_damaged_checkpoint_is_set_aside(tmp_path: Path) -> None:
    recipe = Recipe(train_batch=8, epochs=3, save_every=4)
    model = build("encoder")
    fine_tune(model, task("encoder", ROWS), recipe, folder=tmp_path)
    assert [path.name for path in list_finished_checkpoints(tmp_path)] == ["checkpoint-8", "checkpoint-12"]
    weights = tmp_path / "checkpoint-12" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-7] ^= 1
    weights.write_bytes(content)
    again = build("encoder")
    with pytest.warns(UserWarning, match="checkpoint-12 is damaged .*model.safetensors.* set aside"):
        fine_tune(again, task("encoder", ROWS), recipe, folder=tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
    assert last_intact_checkpoint(tmp_path) == tmp_path / "checkpoint-12" and (tmp_path / "damaged-checkpoint-12").exists()


def test_ctrl_c_leaves_a_training_that_goes_on(tmp_path: Path) -> None:
    recipe = Recipe(train_batch=8, epochs=3, save_every=2)
    model, stopped = build("encoder"), build("encoder")
    fine_tune(model, task("encoder", ROWS), recipe, folder=tmp_path / "whole")

    def stop(done: int, _total: int) -> None:
        if done == 56:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fine_tune(stopped, task("encoder", ROWS), recipe, folder=tmp_path / "stopped", progress=stop)
    again = build("encoder")
    fine_tune(again, task("encoder", ROWS), recipe, folder=tmp_path / "stopped")
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))


@pytest.mark.parametrize("kind", ["encoder", "decoder", "t5", "marian"])
def test_the_control_starts_from_nothing(kind: str) -> None:
    model = shared(kind)
    heads = hc.HeadMap.of(model)
    plan = hc.Plan.removing([head for unit in heads.units()[1:3] for head in unit])
    before = copy.deepcopy(model.state_dict())
    recipe = Recipe(train_batch=8, rate=0.0, epochs=1.0)
    made, trained = train_from_scratch(model, plan, task(kind, ROWS), recipe)
    again, _ = train_from_scratch(model, plan, task(kind, ROWS), recipe)
    other, _ = train_from_scratch(model, plan, task(kind, ROWS), recipe, seed=1)
    small = hc.cut(model, plan)
    assert trained.steps == 4 and len(hc.HeadMap.of(made)) == len(hc.HeadMap.of(small))
    matrices = [name for name, value in small.named_parameters() if value.ndim > 1 and value.numel() and "embed_positions" not in name]
    state = made.state_dict()
    assert all(not torch.equal(state[name], small.state_dict()[name]) for name in matrices), "every matrix is new"
    assert all(torch.equal(state[name], value) for name, value in again.state_dict().items())
    assert any(not torch.equal(state[name], value) for name, value in other.state_dict().items())
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items()), "the model given stays"


def test_examples_of_like_length_come_together_in_an_order_of_their_own() -> None:
    """Every example once, batches of nearly one length, another order in every epoch and for every seed, the same again."""
    lengths = torch.randint(3, 60, (333,), generator=torch.Generator().manual_seed(0)).tolist()

    def order(seed: int, epoch: int) -> list[int]:
        sampler = LengthGroupedSampler(lengths, 8, seed)
        sampler.set_epoch(epoch)
        return list(sampler)

    assert sorted(order(0, 0)) == list(range(333)) and len(LengthGroupedSampler(lengths, 8, 0)) == 333
    assert order(0, 0) == order(0, 0) and len({tuple(order(*pair)) for pair in ((0, 0), (0, 1), (1, 0))}) == 3
    spreads = [
        max(group) - min(group)
        for start in range(0, 328, 8)
        if (group := [lengths[position] for position in order(0, 0)[start : start + 8]])
    ]
    assert sum(spreads) / len(spreads) < 4, "a random order would span about 45"


def test_training_by_length_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    rows = [{**row, "input_ids": row["input_ids"][: 3 + index % 5]} for index, row in enumerate(task("encoder", ROWS).calibration)]
    recipe = Recipe(train_batch=4, epochs=2, save_every=3, training_arguments={"train_sampling_strategy": "group_by_length"})
    actual = []
    for stops in (False, True):
        model = build("encoder")
        if stops:
            with pytest.raises(KeyboardInterrupt):
                fine_tune(build("encoder"), task("encoder", rows=rows), recipe, folder=tmp_path / str(stops), progress=_ends_after(40))
        fine_tune(model, task("encoder", rows=rows), recipe, folder=tmp_path / str(stops))
        actual.append(model.state_dict())
    assert all(torch.equal(value, actual[1][name]) for name, value in actual[0].items())


def _ends_after(examples: int) -> Any:
    def told(done: int, _total: int | None) -> None:
        if done >= examples:
            raise KeyboardInterrupt

    return told
