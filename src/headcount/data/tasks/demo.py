from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from random import Random
from typing import Any, Literal

from headcount.core.errors import DataError
from headcount.core.options import option, options_of
from headcount.data.embedded import english, tavi
from headcount.data.embedded.entailment import LABELS, EntailmentPair, draw_pair, english_text_of_pair
from headcount.data.embedded.grammar import Clause, draw_clause
from headcount.data.embedded.rare_words import RareSentence, draw_rare_sentence, list_full_vocabulary
from headcount.data.embedded.splits import draw_split
from headcount.data.embedded.stories import draw_story
from headcount.data.embedded.tokenizer import build_tokenizer, vocabulary
from headcount.data.metrics import ACCURACY, IGNORED, PERPLEXITY, TOKEN_ACCURACY, Metric
from headcount.data.task import Split, Task, Text, Texts
from headcount.data.task_builder import TaskInfo, TaskRequest
from headcount.data.tasks._labels import to_class_numbers
from headcount.data.tasks._seq2seq import GeneratedText, TextPair
from headcount.data.tasks._splits import for_each_split
from headcount.data.tasks._tokenize import Packed, check_head, check_tokenizer, encode, make_task, special_ids
from headcount.data.tasks._windows import PositionAndText, mask_id, mask_tokens

SIZES: dict[Split, int] = {"calibration": 512, "selection": 512, "report": 1000}
LanguageModule = Any
"""A module with `say_clause`."""


@dataclass(frozen=True, slots=True)
class EmbeddedRecipe:
    """How the examples of a variant are drawn, their identity, their text and model inputs, and the head, metric and tokens that they need."""

    draw: Callable[[Random], Any]
    identity: Callable[[Any], str]
    text: Callable[[Any, str], Text]
    examples: Callable[[TaskRequest, Sequence[Any]], Iterable[dict[str, Any]]]
    head: tuple[str, ...]
    metric: Metric | None = None
    vocabulary: Callable[[], list[str]] = vocabulary


def _say_in_english(clause: Clause) -> str:
    return str(english.say_clause(clause))


def _positions_and_sentences(language: LanguageModule, clauses: Sequence[Clause]) -> Iterator[PositionAndText]:
    return ((f"sentence {number}", str(language.say_clause(clause))) for number, clause in enumerate(clauses))


def _entailment_recipe(language: LanguageModule) -> EmbeddedRecipe:
    def to_text(pair: EntailmentPair, position: str) -> Text:
        return Text(position, str(language.say_clause(pair.premise)), str(language.say_clause(pair.hypothesis)))

    def encode_examples(request: TaskRequest, pairs: Sequence[EntailmentPair]) -> Iterator[dict[str, Any]]:
        labels = to_class_numbers(request, [(f"pair {number}", pair.label) for number, pair in enumerate(pairs)])
        texts = (to_text(pair, f"pair {number}") for number, pair in enumerate(pairs))
        encoded = encode(request, ((pair.origin, (pair.text, pair.pair)) for pair in texts))
        yield from ({**example, "labels": label} for example, label in zip(encoded, labels, strict=True))

    return EmbeddedRecipe(draw_pair, english_text_of_pair, to_text, encode_examples, ("SequenceClassification",), ACCURACY)


def _masked_text_recipe(language: LanguageModule) -> EmbeddedRecipe:
    def to_text(clause: Clause, position: str) -> Text:
        return Text(position, str(language.say_clause(clause)))

    def encode_examples(request: TaskRequest, clauses: Sequence[Clause]) -> Iterator[dict[str, Any]]:
        mask, special = mask_id(request), special_ids(request)
        for number, example in enumerate(encode(request, _positions_and_sentences(language, clauses))):
            yield {**example, **mask_tokens(example["input_ids"], (request.seed, number), mask_id=mask, special_ids=special)}

    return EmbeddedRecipe(draw_clause, _say_in_english, to_text, encode_examples, ("MaskedLM", "ForPreTraining"), PERPLEXITY)


def _stories_recipe() -> EmbeddedRecipe:
    def encode_examples(request: TaskRequest, stories: Sequence[str]) -> Iterator[dict[str, Any]]:
        for example in encode(request, ((f"story {number}", story) for number, story in enumerate(stories))):
            yield {"input_ids": example["input_ids"], "labels": example["input_ids"]}

    def draw_text(random: Random) -> str:
        return " ".join(draw_story(random))

    return EmbeddedRecipe(draw_text, str, lambda story, position: Text(position, story), encode_examples, ("CausalLM",), PERPLEXITY)


def _translation_recipe() -> EmbeddedRecipe:
    def to_text(clause: Clause, position: str) -> Text:
        return Text(position, _say_in_english(clause), target=str(tavi.say_clause(clause)))

    def encode_examples(request: TaskRequest, clauses: Sequence[Clause]) -> Iterator[dict[str, Any]]:
        """Yields tokens without [CLS], with [SEP] at the end, as the translator was trained."""
        end = [request.tokenizer.eos_token_id]
        sources = encode(request, _positions_and_sentences(english, clauses), add_special_tokens=False)
        targets = encode(request, _positions_and_sentences(tavi, clauses), add_special_tokens=False)
        for source, target in zip(sources, targets, strict=True):
            yield {"input_ids": source["input_ids"] + end, "labels": target["input_ids"] + end}

    return EmbeddedRecipe(draw_clause, _say_in_english, to_text, encode_examples, ("MTModel", "ConditionalGeneration"))


