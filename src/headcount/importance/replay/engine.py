"""Exact ablation by replay: evaluates a batch under many interventions on heads at a fraction of the cost of gated passes.

An intervention on a head changes nothing that runs before its block's output projection, nor anything in another tower. So the unchanged pass
is recorded once per batch: the outputs of modules, and the context of every block, which is the input of its output projection. For each
intervention the recorded outputs are replayed, the output projection gets the gated context, and only the modules behind it are computed. Many
interventions on one block run together, as stacked copies of the batch.

This is exact because every number that is replayed is the number that the model would compute again. That a model's code allows it is not assumed
but tried: on the first batch (`try_replay_on_first_examples`) each block's route is compared with gates, and a block that differs by more than
rounding is evaluated with gates for good. Three speed-ups are tried in the same way: stacked copies, packed weights on a CPU (`packing`), and a
last layer that is computed only at the position that a classifier reads (`narrow_layer`). `routes` finds which modules can be replayed, `play` runs
the passes.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from headcount.core.errors import GateError, reraise_if_out_of_memory
from headcount.core.heads import AttentionBlock
from headcount.importance.replay.narrow_layer import NarrowLayer, propose_narrow_layers
from headcount.importance.replay.packing import packed_linears
from headcount.importance.replay.play import (
    ModelPass,
    OutputReader,
    Replayer,
    first_copy,
    relative_difference_of_results,
    rounding_tolerance,
)
from headcount.importance.replay.routes import PassRecord, Route, RouteSurvey, find_routes
from headcount.importance.replay.stacking import tile_copies
from headcount.models.attention import eager_attention
from headcount.models.gates import HeadGates, Means, Replacement
from headcount.models.modules import Batch, device_of, unwrap
from headcount.models.observe import evaluating, model_inputs
from headcount.models.ownership import holding

MAX_TOKENS = {"cpu": 512}
"""Rows times tokens of a stacked batch by device type: where matrix products of usual widths are fastest."""
OTHER_MAX_TOKENS = 16384
MIN_INTERVENTIONS_TO_PACK = 16
"""The number of interventions from which packing all weights pays."""
TRIAL_ROWS = 2
PACKED_TOLERANCE = 5e-7
"""How far packed weights may move a result: well below the 2e-6 that replay promises in float32."""
MAX_MISSED_EFFECT = 0.01
"""The fraction of an intervention's effect by which replay may miss it in a trial."""


@dataclass(frozen=True, slots=True)
class Intervention:
    """One intervention inside one block: a gate for each of its heads, in order; 1 leaves a head alone."""

    block: AttentionBlock
    gates: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class TrialResult:
    """What a trial showed of a model.

    Attributes:
        replayer: The replayer, with the routes that give what gates give.
        can_stack: Whether the result of an example does not depend on the other rows of its batch.
        can_pack: Whether packed weights give the same numbers.
        order: The order of modules in a pass on these routes.
        narrow: The narrow last layer, if only one position of it is read.
    """

    replayer: Replayer
    can_stack: bool
    can_pack: bool
    order: tuple[str, ...] = ()
    narrow: NarrowLayer | None = None


class InterventionResults(NamedTuple):
    """What a function reads from the model's output: without intervention [batch, …], and under each [interventions, batch, …]."""

    baseline: Any
    under_interventions: Any


class _Baseline(NamedTuple):
    """The result of the unchanged pass [batch, …], its record (None if there is no route), and the trial whose routes it fits."""

    result: Any
    recording: PassRecord | None
    trial: TrialResult


class _SampleRun(NamedTuple):
    """A pass over few examples, and its result [1, rows, …]."""

    model_pass: ModelPass
    result: Any


