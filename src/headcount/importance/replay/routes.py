"""Finding the routes of a model: which modules can be replayed for which block, by watching it run on a batch and on the same batch twice over."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import Tensor, nn

from headcount.core.heads import AttentionBlock
from headcount.importance.replay.calls import Calls, altered_by_hooks, largest, only_call, untouched_by, watch
from headcount.importance.replay.replay import Recording, Route, holds_projection, untouched_slot
from headcount.importance.replay.stacking import Layout, flatten, row_axis
from headcount.models.ownership import for_owner

Run = Callable[[int], Any]
"""Runs the model on so many copies of the batch."""

TWO_OUTPUTS = "its heads feed two output projections"
MANY_CALLS = "its output projection runs {} times in one pass, so that no moment divides what its heads can change from what they cannot"


@dataclass(frozen=True, slots=True)
class Survey:
    """The routes of a model, by block path; the layouts of the modules they replay; why other blocks have no route."""

    routes: dict[str, Route] = field(default_factory=dict)
    layouts: dict[str, Layout] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    calls: Calls = field(default_factory=dict)
    altered: frozenset[str] = frozenset()

    def without(self, refused: Mapping[str, str]) -> Survey:
        """The survey with some routes taken out, for the reasons given."""
        routes = {path: route for path, route in self.routes.items() if path not in refused}
        return Survey(routes, self.layouts, {**self.refused, **refused}, self.calls, self.altered)

    @property
    def blocks(self) -> list[AttentionBlock]:
        """The blocks that have a route."""
        return [route.block for route in self.routes.values()]

    @property
    def units(self) -> list[str]:
        """Every module whose output some route needs, once each."""
        return list(dict.fromkeys(path for route in self.routes.values() for path in route.recorded))

    @property
    def last(self) -> Route | None:
        """The route of the block that runs last."""
        return max(self.routes.values(), key=lambda route: self.calls[route.block.o.path][0].start, default=None)


def survey(model: nn.Module, blocks: Sequence[AttentionBlock], run: Run) -> Survey:
    """The routes of a model; modules whose outputs cannot be stacked are left to run, in part or whole."""
    calls = watch(model, lambda: run(1))
    once = [block for block in blocks if only_call(calls, block.o.path) and len(block.outputs) == 1]
    refused = {
        block.path: MANY_CALLS.format(len(calls.get(block.o.path, ()))) if len(block.outputs) == 1 else TWO_OUTPUTS
        for block in blocks
        if block not in once
    }
    altered = altered_by_hooks(model, lambda: run(1))
    slots = _slots(model, [block for block in once if block.o.path not in altered], calls, run)
    apart = _apart(model, once, calls, run)
    odd: dict[str, str] = {}
    while True:
        units = {block.path: _units(model, block, slots.get(block.path), calls, (apart[block.stack], odd)) for block in once}
        modules = list(dict.fromkeys(unit for of_block in units.values() for unit in of_block))
        layouts, axes, new = _layouts(model, once, [*modules, *(path for path, slot in slots.items() if slot is not None)], run)
        if not new.keys() - odd.keys():
            break
        odd |= new
        slots = {path: None if path in odd else slot for path, slot in slots.items()}
    refused |= {
        block.path: f"its heads' outputs cannot be stacked: {axes[block.path]}" for block in once if isinstance(axes[block.path], str)
    }
    routes = {
        block.path: Route(block, units[block.path], axis, slots.get(block.path))
        for block in once
        if isinstance(axis := axes[block.path], int)
    }
    return Survey(routes, layouts, refused, calls, altered)


def _apart(model: nn.Module, blocks: Sequence[AttentionBlock], calls: Calls, run: Run) -> dict[str, frozenset[str]]:
    """For each stack the modules that run behind or beside it and see nothing of it: another tower, a decoder's first self-attention."""
    firsts: dict[str, AttentionBlock] = {}
    for block in sorted(blocks, key=lambda block: calls[block.o.path][0].start):
        firsts.setdefault(block.stack, block)
    if len(firsts) < 2:
        return dict.fromkeys(firsts, frozenset())
    return {stack: untouched_by(model, calls, block.o.path, lambda: run(1)) for stack, block in firsts.items()}


