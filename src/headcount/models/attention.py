"""Attention probabilities seen, and if wanted replaced, at the softmax that makes them.

A block's forward pass runs under a torch function mode that catches the softmax, so nothing of the model or of torch is patched, and families
with and without transformers' attention interface behave alike. Fused kernels have no softmax to catch: the model is switched to its eager
path inside, and back on leaving.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from threading import Lock
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from headcount.core.errors import UnsupportedModel
from headcount.core.heads import AttentionBlock
from headcount.models.archs.geometry import family_of
from headcount.models.modules import unwrap
from headcount.models.ownership import Ownership, are_hooks_suspended, holding

SOFTMAX = {F.softmax, torch.softmax, torch.Tensor.softmax, torch.special.softmax}

_CLASSES = Lock()

MASKED = -1e8
"""No score of a real model is lower; most masks are."""

Change = Callable[[AttentionBlock, Tensor, Tensor], Tensor | None]
"""(block, probabilities [batch, heads, q, k], visible keys of the same shape) -> other probabilities, or None to leave them."""


def _configs_of_modules(model: nn.Module) -> list[Any]:
    """Every configuration object that modules of the model read, once each."""
    configs: dict[int, Any] = {}
    for module in model.modules():
        config = getattr(module, "config", None)
        while hasattr(config, "headcount_base"):
            config = config.headcount_base  # pyright: ignore[reportOptionalMemberAccess]
        if hasattr(config, "_attn_implementation_internal"):
            configs[id(config)] = config
    return list(configs.values())


_EAGER: dict[int, list[Ownership]] = {}
"""Who runs the eager path of a configuration, by its identity."""


@lru_cache
def _config_class_with_eager_path(config_class: type) -> type:
    """A class of configurations that names the eager path to those who asked for it, and to others what it named before."""

    def attention_implementation(config: Any) -> str | None:
        is_eager = any(torch.compiler.is_compiling() or hold.includes_caller() for hold in _EAGER.get(id(config), ()))
        return "eager" if is_eager else config._attn_implementation_internal

    attributes = {
        "_attn_implementation": property(attention_implementation, config_class._attn_implementation.fset),
        "__module__": config_class.__module__,
    }  # pyright: ignore[reportAttributeAccessIssue]
    return type(config_class.__name__, (config_class,), attributes)


def _add_eager_owner(config: Any, owner: Ownership) -> None:
    """Lets `owner` run the eager path of a configuration; contexts may close in any order."""
    with _CLASSES:
        holds = _EAGER.setdefault(id(config), [])
        if not holds:
            config.__class__ = _config_class_with_eager_path(type(config))
        holds.append(owner)


def _remove_eager_owner(config: Any, owner: Ownership) -> None:
    with _CLASSES:
        _EAGER[id(config)].remove(owner)
        if not _EAGER[id(config)]:
            del _EAGER[id(config)]
            config.__class__ = type(config).__mro__[1]


@contextmanager
def eager_attention(model: nn.Module) -> Iterator[Ownership]:
    """Runs the model's eager attention inside, and what it had before afterwards; for the caller alone, in whatever order contexts close.

    A pass of another thread that is on its way keeps its own path: its mask was made for that one.
    """
    with holding(model, "a pass on its eager path") as hold, ExitStack() as stack:
        for config in _configs_of_modules(unwrap(model)):
            stack.callback(_remove_eager_owner, config, hold)
            _add_eager_owner(config, hold)
        yield hold


def visible_key_mask(block: AttentionBlock, module: nn.Module, scores: Tensor) -> Tensor:
    """Which entries of the scores are not masked away; masks are huge negative numbers, in some families smaller ones (masked_below)."""
    weight = next((p for p in module.parameters() if p.is_floating_point()), scores)
    floor = max(torch.finfo(scores.dtype).min / 2, torch.finfo(weight.dtype).min / 2, MASKED)
    masked_below = family_of(module).masked_below
    visible = scores > (floor if masked_below is None else masked_below)
    if block.sink:
        visible = torch.cat([visible[..., :-1], torch.zeros_like(visible[..., -1:])], dim=-1)
    return visible


class _Softmax(TorchFunctionMode):
    """Hands the probabilities of one block's softmax to `change`."""

    def __init__(self, block: AttentionBlock, module: nn.Module, change: Change) -> None:
        super().__init__()
        self.block, self.module, self.change = block, module, change
        self.seen = self.odd = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func not in SOFTMAX:
            return result
        self.seen += 1
        if not self._has_head_axis(result):
            self.odd += 1
            return result
        scores = args[0] if args else (kwargs or {})["input"]
        grid = (-1, self.block.n_heads, *result.shape[-2:])
        visible = visible_key_mask(self.block, self.module, scores).reshape(grid)
        changed = self.change(self.block, result.reshape(grid), visible)
        return result if changed is None else changed.reshape(result.shape).to(result.dtype)

    def _has_head_axis(self, result: Tensor) -> bool:
        """Whether the rows before [q, k] are heads: [batch, heads], [batch * heads], [batch, groups, heads of a group]."""
        heads = self.block.n_heads
        if result.ndim == 3:
            return result.shape[0] % heads == 0
        return result.ndim >= 4 and (result.shape[-3] == heads or (result.ndim == 5 and result.shape[1] * result.shape[2] == heads))