class Ablator:
    """Evaluates interventions on heads on a batch: exactly what `HeadGates(model, …, how=how)` gives, at a fraction of the cost.

    Args:
        model: A transformers model.
        how: What takes the place of a head as its gate goes to zero, as for `HeadGates`.
        means: The mean output of every head by block path, for `how="mean"`.
        max_tokens: The most tokens in a pass over stacked copies; by default what suits the device.
        withhold: Entries of the batch that only `read` gets and the model does not, such as labels whose mean loss nobody reads.
        pack: Whether linear layers on a CPU may use packed weights if the trial shows that only rounding differs.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        how: Replacement = "zero",
        means: Means | None = None,
        max_tokens: int | None = None,
        withhold: Sequence[str] = (),
        pack: bool = True,
    ) -> None:
        self.model = unwrap(model)
        self.max_tokens = max_tokens or MAX_TOKENS.get(device_of(self.model).type, OTHER_MAX_TOKENS)
        self.withhold, self.pack = frozenset(withhold), pack
        self._gates = HeadGates(self.model, how=how, means=means)
        self.heads = self._gates.heads
        self._trial: TrialResult | None = None
        self._trial_inputs: tuple[tuple[str, int], ...] = ()
        parameters = inspect.signature(self.model.forward).parameters
        self._options: dict[str, object] = {"use_cache": False} if "use_cache" in parameters else {}

    @property
    def fallback_reasons(self) -> dict[str, str]:
        """Why blocks are evaluated by gates, by block path; known after the first batch."""
        return dict(self._trial.replayer.survey.refused) if self._trial else {}

    @property
    def fallback_reason(self) -> str:
        """Why gates are used instead of replay, for the first block where they are; empty if all blocks are replayed."""
        path, reason = next(iter(self.fallback_reasons.items()), ("", ""))
        return f"{len(self.fallback_reasons)} of {len(self.heads.blocks)} blocks, such as '{path}': {reason}" if path else ""

    @property
    def only_position_read(self) -> Literal["", "first", "last"]:
        """`first` or `last` if the trial found that only this position of the last layer is read, else empty."""
        return self._trial.narrow.position_read if self._trial and self._trial.narrow else ""

    def run(self, batch: Batch, interventions: Sequence[Intervention], read: OutputReader) -> InterventionResults:
        """Returns what `read` gives for the batch [batch, …], and under every intervention [interventions, batch, …].

        Raises:
            GateError: an intervention has not one gate for each head of its block.
        """
        self._check_interventions(interventions)
        with self._in_eval_mode():
            model_pass = ModelPass.over_batch(self.model, model_inputs(batch, self.model), read, self._options, self.withhold)
            model_pass, trial = self._ensure_trial(model_pass)
            can_pack = self.pack and trial.can_pack and len(interventions) >= MIN_INTERVENTIONS_TO_PACK
            with packed_linears(self.model) if can_pack else nullcontext():
                baseline, recording, trial = self._record_baseline(model_pass, trial)
                results = self._evaluate_interventions(model_pass, trial, interventions, baseline, recording)
        if not interventions:
            return InterventionResults(baseline, tree_map(lambda tensor: tensor.unsqueeze(0)[:0], baseline))
        return InterventionResults(baseline, tree_map(lambda *tensors: torch.stack(tensors), *results))

    def _check_interventions(self, interventions: Sequence[Intervention]) -> None:
        for intervention in interventions:
            self.heads.positions(intervention.block)
            if len(intervention.gates) != intervention.block.n_heads:
                raise GateError(
                    f"block '{intervention.block.path}' has {intervention.block.n_heads} heads, "
                    f"but an intervention gives {len(intervention.gates)} gates"
                )

    @contextmanager
    def _in_eval_mode(self) -> Iterator[None]:
        """Inside, the model is in eval mode without gradients, on the attention path that the intervention needs."""
        with holding(self.model, "ablation"), evaluating(self.model):
            if self._gates.how == "uniform":
                with eager_attention(self.model):
                    yield
            else:
                yield

    def _ensure_trial(self, model_pass: ModelPass) -> tuple[ModelPass, TrialResult]:
        """Returns the pass with the options that do no harm, and the trial on inputs of this kind; runs it if there was none."""
        inputs = tuple(sorted((name, value.ndim) for name, value in model_pass.batch.items() if isinstance(value, Tensor)))
        if self._trial is None or inputs != self._trial_inputs:
            model_pass = drop_options_if_output_changes(model_pass)
            self._options = dict(model_pass.options)
            self._trial, self._trial_inputs = try_replay_on_first_examples(self._gates, model_pass), inputs
        return model_pass, self._trial

    def _record_baseline(self, model_pass: ModelPass, trial: TrialResult) -> _Baseline:
        """Runs and records the unchanged pass. A batch on which modules run in another order gets a new trial."""
        for attempt in range(2):
            survey = trial.replayer.survey
            if not survey.routes:
                break
            baseline, recording = trial.replayer.record(model_pass)
            if recording.matches_order_and_layouts(trial.order, survey.layouts):
                return _Baseline(baseline, recording, trial)
            if attempt == 0:
                trial = self._trial = try_replay_on_first_examples(self._gates, model_pass)
        return _Baseline(first_copy(model_pass.run_and_read()), None, trial)

    def _evaluate_interventions(
        self,
        model_pass: ModelPass,
        trial: TrialResult,
        interventions: Sequence[Intervention],
        baseline: Any,
        recording: PassRecord | None,
    ) -> list[Any]:
        """Returns the result of every intervention. Those on one block share passes, as many as stay within `max_tokens`."""
        replayer, narrow = trial.replayer, trial.narrow
        if narrow and not (recording and replayer.narrow_layer_reproduces_baseline(model_pass, recording, baseline, narrow)):
            narrow = None
        n_tokens = model_pass.approximate_n_tokens
        if recording and recording.contexts:
            n_tokens = max(context.numel() // max(1, context.shape[-1]) for context in recording.contexts.values())
        max_copies = max(1, self.max_tokens // max(1, n_tokens)) if trial.can_stack else 1
        by_block: dict[str, list[int]] = {}
        for position, intervention in enumerate(interventions):
            by_block.setdefault(intervention.block.path, []).append(position)
        results: list[Any] = [None] * len(interventions)
        for path, positions in by_block.items():
            block = interventions[positions[0]].block
            route = replayer.survey.routes.get(path)
            for part in _split_into_even_parts(positions, max_copies):
                gates = torch.tensor([interventions[i].gates for i in part], dtype=torch.float64).view(len(part), block.n_heads)
                if recording and route:
                    result = replayer.replay(model_pass, recording, route, gates, narrow)
                else:
                    result = replayer.run_gated(model_pass, block, gates)
                for copy, position in enumerate(part):
                    results[position] = tree_map(lambda tensor, copy=copy: tensor[copy], result)
        return results


def _split_into_even_parts(positions: Sequence[int], max_part_size: int) -> Iterator[Sequence[int]]:
    """Yields the positions in as few parts of at most `max_part_size` as possible, of nearly equal length."""
    count = -(-len(positions) // max_part_size)
    for part in range(count):
        yield positions[part * len(positions) // count : (part + 1) * len(positions) // count]


def try_replay_on_first_examples(gates: HeadGates, model_pass: ModelPass) -> TrialResult:
    """Finds routes on the first examples of a batch and keeps those that give what gates give."""
    trial, baseline = _run_on_first_examples(model_pass)
    can_stack = _stacked_copies_reproduce_baseline(trial, baseline)
    with packed_linears(trial.model):
        can_pack = relative_difference_of_results(trial.run_and_read(), baseline) <= PACKED_TOLERANCE
    replayer = Replayer(gates, _find_routes(gates, trial, can_stack))
    if not replayer.survey.routes:
        return TrialResult(replayer, can_stack, can_pack)
    _, recording = replayer.record(trial)
    mismatches = {path: _reason_for_mismatch(replayer, trial, recording, route, baseline) for path, route in replayer.survey.routes.items()}
    replayer = Replayer(gates, replayer.survey.without_routes({path: reason for path, reason in mismatches.items() if reason}))
    last = replayer.survey.last_route
    if last is None:
        return TrialResult(replayer, can_stack, can_pack)
    _, recording = replayer.record(trial)
    narrow_layers = (
        narrow
        for narrow in propose_narrow_layers(replayer.model, last, replayer.survey.calls)
        if replayer.narrow_layer_reproduces_baseline(trial, recording, first_copy(baseline), narrow)
    )
    return TrialResult(replayer, can_stack, can_pack, tuple(recording.order), next(narrow_layers, None))


def drop_options_if_output_changes(model_pass: ModelPass) -> ModelPass:
    """Returns the pass without its options if they change the model's output: FSMT has a causal mask only without a cache."""
    if not model_pass.options:
        return model_pass
    bare = replace(model_pass, options={})
    bare_result = _run_on_first_examples(bare).result
    try:
        return (
            model_pass
            if relative_difference_of_results(_run_on_first_examples(model_pass).result, bare_result)
            <= rounding_tolerance(model_pass.model)
            else bare
        )
    except Exception as error:  # a model whose code does not take the option
        reraise_if_out_of_memory(error)
        return bare


