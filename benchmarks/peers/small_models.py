"""One small random model for each family that peers are asked to prune, with weights large enough that a missing head shows.

Heads, head sizes, hidden sizes, KV heads and the heads of a KV group all differ, so that no shape fits by accident.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
    ViTConfig,
    ViTForImageClassification,
)

LAYERS, HEADS, VOCABULARY = 2, 12, 97
KV_HEADS = 3


@dataclass(frozen=True, slots=True)
class Family:
    """A model and a batch with labels for it."""

    name: str
    build: Callable[[], Any]
    batch: Callable[[], dict[str, torch.Tensor]]


def tokens(length: int = 11) -> torch.Tensor:
    return torch.randint(3, VOCABULARY, (5, length), generator=torch.Generator().manual_seed(1))


def classified() -> dict[str, torch.Tensor]:
    ids = tokens()
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": torch.tensor([0, 1, 0, 1, 1])}


def images() -> dict[str, torch.Tensor]:
    pixels = torch.randn(5, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    return {"pixel_values": pixels, "labels": torch.tensor([0, 1, 0, 1, 1])}


def continued() -> dict[str, torch.Tensor]:
    return {"input_ids": tokens(), "labels": tokens()}


def translated() -> dict[str, torch.Tensor]:
    return {"input_ids": tokens(), "labels": tokens(7)}


def bert() -> Any:
    sizes = {"hidden_size": 60, "intermediate_size": 52, "vocab_size": VOCABULARY, "max_position_embeddings": 40}
    return BertForSequenceClassification(
        BertConfig(num_hidden_layers=LAYERS, num_attention_heads=HEADS, initializer_range=0.2, num_labels=2, **sizes)
    )


def vit() -> Any:
    sizes = {"hidden_size": 60, "intermediate_size": 52, "image_size": 16, "patch_size": 4}
    return ViTForImageClassification(
        ViTConfig(num_hidden_layers=LAYERS, num_attention_heads=HEADS, initializer_range=0.2, num_labels=2, **sizes)
    )


def llama(kv_heads: int) -> Any:
    sizes = {"hidden_size": 60, "intermediate_size": 52, "head_dim": 8, "vocab_size": VOCABULARY, "max_position_embeddings": 40}
    heads = {"num_attention_heads": HEADS, "num_key_value_heads": kv_heads}
    return LlamaForCausalLM(LlamaConfig(num_hidden_layers=LAYERS, initializer_range=0.2, **heads, **sizes))


def gpt2() -> Any:
    sizes = {"n_embd": 60, "n_inner": 52, "n_positions": 40, "vocab_size": VOCABULARY, "bos_token_id": 1, "eos_token_id": 2}
    return GPT2LMHeadModel(GPT2Config(n_layer=LAYERS, n_head=HEADS, initializer_range=0.2, **sizes))


def t5() -> Any:
    sizes = {"d_model": 60, "d_kv": 8, "d_ff": 52, "vocab_size": VOCABULARY}
    return T5ForConditionalGeneration(T5Config(num_layers=LAYERS, num_heads=HEADS, decoder_start_token_id=0, **sizes))


FAMILIES = (
    Family("BERT", bert, classified),
    Family("ViT", vit, images),
    Family("LLaMA", lambda: llama(HEADS), continued),
    Family(f"LLaMA, {KV_HEADS} KV heads", lambda: llama(KV_HEADS), continued),
    Family("GPT-2", gpt2, continued),
    Family("T5", t5, translated),
)


def made(family: Family) -> Any:
    """The model, the same at every call, in evaluation mode."""
    torch.manual_seed(0)
    return family.build().eval()
