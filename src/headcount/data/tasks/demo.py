"""The embedded languages, drawn by seeded generators, offline: entailment, translation, stories and plain text.

Splits hold 512, 512 and 1000 examples (size=N for other numbers), of texts that no embedded model was trained on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from headcount.core.errors import DataError
from headcount.data.embedded import english, tavi
from headcount.data.embedded.entailment import Pair, draw_pair, text_of
from headcount.data.embedded.grammar import Clause, draw_clause
from headcount.data.embedded.splits import draw_split
from headcount.data.embedded.stories import draw_story
from headcount.data.embedded.tokenizer import build_tokenizer, vocabulary
from headcount.data.metrics import ACCURACY, PERPLEXITY, Metric
from headcount.data.open_task import Request
from headcount.data.task import Split, Task, Text, Texts
from headcount.data.tasks import _seq2seq
from headcount.data.tasks._labels import to_classes
from headcount.data.tasks._masking import mask_id, masked
from headcount.data.tasks._splits import each
from headcount.data.tasks._tokenize import Packed, check_head, check_tokenizer, encode, make_task, special_ids, texts_of

USES = ("size", "metric", "num_beams", "max_new_tokens")
NUMBERS: dict[Split, int] = {"calibration": 512, "selection": 512, "report": 1000}
Language = Any
"""A module with `say`."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One variant: how its examples are drawn, what identifies them, what they say, how they become model inputs, head and metric they need."""

    draw: Callable[[Random], Any]
    text: Callable[[Any], str]
    says: Callable[[Any, str], Text]
    examples: Callable[[Request, Sequence[Any]], Iterable[dict[str, Any]]]
    head: tuple[str, ...]
    metric: Metric | None = None


def _english(clause: Clause) -> str:
    return str(english.say(clause))


def _sentences(language: Language, clauses: Sequence[Clause]) -> Iterator[tuple[str, str]]:
    return ((f"sentence {number}", str(language.say(clause))) for number, clause in enumerate(clauses))


def _entailment(language: Language) -> Kind:
    def says(pair: Pair, where: str) -> Text:
        return Text(where, str(language.say(pair.premise)), str(language.say(pair.hypothesis)))

    def examples(request: Request, pairs: Sequence[Pair]) -> Iterator[dict[str, Any]]:
        labels = to_classes(request, [(f"pair {number}", pair.label) for number, pair in enumerate(pairs)])
        said = (says(pair, f"pair {number}") for number, pair in enumerate(pairs))
        texts = ((one.where, (one.text, one.pair)) for one in said)
        yield from ({**made, "labels": label} for made, label in zip(encode(request, texts), labels, strict=True))

    return Kind(draw_pair, text_of, says, examples, ("SequenceClassification",), ACCURACY)


def _masked_text(language: Language) -> Kind:
    def examples(request: Request, clauses: Sequence[Clause]) -> Iterator[dict[str, Any]]:
        mask, special = mask_id(request), special_ids(request)
        for number, made in enumerate(encode(request, _sentences(language, clauses))):
            yield {**made, **masked(made["input_ids"], (request.seed, number), mask_id=mask, special=special)}

    return Kind(
        draw_clause,
        _english,
        lambda clause, where: Text(where, str(language.say(clause))),
        examples,
        ("MaskedLM", "ForPreTraining"),
        PERPLEXITY,
    )


def _story(request: Request, stories: Sequence[str]) -> Iterator[dict[str, Any]]:
    for made in encode(request, ((f"story {number}", story) for number, story in enumerate(stories))):
        yield {"input_ids": made["input_ids"], "labels": made["input_ids"]}


def _both(clause: Clause, where: str) -> Text:
    return Text(where, _english(clause), target=str(tavi.say(clause)))


def _translated(request: Request, clauses: Sequence[Clause]) -> Iterator[dict[str, Any]]:
    """Tokens without [CLS], [SEP] at the end, as the translator was trained."""
    end = [request.tokenizer.eos_token_id]
    sources = encode(request, _sentences(english, clauses), add_special_tokens=False)
    targets = encode(request, _sentences(tavi, clauses), add_special_tokens=False)
    for source, target in zip(sources, targets, strict=True):
        yield {"input_ids": source["input_ids"] + end, "labels": target["input_ids"] + end}


KINDS = {
    "entailment": _entailment(english),
    "entailment-tavi": _entailment(tavi),
    "stories": Kind(
        lambda random: " ".join(draw_story(random)), str, lambda story, where: Text(where, story), _story, ("CausalLM",), PERPLEXITY
    ),
    "text": _masked_text(english),
    "text-tavi": _masked_text(tavi),
    "translation": Kind(draw_clause, _english, _both, _translated, ("MTModel", "ConditionalGeneration")),
}
VARIANTS = tuple(KINDS)


def build(request: Request) -> Task:
    """The task."""
    kind = KINDS[request.variant or ""]
    request = _checked(request, kind)
    drawn = each(lambda split: _draw(request, kind, split))
    made = each(lambda split: Packed(kind.examples(request, drawn[split])))
    if kind.metric is None:
        pairs = each(lambda split: [_seq2seq.Pair(_english(c), str(tavi.say(c)), "") for c in drawn[split]])
        return _seq2seq.from_pairs(
            request, pairs, made, _texts(request, kind, add_special_tokens=False, end=(request.tokenizer.eos_token_id,))
        )
    return make_task(request, made, kind.metric, _texts(request, kind))


def _texts(request: Request, kind: Kind, **how: Any) -> Texts:
    def read(split: Split) -> Iterator[Text]:
        return (kind.says(one, f"{split} example {number}") for number, one in enumerate(_draw(request, kind, split)))

    return texts_of(request, read, **how)


def _draw(request: Request, kind: Kind, split: Split) -> list[Any]:
    number = request.number("size", NUMBERS[split]) or NUMBERS[split]
    random = Random(f"{request.variant}/{split}/{request.seed}")
    return draw_split(random, split, min(number, request.limit or number), kind.draw, kind.text)


def _checked(request: Request, kind: Kind) -> Request:
    """The request with the embedded tokenizer, its model and options checked."""
    check_head(request, kind.head, "the embedded model that was trained for it: see docs/embedded.md")
    if request.tokenizer is None:
        request = replace(request, tokenizer=build_tokenizer(segments=hasattr(request.model.config, "type_vocab_size")))
    check_tokenizer(request)
    if request.tokenizer.get_vocab() != {token: number for number, token in enumerate(vocabulary())}:
        raise DataError(f"task '{request.name}' is in the embedded languages, which only the tokenizer of the embedded models knows")
    unused = sorted(set(request.options) - {"size"}) if kind.metric is not None else []
    if unused:
        raise DataError(f"task '{request.name}' does not use {', '.join(unused)}; it generates no text")
    return request
