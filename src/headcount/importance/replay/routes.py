"""Routes: for each attention block, the modules whose recorded outputs can be replayed when the block's heads change.

A module qualifies if it ran once and either ended before the block's output projection began or depends on no head of the block's stack, and
if its output for stacked rows is the stacked output. Both are found by running the model: on the batch, and on two stacked copies of it.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils._pytree import TreeSpec

from headcount.core.heads import AttentionBlock
from headcount.importance.replay.calls import (
    Calls,
    find_independent_modules,
    find_modules_altered_by_hooks,
    find_outermost_modules,
    only_call,
    record_calls,
)
from headcount.importance.replay.stacking import OutputLayout, find_row_axis, flatten_output
from headcount.models.ownership import restrict_to_owner

RunOnCopies = Callable[[int], Any]
"""Runs the model on that many stacked copies of the batch."""

TWO_OUTPUTS = "its heads feed two output projections"
MANY_CALLS = "its output projection runs {} times in one pass, so that no moment divides what its heads can change from what they cannot"


@dataclass(frozen=True, slots=True)
class Route:
    """How interventions on one block are replayed.

    Attributes:
        block: The block.
        unaffected: The modules, by path, that its heads cannot affect: their outputs come from the record.
        axis: The row axis of its contexts, the inputs of its output projection.
        output_leaf_index: The leaf of the block's output that is the unchanged output of its projection, so that the block need not run; else None.
    """

    block: AttentionBlock
    unaffected: tuple[str, ...]
    axis: int
    output_leaf_index: int | None = None

    @property
    def paths_to_record(self) -> tuple[str, ...]:
        """The modules whose outputs must be on record."""
        return self.unaffected if self.output_leaf_index is None else (*self.unaffected, self.block.path)


@dataclass(frozen=True, slots=True)
class RouteSurvey:
    """What is known about the modules of a model.

    Attributes:
        routes: Routes by block path.
        layouts: Layouts of the modules that are replayed, by path.
        refused: Why the other blocks have no route, by block path.
        calls: The calls of all modules in one pass.
        altered: The modules whose hooks replace their outputs.
    """

    routes: dict[str, Route] = field(default_factory=dict)
    layouts: dict[str, OutputLayout] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    calls: Calls = field(default_factory=dict)
    altered: frozenset[str] = frozenset()

    def without_routes(self, reason_by_path: Mapping[str, str]) -> RouteSurvey:
        """Returns the survey without the routes of some blocks, by path with the reason."""
        routes = {path: route for path, route in self.routes.items() if path not in reason_by_path}
        return RouteSurvey(routes, self.layouts, {**self.refused, **reason_by_path}, self.calls, self.altered)

    @property
    def routed_blocks(self) -> list[AttentionBlock]:
        """The blocks that have a route."""
        return [route.block for route in self.routes.values()]

    @property
    def paths_to_record(self) -> list[str]:
        """Every module whose output some route needs, once each."""
        return list(dict.fromkeys(path for route in self.routes.values() for path in route.paths_to_record))

    @property
    def last_route(self) -> Route | None:
        """The route of the block that runs last."""
        return max(self.routes.values(), key=lambda route: self.calls[route.block.o.path][0].start, default=None)


def find_routes(model: nn.Module, blocks: Sequence[AttentionBlock], run_on_copies: RunOnCopies) -> RouteSurvey:
    """Returns the routes of a model's blocks. A module whose output cannot be stacked is computed anew, but the modules in it may be replayed."""
    calls = record_calls(model, lambda: run_on_copies(1))
    once = [block for block in blocks if only_call(calls, block.o.path) and len(block.outputs) == 1]
    refused = {
        block.path: MANY_CALLS.format(len(calls.get(block.o.path, ()))) if len(block.outputs) == 1 else TWO_OUTPUTS
        for block in blocks
        if block not in once
    }
    altered = find_modules_altered_by_hooks(model, lambda: run_on_copies(1))
    output_leaf_indices = _find_output_leaf_indices(model, [block for block in once if block.o.path not in altered], calls, run_on_copies)
    independent = _find_independent_modules_by_stack(model, once, calls, run_on_copies)
    unstackable: dict[str, str] = {}
    while True:  # a module without a layout gives way to the modules in it, which may have one
        unaffected = {
            block.path: _find_unaffected_modules(
                model, block, output_leaf_indices.get(block.path), calls, independent=independent[block.stack], unstackable=unstackable
            )
            for block in once
        }
        modules = list(dict.fromkeys(module for of_block in unaffected.values() for module in of_block))
        modules += [path for path, leaf in output_leaf_indices.items() if leaf is not None]
        comparison = _compare_with_two_copies(model, once, modules, run_on_copies)
        if not comparison.unstackable.keys() - unstackable.keys():
            break
        unstackable |= comparison.unstackable
        output_leaf_indices = {path: None if path in unstackable else leaf for path, leaf in output_leaf_indices.items()}
    routes = {}
    for block in once:
        axis = comparison.axes[block.path]
        if isinstance(axis, int):
            routes[block.path] = Route(block, unaffected[block.path], axis, output_leaf_indices.get(block.path))
        else:
            refused[block.path] = f"its heads' outputs cannot be stacked: {axis}"
    return RouteSurvey(routes, comparison.layouts, refused, calls, altered)


