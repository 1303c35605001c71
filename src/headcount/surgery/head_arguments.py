"""Arguments with a head axis that reach a cut block whole: T5's shared position bias, MPNet's, ALiBi. Each block takes its own heads of them."""

from __future__ import annotations

import inspect
import threading
from typing import Any

import torch
from torch import Tensor, nn

from headcount.core.errors import UnsupportedModel
from headcount.core.heads import HeadArgument


def _caller() -> int:
    """Which thread is running the block: calls of several threads must not meet. Compiled code has no threads to tell apart."""
    return 0 if torch.compiler.is_compiling() else threading.get_ident()


def take_heads(value: Tensor, kept: list[int], of: int) -> Tensor:
    """The kept heads of [batch or 1, heads, …] or [batch * heads, …]; what has no head axis, or one for all heads alike, stays."""
    if value.ndim < 3:
        return value
    if value.ndim == 4 and value.shape[1] == of:
        return value[:, kept]
    if value.ndim == 4 and value.shape[1] == 1:
        return value
    if value.ndim == 3 and value.shape[0] % of == 0:
        return value.unflatten(0, (-1, of))[:, kept].flatten(0, 1)
    raise UnsupportedModel(f"an argument of shape {tuple(value.shape)} has no axis for {of} heads")


class ArgumentSlicer:
    """Hooks of one cut block: slice what comes in; hand on whole what the block returns for later layers.

    Arguments come with `of` heads; `kept` are the places among them that this block keeps.
    """

    def __init__(self, arguments: tuple[HeadArgument, ...], kept: list[int], of: int) -> None:
        self.arguments, self.kept, self.of = arguments, kept, of
        self.order: list[str] = []
        self.given: dict[int, Tensor] = {}
        self.computed: dict[int, Tensor] = {}

    def install(self, module: nn.Module) -> None:
        """Puts the hooks on a block, and on its own bias table if it has one."""
        self.order = list(inspect.signature(type(module).forward).parameters)[1:]
        module.register_forward_pre_hook(self.before, with_kwargs=True)
        if any(argument.returned for argument in self.arguments):
            module.register_forward_hook(self.after)
            table = getattr(module, "relative_attention_bias", None)
            if table is not None:
                table.register_forward_hook(self.table_read)

    def before(self, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Slices the arguments of a call."""
        values, named = list(args), dict(kwargs)
        self._forget()
        for argument in self.arguments:
            place = self.order.index(argument.name)
            value = named.get(argument.name, values[place] if place < len(values) else None)
            if not isinstance(value, Tensor):
                continue
            if argument.returned:
                self.given[_caller()] = value
            part = take_heads(value, self.kept, self.of)
            if argument.name in named:
                named[argument.name] = part
            else:
                values[place] = part
        return tuple(values), named

    def table_read(self, _table: nn.Module, _args: tuple[Any, ...], output: Tensor) -> Tensor:
        """Keeps the whole bias [q, k, heads] for later layers and gives the block its own heads."""
        self.computed[_caller()] = output.permute(2, 0, 1).unsqueeze(0)
        return output[..., self.kept]

    def after(self, _module: nn.Module, _args: tuple[Any, ...], output: Any) -> Any:
        """Puts the whole bias in place of the part that the block returns."""
        part, caller = output[1], _caller()
        if caller in self.given:
            whole = self.given[caller]
        elif caller in self.computed:
            bias = self.computed[caller][:, :, -part.shape[2] :, : part.shape[3]]
            mask = (part[:, :1] - bias[:, self.kept[:1]]).detach()  # some releases add the attention mask to the bias here
            whole = bias + mask
        else:
            whole = part[:, :1].expand(-1, self.of, -1, -1)  # no table: the same for all heads
        self._forget()
        return (output[0], whole, *output[2:])

    def _forget(self) -> None:
        self.given.pop(_caller(), None)
        self.computed.pop(_caller(), None)


HOOKS = ("_forward_pre_hooks", "_forward_hooks")


def uninstall(module: nn.Module) -> None:
    """Takes the hooks of an ArgumentSlicer off a module and its table."""
    for owner in (module, getattr(module, "relative_attention_bias", None)):
        for name in HOOKS if owner is not None else ():
            hooks = getattr(owner, name)
            for key in [key for key, hook in hooks.items() if isinstance(getattr(hook, "__self__", None), ArgumentSlicer)]:
                del hooks[key]
                for flags in ("_forward_pre_hooks_with_kwargs", "_forward_hooks_with_kwargs", "_forward_hooks_always_called"):
                    getattr(owner, flags).pop(key, None)
