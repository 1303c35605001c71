"""The trial of a model: the routes that give what gates give, each one compared on the first examples of a batch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils._pytree import tree_map

from headcount.data.stream import reraise_memory
from headcount.importance.replay.last_position import Narrow, narrow_candidates
from headcount.importance.replay.packing import packed_linears
from headcount.importance.replay.passes import Pass, gap
from headcount.importance.replay.player import Player, first_copy, tolerance
from headcount.importance.replay.replay import Recording, Route
from headcount.importance.replay.routes import Survey, survey
from headcount.importance.replay.stacking import tile
from headcount.models.gates import HeadGates

SAMPLE_ROWS = 2
PACKED_TOLERANCE = 5e-7
"""How far packed weights may move what is read: well below the 2e-6 that replay promises in float32."""
PROOF = 0.01
"""The share of an intervention's effect that may be missed in a trial."""


@dataclass(frozen=True, slots=True)
class Proven:
    """The result of a trial: the proven routes and the order of a pass on them, and which speed-ups hold.

    `stackable`: rows do not see each other. `packs`: packed weights give the same numbers. `narrow`: the last layer is read at one position.
    """

    player: Player
    stackable: bool
    packs: bool
    order: tuple[str, ...] = ()
    narrow: Narrow | None = None


def try_out(gates: HeadGates, work: Pass) -> Proven:
    """Finds the routes on the first examples of a batch and keeps those that give what gates give."""
    trial, baseline = _sample(work)
    stackable, packs = _stacks(trial, baseline), _packs(trial, baseline)
    player = Player(gates, _routes(gates, trial, stackable))
    if not player.survey.routes:
        return Proven(player, stackable, packs)
    _, record = player.record(trial)
    refused = {
        path: reason for path, route in player.survey.routes.items() if (reason := _disproof(player, trial, record, (route, baseline)))
    }
    player = Player(gates, player.survey.without(refused))
    if not player.survey.routes:
        return Proven(player, stackable, packs)
    _, record = player.record(trial)
    return Proven(player, stackable, packs, tuple(record.order), _narrow(player, trial, record, baseline))


def drop_harmful_options(work: Pass) -> Pass:
    """Returns the pass without its options if they change the model's output: FSMT has no causal mask with a cache."""
    bare = replace(work, options={})
    _, plain = _sample(bare)
    try:
        return work if work.options and gap(_sample(work)[1], plain) <= tolerance(work.model) else bare
    except Exception as error:  # a model whose code cannot do with the option
        reraise_memory(error)
        return bare


def _sample(work: Pass) -> tuple[Pass, Any]:
    trial = work.sample(SAMPLE_ROWS)
    if trial is not work:
        try:
            return trial, trial.result()
        except Exception as error:  # an input whose rows are not told by its first axis: try the batch as it is
            reraise_memory(error)
            trial = work
    return trial, trial.result()


def _stacks(trial: Pass, baseline: Any) -> bool:
    """Whether the result of an example does not depend on how many others share its batch."""
    try:
        return gap(trial.result(2), tree_map(lambda tensor: tile(tensor, 0, 2), baseline)) <= tolerance(trial.model)
    except Exception:  # whatever a model's code makes of a stacked batch; where memory is short for two rows, nothing is stacked
        return False


def _packs(trial: Pass, baseline: Any) -> bool:
    """Whether the kernel for packed weights gives the numbers of the model's own."""
    with packed_linears(trial.model):
        return gap(trial.result(), baseline) <= PACKED_TOLERANCE


def _routes(gates: HeadGates, trial: Pass, stackable: bool) -> Survey:
    blocks = [block for block in gates.heads.blocks if block.n_heads]
    reason = "" if stackable else "what is read for an example depends on the other rows of its batch"
    if any(getattr(module, "_compiled_call_impl", None) is not None for module in gates.model.modules()):
        reason = "the model is compiled, so that no module can be replaced"
    if not reason:
        try:
            return survey(gates.model, blocks, trial.forward)
        except Exception as error:  # whatever a model's code raises while it is watched
            reraise_memory(error)
            reason = f"the model cannot be watched: {type(error).__name__}: {error}"
    return Survey(refused={block.path: reason for block in blocks})


def _disproof(player: Player, trial: Pass, record: Recording, case: tuple[Route, Any]) -> str:
    """Returns why a route does not reproduce the gates; empty if it does."""
    route, baseline = case
    n_heads = route.block.n_heads
    gates = torch.rand(n_heads, generator=torch.Generator().manual_seed(n_heads), dtype=torch.float64)
    if player.gates.how == "uniform":
        gates = (gates > gates.median()).double()  # mixed probabilities are rounded to the precision of the model's softmax
    expected = player.run_gated(trial, route.block, gates[None])
    try:
        result = player.replay(trial, record, route, torch.stack([gates, torch.ones_like(gates)]), None)
    except Exception as error:  # whatever a model's code makes of recorded outputs
        reraise_memory(error)
        return f"replay failed: {type(error).__name__}: {error}"
    difference = gap(result, tree_map(lambda *tensors: torch.cat(tensors), expected, baseline))
    # An intervention of little effect proves little: then the two must agree to rounding.
    allowed = min(tolerance(player.model), max(PROOF * gap(expected, baseline), tolerance(player.model) / 5))
    return "" if difference <= allowed else f"replay differs from gates by {difference:.2g}"


def _narrow(player: Player, trial: Pass, record: Recording, baseline: Any) -> Narrow | None:
    last = player.survey.last
    candidates = narrow_candidates(player.model, last, player.survey.calls) if last else []
    return next((candidate for candidate in candidates if player.narrow_holds(trial, record, first_copy(baseline), candidate)), None)