class AttentionTap:
    """Calls `change` with the attention probabilities of the chosen blocks in every forward pass inside the context.

    Some vision towers attend image by image and so call softmax several times a pass; `several` says that this is welcome.
    """

    def __init__(self, model: nn.Module, blocks: Iterable[AttentionBlock], change: Change, *, several: bool = True) -> None:
        self.model, self.several = unwrap(model), several
        self.blocks = tuple(block for block in blocks if block.n_heads)
        self.change = change
        self._active: list[_Softmax] = []
        self._stack = ExitStack()

    def __enter__(self) -> AttentionTap:
        with ExitStack() as stack:
            hold = stack.enter_context(eager_attention(self.model))
            stack.callback(self._exit_open_softmax_modes)
            for block in self.blocks:
                module = self.model.get_submodule(block.path)
                before, after = self._before_and_after_hooks(block, module, hold)
                stack.callback(module.register_forward_pre_hook(before).remove)
                stack.callback(module.register_forward_hook(after, always_call=True).remove)
            if any(hasattr(module, "set_attention_type") for module in self.model.modules()):
                stack.callback(self.model.register_forward_hook(self._replaced_block_check_hook()).remove)
            self._stack = stack.pop_all()
        return self

    def _replaced_block_check_hook(self) -> Callable[..., None]:
        """A hook that raises UnsupportedModel where a pass put another module in the place of a block, whose attention was then not seen."""
        hooked = {block.path: self.model.get_submodule(block.path) for block in self.blocks}

        def raise_if_block_was_replaced(model: nn.Module, *_: Any) -> None:
            for path, module in hooked.items():
                if model is self.model and not are_hooks_suspended() and self.model.get_submodule(path) is not module:
                    raise UnsupportedModel(
                        f"block '{path}' ({type(module).__name__}) was replaced during the pass, so its attention was not seen: the input is too "
                        "short for sparse attention. Call set_attention_type('original_full') on the encoder first."
                    )

        return raise_if_block_was_replaced

    def _exit_open_softmax_modes(self) -> None:
        """Leaves the modes of blocks that were interrupted: torch runs no forward hook when a pass ends by Ctrl-C."""
        while self._active:
            self._active.pop().__exit__(None, None, None)

    def _before_and_after_hooks(self, block: AttentionBlock, hooked_module: nn.Module, owner: Ownership) -> tuple[Callable, Callable]:
        def open_softmax_mode(module: nn.Module, _args: Any) -> None:
            if not owner.hook_acts_in_pass_of(module, hooked_module):
                return
            self._exit_open_softmax_modes()  # what an interrupted pass left behind
            mode = _Softmax(block, module, self.change)
            mode.__enter__()
            self._active.append(mode)

        def close_softmax_mode(module: nn.Module, _args: Any, output: Any) -> None:
            is_replica = getattr(module, "_is_replica", False)
            if are_hooks_suspended() or not self._active or not (is_replica or (module is hooked_module and owner.includes_caller())):
                return  # a copy, or a pass of another thread: it was refused, or was inside the block when this one began
            mode = self._active.pop()
            mode.__exit__(None, None, None)
            enough = mode.seen >= 1 if self.several else mode.seen == 1
            if output is not None and (mode.odd or not enough):
                raise UnsupportedModel(
                    f"block '{block.path}' ({type(module).__name__}) called softmax {mode.seen} times, {mode.odd} of them not over its heads; "
                    "one softmax per head was expected, so its attention cannot be seen. If it runs a fused kernel, load the model with "
                    "attn_implementation='eager'."
                )

        return open_softmax_mode, close_softmax_mode

    def __exit__(self, *_: object) -> None:
        self._stack.close()
