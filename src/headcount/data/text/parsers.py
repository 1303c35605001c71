"""Trees from a parser for plain text: thin adapters for spaCy and stanza, which users install beside headcount.

Relations are those of the parser's model: Universal Dependencies in stanza, and in spaCy those of its training data (dobj, not obj, in English).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from importlib import import_module
from typing import Any

from headcount.core.errors import DataError, MissingExtra, unknown_name_error
from headcount.data.text.annotated import Annotated, Word, character_spans_of_words, join_pair

Parse = Callable[[str], tuple[Word, ...]]


def parse_sentences(sentences: Iterable[Annotated], parse: Parse) -> Iterator[Annotated]:
    """Yields the same texts with the parser's words and trees, without clusters and links; the texts of a pair are parsed separately."""
    for sentence in sentences:
        parts = [Annotated(text, parse(text), origin=sentence.origin) for _, text in sentence.texts_with_start]
        sentence_or_pair = parts[0] if len(parts) == 1 else join_pair(*parts)
        yield replace(sentence_or_pair, target=sentence.target, notes=sentence.notes)


def parser_of(spec: str) -> Parse:
    """A parser by its package and model: `spacy:en_core_web_sm`, `stanza:en`."""
    package, colon, name = spec.partition(":")
    if package not in PARSERS:
        raise unknown_name_error("parser", package, PARSERS)
    if not colon or not name:
        raise DataError(f"parser '{spec}' names no model; say {PARSERS[package][1]}")
    return PARSERS[package][0](name)


def spacy_parser(name: str) -> Parse:
    """A parser by the spaCy pipeline of this name, such as en_core_web_sm."""
    spacy = _import_parser_package("spacy")
    try:
        pipeline = spacy.load(name)
    except OSError as error:
        raise DataError(f"spaCy has no pipeline '{name}'; get it with: python -m spacy download {name}") from error
    if not pipeline("This is a text.").has_annotation("DEP"):
        has = ", ".join(pipeline.pipe_names) or "nothing but a tokenizer"
        raise DataError(f"the spaCy pipeline '{name}' has no dependency parser (it has {has}); name a trained one, such as en_core_web_sm")
    return lambda text: from_spacy(pipeline(text))


def stanza_parser(language: str) -> Parse:
    """A parser by stanza's default models of a language, such as en, which must be there already."""
    stanza = _import_parser_package("stanza")
    try:
        pipeline = stanza.Pipeline(language, download_method=None, verbose=False)
    except Exception as error:  # stanza's own errors for missing resources share no base class across its releases
        reason = " ".join(str(error).split())[:200]
        raise DataError(
            f"stanza has no models for '{language}' ({reason}); get them with: python -c \"import stanza; stanza.download('{language}')\""
        ) from error
    if "depparse" not in pipeline.processors:
        raise DataError(f"stanza's models for '{language}' have no dependency parser; name a language with one, such as en")
    return lambda text: from_stanza(pipeline(text))


PARSERS: dict[str, tuple[Callable[[str], Parse], str]] = {
    "spacy": (spacy_parser, "spacy:en_core_web_sm"),
    "stanza": (stanza_parser, "stanza:en"),
}
"""By package: the parser of a model's name, and an example of how it is named."""


def _import_parser_package(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise MissingExtra(f"parsing text needs {name}; install it with: pip install 'headcount[{name}]'") from error


def from_spacy(doc: Any) -> tuple[Word, ...]:
    """The words of a spaCy Doc; its white-space tokens are left out, and what hangs on one hangs on the next governor."""
    tokens = [token for token in doc if not token.is_space]
    numbers = {token.i: number for number, token in enumerate(tokens)}
    return tuple(
        Word(
            token.text,
            token.lemma_,
            token.pos_,
            _governor_index_or_minus_1(token, numbers),
            token.dep_.lower() if token.dep_ == "ROOT" else token.dep_,
            token.idx,
            token.idx + len(token.text),
        )
        for token in tokens
    )


def _governor_index_or_minus_1(token: Any, word_of_token: dict[int, int]) -> int:
    """Returns the number of the next governor that is a word, -1 for roots, which in spaCy are their own heads."""
    while token.head.i != token.i:
        token = token.head
        if token.i in word_of_token:
            return word_of_token[token.i]
    return -1


def from_stanza(document: Any) -> tuple[Word, ...]:
    """The words of a stanza Document, sentence after sentence; those of a multi-word token have its characters."""
    words: list[Word] = []
    for sentence in document.sentences:
        first = len(words)
        for token in sentence.tokens:
            spans = character_spans_of_words(token.text, [word.text for word in token.words], token.start_char)
            for word, (start, end) in zip(token.words, spans, strict=True):
                head = first + word.head - 1 if word.head else -1
                words.append(Word(word.text, word.lemma or "", word.upos or "", head, word.deprel or "", start, end))
    return tuple(words)
