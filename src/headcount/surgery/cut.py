"""Cutting: heads leave the weights for good, and the result is proven equal to the gated model before anybody sees it."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from headcount.core.arguments import check_arguments
from headcount.core.errors import PlanError, VerificationError, reraise_if_out_of_memory
from headcount.core.plan import Plan
from headcount.models.dummy_inputs.text import naming_inputs_in_errors, probe_inputs
from headcount.models.gates import are_gates_open
from headcount.models.head_map import HeadMap
from headcount.models.modules import Batch, unwrap
from headcount.models.ownership import holds_model
from headcount.models.state import copy_model
from headcount.surgery.caches import install_cache_separation, requiring_separate_caches
from headcount.surgery.config import HeadCounts, restore_config_before_uniform_cut, write_cut_into_config_if_uniform
from headcount.surgery.named_heads import config_head_pairs_of_dense_model, renumber_config_head_pairs
from headcount.surgery.reshape import Cut, apply_cuts, cuts_keeping_positions, n_head_elements, n_kept_elements, n_removed_table_elements
from headcount.surgery.verify import (
    HALF,
    batch_in_float32,
    checked_relative_difference,
    computing_in_float32,
    copy_in_float32,
    forward_outputs,
    lowest_float_dtype,
    require_every_block_runs,
    run_gated,
)

NESTED = ("_parameters", "_buffers", "_modules", "_forward_hooks", "_forward_pre_hooks", "_forward_hooks_with_kwargs",
          "_forward_pre_hooks_with_kwargs", "_forward_hooks_always_called")  # fmt: skip


def count_removed_parameters(heads: HeadMap, plan: Plan) -> int:
    """Returns how many parameters a cut removes, by arithmetic on shapes."""
    cuts = _cuts_of_plan(heads, plan)
    return n_removed_table_elements(cuts) + sum(
        n_head_elements(cut.block) - n_kept_elements(cut) for cut in cuts if not cut.removes_nothing
    )


def _cuts_of_plan(heads: HeadMap, plan: Plan) -> list[Cut]:
    return cuts_keeping_positions(heads, {block.path: plan.kept_positions(block) for block in heads.blocks})


@contextmanager
def _undo_on_error(model: nn.Module) -> Iterator[None]:
    """Puts every module and the configuration back if anything inside raises. Tensors are replaced by a cut, never written to."""
    states = []
    for module in model.modules():
        state = dict(module.__dict__)
        states.append((module, state | {name: copy.copy(state[name]) for name in NESTED if name in state}))
    configs = {id(c): (c, dict(c.__dict__)) for c in (getattr(m, "config", None) for m in model.modules()) if hasattr(c, "sub_configs")}
    try:
        yield
    except BaseException:
        for module, state in states:
            module.__dict__.clear()
            module.__dict__.update(state)
        for config, state in configs.values():
            config.__dict__.clear()
            config.__dict__.update(state)
        raise


def _check_cut_tensors_untied(model: nn.Module, heads: HeadMap, plan: Plan) -> None:
    """Raises PlanError if the plan cuts a tensor that a module outside the block shares."""
    owners: dict[int, set[int]] = defaultdict(set)
    for module in model.modules():
        for parameter in module._parameters.values():
            if parameter is not None:
                owners[id(parameter)].add(id(module))
    for block in heads.blocks:
        if len(plan.kept_positions(block)) == block.n_heads:
            continue
        tied = next((s.tensor for s in block.slices if len(owners[id(model.get_parameter(s.tensor))]) > 1), None)
        if tied is not None:
            raise PlanError(
                f"'{tied}' is tied to another module, which a cut would break. Untie the weights, or evaluate the plan with gates."
            )


@check_arguments
@holds_model("a cut")
def cut(model: nn.Module, plan: Plan, *, in_place: bool = False, inputs: Batch | None = None) -> nn.Module:
    """Removes heads from the weights of a model, after proving the smaller model equal to the gated one.

    Args:
        model: A transformers model, plain or wrapped.
        plan: The heads to remove, such as `Plan.removing(["L0H3"])`.
        in_place: Whether to cut the model itself, which saves memory; an optimiser that holds its parameters must then be made anew.
        inputs: The keyword arguments of a forward pass that runs every block to be cut; None for a batch that is made for the model.

    Returns:
        The smaller model. Its heads keep their addresses.

    Raises:
        PlanError: the plan cannot be carried out; the model is unchanged.
        VerificationError: the smaller model differs from the gated one; the model is unchanged.

    Example:
        >>> small = hc.cut(model, hc.Plan.removing(["L0H3", "L1H7"]))
    """
    source = unwrap(model)
    heads = HeadMap.of(source)
    plan.check(heads)
    if are_gates_open(source):
        raise PlanError("the model has gates on it; leave their context (with mask(...), with HeadGates(...)) before cutting")
    _check_cut_tensors_untied(source, heads, plan)
    if next(source.parameters()).is_meta:
        raise PlanError("the model is on the meta device and has no weights to cut; load them first")
    batch = dict(inputs) if inputs is not None else probe_inputs(source)
    affected = [block for block in heads.blocks if len(plan.kept_positions(block)) < block.n_heads]
    with (
        require_every_block_runs(source, affected),
        requiring_separate_caches(source, heads),
        naming_inputs_in_errors(source, batch, is_dummy=inputs is None),
    ):
        expected = run_gated(source, plan, batch, heads)
    if lowest_float_dtype(source) in HALF:  # rounding could hide an error: the proof is repeated in float32
        try:
            return _cut_and_prove(source, heads, plan, batch, expected, in_place=in_place, exact_outputs=_outputs_by_layer)
        except VerificationError:  # also where a family's code does not run layer by layer, or rounds to the dtype of its weights
            return _cut_and_prove(
                source,
                heads,
                plan,
                batch,
                expected,
                in_place=in_place,
                exact_outputs=lambda model, inputs, run: run(*copy_in_float32(model, inputs)),
            )
    return _cut_and_prove(source, heads, plan, batch, expected, in_place=in_place)


ExactOutputs = Callable[[nn.Module, Batch, Callable[[nn.Module, Batch], list[Tensor]]], list[Tensor]]
"""Runs a pass over a model in float32: (model, batch, pass) -> outputs."""


def _outputs_by_layer(model: nn.Module, batch: Batch, run: Callable[[nn.Module, Batch], list[Tensor]]) -> list[Tensor]:
    """Returns the outputs of a pass in float32, for which one layer after another is converted; raises VerificationError where that fails."""
    try:
        with computing_in_float32(model):
            return run(model, batch_in_float32(batch))
    except Exception as error:  # the model's own code fails in its own ways on tensors of two dtypes
        reraise_if_out_of_memory(error)
        raise VerificationError(f"the {type(model).__name__} does not run in float32 layer by layer: {error}") from error


def _cut_and_prove(
    source: nn.Module,
    heads: HeadMap,
    plan: Plan,
    batch: Batch,
    expected: list[Tensor],
    *,
    in_place: bool,
    exact_outputs: ExactOutputs | None = None,
) -> nn.Module:
    """Cuts a model, or a copy of it; raises VerificationError, and leaves the model as it was, unless it gives what the gated one gives."""
    exact_expected = None if exact_outputs is None else exact_outputs(source, batch, lambda model, inputs: run_gated(model, plan, inputs))
    target = source if in_place else copy_model(source)
    with _undo_on_error(target):
        _cut_in_place(target, heads, plan)
        try:
            checked_relative_difference(expected, forward_outputs(target, batch), lowest_float_dtype(source), "the cut model")
        except VerificationError:
            raise
        except Exception as error:  # the model's own code fails in its own ways on sizes that it does not expect
            reraise_if_out_of_memory(error)
            raise VerificationError(
                f"the cut {type(target).__name__} does not run: {' '.join(f'{type(error).__name__}: {error}'.split()).rstrip(':. ')}. "
                "The cut was not made. Evaluate the plan with gates."
            ) from error
        if exact_outputs is not None and exact_expected is not None:
            outputs = exact_outputs(target, batch, forward_outputs)
            checked_relative_difference(exact_expected, outputs, torch.float32, "the cut model in float32")
    return target


def _cut_in_place(model: nn.Module, heads: HeadMap, plan: Plan) -> None:
    lists = config_head_pairs_of_dense_model(model, heads)
    restore_config_before_uniform_cut(model, heads)
    before = {block.path: HeadCounts(block.n_heads, block.n_kv_heads) for block in heads.blocks}
    apply_cuts(model, _cuts_of_plan(heads, plan))
    cut_heads = HeadMap.of(model)
    write_cut_into_config_if_uniform(model, cut_heads, before)
    install_cache_separation(model, cut_heads)
    renumber_config_head_pairs(model, lists, cut_heads)
