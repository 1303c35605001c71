"""Heads that do what a test says: made-up annotated text, tokenizers for it, and attention planted at the softmax of any model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

from headcount.behaviour.base import Corpus
from headcount.core.heads import AttentionBlock
from headcount.data.text.aligned import Aligned
from headcount.data.text.annotated import Annotated, Word
from headcount.models.attention import AttentionTap
from headcount.models.head_map import HeadMap

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
REGULAR = tuple(f"{a}{b}{c}" for a in "bdfgkmpst" for b in "aeiou" for c in "lmnrstvwxzjq")
"""540 words; those that begin with s are two pieces."""
RARE = tuple(f"q{number}" for number in range(200))


def tokenizer_of(template: str) -> PreTrainedTokenizerFast:
    """A fast tokenizer for the words above; `template` says where special tokens stand, such as "[CLS] $A [SEP]"."""
    pieces = [piece for word in REGULAR for piece in ((word[0], f"##{word[1:]}") if word[0] == "s" else (word,))]
    order = {token: number for number, token in enumerate(dict.fromkeys((*SPECIAL, ",", *pieces, *RARE)))}
    tokenizer = Tokenizer(models.WordPiece(order, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=template, pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[(token, order[token]) for token in ("[CLS]", "[SEP]")]
    )
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_input_names=["input_ids", "token_type_ids", "attention_mask"], model_max_length=64, **names
    )


VOCABULARY = len(tokenizer_of("$A"))


def annotated(number: int, seed: int = 0, regular: Sequence[str] = REGULAR) -> list[Annotated]:
    """Sentences of 12 to 14 words: one subject and one object of the root, a comma, a rare word, a noun, a word that is repeated, two mentions.

    Every place is drawn, so that no two roles look at the same keys but by chance. In 120 sentences each regular word comes twice or more.
    """
    random = Random(seed)
    deck = [word for _ in range(1 + number * 9 // len(regular)) for word in random.sample(regular, len(regular))]
    return [_sentence(random, deck[9 * index : 9 * index + 9], RARE[index % len(RARE)]) for index in range(number)]


def _sentence(random: Random, regular: list[str], rare: str) -> Annotated:
    forms = [*regular, *regular[:1] * random.randint(1, 3), rare, ","]
    random.shuffle(forms)
    root, subject, thing, noun = random.sample([index for index, form in enumerate(forms) if form != ","], 4)
    heads = {root: (-1, "root"), subject: (root, "nsubj"), thing: (root, "obj:x")}
    words, at = [], 0
    for index, form in enumerate(forms):
        head, relation = heads.get(index, (root, "punct" if form == "," else "dep"))
        upos = "PUNCT" if form == "," else "NOUN" if index == noun else "VERB"
        words.append(Word(form, form, upos, head, relation, at, at + len(form)))
        at += len(form) + 1
    one, other = sorted(random.sample(range(0, len(forms) - 1, 2), 2))
    return Annotated(" ".join(forms), tuple(words), clusters=(((one, one + 1), (other, other + 2)),))


@dataclass(frozen=True, slots=True)
class Row:
    """What a row of a batch holds: its tokens without padding, and the sentence and translation they come from, if any."""

    ids: tuple[int, ...] = ()
    source: Aligned | None = None
    target: Aligned | None = None


Rule = Callable[[Row], Iterable[tuple[int, int]]]
"""The keys that each query looks at, as (query, key); queries without any look everywhere."""


@contextmanager
def planted(model: nn.Module, rules: Mapping[str, Rule], corpus: Corpus | None = None, *, share: float = 1.0) -> Iterator[None]:
    """Heads follow their rule with `share` of their attention, and spread the rest, or all without a rule, evenly over visible keys."""
    corpus, rows = corpus or Corpus(), []
    targets = corpus.targets or (None,) * len(corpus.sentences)
    known = {source.ids: (source, target) for source, target in zip(corpus.sentences, targets, strict=True)}

    def remember(_module: nn.Module, _args: Any, inputs: dict[str, Any]) -> None:
        if "pixel_values" in inputs:
            rows[:] = [Row()] * len(inputs["pixel_values"])
            return
        tuples = [tuple(ids[mask.bool()].tolist()) for ids, mask in zip(inputs["input_ids"], inputs["attention_mask"], strict=True)]
        rows[:] = [Row(ids, *known.get(ids, (None, None))) for ids in tuples]

    def change(block: AttentionBlock, _probabilities: Tensor, visible: Tensor) -> Tensor:
        even = visible / visible.sum(-1, keepdim=True).clamp(min=1)
        for index, head in enumerate(block.heads):
            for row, content in enumerate(rows if str(head) in rules else ()):
                aim = torch.zeros(visible.shape[-2:])
                for query, key in rules[str(head)](content):
                    aim[query, key] = 1
                aim = aim * visible[row, index]
                total = aim.sum(-1, keepdim=True)
                even[row, index] = torch.where(
                    total > 0, share * aim / total.clamp(min=1) + (1 - share) * even[row, index], even[row, index]
                )
        return even

    hook = model.register_forward_pre_hook(remember, with_kwargs=True)
    try:
        with AttentionTap(model, HeadMap.of(model).blocks, change):
            yield
    finally:
        hook.remove()


def offset(step: int) -> Rule:
    """Every token looks so many places on."""
    return lambda row: [(q, q + step) for q in range(len(row.ids)) if 0 <= q + step < len(row.ids)]


def everywhere(*keys: int) -> Rule:
    """Every token looks at these places; -1 is the last one."""
    return lambda row: [(q, key % len(row.ids)) for q in range(len(row.ids)) for key in keys]


def by_words(pairs: Callable[[Annotated], Iterable[tuple[int, int]]]) -> Rule:
    """From all pieces of a word to all pieces of another one, by the words of each sentence."""

    def rule(row: Row) -> list[tuple[int, int]]:
        source = row.source
        if source is None:
            return []
        return [(q, k) for a, b in pairs(source.annotated) for q in source.pieces(a) for k in source.pieces(b)]

    return rule


def to_words(chosen: Callable[[Word], bool]) -> Rule:
    """From every word to the other words of a kind."""
    return by_words(lambda s: [(a, b) for b, word in enumerate(s.words) if chosen(word) for a in range(len(s.words)) if a != b])


def same(row: Row) -> list[tuple[int, int]]:
    """To other occurrences of the token."""
    return [(q, k) for q, one in enumerate(row.ids) for k, other in enumerate(row.ids) if one == other and q != k]


def induction(row: Row) -> list[tuple[int, int]]:
    """To the token after an earlier occurrence."""
    return [(q, k + 1) for q, one in enumerate(row.ids) for k in range(q) if row.ids[k] == one]


def near(reach: int) -> Rule:
    """To the tokens around."""
    return lambda row: [(q, k) for q in range(len(row.ids)) for k in range(len(row.ids)) if abs(q - k) <= reach]


SUBJECT = by_words(lambda s: [(w, word.head) for w, word in enumerate(s.words) if word.relation == "nsubj" and word.head is not None])
SUBJECT_OF = by_words(lambda s: [(word.head, w) for w, word in enumerate(s.words) if word.relation == "nsubj" and word.head is not None])
MENTIONS = by_words(lambda s: [(a, b) for x, y in ((0, 1), (1, 0)) for a in range(*s.clusters[0][x]) for b in range(*s.clusters[0][y])])
COMMA = to_words(lambda word: word.form == ",")
NOUN, RAREST = to_words(lambda word: word.upos == "NOUN"), to_words(lambda word: word.form in RARE)
