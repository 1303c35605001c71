"""A corpus as the input of a model, and the queries and keys that meet in each of its attention blocks."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from headcount.behaviour.base import Corpus, Side, View
from headcount.core.errors import UnsupportedModel
from headcount.core.heads import AttentionBlock
from headcount.data.losses import accepts_argument
from headcount.data.task import CollatedExamples, Example, pad
from headcount.data.text.aligned import Aligned
from headcount.data.text.annotated import Annotated
from headcount.models.modules import decoder_start_id, pad_id

ViewName = Literal["source", "target", "cross"]
VIEWS: tuple[ViewName, ...] = ("source", "target", "cross")


def view_name(model: nn.Module, block: AttentionBlock) -> ViewName:
    """Returns which tokens meet in a block: `source` (of an encoder or a lone decoder), `target` (of a decoder behind an encoder), or `cross`."""
    if not getattr(model.config, "is_encoder_decoder", False):
        return "source" if block.kind != "cross" else "cross"
    views: dict[str, ViewName] = {"encoder-self": "source", "decoder-self": "target", "cross": "cross"}
    return views[block.kind]


def check_model_reads(model: Any, corpus: Corpus) -> None:
    """Raises UnsupportedModel unless the model reads what the corpus holds."""
    subject, required = (
        ("images", "pixel_values") if corpus.grid else ("speech", "input_features") if corpus.audio else ("text", "input_ids")
    )
    name = type(model).__name__
    if model.main_input_name != required:
        raise UnsupportedModel(f"{name} reads {model.main_input_name}, but roles of {subject} need {required}")
    if hasattr(model, "get_text_features") and hasattr(model, "get_image_features"):
        raise UnsupportedModel(f"{name} compares texts with images and reads neither alone; pass the part of it that reads text or images")


def build_view(
    corpus: Corpus, name: ViewName, example_numbers: Sequence[int], padded_shape: tuple[int, int], pad_token_id: int = 0
) -> View:
    """Returns the queries and keys of some examples of a corpus.

    Args:
        corpus: The corpus.
        name: Which tokens meet.
        example_numbers: The examples, by their number in the corpus.
        padded_shape: How many queries and keys the block has, padding included.
        pad_token_id: The id of padding.

    Raises:
        UnsupportedModel: the block has fewer tokens than an image has patches.
    """
    n_queries, n_keys = padded_shape
    if corpus.grid:
        n_patches = corpus.grid[0] * corpus.grid[1]
        if n_keys < n_patches:
            raise UnsupportedModel(f"a block has {n_keys} tokens, fewer than the {n_patches} patches of an image: it has no such grid")
        patches = Side.from_images(len(example_numbers), n_keys, n_patches)
        return View(patches, patches, corpus)
    if name == "target":
        targets = Side.from_sentences(
            [corpus.targets[number] for number in example_numbers], n_keys, n_delimiters_before=1, pad_id=pad_token_id
        )
        return View(targets, targets, corpus)
    source = Side.from_sentences([corpus.sentences[number] for number in example_numbers], n_keys, pad_id=pad_token_id)
    if name == "source":
        return View(source, source, corpus)
    targets = Side.from_sentences(
        [corpus.targets[number] for number in example_numbers], n_queries, n_delimiters_before=1, pad_id=pad_token_id
    )
    return View(targets, source, corpus)


def corpus_examples(model: nn.Module, corpus: Corpus) -> CollatedExamples:
    """Returns the examples of a corpus as the model reads them."""
    if corpus.grid:
        return CollatedExamples(corpus.images, pad)
    targets = corpus.targets or (None,) * len(corpus.sentences)
    examples = []
    for number, (sentence, target) in enumerate(zip(corpus.sentences, targets, strict=True)):
        sides = [(s.ids, s.words, s.special, s.segments, s.type_ids, s.by_word) for s in (sentence, target) if s is not None]
        content = hashlib.sha256(
            repr((sides, _annotations_as_plain_data(sentence.annotated))).encode()
        ).hexdigest()  # of all that sieves read
        # The names of these entries are part of the fingerprint of the data.
        examples.append({"place": number, "input_ids": sentence.ids, "content": content, **(corpus.audio[number] if corpus.audio else {})})
    return CollatedExamples(examples, _Collator(model, corpus))


@dataclass(frozen=True, slots=True)
class _Collator:
    """Makes the padded inputs of a model from examples of a corpus."""

    model: nn.Module
    corpus: Corpus

    def __call__(self, examples: list[Example]) -> dict[str, Tensor]:
        numbers = [example["place"] for example in examples]
        sentences = [self.corpus.sentences[number] for number in numbers]
        if self.corpus.audio:
            features = torch.stack([self.corpus.audio[number]["input_features"] for number in numbers])
            batch = {"input_features": features.to(next(self.model.parameters()).dtype)}
        else:
            batch = self._pad_sentences(sentences)
        if all(sentence.type_ids is not None for sentence in sentences) and accepts_argument(self.model, "token_type_ids"):
            batch["token_type_ids"] = _pad_rows([sentence.type_ids or () for sentence in sentences], 0)
        start = decoder_start_id(self.model)
        if start is None:
            return batch
        front = torch.full((len(numbers), 1), start)
        if not self.corpus.targets:
            return {**batch, "decoder_input_ids": front}
        targets = self._pad_sentences([self.corpus.targets[number] for number in numbers])
        return {
            **batch,
            "decoder_input_ids": torch.cat([front, targets["input_ids"]], 1),
            "decoder_attention_mask": torch.cat([torch.ones_like(front), targets["attention_mask"]], 1),
        }

    def _pad_sentences(self, sentences: Sequence[Aligned]) -> dict[str, Tensor]:
        return {
            "input_ids": _pad_rows([s.ids for s in sentences], pad_id(self.model)),
            "attention_mask": _pad_rows([[1] * len(s.ids) for s in sentences], 0),
        }


def _pad_rows(rows: Sequence[Sequence[int]], fill: int) -> Tensor:
    """Returns rows of numbers, padded on the right to the longest."""
    length = max(map(len, rows))
    return torch.tensor([[*row, *[fill] * (length - len(row))] for row in rows])


def _annotations_as_plain_data(text: Annotated) -> tuple[Any, ...]:
    """Returns the annotations of a sentence and of its translation, as plain data."""
    target = None if text.target is None else _annotations_as_plain_data(text.target)
    return text.text, text.pair_at, [astuple(word) for word in text.words], text.clusters, sorted(text.links), target
