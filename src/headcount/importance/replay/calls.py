"""Calls of the modules of a model: when each ran, which of them another one cannot reach, and replacements of their forward passes."""

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

from headcount.models.ownership import for_owner


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a module: when it began and ended, and the shape of its first argument."""

    start: int
    end: int
    shape: tuple[int, ...]


Calls = Mapping[str, tuple[Call, ...]]
"""The calls of every module that ran, by path."""


def watch(model: nn.Module, run: Callable[[], Any]) -> dict[str, tuple[Call, ...]]:
    """Returns the calls that `run` makes to the modules of a model."""
    finished: dict[str, list[Call]] = {}
    running: dict[str, list[tuple[int, tuple[int, ...]]]] = {}
    clock = iter(range(1 << 62))

    def before(path: str, args: tuple[Any, ...]) -> None:
        shape = tuple(args[0].shape) if args and isinstance(args[0], Tensor) else ()
        running.setdefault(path, []).append((next(clock), shape))

    def after(path: str) -> None:
        start, shape = running[path].pop()
        finished.setdefault(path, []).append(Call(start, next(clock), shape))

    with ExitStack() as stack:
        for path, module in model.named_modules():
            stack.callback(module.register_forward_pre_hook(for_owner(model, lambda _, args, path=path: before(path, args))).remove)
            stack.callback(module.register_forward_hook(for_owner(model, lambda *_, path=path: after(path))).remove)
        run()
    return {path: tuple(calls) for path, calls in finished.items()}


def only_call(calls: Calls, path: str) -> Call | None:
    """Returns the only call of a module; None if it ran more than once or not at all."""
    of_module = calls.get(path, ())
    return of_module[0] if len(of_module) == 1 else None


def largest(model: nn.Module, fits: Callable[[str], bool]) -> tuple[str, ...]:
    """Returns the modules that fit and lie in no other module that fits."""
    return tuple(_largest(model, "", fits))


def _largest(module: nn.Module, path: str, fits: Callable[[str], bool]) -> Iterator[str]:
    if fits(path):
        yield path
        return
    for name, child in module.named_children():
        yield from _largest(child, f"{path}.{name}" if path else name, fits)


def untouched_by(model: nn.Module, calls: Calls, source: str, run: Callable[[], Any]) -> frozenset[str]:
    """The modules that ran once and neither take nor give anything that depends on the output of `source`.

    That output is replaced by NaN, which spreads through all arithmetic. Comparisons can stop it, so that a trial must confirm the finding.
    """
    clean = {path for path in calls if only_call(calls, path)}

    def look(path: str, *values: Any) -> None:
        leaves = tree_flatten(values)[0]
        if any(isinstance(leaf, Tensor) and leaf.is_floating_point() and bool(leaf.isnan().any()) for leaf in leaves):
            clean.discard(path)

    def poison(_module: nn.Module, _args: Any, output: Tensor) -> Tensor:
        return torch.full_like(output, torch.nan)

    with ExitStack() as stack:
        stack.callback(model.get_submodule(source).register_forward_hook(for_owner(model, poison)).remove)
        for path in tuple(clean):
            hook = partial(lambda path, _module, args, kwargs, output: look(path, args, kwargs, output), path)
            stack.callback(model.get_submodule(path).register_forward_hook(for_owner(model, hook), with_kwargs=True).remove)
        run()
    return frozenset(clean)


def altered_by_hooks(model: nn.Module, run: Callable[[], Any]) -> frozenset[str]:
    """The modules whose own hooks replace what their forward pass returns: hooks must not act again on an output that is replayed."""
    suspects = [path for path, module in model.named_modules() if module._forward_hooks]
    raw: dict[str, Any] = {}
    altered: set[str] = set()

    def remembering(path: str) -> Callable[..., Any]:
        own = model.get_submodule(path).forward
        return lambda *args, **kwargs: raw.setdefault(path, own(*args, **kwargs))

    def compare(path: str, output: Any) -> None:
        if raw.pop(path, None) is not output:
            altered.add(path)

    with ExitStack() as stack:
        for path in suspects:
            check = for_owner(model, lambda _m, _a, output, path=path: compare(path, output))
            hook = model.get_submodule(path).register_forward_hook(check)
            stack.callback(hook.remove)
        stack.enter_context(standing_in(model, {path: remembering(path) for path in suspects}))
        if suspects:
            run()
    return frozenset(altered)


@contextmanager
def standing_in(model: nn.Module, forwards: Mapping[str, Callable[..., Any]], silent: Iterable[str] = ()) -> Iterator[None]:
    """Replaces the forward passes of some modules, by path, and removes the hooks of those that are `silent`, inside the context."""
    with ExitStack() as stack:
        for path, forward in forwards.items():
            module = model.get_submodule(path)
            _swap(stack, module, "forward", for_owner(model, forward, module))
        for path in silent:
            for hooks in ("_forward_hooks", "_forward_pre_hooks"):
                _swap(stack, model.get_submodule(path), hooks, OrderedDict())
        yield


def _swap(stack: ExitStack, module: nn.Module, name: str, value: Any) -> None:
    """Sets an attribute of a module and restores it later: a forward pass of its own (accelerate sets one), or that of its class."""
    attributes = module.__dict__
    before = {name: attributes[name]} if name in attributes else {}

    def restore() -> None:
        attributes.pop(name, None)
        attributes.update(before)

    stack.callback(restore)
    attributes[name] = value
