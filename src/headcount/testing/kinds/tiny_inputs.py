"""Small models and data that methods are tested on."""

from __future__ import annotations

import torch
from torch import nn

from headcount.data.chunks import select_rows
from headcount.data.task import Task
from headcount.models.tiny.build import tiny_model
from headcount.testing.calls import join_rows

N_EXAMPLES = 8


def tiny_classifier(dtype: torch.dtype = torch.float64) -> nn.Module:
    """Returns a BERT of two layers that classifies in two classes."""
    return tiny_model("bert", auto="AutoModelForSequenceClassification", dtype=dtype).eval()


def random_token_task(model: nn.Module, n_examples: int = N_EXAMPLES) -> Task:
    """Returns a task of random tokens and labels for a tiny classifier."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(5, int(model.config.vocab_size), (n_examples, 7), generator=generator)  # pyright: ignore
    labels = torch.arange(n_examples) % 2
    batch = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": labels}
    examples = [select_rows(batch, slice(row, row + 1)) for row in range(n_examples)]
    return Task("random tokens", examples, examples, examples, join_rows)