def _run_on_first_examples(model_pass: ModelPass) -> _SampleRun:
    """Returns the pass over the first examples and its result [1, rows, …]; over all of them if the batch cannot be divided."""
    trial = model_pass.take_first_rows(TRIAL_ROWS)
    if trial is not model_pass:
        try:
            return _SampleRun(trial, trial.run_and_read())
        except Exception as error:  # an input whose first axis is not that of the examples
            reraise_if_out_of_memory(error)
            trial = model_pass
    return _SampleRun(trial, trial.run_and_read())


def _stacked_copies_reproduce_baseline(model_pass: ModelPass, baseline: Any) -> bool:
    """Whether the result of an example does not depend on how many others share its batch."""
    try:
        expected = tree_map(lambda tensor: tile_copies(tensor, 0, 2), baseline)
        return relative_difference_of_results(model_pass.run_and_read(2), expected) <= rounding_tolerance(model_pass.model)
    except Exception:  # anything that a model's code raises on a stacked batch; if memory is short for two rows, nothing is stacked
        return False


def _find_routes(gates: HeadGates, trial: ModelPass, can_stack: bool) -> RouteSurvey:
    """Returns the routes of all blocks with heads; none, with the reason, if the model cannot be replayed."""
    blocks = [block for block in gates.heads.blocks if block.n_heads]
    reason = "" if can_stack else "what is read for an example depends on the other rows of its batch"
    if any(getattr(module, "_compiled_call_impl", None) is not None for module in gates.model.modules()):
        reason = "the model is compiled, so that no module can be replaced"
    if not reason:
        try:
            return find_routes(gates.model, blocks, trial.forward)
        except Exception as error:  # anything that a model's code raises while it is watched
            reraise_if_out_of_memory(error)
            reason = f"the model cannot be watched: {type(error).__name__}: {error}"
    return RouteSurvey(refused={block.path: reason for block in blocks})