def _find_independent_modules_by_stack(
    model: nn.Module, blocks: Sequence[AttentionBlock], calls: Calls, run_on_copies: RunOnCopies
) -> dict[str, frozenset[str]]:
    """Returns for each stack the modules that depend on none of its heads: another tower, or a decoder's first self-attention."""
    first_blocks: dict[str, AttentionBlock] = {}
    for block in sorted(blocks, key=lambda block: calls[block.o.path][0].start):
        first_blocks.setdefault(block.stack, block)
    if len(first_blocks) < 2:
        return dict.fromkeys(first_blocks, frozenset())
    return {stack: find_independent_modules(model, calls, block.o.path, lambda: run_on_copies(1)) for stack, block in first_blocks.items()}


def _find_unaffected_modules(
    model: nn.Module,
    block: AttentionBlock,
    output_leaf_index: int | None,
    calls: Calls,
    *,
    independent: Container[str],
    unstackable: Container[str],
) -> tuple[str, ...]:
    """Returns the outermost modules to replay for a block: those that ended before it and independent ones, except unstackable ones."""
    moment = calls[block.o.path if output_leaf_index is None else block.path][0].start

    def is_unaffected(path: str) -> bool:
        call = only_call(calls, path)
        return call is not None and (call.end < moment or path in independent) and path not in unstackable

    modules = tuple(find_outermost_modules(model, is_unaffected))
    return modules if output_leaf_index is None else tuple(path for path in modules if not path.startswith(f"{block.path}."))


def _find_output_leaf_indices(
    model: nn.Module, blocks: Sequence[AttentionBlock], calls: Calls, run_on_copies: RunOnCopies
) -> dict[str, int | None]:
    """Returns for each block the leaf of its output that equals the output of its projection; None if there is none."""
    leaves: dict[str, int | None] = {block.path: None for block in blocks}
    projected: dict[str, Tensor] = {}

    def remember_projection_output(path: str, _module: nn.Module, _args: Any, output: Tensor) -> None:
        projected[path] = output.clone()

    def find_equal_leaf(block: AttentionBlock, _module: nn.Module, _args: Any, output: Any) -> None:
        expected = projected.pop(block.path)
        try:
            candidates = enumerate(flatten_output(output)[0])
        except ValueError:
            candidates = ()
        is_equal = (
            i for i, leaf in candidates if isinstance(leaf, Tensor) and leaf.shape == expected.shape and torch.equal(leaf, expected)
        )
        leaves[block.path] = next(is_equal, None)

    with ExitStack() as stack:
        for block in blocks:
            if block.o.path.startswith(f"{block.path}.") and only_call(calls, block.path):
                layer, module = model.get_submodule(block.o.path), model.get_submodule(block.path)
                stack.callback(
                    layer.register_forward_hook(restrict_to_owner(model, partial(remember_projection_output, block.path))).remove
                )
                stack.callback(module.register_forward_hook(restrict_to_owner(model, partial(find_equal_leaf, block))).remove)
        run_on_copies(1)
    return leaves


ReplacementContext = Tensor | None
"""What goes into an output projection instead of its input; None leaves the input as it is."""


class PassRecorder(Protocol):
    """What `record_pass` hands the outputs of modules and the contexts of blocks to."""

    def receive_output(self, path: str, output: Any) -> None:
        """Notes the output of a module."""
        ...

    def receive_context(self, block: AttentionBlock, context: Tensor) -> ReplacementContext:
        """Notes the input of a block's output projection, and may replace it."""
        ...


