"""Whose a model is while hooks are on it: one thread and asyncio task works on it at a time, and another one gets ModelInUse.

Hooks, eval mode and the attention implementation belong to the model, not to who set them. Two threads or tasks that gate or observe one
model would each get a mixture of both, so the second is refused before it starts, and a plain pass at the first hook that it meets. What runs
inside belongs to the owner: its thread and task, tasks that it starts, threads that got a copy of its context (asyncio.to_thread,
contextvars.copy_context), the replicas of DataParallel, and autograd's own threads. Code that torch.compile traced under a context is not
checked when it runs.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import wraps
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import nn
from transformers import PreTrainedModel

from headcount.core.errors import ModelInUse, raising_out_of_memory
from headcount.models.modules import unwrap

R = TypeVar("R")
State = TypeVar("State")
Function = TypeVar("Function", bound=Callable[..., Any])
_LOCK = threading.Lock()
_STATES = threading.RLock()
"""Held while a state is captured or restored, so that no thread captures what another one is about to put back."""


def _current_task() -> asyncio.Task[Any] | None:
    """The asyncio task that runs in this thread, if any."""
    return asyncio.current_task() if asyncio._get_running_loop() is not None else None


def _is_autograd_thread() -> bool:
    """Whether autograd runs a backward pass in a thread of its own, which computes checkpointed layers again."""
    return torch._C._current_graph_task_id() != -1 and isinstance(threading.current_thread(), threading._DummyThread)


@dataclass(slots=True, eq=False)
class Ownership:
    """A model in use: what for, by which thread and task, and whether others may use it for what puts no hooks on it."""

    purpose: str
    exclusive: bool
    thread: threading.Thread
    task: asyncio.Task[Any] | None
    is_open: bool = True

    def includes_caller(self) -> bool:
        """Whether the caller is the owner, or works for it."""
        if self.thread is threading.current_thread() and self.task is _current_task():
            return True
        return self in _MINE.get() or _is_autograd_thread()

    def check_caller(self, module: nn.Module) -> None:
        """Raises ModelInUse unless the caller is the owner, or works for it."""
        if torch.compiler.is_compiling() or not self.is_open or self.includes_caller() or getattr(module, "_is_replica", False):
            return
        raise self.refusal_error(type(module).__name__)

    def hook_acts_in_pass_of(self, module: nn.Module, hooked_module: nn.Module) -> bool:
        """Returns whether a hook that this owner put on `hooked_module` acts in a pass of `module`; raises ModelInUse for strangers.

        It does not while hooks are suspended, nor in a copy of the model (copy.deepcopy), which takes hooks along and keeps them.
        """
        if torch.compiler.is_compiling():
            return True
        if module is not hooked_module and not getattr(module, "_is_replica", False):
            return False
        self.check_caller(module)
        return not _SUSPENDED.get()

    def refusal_error(self, model_name: str) -> ModelInUse:
        """The error for another thread or task."""
        owner = f"thread '{self.thread.name}'" + ("" if self.task is None else f", task '{self.task.get_name()}',")
        return ModelInUse(
            f"{model_name} is in use for {self.purpose} by {owner}, and others cannot use it meanwhile: wait until that is over, give each thread or "
            "task a copy of the model (copy.deepcopy), or run workers of the owner in its context (contextvars.copy_context, asyncio.to_thread)"
        )


_MINE: ContextVar[tuple[Ownership, ...]] = ContextVar("headcount_holds", default=())
_OPEN: WeakKeyDictionary[nn.Module, list[Ownership]] = WeakKeyDictionary()
_SUSPENDED: ContextVar[bool] = ContextVar("headcount_hooks_suspended", default=False)
_TURNS: WeakKeyDictionary[nn.Module, threading.RLock] = WeakKeyDictionary()


@contextmanager
def suspending_hooks() -> Iterator[None]:
    """Passes inside, of this thread and task alone, run as if no gates or observers were open; hooks that belong to the model run."""
    token = _SUSPENDED.set(True)
    try:
        yield
    finally:
        _SUSPENDED.reset(token)


def are_hooks_suspended() -> bool:
    """Whether the caller's pass is one that hooks of open contexts leave alone."""
    return not torch.compiler.is_compiling() and _SUSPENDED.get()


