"""Torch-Pruning asked for heads alone, the way its own examples for BERT, ViT and language models ask it, and what it really removed.

Every layer but q, k and v is ignored. `pruning_ratio` must not be 0, or no head goes either; with all other layers ignored it touches
nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch_pruning as tp
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

import headcount as hc
from headcount.core.heads import AttentionBlock

PRUNED = (nn.Linear, nn.Embedding, nn.LayerNorm, nn.Conv2d)
IMPORTANCES = {"magnitude": tp.importance.MagnitudeImportance, "Taylor": tp.importance.TaylorImportance}


@dataclass(frozen=True, slots=True)
class Wanted:
    """What Torch-Pruning is asked for: an importance, a share of the heads, ranked within each layer or over all of them."""

    importance: str
    ratio: float
    over_all: bool = False


def prune(model: nn.Module, heads: hc.HeadMap, data: Iterable[Mapping[str, Tensor]], wanted: Wanted) -> None:
    """Prunes a model in place; Taylor takes the gradients of the data's loss, magnitude takes their first batch for tracing alone."""
    batches = [dict(batch) for batch in data]
    counts = _counts(model, heads)
    pruner = tp.pruner.BasePruner(
        model,
        batches[0],
        importance=IMPORTANCES[wanted.importance](),
        global_pruning=wanted.over_all,
        pruning_ratio=wanted.ratio,
        head_pruning_ratio=wanted.ratio,
        num_heads=counts,
        prune_num_heads=True,
        prune_head_dims=False,
        ignored_layers=[m for m in model.modules() if isinstance(m, PRUNED) and m not in counts],
        in_channel_groups={},
        out_channel_groups={},
        output_transform=lambda output: output.logits.sum(),
    )
    if wanted.importance == "Taylor":
        gradients(model, batches)
    pruner.step()
    model.zero_grad()
    for block in heads.blocks:
        tell(model, block)


def gradients(model: nn.Module, batches: Iterable[Mapping[str, Tensor]]) -> None:
    """Adds the gradients of all batches up, as the examples do."""
    model.zero_grad()
    for batch in batches:
        model(**batch).loss.backward()


def _counts(model: nn.Module, heads: hc.HeadMap) -> dict[nn.Module, int]:
    numbers: dict[nn.Module, int] = {}
    for block in heads.blocks:
        for part, number in ((block.q, block.n_heads), (block.k, block.n_kv_heads), (block.v, block.n_kv_heads)):
            numbers[model.get_submodule(part.path)] = number
    return numbers


def tell(model: nn.Module, block: AttentionBlock) -> None:
    """Sets what an attention module knows about its heads, from the shapes that Torch-Pruning left."""
    module: Any = model.get_submodule(block.path)
    n_heads = rows(model, block, "o").shape[0] // block.head_dim
    n_kv_heads = rows(model, block, "k").shape[0] // block.head_dim
    for name in ("num_attention_heads", "num_heads", "n_heads"):
        if hasattr(module, name):
            setattr(module, name, n_heads)
    for name in ("all_head_size", "inner_dim", "split_size"):
        if hasattr(module, name):
            setattr(module, name, n_heads * block.head_dim)
    if hasattr(module, "num_key_value_groups"):
        module.num_key_value_groups = n_heads // max(1, n_kv_heads)


def tell_config(model: Any, heads: hc.HeadMap) -> None:
    """Sets the head counts of the configuration where all layers agree, so that plain loading has its best chance."""
    left = {rows(model, block, "o").shape[0] // block.head_dim for block in heads.blocks}
    groups = {rows(model, block, "k").shape[0] // block.head_dim for block in heads.blocks}
    if not hasattr(model.config, "head_dim") and hasattr(model.get_submodule(heads.blocks[0].path), "head_dim"):
        model.config.head_dim = heads.blocks[0].head_dim
    for names, counts in ((("num_attention_heads", "num_heads", "n_head"), left), (("num_key_value_heads",), groups)):
        for name in names:
            if len(counts) == 1 and hasattr(model.config, name):
                setattr(model.config, name, next(iter(counts)))


def rows(model: nn.Module, block: AttentionBlock, role: str) -> Tensor:
    """The weights of q, k, v or o with what belongs to heads along the first axis, whatever is left of them."""
    part = getattr(block, role)
    module: Any = model.get_submodule(part.path)
    weight = module.weight.detach()
    is_fused = block.q.path == block.k.path
    by_output = weight.T if isinstance(module, Conv1D) else weight
    if role == "o":
        return by_output.T
    return by_output.chunk(3)["qkv".index(role)] if is_fused else by_output


def kept(dense: nn.Module, model: nn.Module, block: AttentionBlock, role: str) -> list[int | None]:
    """Which unit of the dense projection every unit that is left was; None for what is none of them."""
    before = rows(dense, block, role).split(block.head_dim)
    return [
        next((i for i, one in enumerate(before) if one.shape == left.shape and torch.equal(one, left)), None)
        for left in rows(model, block, role).split(block.head_dim)
    ]


def with_linears(model: nn.Module) -> nn.Module:
    """Every Conv1D as the Linear it equals, which Torch-Pruning knows; the model is changed."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, Conv1D):
                linear = nn.Linear(*child.weight.shape, dtype=child.weight.dtype)
                linear.weight.data, linear.bias.data = child.weight.data.T.contiguous(), child.bias.data
                setattr(module, name, linear)
    return model