def _rare_words_recipe() -> EmbeddedRecipe:
    def to_text(sentence: RareSentence, position: str) -> Text:
        return Text(position, str(sentence))

    def encode_examples(request: TaskRequest, sentences: Sequence[RareSentence]) -> Iterator[dict[str, Any]]:
        encoded = encode(request, ((f"sentence {number}", str(sentence)) for number, sentence in enumerate(sentences)))
        for number, (example, sentence) in enumerate(zip(encoded, sentences, strict=True)):
            labels = to_class_numbers(request, [(f"sentence {number}", label) for label in sentence.gender_labels])
            yield {**example, "labels": [IGNORED, *labels, IGNORED]}  # a word is one token, between [CLS] and [SEP]

    return EmbeddedRecipe(draw_rare_sentence, str, to_text, encode_examples, ("TokenClassification",), TOKEN_ACCURACY, list_full_vocabulary)


EMBEDDED = {
    "entailment": _entailment_recipe(english),
    "entailment-tavi": _entailment_recipe(tavi),
    "rare-words": _rare_words_recipe(),
    "stories": _stories_recipe(),
    "text": _masked_text_recipe(english),
    "text-tavi": _masked_text_recipe(tavi),
    "translation": _translation_recipe(),
}
TRAINED = {
    "entailment": "demo/entailment",
    "entailment-tavi": "demo/entailment",
    "rare-words": "demo/rare-words",
    "stories": "demo/decoder",
    "text": "demo/encoder",
    "text-tavi": "demo/encoder",
    "translation": "demo/translator",
}
"""The embedded model that was trained for each variant."""


@dataclass(frozen=True)
class Demo(GeneratedText):
    """The embedded languages, drawn by seeded generators, offline: entailment, translation, stories, plain text and rare words.

    Splits hold 512, 512 and 1000 examples (size=N for other numbers), of texts that no embedded model was trained on.
    """

    variant: Literal["entailment", "entailment-tavi", "rare-words", "stories", "text", "text-tavi", "translation"] = option(
        help="The language and what is asked about it"
    )
    _: KW_ONLY
    size: int | None = option(None, "Examples of each split; none is 512, 512 and 1000", minimum=1)
    info = TaskInfo(
        uses=(),
        model="the embedded model that was trained for it: see docs/embedded.md",
        metric="accuracy, accuracy over words, perplexity, BLEU or chrF",
    )

    def build(self, request: TaskRequest) -> Task:
        """Returns the task."""
        recipe = EMBEDDED[self.variant]
        request = self._check_and_add_tokenizer(request, recipe)
        drawn_by_split = for_each_split(lambda split: self._draw_examples(request, recipe, split))
        examples = for_each_split(lambda split: Packed(recipe.examples(request, drawn_by_split[split])))

        def read_texts(split: Split) -> Iterator[Text]:
            return (recipe.text(example, f"{split} example {i}") for i, example in enumerate(self._draw_examples(request, recipe, split)))

        if recipe.metric is None:
            pairs = for_each_split(
                lambda split: [TextPair(_say_in_english(clause), str(tavi.say_clause(clause)), "") for clause in drawn_by_split[split]]
            )
            texts = Texts(read_texts, add_special_tokens=False, end=(request.tokenizer.eos_token_id,))
            return self.build_from_pairs(request, pairs, examples, texts)
        return make_task(request, examples, recipe.metric, Texts(read_texts))

    def read_classes(self, request: TaskRequest) -> tuple[str, ...]:
        """Returns the labels of entailment; other variants have none."""
        return LABELS if self.variant.startswith("entailment") else super().read_classes(request)

    def _draw_examples(self, request: TaskRequest, recipe: EmbeddedRecipe, split: Split) -> list[Any]:
        size = self.size or SIZES[split]
        random = Random(f"{self.variant}/{split}/{request.seed}")
        return draw_split(random, split, min(size, request.limit or size), recipe.draw, recipe.identity)

    def _check_and_add_tokenizer(self, request: TaskRequest, recipe: EmbeddedRecipe) -> TaskRequest:
        """Returns the request with the embedded tokenizer, its model and options checked."""
        check_head(request, recipe.head, TRAINED[self.variant])
        if request.tokenizer is None:
            segments = hasattr(request.model.config, "type_vocab_size")
            request = replace(request, tokenizer=build_tokenizer(segments=segments, tokens=recipe.vocabulary()))
        check_tokenizer(request)
        if request.tokenizer.get_vocab() != {token: number for number, token in enumerate(recipe.vocabulary())}:
            raise DataError(f"task '{request.name}' is in the embedded languages, which only the tokenizer of the embedded models knows")
        changed = [declared.name for declared in options_of(GeneratedText) if getattr(self, declared.name) != declared.default]
        if changed and recipe.metric is not None:
            raise DataError(f"task '{request.name}' does not use {', '.join(changed)}; it generates no text")
        return request
