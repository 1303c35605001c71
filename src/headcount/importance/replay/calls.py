"""Calls of a model's modules: when each of them ran, which ones do not depend on another, and replacements of their forward passes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

from headcount.models.ownership import restrict_to_owner

Forward = Callable[..., Any]
"""The forward pass of a module."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a module: when it began and ended, and the shape of its first argument."""

    start: int
    end: int
    shape: tuple[int, ...]


Calls = Mapping[str, tuple[Call, ...]]
"""The calls of every module that ran, by path."""


def record_calls(model: nn.Module, run_pass: Callable[[], Any]) -> dict[str, tuple[Call, ...]]:
    """Returns the calls that `run_pass` makes to the modules of a model."""
    finished: dict[str, list[Call]] = {}
    running: dict[str, list[tuple[int, tuple[int, ...]]]] = {}
    clock = iter(range(1 << 62))

    def note_start(path: str, args: tuple[Any, ...]) -> None:
        shape = tuple(args[0].shape) if args and isinstance(args[0], Tensor) else ()
        running.setdefault(path, []).append((next(clock), shape))

    def note_end(path: str) -> None:
        start, shape = running[path].pop()
        finished.setdefault(path, []).append(Call(start, next(clock), shape))

    with ExitStack() as stack:
        for path, module in model.named_modules():
            stack.callback(
                module.register_forward_pre_hook(restrict_to_owner(model, lambda _, args, path=path: note_start(path, args))).remove
            )
            stack.callback(module.register_forward_hook(restrict_to_owner(model, lambda *_, path=path: note_end(path))).remove)
        run_pass()
    return {path: tuple(calls) for path, calls in finished.items()}


def only_call(calls: Calls, path: str) -> Call | None:
    """Returns the only call of a module; None if it ran more than once or not at all."""
    of_module = calls.get(path, ())
    return of_module[0] if len(of_module) == 1 else None


def find_outermost_modules(module: nn.Module, is_included: Callable[[str], bool], module_path: str = "") -> Iterator[str]:
    """Yields the paths of the modules that fulfil a condition and lie in no other module that does."""
    if is_included(module_path):
        yield module_path
        return
    for name, child in module.named_children():
        yield from find_outermost_modules(child, is_included, f"{module_path}.{name}" if module_path else name)


def find_independent_modules(model: nn.Module, calls: Calls, source_path: str, run_pass: Callable[[], Any]) -> frozenset[str]:
    """Returns the modules that ran once and neither take nor give anything that depends on the output of the module `source_path`.

    That output is replaced by NaN, which spreads through all arithmetic. Comparisons can stop it, so a trial must confirm the result.
    """
    independent = {path for path in calls if only_call(calls, path)}

    def discard_if_nan(path: str, *values: Any) -> None:
        leaves = tree_flatten(values)[0]
        if any(isinstance(leaf, Tensor) and leaf.is_floating_point() and bool(leaf.isnan().any()) for leaf in leaves):
            independent.discard(path)

    def replace_by_nan(_module: nn.Module, _args: Any, output: Tensor) -> Tensor:
        return torch.full_like(output, torch.nan)

    with ExitStack() as stack:
        stack.callback(model.get_submodule(source_path).register_forward_hook(restrict_to_owner(model, replace_by_nan)).remove)
        for path in tuple(independent):
            hook = partial(lambda path, _module, args, kwargs, output: discard_if_nan(path, args, kwargs, output), path)
            stack.callback(model.get_submodule(path).register_forward_hook(restrict_to_owner(model, hook), with_kwargs=True).remove)
        run_pass()
    return frozenset(independent)


def find_modules_altered_by_hooks(model: nn.Module, run_pass: Callable[[], Any]) -> frozenset[str]:
    """Returns the modules whose hooks replace the output of their forward pass; a replayed output contains that change already."""
    with_hooks = [path for path, module in model.named_modules() if module._forward_hooks]
    raw_outputs: dict[str, Any] = {}
    altered: set[str] = set()

    def forward_keeping_raw_output(path: str) -> Forward:
        own_forward = model.get_submodule(path).forward
        return lambda *args, **kwargs: raw_outputs.setdefault(path, own_forward(*args, **kwargs))

    def note_if_altered(path: str, output: Any) -> None:
        if raw_outputs.pop(path, None) is not output:
            altered.add(path)

    with ExitStack() as stack:
        for path in with_hooks:
            check = restrict_to_owner(model, lambda _m, _a, output, path=path: note_if_altered(path, output))
            stack.callback(model.get_submodule(path).register_forward_hook(check).remove)
        stack.enter_context(replace_forwards(model, {path: forward_keeping_raw_output(path) for path in with_hooks}))
        if with_hooks:
            run_pass()
    return frozenset(altered)


@contextmanager
def replace_forwards(model: nn.Module, forwards: Mapping[str, Forward], without_hooks: Iterable[str] = ()) -> Iterator[None]:
    """Inside, some modules, by path, have other forward passes; those in `without_hooks` run without their hooks."""
    with ExitStack() as stack:
        for path, forward in forwards.items():
            module = model.get_submodule(path)
            _set_attribute_until_exit(stack, module, "forward", restrict_to_owner(model, forward, module))
        for path in without_hooks:
            for hooks in ("_forward_hooks", "_forward_pre_hooks"):
                _set_attribute_until_exit(stack, model.get_submodule(path), hooks, OrderedDict())
        yield


def _set_attribute_until_exit(stack: ExitStack, module: nn.Module, name: str, value: Any) -> None:
    """Sets an attribute of a module until the stack closes; a forward pass set on the object itself, as accelerate does, is restored."""
    attributes = module.__dict__
    before = {name: attributes[name]} if name in attributes else {}

    def restore() -> None:
        attributes.pop(name, None)
        attributes.update(before)

    stack.callback(restore)
    attributes[name] = value
