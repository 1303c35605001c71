"""A mode that keeps float64 models in float64 where their code rounds to float32, so that differences show what is a bug and what is rounding."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import softmax
from torch.overrides import TorchFunctionMode


class Float64(TorchFunctionMode):
    """Leaves float64 tensors alone where a model casts them to float32: norms, softmax, rotary positions."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        is_double = bool(args) and isinstance(args[0], Tensor) and args[0].dtype == torch.float64
        if is_double and (func is Tensor.float or (func is Tensor.to and torch.float32 in args)):
            return args[0]
        if func is Tensor.float and not args[0].is_floating_point():
            return args[0].double()  # places, which meet float64 frequencies
        if is_double and func in (softmax, torch.softmax, Tensor.softmax):
            kwargs = kwargs | {"dtype": None}
        return func(*args, **kwargs)