def _units(
    model: nn.Module, block: AttentionBlock, slot: int | None, calls: Calls, known: tuple[Container[str], Container[str]]
) -> tuple[str, ...]:
    """The modules to replay for changes in a block: those done before it and those known to be apart from it, but none known to be odd."""
    moment, (apart, odd) = calls[block.o.path if slot is None else block.path][0].start, known

    def fits(path: str) -> bool:
        call = only_call(calls, path)
        return call is not None and (call.end < moment or path in apart) and path not in odd

    units = largest(model, fits)
    return units if slot is None else tuple(path for path in units if not path.startswith(f"{block.path}."))


def _slots(model: nn.Module, blocks: Sequence[AttentionBlock], calls: Calls, run: Run) -> dict[str, int | None]:
    """For each block the leaf of its output that is its projection's output, untouched."""
    slots: dict[str, int | None] = {block.path: None for block in blocks}
    projected: dict[str, Tensor] = {}

    def keep(path: str, _module: nn.Module, _args: Any, output: Tensor) -> None:
        projected[path] = output.clone()

    def compare(block: AttentionBlock, _module: nn.Module, _args: Any, output: Any) -> None:
        try:
            slots[block.path] = untouched_slot(output, projected.pop(block.path))
        except ValueError:
            slots[block.path] = None

    with ExitStack() as stack:
        for block in blocks:
            if holds_projection(block) and only_call(calls, block.path):
                layer, module = model.get_submodule(block.o.path), model.get_submodule(block.path)
                stack.callback(layer.register_forward_hook(for_owner(model, partial(keep, block.path))).remove)
                stack.callback(module.register_forward_hook(for_owner(model, partial(compare, block))).remove)
        run(1)
    return slots


def recording(model: nn.Module, blocks: Sequence[AttentionBlock], units: Sequence[str], record: Any) -> ExitStack:
    """A context that hands outputs of modules to `record.keep` and inputs of output projections to `record.keep_context`.

    What `keep_context` returns, if anything, goes into the projection instead.
    """

    def context(block: AttentionBlock, _module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        replacement = record.keep_context(block, args[0])
        return None if replacement is None else (replacement, *args[1:])

    with ExitStack() as stack:
        for path in units:
            keep = for_owner(model, lambda _m, _a, output, path=path: record.keep(path, output))
            hook = model.get_submodule(path).register_forward_hook(keep)
            stack.callback(hook.remove)
        for block in blocks:
            layer = model.get_submodule(block.o.path)
            stack.callback(layer.register_forward_pre_hook(for_owner(model, partial(context, block))).remove)
        return stack.pop_all()


class _Doubled:
    """Compares a pass over twice the rows with a record, as it runs."""

    def __init__(self, single: _Raw) -> None:
        self.single = single
        self.layouts: dict[str, Layout] = {}
        self.axes: dict[str, int | str] = {}
        self.odd: dict[str, str] = {}

    def keep(self, path: str, output: Any) -> None:
        try:
            self.layouts[path] = Layout.between(self.single.outputs[path], output)
        except (ValueError, KeyError) as error:
            self.odd[path] = str(error)

    def keep_context(self, block: AttentionBlock, context: Tensor) -> None:
        try:
            axis = row_axis(self.single.contexts[block.path], context)
            self.axes[block.path] = "they do not depend on the number of rows" if axis is None else axis
        except ValueError as error:
            self.axes[block.path] = str(error)


class _Raw(Recording):
    """A record that keeps outputs in their structure, and nothing of those that hold other things than tensors."""

    def keep(self, path: str, output: Any) -> None:
        try:
            leaves, spec = flatten(output)
        except ValueError:
            return
        self.outputs[path] = spec.unflatten([leaf.clone() if isinstance(leaf, Tensor) else leaf for leaf in leaves])


def _layouts(
    model: nn.Module, blocks: Sequence[AttentionBlock], units: Sequence[str], run: Run
) -> tuple[dict[str, Layout], dict[str, int | str], dict[str, str]]:
    """Layouts of modules, axes of contexts (or why there is none), and the modules that have no layout, with the reason."""
    single = _Raw()
    with recording(model, blocks, units, single):
        run(1)
    double = _Doubled(single)
    with recording(model, blocks, units, double):
        run(2)
    return double.layouts, double.axes, double.odd
