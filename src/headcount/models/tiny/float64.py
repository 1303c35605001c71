"""A mode that keeps float64 models in float64 where their code rounds to float32, so that differences show what is a bug and what is rounding."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import log_softmax, softmax
from torch.overrides import TorchFunctionMode

SOFTMAXES = (softmax, torch.softmax, Tensor.softmax, log_softmax, torch.log_softmax, Tensor.log_softmax)
CASTS = (Tensor.to, Tensor.type)


class Float64(TorchFunctionMode):
    """Leaves float64 tensors alone where a model casts them to float32: norms, softmax, rotary positions."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        is_double = bool(args) and isinstance(args[0], Tensor) and args[0].dtype == torch.float64
        if func is Tensor.float and not args[0].is_floating_point():
            return args[0].double()  # positions, which meet float64 frequencies
        if is_double and func is Tensor.float:
            return args[0]
        if is_double and func in CASTS:
            args = tuple(torch.float64 if argument is torch.float32 else argument for argument in args)
        if is_double and func in (*CASTS, *SOFTMAXES) and kwargs.get("dtype") is torch.float32:
            kwargs = kwargs | {"dtype": torch.float64}
        return func(*args, **kwargs)