@contextmanager
def taking_turns(model: nn.Module) -> Iterator[None]:
    """Waits until no other thread is inside with the same model or a part of it, for those who share a model but change its mode in a pass."""
    with _LOCK:
        turns = [_TURNS.setdefault(part, threading.RLock()) for part in _model_and_inner_models(unwrap(model))]
    with ExitStack() as stack:
        for turn in sorted(turns, key=id):  # one order for all, so that none waits for another that waits for it
            stack.enter_context(turn)
        yield


def _model_and_inner_models(model: nn.Module) -> list[nn.Module]:
    """The model and the models inside it, by which a whole model and a part of it are known to be the same."""
    return [model, *(module for module in model.modules() if isinstance(module, PreTrainedModel) and module is not model)]


def restrict_to_owner(model: nn.Module, function: Callable[..., R], module: nn.Module | None = None) -> Callable[..., R]:
    """A hook, or the forward pass that stands in for that of a `module`, for the present owner of a model; it refuses others.

    A hook does nothing while hooks are suspended, nor in a copy of the model (copy.deepcopy) after the owner is done; such a forward pass is
    refused there, since it would run the module that it was made for.
    """
    owner = next(reversed(_OPEN.get(model, [])), None)
    if owner is None:
        return function

    def run_for_owner(*args: Any, **kwargs: Any) -> R | None:
        if module is None:
            owner.check_caller(args[0])  # a hook gets its module first
            return function(*args, **kwargs) if owner.is_open and not are_hooks_suspended() else None
        if not owner.is_open:
            raise ModelInUse(
                f"this {type(module).__name__} belongs to a copy that was made while the model was in use for {owner.purpose}; copy the model again"
            )
        owner.check_caller(module)
        return function(*args, **kwargs)

    return run_for_owner  # pyright: ignore[reportReturnType]


@contextmanager
def holding(model: nn.Module, purpose: str, *, exclusive: bool = True) -> Iterator[Ownership]:
    """Keeps a model for this thread and task; raises ModelInUse where another one has it.

    Without `exclusive` only those are refused that put hooks on the model or change its mode, and they are refused meanwhile.
    """
    models = _model_and_inner_models(unwrap(model))
    own = Ownership(purpose, exclusive, threading.current_thread(), _current_task())
    try:
        with _LOCK:
            holds_on_it = [hold for part in models for hold in _OPEN.get(part, ()) if exclusive or hold.exclusive]
            stranger = next((hold for hold in holds_on_it if not hold.includes_caller()), None)
            if stranger is not None:
                raise stranger.refusal_error(type(models[0]).__name__)
            for part in models:
                _OPEN.setdefault(part, []).append(own)
        _MINE.set((*_MINE.get(), own))
        yield own
    finally:
        own.is_open = False
        _MINE.set(tuple(hold for hold in _MINE.get() if hold is not own))
        with _LOCK:
            for part in models:
                if own in _OPEN.get(part, ()):
                    _OPEN[part].remove(own)


def holds_model(purpose: str, *, exclusive: bool = True) -> Callable[[Function], Function]:
    """Decorates functions and methods whose first argument is a model: it belongs to the caller until they return.

    Errors by which libraries say that memory ran out become OutOfMemory.
    """

    def decorate(function: Function) -> Function:
        @wraps(function)
        def run_while_holding(*args: Any, **kwargs: Any) -> Any:
            model = kwargs.get("model", next((argument for argument in args[:2] if isinstance(argument, nn.Module)), None))
            if not isinstance(model, nn.Module):  # the function says what is wrong with it
                return function(*args, **kwargs)
            with holding(model, purpose, exclusive=exclusive), raising_out_of_memory(purpose):
                return function(*args, **kwargs)

        return run_while_holding  # pyright: ignore[reportReturnType]

    return decorate


class SavedStates(Generic[State]):
    """What contexts found on a model and have to put back; they may close in any order, and the last to close puts back what the first found."""

    def __init__(self) -> None:
        self._open: WeakKeyDictionary[nn.Module, list[list[State]]] = WeakKeyDictionary()

    @contextmanager
    def saving(self, model: nn.Module, capture: Callable[[], State], restore: Callable[[State], None]) -> Iterator[None]:
        """Captures the model's state, and on leaving restores it, or hands it to the context that was opened next and is still open."""
        with _STATES:
            entry = [capture()]
            self._open.setdefault(model, []).append(entry)
        try:
            yield
        finally:
            with _STATES:
                entries = self._open[model]
                index = next(number for number, saved in enumerate(entries) if saved is entry)
                later = entries[index + 1] if index + 1 < len(entries) else None
                del entries[index]
                if later is None:
                    restore(entry[0])
                else:
                    later[:] = entry