def _reason_for_mismatch(replayer: Replayer, trial: ModelPass, recording: PassRecord, route: Route, baseline: Any) -> str | None:
    """Returns why a route does not give what gates give; None if it does."""
    n_heads = route.block.n_heads
    gates = torch.rand(n_heads, generator=torch.Generator().manual_seed(n_heads), dtype=torch.float64)
    if replayer.gates.how == "uniform":
        gates = (gates > gates.median()).double()  # mixed probabilities are rounded to the precision of the model's softmax
    expected = replayer.run_gated(trial, route.block, gates[None])
    try:
        result = replayer.replay(trial, recording, route, torch.stack([gates, torch.ones_like(gates)]), None)
    except Exception as error:  # anything that a model's code raises on recorded outputs
        reraise_if_out_of_memory(error)
        return f"replay failed: {type(error).__name__}: {error}"
    difference = relative_difference_of_results(result, tree_map(lambda *tensors: torch.cat(tensors), expected, baseline))
    # An intervention of little effect proves little: then the two must agree to rounding.
    tolerance = rounding_tolerance(replayer.model)
    allowed = min(tolerance, max(MAX_MISSED_EFFECT * relative_difference_of_results(expected, baseline), tolerance / 5))
    return None if difference <= allowed else f"replay differs from gates by {difference:.2g}"
