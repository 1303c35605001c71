"""Where in a model a number that is not finite came up first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from headcount.core.errors import NonFinite
from headcount.core.heads import AttentionBlock
from headcount.data.task import n_rows
from headcount.models.head_map import HeadMap
from headcount.models.state import forward


@contextmanager
def located(model: nn.Module, heads: HeadMap, batch: Mapping[str, Any]) -> Iterator[None]:
    """Adds to a NonFinite raised inside in which block, and in which head of it, the batch has its first number that is not finite."""
    try:
        yield
    except NonFinite as error:
        raise NonFinite(f"{error}; {first_place(model, heads, batch)}") from error


def first_place(model: nn.Module, heads: HeadMap, batch: Mapping[str, Any]) -> str:
    """Runs a batch once more and says where its first number that is not finite comes up, in the order of the forward pass."""
    found: list[str] = []
    with torch.no_grad(), ExitStack() as stack:
        for block in heads.blocks:
            projection = model.get_submodule(block.o.path)
            stack.callback(projection.register_forward_pre_hook(_into(block, found)).remove)
            stack.callback(projection.register_forward_hook(_out_of(block, found)).remove)
        try:
            forward(model, batch)
        except Exception as error:  # the batch failed before for another reason, which is the one to tell
            return f"where it came up first is not known ({type(error).__name__})"
    return f"it came up first in {found[0]}" if found else f"all blocks give finite numbers on its {n_rows(batch)} examples"


def _layer(block: AttentionBlock, bad: Sequence[int]) -> str:
    names = [str(block.heads[place]) for place in bad]
    return ", ".join(names) if len(names) < block.n_heads else f"{names[0].rpartition('H')[0]}, in all of its heads"


def _into(block: AttentionBlock, found: list[str]) -> Any:
    def hook(_module: nn.Module, inputs: tuple[Any, ...]) -> None:
        value = inputs[0] if inputs else None
        if not found and isinstance(value, Tensor) and value.shape[-1] == block.n_heads * block.value_dim:
            bad = ~torch.isfinite(value.unflatten(-1, (block.n_heads, block.value_dim))).all(-1)
            places = bad.flatten(0, -2).any(0).nonzero().flatten().tolist()
            found.extend([_layer(block, places)] if places else [])

    return hook


def _out_of(block: AttentionBlock, found: list[str]) -> Any:
    def hook(_module: nn.Module, _inputs: Any, output: Any) -> None:
        value = output[0] if isinstance(output, tuple) else output
        if not found and isinstance(value, Tensor) and not bool(torch.isfinite(value).all()) and block.n_heads:
            found.append(f"{str(block.heads[0]).rpartition('H')[0]}, in its output projection")

    return hook
