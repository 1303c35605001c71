"""Blocks that take the width of their heads from their input: after a cut the two differ, and their reshapes are fitted to the heads kept."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from headcount.core.heads import AttentionBlock

RESHAPES = {Tensor.reshape, Tensor.view, torch.reshape}


class FitReshapes(TorchFunctionMode):
    """Replaces the last size of a reshape that cannot succeed: the dense width, or its share per head, by that of the kept heads."""

    def __init__(self, dense: int, n_heads: int, head_dim: int) -> None:
        super().__init__()
        self.sizes = {dense: n_heads * head_dim, dense // n_heads: head_dim}

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func in RESHAPES and not kwargs:
            tensor, *shape = args
            sizes = tuple(shape[0]) if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else tuple(shape)
            args = (tensor, self.fit_sizes(tensor.numel(), sizes)) if sizes and not isinstance(sizes[0], torch.dtype) else args
        return func(*args, **(kwargs or {}))

    def fit_sizes(self, n_elements: int, requested_sizes: tuple[int, ...]) -> tuple[int, ...]:
        """Sizes that hold `n_elements` numbers, the last one replaced if that is what it takes; else those given."""
        if -1 in requested_sizes or math.prod(requested_sizes) == n_elements:
            return requested_sizes
        fitted = (*requested_sizes[:-1], self.sizes.get(requested_sizes[-1], requested_sizes[-1]))
        return fitted if math.prod(fitted) == n_elements else requested_sizes


class FittedForward:
    """The forward pass of one block with its reshapes fitted; an instance attribute, so that class and other blocks stay as they are."""

    def __init__(self, module: nn.Module, dense: int, n_heads: int, head_dim: int) -> None:
        self.forward: Callable[..., Any] = module.forward
        self.sizes = (dense, n_heads, head_dim)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the block returns."""
        with FitReshapes(*self.sizes):
            return self.forward(*args, **kwargs)


def install_fitted_forward(module: nn.Module, block: AttentionBlock, n_heads: int) -> None:
    """Makes a block that reads its width from its input run with `n_heads` heads; replaces an earlier fit."""
    installed = vars(module).get("forward")
    if isinstance(installed, FittedForward):
        module.forward = installed.forward
    module.forward = FittedForward(module, block.n_original * block.value_dim, n_heads, block.value_dim)