def record_pass(model: nn.Module, blocks: Sequence[AttentionBlock], modules: Sequence[str], recorder: PassRecorder) -> ExitStack:
    """Returns a context in which the outputs of modules and the contexts of blocks go to a recorder."""

    def record_and_replace(block: AttentionBlock, _module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        replacement = recorder.receive_context(block, args[0])
        return None if replacement is None else (replacement, *args[1:])

    with ExitStack() as stack:
        for path in modules:
            record = restrict_to_owner(model, lambda _m, _a, output, path=path: recorder.receive_output(path, output))
            stack.callback(model.get_submodule(path).register_forward_hook(record).remove)
        for block in blocks:
            layer = model.get_submodule(block.o.path)
            stack.callback(layer.register_forward_pre_hook(restrict_to_owner(model, partial(record_and_replace, block))).remove)
        return stack.pop_all()


@dataclass(slots=True)
class PassRecord:
    """The record of one unchanged pass.

    Attributes:
        outputs: Outputs of modules as leaves, by path.
        specs: The structures of these outputs.
        contexts: Inputs of output projections, by block path.
        uniform: The same under uniform attention, for interventions that need it.
        order: The paths of modules and output projections in the order in which they ran.
    """

    outputs: dict[str, list[Any]] = field(default_factory=dict)
    specs: dict[str, TreeSpec] = field(default_factory=dict)
    contexts: dict[str, Tensor] = field(default_factory=dict)
    uniform: dict[str, Tensor] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)

    def receive_output(self, path: str, output: Any) -> None:
        """Notes a copy of a module's output, which the model may change in place later."""
        try:
            leaves, self.specs[path] = flatten_output(output)
        except ValueError:  # not what the trial saw; the order shows it
            return
        self.outputs[path] = [leaf.clone() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        self.order.append(path)

    def receive_context(self, block: AttentionBlock, context: Tensor) -> ReplacementContext:
        """Notes a copy of the input of a block's output projection."""
        self.contexts[block.path] = context.clone()
        self.order.append(block.o.path)
        return None

    def matches_order_and_layouts(self, order: Sequence[str], layouts: Mapping[str, OutputLayout]) -> bool:
        """Whether the pass ran as the one that the routes were found on."""
        return self.order == list(order) and all(self.specs[path] == layouts[path].spec for path in self.outputs)


class _SingleOutputs:
    """Outputs and contexts of a pass over the batch, to be compared with those of two stacked copies."""

    def __init__(self) -> None:
        self.outputs: dict[str, Any] = {}
        self.contexts: dict[str, Tensor] = {}

    def receive_output(self, path: str, output: Any) -> None:
        try:
            leaves, spec = flatten_output(output)
        except ValueError:  # an opaque output, which has no layout
            return
        self.outputs[path] = spec.unflatten([leaf.clone() if isinstance(leaf, Tensor) else leaf for leaf in leaves])

    def receive_context(self, block: AttentionBlock, context: Tensor) -> None:
        self.contexts[block.path] = context.clone()


class _StackingComparison:
    """Compares a pass over two stacked copies with one over the batch, as it runs.

    `layouts` are those of modules; `unstackable` says why other modules have none; `axes` are row axes of contexts, or why there is none.
    """

    def __init__(self, single: _SingleOutputs) -> None:
        self.single = single
        self.layouts: dict[str, OutputLayout] = {}
        self.axes: dict[str, int | str] = {}
        self.unstackable: dict[str, str] = {}

    def receive_output(self, path: str, output: Any) -> None:
        try:
            self.layouts[path] = OutputLayout.between(self.single.outputs[path], output)
        except (ValueError, KeyError) as error:
            self.unstackable[path] = str(error)

    def receive_context(self, block: AttentionBlock, context: Tensor) -> None:
        try:
            axis = find_row_axis(self.single.contexts[block.path], context)
            self.axes[block.path] = "they do not depend on the number of rows" if axis is None else axis
        except ValueError as error:
            self.axes[block.path] = str(error)


def _compare_with_two_copies(
    model: nn.Module, blocks: Sequence[AttentionBlock], modules: Sequence[str], run_on_copies: RunOnCopies
) -> _StackingComparison:
    """Runs the model on the batch and on two stacked copies of it, and returns the comparison."""
    single = _SingleOutputs()
    with record_pass(model, blocks, modules, single):
        run_on_copies(1)
    doubled = _StackingComparison(single)
    with record_pass(model, blocks, modules, doubled):
        run_on_copies(2)
    return doubled
