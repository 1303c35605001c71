"""Decoders that stand alone: cross-attention must not use the cache of self-attention.

An encoder-decoder model generates with an EncoderDecoderCache, which holds the keys of self- and cross-attention apart. For a decoder alone
(BartForCausalLM, TrOCR, BertLMHeadModel) `generate` makes one plain cache, in which the two blocks of a layer have the same index: the keys of
one are appended to those of the other. Dense models then give other tokens than without a cache. After a cut the blocks may have different
head counts, and torch raises in the middle of `generate`. A cut model therefore computes the keys of cross-attention anew in each step, which
is what `generate` gives without a cache. With an EncoderDecoderCache, which the caller can pass as `past_key_values`, nothing changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from torch import nn
from transformers import Cache, EncoderDecoderCache

from headcount.core.errors import VerificationError
from headcount.core.heads import AttentionBlock
from headcount.models.head_map import HeadMap


def cross_blocks_sharing_self_cache(model: nn.Module, heads: HeadMap) -> list[AttentionBlock]:
    """The cross-attention blocks of a decoder alone that have the cache index of a self-attention block."""
    if getattr(model.config, "is_encoder_decoder", False):
        return []
    index = {block.path: getattr(model.get_submodule(block.path), "layer_idx", None) for block in heads.blocks}
    self_indices = {index[block.path] for block in heads.blocks if block.kind == "decoder-self"} - {None}
    return [block for block in heads.blocks if block.kind == "cross" and index[block.path] in self_indices]


def _is_plain_cache(value: Any) -> bool:
    return isinstance(value, Cache) and not isinstance(value, EncoderDecoderCache)


def _drop_plain_cache(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, object]) -> tuple[tuple[Any, ...], dict[str, object]]:
    """A pre-hook of a cross-attention block: it runs as if without a cache, unless it is given an EncoderDecoderCache."""
    positional = tuple(None if _is_plain_cache(value) else value for value in args)
    return positional, {name: None if _is_plain_cache(value) else value for name, value in kwargs.items()}


def install_cache_separation(model: nn.Module, heads: HeadMap) -> None:
    """Puts, once, a hook on each cross-attention block that would share a cache with self-attention."""
    for block in cross_blocks_sharing_self_cache(model, heads):
        module = model.get_submodule(block.path)
        if _drop_plain_cache not in module._forward_pre_hooks.values():
            module.register_forward_pre_hook(_drop_plain_cache, with_kwargs=True)


@contextmanager
def requiring_separate_caches(model: nn.Module, heads: HeadMap) -> Iterator[None]:
    """Raises VerificationError if a pass inside gives cross-attention the cache of self-attention, as BigBird does without being asked."""

    def raise_for_shared_cache(block_path: str, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, object]) -> None:
        if any(_is_plain_cache(value) for value in (*args, *kwargs.values())):
            raise VerificationError(
                f"{type(model).__name__} gives cross-attention block '{block_path}' the cache of self-attention, so it attends to the keys of its "
                "own tokens, and no cut can equal that. Set model.config.use_cache = False and cut again, or pass inputs= with use_cache=False."
            )

    with ExitStack() as stack:
        for block in cross_blocks_sharing_self_cache(model, heads):
            module = model.get_submodule(block.path)
            if _drop_plain_cache not in module._forward_pre_hooks.values():  # a model that was cut before ignores such a cache
                stack.callback(module.register_forward_pre_hook(partial(raise_for_shared_cache, block.path), with_kwargs=True).remove)
        yield
