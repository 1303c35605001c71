"""How long methods train: steps, epochs, the fair default, and what is said of too few."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

from headcount.core.errors import OptionError
from headcount.core.options import describe_options
from headcount.core.training_log import FEW_STEPS
from headcount.pruning.methods.dsp import DSP
from headcount.pruning.methods.l0 import L0, HardConcrete
from headcount.pruning.recipe import FAIR_STEPS, Recipe, format_length
from headcount.pruning.spec import PruneSpec
from headcount.runs.artifacts import Artifact, ArtifactKey
from headcount.runs.results import method_label, steps_of_shortest_stage


def test_a_recipe_counts_steps() -> None:
    assert FAIR_STEPS >= 300
    assert Recipe().n_steps(512) == FAIR_STEPS  # 16 steps of 32 would be one epoch
    assert Recipe().n_steps(32_000) == 1000
    assert Recipe(epochs=2.0).n_steps(512) == 32 and Recipe(epochs=0.001).n_steps(512) == 1
    assert Recipe(steps=450).n_steps(512) == 450
    with pytest.raises(OptionError, match="steps or for epochs"):
        Recipe(steps=300, epochs=1.0)


def test_lengths_are_read_as_epochs_or_steps() -> None:
    start = Recipe(rate=1e-3)
    assert start.with_length(2, "recover") == Recipe(rate=1e-3, epochs=2.0)
    assert start.with_length("0.5", "recover") == Recipe(rate=1e-3, epochs=0.5)
    assert start.with_length("300steps", "recover") == start.with_length("300 steps", "recover") == Recipe(rate=1e-3, steps=300)
    assert Recipe(rate=1e-3, steps=5).with_length("auto", "recover") == start
    for wrong in (0, -1, "0steps", "1.5steps", "long", float("nan"), float("inf"), True):
        with pytest.raises(OptionError, match="recover must be a number of epochs above 0"):
            start.with_length(wrong, "recover")


def test_all_stages_of_a_request_are_counted() -> None:
    assert PruneSpec.of("random", 4).n_steps(512) == 0
    assert PruneSpec.of("dsp", 4).n_steps(512) == FAIR_STEPS
    assert PruneSpec.of("dsp", 4, recover="200steps", recipe=Recipe(steps=400)).n_steps(512) == 600
    assert PruneSpec.of("random", 4, scratch=2.0).n_steps(512) == 32


def test_the_control_from_scratch_has_a_recipe_of_its_own() -> None:
    spec = PruneSpec.of("l0", 4, recipe=Recipe(rate=5e-5, distil=0.5), scratch="2000 steps", scratch_rate=1e-3)
    again = PruneSpec.from_dict(spec.to_dict())
    assert again == spec and again.scratch_recipe == Recipe(steps=2000, rate=1e-3) and again.recipe.rate == 5e-5
    assert "from scratch 2000steps at 0.001" in spec.name


@pytest.mark.parametrize("n_steps", [10, 300, 301])
def test_shares_of_the_schedule_are_of_the_steps_that_their_help_names(n_steps: int) -> None:
    """DSP cools over a share of all steps; the target of L0 stays and falls over shares of those before the plan is fixed."""
    dsp, l0 = DSP(cool=0.4, settle=0.5), L0(penalty=0.1, warmup=0.5, settle=0.4)
    temperatures = [dsp.temperature(step, n_steps) for step in range(n_steps)]
    assert sum(tau > dsp.tau_end * (1 + 1e-9) for tau in temperatures) == math.ceil(0.4 * n_steps)
    gates = SimpleNamespace(pruner=l0)
    weights = [HardConcrete.penalty_weight(gates, step, n_steps) for step in range(n_steps)]  # pyright: ignore[reportArgumentType]
    assert sum(weight < 0.1 * (1 - 1e-9) for weight in weights) == math.ceil(0.5 * (1 - 0.4) * n_steps)
    helps = {row["option"]: row["what"] for row in describe_options(L0)}
    assert all("before the plan is fixed" in helps[name] for name in ("warmup", "reach"))


def pruned(steps: dict[str, int] | None, method: str = "dsp") -> Artifact:
    return Artifact(
        ArtifactKey("pruned", method, {}), {"label": PruneSpec.of(method, 4).label} | ({} if steps is None else {"steps": steps})
    )


def test_too_few_steps_are_named() -> None:
    assert FEW_STEPS == 200
    assert method_label(pruned({"choose": 16})) == "dsp, only 16 steps"
    assert method_label(pruned({"choose": 300, "recover": 1})) == "dsp, only 1 step"
    assert method_label(pruned({"choose": 200})) == method_label(pruned({})) == method_label(pruned(None)) == "dsp"
    assert steps_of_shortest_stage(pruned({"choose": 300, "recover": 250})) == 250 and steps_of_shortest_stage(pruned({})) is None
    assert format_length(2.0) == "2" and format_length("auto") == "auto" and format_length("300steps") == "300steps"


@pytest.mark.parametrize("cool", [0.1, 0.25, 0.5, 2 / 3])
@pytest.mark.parametrize("settle", [0.0, 0.3])
def test_the_temperature_of_dsp_falls_over_the_share_of_all_steps_that_it_says(cool: float, settle: float) -> None:
    pruner = DSP(cool=cool, settle=settle, tau=1000.0, tau_end=1e-8)
    tau = lambda step: pruner.temperature(step, 3000)  # noqa: E731
    last = cool * 3000
    assert tau(0) == 1000.0 and tau(last) == pytest.approx(1e-8) == tau(3000)
    assert tau(last / 2) == pytest.approx((1000.0 * 1e-8) ** 0.5) and tau(last - 1) > 1e-8 * (1 + 1e-6)


def test_a_temperature_that_could_not_fall_is_refused_before_any_work() -> None:
    for options in ({"cool": 0.8}, {"cool": 0.0}, {"cool": 1.2}):
        with pytest.raises(OptionError, match="cool"):
            DSP(**options)
    assert DSP(cool=0.67, settle=0.0, tau=1000.0).cool == 0.67


def test_a_penalty_is_a_number_of_zero_or_more() -> None:
    for wrong in (-1.0, float("nan"), float("inf")):
        with pytest.raises(OptionError, match="option penalty of l0 must be a float of at least 0"):
            L0(penalty=wrong)
