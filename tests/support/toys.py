"""Tiny models of four kinds in float64, and tasks of made-up examples of uneven lengths for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import headcount as hc
from headcount.data.embedded import english
from headcount.data.embedded.grammar import draw_clause
from headcount.data.embedded.tokenizer import build_tokenizer
from headcount.data.metrics import ACCURACY, IGNORED, TOKEN_ACCURACY
from headcount.data.task import pad
from headcount.models.tiny.build import tiny_model

KINDS = ("encoder", "decoder", "t5", "marian")
MADE: dict[str, Callable[[], nn.Module]] = {
    "encoder": lambda: tiny_model("bert", auto="AutoModelForSequenceClassification", num_labels=3),
    "decoder": lambda: tiny_model("llama", auto="AutoModelForCausalLM", num_key_value_heads=2),
    "t5": lambda: tiny_model("t5", auto="AutoModelForSeq2SeqLM"),
    "marian": lambda: tiny_model("marian", auto="AutoModelForSeq2SeqLM"),
}


def build(kind: str) -> nn.Module:
    """A fresh model."""
    model: Any = MADE[kind]()
    if model.config.is_encoder_decoder:
        model.config.decoder_start_token_id = 0
    return model.eval()


shared = cache(build)
"""A model that no test may change."""


def examples(kind: str, number: int, seed: int = 0) -> list[dict[str, Any]]:
    """Examples of 2 to 8 tokens."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(number):
        ids = rng.integers(3, 100, size=int(rng.integers(2, 9))).tolist()
        labels: Any = int(rng.integers(3)) if kind == "encoder" else ids
        if kind in ("t5", "marian"):
            labels = rng.integers(3, 100, size=int(rng.integers(2, 7))).tolist()
        made.append({"input_ids": ids, "labels": labels})
    return made


def padder(kind: str, longer: int = 0) -> Callable[[list[Any]], dict[str, Tensor]]:
    """The collate function of a kind, with so many columns of padding more than needed."""
    fill = shared(kind).config.pad_token_id or 0
    values = {"input_ids": fill, "labels": IGNORED}

    def collate(rows: list[Any]) -> dict[str, Tensor]:
        batch = pad(rows, fill)
        return {
            name: nn.functional.pad(value, (0, longer), value=values.get(name, 0)) if value.ndim == 2 else value
            for name, value in batch.items()
        }

    return collate


def task(kind: str, number: int = 12, *, rows: Sequence[Any] | None = None, longer: int = 0, **options: Any) -> hc.Task:
    """The task of a kind over made-up examples, or over `rows`."""
    rows = examples(kind, number) if rows is None else rows
    metric = ACCURACY if kind == "encoder" else TOKEN_ACCURACY
    return hc.Task(f"toy {kind}", rows, rows[::-1], rows, padder(kind, longer), **{"metric": metric, **options})


def own_labels(model: nn.Module, number: int) -> hc.Task:
    """Examples whose labels are what the encoder itself says, so that any change of it costs something."""
    rows = examples("encoder", number)
    with torch.no_grad():
        labels = model(**task("encoder").collate(rows)).logits.argmax(-1).tolist()
    return task("encoder", rows=[{**row, "labels": label} for row, label in zip(rows, labels, strict=True)])


def unbiased_encoder(number: int) -> nn.Module:
    """An encoder that gives every label to some of so many examples, so that with its own labels it is above chance."""
    model: Any = build("encoder")
    with torch.no_grad():
        model.classifier.bias -= model(**task("encoder").collate(examples("encoder", number))).logits.mean(0)
    return model


def sentences(number: int, seed: int = 0) -> list[str]:
    """Different sentences of the embedded English."""
    random = Random(seed)
    actual: dict[str, None] = {}
    while len(actual) < number:
        actual[str(english.say_clause(draw_clause(random)))] = None
    return list(actual)


def saved_classifier(folder: Path, auto: str = "AutoModelForSequenceClassification", **options: Any) -> Path:
    """A tiny BERT with the tokenizer of the embedded languages, as it would come from elsewhere."""
    tokenizer = build_tokenizer()
    sizes = {"vocab_size": len(tokenizer), "max_position_embeddings": 40, "pad_token_id": tokenizer.pad_token_id}
    names = options.pop("names", {0: "no", 1: "yes"})
    model: Any = tiny_model("bert", dtype=torch.float32, auto=auto, num_labels=len(names), **{**sizes, **options})
    model.config.id2label, model.config.label2id = names, {name: number for number, name in names.items()}
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def saved_table(path: Path, number: int = 60) -> Path:
    """Sentences with one of two labels, as csv, tsv, jsonl or parquet by the ending."""
    import pandas

    table = pandas.DataFrame({"text": sentences(number), "label": ["yes" if i % 3 else "no" for i in range(number)]})
    writers: dict[str, Callable[[], Any]] = {
        ".csv": lambda: table.to_csv(path, index=False),
        ".tsv": lambda: table.to_csv(path, index=False, sep="\t"),
        ".jsonl": lambda: table.to_json(path, orient="records", lines=True),
        ".parquet": lambda: table.to_parquet(path),
    }
    writers[path.suffix]()
    return path


def zero(model: nn.Module, head: hc.Head) -> None:
    """Takes a head's part of the output projection away."""
    block = hc.HeadMap.of(model).block_of(head)
    part = next(s for s in block.slices if s.tensor == f"{block.o.path}.weight")
    rows = torch.tensor(list(part.rows.of(block.position(head))))
    with torch.no_grad():
        dict(model.named_parameters())[part.tensor].index_fill_(part.axis, rows, 0.0)


def files(folder: Path) -> dict[str, int]:
    """The artifacts of a run with the time each was written."""
    return {str(path): path.stat().st_mtime_ns for path in (folder / "artifacts").rglob("*.artifact") if "study" not in path.parts}


def configured(method: str, **options: Any) -> Any:
    """A pruner with these options, read from its text."""
    from headcount.core.options import format_value
    from headcount.pruning.base import Pruner

    return Pruner.parse(f"{method}({';'.join(f'{name}={format_value(value)}' for name, value in options.items())})")
