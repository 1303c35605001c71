"""Arguments with a head axis that reach a cut block with all heads: T5's and MPNet's shared bias, ALiBi. A block takes its own heads of them."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from headcount.core.errors import UnsupportedModel
from headcount.core.heads import HeadArgument


def _thread_key() -> int:
    """Returns the thread that runs the block, so that calls of several threads do not mix; 0 in compiled code."""
    return 0 if torch.compiler.is_compiling() else threading.get_ident()


def take_heads(argument: Tensor, positions: list[int], n_heads: int) -> Tensor:
    """Returns some heads of [batch or 1, heads, …] or [batch * heads, …]; a tensor without a head axis, or with one of size 1, stays."""
    if argument.ndim < 3:
        return argument
    if argument.ndim == 4 and argument.shape[1] == n_heads:
        return argument[:, positions]
    if argument.ndim == 4 and argument.shape[1] == 1:
        return argument
    if argument.ndim == 3 and argument.shape[0] % n_heads == 0:
        return argument.unflatten(0, (-1, n_heads))[:, positions].flatten(0, 1)
    raise UnsupportedModel(f"an argument of shape {tuple(argument.shape)} has no axis for {n_heads} heads")


class ArgumentSlicer:
    """Hooks of one cut block: they slice its arguments and return to later layers all heads of what the block returns.

    Arguments come with `n_heads` heads; `positions` are those that this block keeps.
    """

    def __init__(self, arguments: tuple[HeadArgument, ...], positions: list[int], n_heads: int) -> None:
        self.arguments, self.positions, self.n_heads = arguments, positions, n_heads
        self.order: list[str] = []
        self.received: dict[int, Tensor] = {}
        self.computed: dict[int, Tensor] = {}

    def install(self, module: nn.Module) -> None:
        """Puts the hooks on a block, and on its own bias table if it has one."""
        self.order = list(inspect.signature(type(module).forward).parameters)[1:]
        module.register_forward_pre_hook(self.slice_arguments, with_kwargs=True)
        if any(argument.returned for argument in self.arguments):
            module.register_forward_hook(self.restore_whole_bias)
            table = getattr(module, "relative_attention_bias", None)
            if table is not None:
                table.register_forward_hook(self.slice_table_output)

    def slice_arguments(
        self, _module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, object]
    ) -> tuple[tuple[Any, ...], dict[str, object]]:
        """Slices the arguments of a call."""
        values, named = list(args), dict(kwargs)
        self._forget_biases_of_call()
        for argument in self.arguments:
            index = self.order.index(argument.name)
            value = named.get(argument.name, values[index] if index < len(values) else None)
            if not isinstance(value, Tensor):
                continue
            if argument.returned:
                self.received[_thread_key()] = value
            part = take_heads(value, self.positions, self.n_heads)
            if argument.name in named:
                named[argument.name] = part
            else:
                values[index] = part
        return tuple(values), named

    def slice_table_output(self, _table: nn.Module, _args: tuple[Any, ...], output: Tensor) -> Tensor:
        """Keeps the bias [q, k, heads] of all heads for later layers and returns that of the block's own heads."""
        self.computed[_thread_key()] = output.permute(2, 0, 1).unsqueeze(0)
        return output[..., self.positions]

    def restore_whole_bias(self, _module: nn.Module, _args: tuple[Any, ...], output: Any) -> Any:
        """Puts the bias of all heads in place of the part that the block returns."""
        part, caller = output[1], _thread_key()
        if caller in self.received:
            full_bias = self.received[caller]
        elif caller in self.computed:
            bias = self.computed[caller][:, :, -part.shape[2] :, : part.shape[3]]
            mask = (part[:, :1] - bias[:, self.positions[:1]]).detach()  # some releases add the attention mask to the bias here
            full_bias = bias + mask
        else:
            full_bias = part[:, :1].expand(-1, self.n_heads, -1, -1)  # no table: the same for all heads
        self._forget_biases_of_call()
        return (output[0], full_bias, *output[2:])

    def _forget_biases_of_call(self) -> None:
        self.received.pop(_thread_key(), None)
        self.computed.pop(_thread_key(), None)


HOOKS = ("_forward_pre_hooks", "_forward_hooks")


def remove_argument_slicers(module: nn.Module) -> None:
    """Takes the hooks of an ArgumentSlicer off a module and its table."""
    for owner in (module, getattr(module, "relative_attention_bias", None)):
        for name in HOOKS if owner is not None else ():
            hooks = getattr(owner, name)
            for key in [key for key, hook in hooks.items() if isinstance(getattr(hook, "__self__", None), ArgumentSlicer)]:
                del hooks[key]
                for flags in ("_forward_pre_hooks_with_kwargs", "_forward_hooks_with_kwargs", "_forward_hooks_always_called"):
                    getattr(owner, flags).pop(key, None)
