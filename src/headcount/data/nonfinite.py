"""Where in a model the first number that is not finite occurs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from headcount.core.errors import NonFinite
from headcount.core.heads import AttentionBlock
from headcount.data.chunks import n_rows
from headcount.models.head_map import HeadMap
from headcount.models.modules import Batch
from headcount.models.state import forward_preserving_state


@contextmanager
def explain_nonfinite(model: nn.Module, heads: HeadMap, batch: Batch) -> Iterator[None]:
    """Adds to a NonFinite raised inside the attention block and the heads in which the batch has its first number that is not finite."""
    try:
        yield
    except NonFinite as error:
        raise NonFinite(f"{error}; {_locate_first_nonfinite(model, heads, batch)}") from error


def _locate_first_nonfinite(model: nn.Module, heads: HeadMap, batch: Batch) -> str:
    """Runs a batch again and says where its first number that is not finite occurs, in the order of the forward pass."""
    positions: list[str] = []
    with torch.no_grad(), ExitStack() as stack:
        for block in heads.blocks:
            projection = model.get_submodule(block.o.path)
            stack.callback(projection.register_forward_pre_hook(_hook_that_notes_nonfinite_heads(block, positions)).remove)
            stack.callback(projection.register_forward_hook(_hook_that_notes_nonfinite_output(block, positions)).remove)
        try:
            forward_preserving_state(model, batch)
        except Exception as error:  # the batch failed before for another reason, which is the one to report
            return f"where it came up first is not known ({type(error).__name__})"
    return f"it came up first in {positions[0]}" if positions else f"all blocks give finite numbers on its {n_rows(batch)} examples"


def _hook_that_notes_nonfinite_heads(block: AttentionBlock, positions: list[str]) -> Callable[..., None]:
    def note_heads(_module: nn.Module, inputs: tuple[Any, ...]) -> None:
        value = inputs[0] if inputs else None
        if not positions and isinstance(value, Tensor) and value.shape[-1] == block.n_heads * block.value_dim:
            bad = ~torch.isfinite(value.unflatten(-1, (block.n_heads, block.value_dim))).all(-1)
            names = [str(block.heads[index]) for index in bad.flatten(0, -2).any(0).nonzero().flatten().tolist()]
            if names:
                positions.append(", ".join(names) if len(names) < block.n_heads else f"{names[0].rpartition('H')[0]}, in all of its heads")

    return note_heads


def _hook_that_notes_nonfinite_output(block: AttentionBlock, positions: list[str]) -> Callable[..., None]:
    def note_output(_module: nn.Module, _inputs: Any, output: Any) -> None:
        value = output[0] if isinstance(output, tuple) else output
        if not positions and isinstance(value, Tensor) and not bool(torch.isfinite(value).all()) and block.n_heads:
            positions.append(f"{str(block.heads[0]).rpartition('H')[0]}, in its output projection")

    return note_output
