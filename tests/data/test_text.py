from __future__ import annotations

import gzip
import json
import sys
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from slow_tokenizer import WithoutOffsets
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import ByT5Tokenizer, PreTrainedTokenizerFast

from headcount.core.errors import AlignmentError, DataError, MissingExtra, UnknownName
from headcount.data.embedded import english
from headcount.data.embedded.grammar import draw_clause
from headcount.data.embedded.sentences import CONTENT, STEMS, draw_sentences, draw_translations
from headcount.data.embedded.splits import draw_split
from headcount.data.embedded.tokenizer import build_tokenizer
from headcount.data.readers.conllu import find_clusters, index_of_entity_name_field, read_conllu
from headcount.data.task import Text
from headcount.data.text.align import align_all
from headcount.data.text.aligned import Aligned, Reason, SentenceRefusal, Tokens, assign_tokens_or_refuse
from headcount.data.text.annotated import Annotated, Note, Word, base_relation, join_pair
from headcount.data.text.match_pieces import match_pieces
from headcount.data.text.parallel import read_links, translations
from headcount.data.text.parsers import from_spacy, from_stanza, parse_sentences, parser_of, spacy_parser, stanza_parser
from headcount.data.text.sentences import annotate_examples, read_annotated, sentences_of, split_words

TEXTS = (
    "The dog doesn't see the old cat near the river.",
    "Ein Café in München, 北京 und 東京都 — naïve façade!",
    "北京是中国的首都。他今天没有去。",
    "नमस्ते दुनिया, यह एक परीक्षण है।",
    "שלום עולם, הכלב רואה את החתול.",
    "مرحبا بالعالم، الكلب يرى القطة.",
    "สวัสดีชาวโลก ภาษาไทยไม่มีช่องว่าง",
    "👩‍👩‍👧 went 🏳️‍🌈 and 👍🏽 smiled 🙂.",
    "cafe\u0301 ẹ́x ﬁn Å İstanbul STRASSE straße 가 각",
    "x\u00a0y  z\tw ▁under Ġall ½ №5",
)
CLS = ("[CLS]", "[SEP]")


def align(sentence: Annotated, tokenizer: Any, max_length: int | None = None, **options: Any) -> Aligned:
    """Returns the alignment of a sentence that has one."""
    (alignment,), _ = align_all([sentence], tokenizer, max_length, **options)
    return alignment


def _fast(tokenizer: Tokenizer, **options: Any) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=10**9, **options)


def _framed(tokenizer: Tokenizer) -> None:
    ids = [(token, tokenizer.token_to_id(token)) for token in CLS]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ids
    )


def wordpiece(*, lowercase: bool = True) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.WordPiece({"[UNK]": 0}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[UNK]", *CLS]
    tokenizer.train_from_iterator(TEXTS, trainers.WordPieceTrainer(vocab_size=200, special_tokens=special, show_progress=False))
    _framed(tokenizer)
    names = ["input_ids", "token_type_ids", "attention_mask"]
    return _fast(tokenizer, unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]", model_input_names=names)


def byte_level(*, prefix: bool, trim: bool) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, special_tokens=["<s>", "</s>"], show_progress=False)
    tokenizer.train_from_iterator(TEXTS, trainer)
    if trim:
        tokenizer.post_processor = processors.RobertaProcessing(("</s>", 1), ("<s>", 0), trim_offsets=True, add_prefix_space=prefix)
    else:
        tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return _fast(tokenizer)


def unigram(normalizer: Any = None) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.Unigram())
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=250, unk_token="<unk>", special_tokens=["<unk>", "[CLS]", "[SEP]"], show_progress=False)
    tokenizer.train_from_iterator(TEXTS, trainer)
    _framed(tokenizer)
    return _fast(tokenizer, unk_token="<unk>")


def across_words() -> PreTrainedTokenizerFast:
    """As in Llama: no splitting before the merges, so that a token may reach over spaces."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.train_from_iterator(TEXTS, trainers.BpeTrainer(vocab_size=300, special_tokens=["<unk>"], show_progress=False))
    return _fast(tokenizer, unk_token="<unk>")


BUILDERS = {
    "wordpiece-lower": wordpiece,
    "wordpiece-cased": lambda: wordpiece(lowercase=False),
    "bytes": lambda: byte_level(prefix=False, trim=False),
    "bytes-prefix": lambda: byte_level(prefix=True, trim=False),
    "bytes-prefix-trim": lambda: byte_level(prefix=True, trim=True),
    "unigram": unigram,
    "unigram-nfkc": lambda: unigram(normalizers.NFKC()),
    "unigram-nfd-lower": lambda: unigram(normalizers.Sequence([normalizers.NFD(), normalizers.Lowercase()])),
    "metaspace-across-words": across_words,
}


@cache
def built(name: str) -> PreTrainedTokenizerFast:
    return BUILDERS[name]()


def sentence(text: str, *forms: str, **options: Any) -> Annotated:
    """Words with these forms, found one after another."""
    words, at = [], 0
    for form in forms:
        at = text.index(form, at)
        words.append(Word(form, "", "", None, "", at, at + len(form)))
        at += len(form)
    return Annotated(text, tuple(words), **options)


def overlap(word: Word, span: tuple[int, int]) -> int:
    return max(0, min(word.end, span[1]) - max(word.start, span[0]))


def check_laws(actual: Aligned) -> None:
    words = actual.annotated.words
    for token, (word, span) in enumerate(zip(actual.words, actual.offsets, strict=True)):
        if word is not None:
            shares = [overlap(one, span) for one in words]
            assert not actual.special[token]
            assert shares[word] > 0
            assert word == shares.index(max(shares))
            assert actual.segments[token] in (0, 1)
        if actual.special[token]:
            assert actual.segments[token] == -1
    for number, word in enumerate(words):
        pieces = actual.pieces(number)
        assert list(pieces) == sorted(set(pieces))
        assert all(overlap(word, actual.offsets[token]) for token in pieces)
        if number not in actual.words_borrowing_pieces:
            assert pieces == tuple(token for token, one in enumerate(actual.words) if one == number)
        if not actual.truncated and actual.annotated.text[word.start : word.end].strip():
            assert pieces


@pytest.mark.parametrize("name", BUILDERS)
@pytest.mark.parametrize("text", TEXTS)
def test_every_script_under_every_tokenizer(name: str, text: str) -> None:
    tokenizer = built(name)
    alignment = align(split_words(text), tokenizer)
    check_laws(alignment)
    encoded = tokenizer(text)
    assert list(alignment.ids) == encoded["input_ids"]
    for number, word in enumerate(alignment.annotated.words):
        by_characters = {encoded.char_to_token(at) for at in range(word.start, word.end)} - {None}
        markers = {token for token in by_characters if alignment.words[token] is None}
        assert by_characters == markers or by_characters & set(alignment.pieces(number)), "the tokenizer's own map of characters agrees"


TRICKY = [*"aé́İßﬁ가각\u200d\ufe0f🙂👩▁Ġġ北न्שم\u00a0\u2028.'-", "\u1100\u1161", "e\u0323\u0301", "don't", "Å", "dog"]
UNICODE = st.text(st.one_of(st.characters(exclude_categories=["Cs"]), st.sampled_from("ab .é")), max_size=12)
SENTENCES = st.lists(st.one_of(st.sampled_from(TRICKY), UNICODE, st.just(" ")), min_size=1, max_size=10).map("".join).filter(str.strip)


@pytest.mark.parametrize("name", BUILDERS)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(text=SENTENCES)
def test_random_sentences_are_aligned_or_reported(name: str, text: str) -> None:
    given_words = split_words(text)
    alignments, refused = align_all([given_words], built(name))
    assert len(alignments) + len(refused) == 1
    for refusal in (example for examples in refused.examples.values() for example in examples):
        assert refusal.annotated is given_words
    for alignment in alignments:
        check_laws(alignment)


@settings(max_examples=60, deadline=None)
@given(text=SENTENCES)
def test_bytes_never_lose_a_word(text: str) -> None:
    check_laws(align(split_words(text), built("bytes")))


@pytest.mark.parametrize("name", BUILDERS)
@pytest.mark.parametrize("two", range(0, len(TEXTS), 3))
def test_a_pair_is_aligned_as_its_texts_are_alone(name: str, two: int) -> None:
    first, second = split_words(TEXTS[0]), split_words(TEXTS[two])
    alignment = align(join_pair(first, second), built(name))
    check_laws(alignment)
    for segment, alone in enumerate((align(first, built(name)), align(second, built(name)))):
        tokens = [token for token, one in enumerate(alignment.segments) if one == segment]
        expected = [token for token, special in enumerate(alone.special) if not special]
        assert [alignment.ids[token] for token in tokens] == [alone.ids[token] for token in expected]
        moved = [None if (word := alone.words[token]) is None else word + segment * len(first.words) for token in expected]
        assert [alignment.words[token] for token in tokens] == moved


def test_a_pair_keeps_its_trees_apart_and_carries_type_ids() -> None:
    annotated = Annotated("a b", (Word("a", "", "", 1, "det", 0, 1), Word("b", "", "", -1, "root", 2, 3)), (((0, 1), (1, 2)),))
    both = join_pair(annotated, annotated)
    assert [word.head for word in both.words] == [1, -1, 3, -1]
    assert both.clusters == (((0, 1), (1, 2)), ((2, 3), (3, 4)))
    assert [both.text[word.start : word.end] for word in both.words] == ["a", "b", "a", "b"]
    alignment = align(both, built("wordpiece-lower"))
    assert alignment.type_ids == (0, 0, 0, 0, 1, 1, 1)
    assert alignment.segments == (-1, 0, 0, -1, 1, 1, -1)
    with pytest.raises(DataError, match="single texts"):
        join_pair(both, annotated)


@pytest.mark.parametrize("name", BUILDERS)
@pytest.mark.parametrize("kept", [4, 6, 9])
def test_truncation_keeps_the_front_and_its_words(name: str, kept: int) -> None:
    tokenizer, given_words = built(name), split_words(TEXTS[0])
    alignment, short = align(given_words, tokenizer), align(given_words, tokenizer, kept, truncate=True)
    assert short.truncated
    assert not alignment.truncated
    assert len(short.ids) == kept
    check_laws(short)
    front = [word for word, special in zip(short.words, short.special, strict=True) if not special]
    assert front == [word for word, special in zip(alignment.words, alignment.special, strict=True) if not special][: len(front)]
    assert len(given_words.words) - 1 in short.words_without_pieces
    assert align(given_words, tokenizer, len(alignment.ids), truncate=True) == alignment


def test_too_long_is_an_error_that_names_the_sentence() -> None:
    tokenizer, text = built("wordpiece-lower"), replace(split_words(TEXTS[0]), origin="a.txt, line 7")
    with pytest.raises(DataError, match=r"a\.txt, line 7 has \d+ tokens, but at most 5 .* max_length=5, truncate=True"):
        align_all([split_words("a"), text], tokenizer, 5)
    with pytest.raises(DataError, match="max_length 2 leaves no room for text beside 2 special tokens"):
        align(text, tokenizer, 2, truncate=True)
    with pytest.raises(DataError, match="must be 1 or more, got 0"):
        align(text, tokenizer, 0)
    assert align(text, build_tokenizer()).truncated is False
    with pytest.raises(DataError, match="at most 128"):
        align(split_words("the dog " * 64), build_tokenizer())


SPELLING = tuple(name for name in BUILDERS if not name.startswith("bytes"))
"""Tokenizers whose pieces spell the text."""


@pytest.mark.parametrize("spells_unknown", [True, False])
@pytest.mark.parametrize("name", SPELLING)
@pytest.mark.parametrize("text", TEXTS)
def test_a_tokenizer_without_offsets_aligns_as_its_fast_twin_or_not_at_all(text: str, name: str, spells_unknown: bool) -> None:
    fast = built(name)
    annotated = split_words(text)
    aligned, refused = align_all([annotated], WithoutOffsets(fast, spells_unknown=spells_unknown))
    expected, _ = align_all([annotated], fast)
    assert len(aligned) + len(refused) == 1
    for ours, theirs in zip(aligned, expected, strict=False):
        assert (ours.ids, ours.special, ours.segments) == (theirs.ids, theirs.special, theirs.segments)
        assert ours.by_word == theirs.by_word


def test_nearly_all_texts_are_aligned_without_offsets() -> None:
    sentences = [split_words(text) for text in TEXTS]
    counts = {name: len(align_all(sentences, WithoutOffsets(built(name), spells_unknown=True))[0]) for name in SPELLING}
    assert min(counts.values()) >= len(TEXTS) - 1, counts


@pytest.mark.parametrize("max_length", [7, 8, 11])
def test_pairs_without_offsets_are_cut_and_told_apart_as_those_with_offsets(max_length: int) -> None:
    fast = wordpiece()
    pairs = [
        join_pair(split_words("The dog sees the dog"), split_words("the dog sees it")),
        join_pair(split_words("a"), split_words("The dog sees the")),
    ]
    options: Any = {"truncate": True, "end": (1,)}
    ours, _ = align_all(pairs, WithoutOffsets(fast, spells_unknown=True), max_length, **options)
    assert ours == align_all(pairs, fast, max_length, **options)[0]


def test_pieces_that_do_not_spell_the_text_or_in_two_ways_are_refused() -> None:
    assert match_pieces("a dog", ["▁a", "▁dig"]) is None
    assert match_pieces("a dog", ["▁a"]) is None  # something is left
    assert match_pieces("a dog", ["▁a", "▁dog", "s"]) is None  # something is too much
    assert match_pieces("xyx x", ["?", "x", "▁x"], "?") == [(0, 2), (2, 3), (4, 5)]  # the unknown piece ends before the last x of its word
    assert match_pieces("xyxz", ["?", "x", "?"], "?") == [(0, 2), (2, 3), (3, 4)]
    assert match_pieces("xxxx", ["?", "x", "?"], "?") is None  # either x in the middle


def test_normalised_pieces_are_found_where_their_characters_come_from() -> None:
    text = "\u200bThe ﬁne  cafe\u0301… 가"
    pieces = ["▁The", "▁fi", "ne", "▁caf", "é", "...", "▁가"]
    spans = match_pieces(text, pieces)
    assert spans is not None
    assert [text[start:end] for start, end in spans] == ["The", "ﬁ", "ne", "caf", "e\u0301", "…", "가"]
    assert match_pieces("Ünder STRASSE", ["unde", "##r", "stra", "##sse"]) == [(0, 4), (4, 5), (6, 10), (10, 13)]


def test_a_tokenizer_whose_pieces_cannot_be_placed_is_refused() -> None:
    assert align_all([split_words("é")], ByT5Tokenizer())[1].counts == {Reason.PIECES: 1}  # two bytes, neither of which spells it
    with pytest.raises(AlignmentError, match="SimpleNamespace is a tokenizer without offsets and without tokenize"):
        align_all([split_words("a")], SimpleNamespace(is_fast=False))


def test_a_token_on_two_words_goes_to_the_larger_part_and_the_other_borrows_it() -> None:
    tokenizer = Tokenizer(models.WordPiece({"[UNK]": 0, "cannot": 1, "donut": 2, "s": 3}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tied = align(sentence("s cannot", "s", "can", "not"), _fast(tokenizer))
    assert tied.words == (0, 1)
    assert [tied.pieces(word) for word in range(3)] == [(0,), (1,), (1,)]
    assert (tied.words_borrowing_pieces, tied.shared) == ((2,), 1)
    larger = align(sentence("donut s", "do", "nut", "s"), _fast(tokenizer))
    assert larger.words == (1, 2)
    assert larger.words_borrowing_pieces == (0,)


def test_words_of_a_multiword_token_share_its_pieces() -> None:
    words = (Word("in", "", "", None, "", 0, 2), Word("dem", "", "", None, "", 0, 2), Word("Haus", "", "", None, "", 3, 7))
    alignment = align(Annotated("im Haus", words), built("bytes"))
    check_laws(alignment)
    assert alignment.pieces(0) == alignment.pieces(1)
    assert set(alignment.words) <= {0, 2, None}
    assert alignment.words_borrowing_pieces == (1,)
    assert alignment.shared == len(alignment.pieces(0))


@pytest.mark.parametrize("name", ["unigram", "bytes-prefix", "metaspace-across-words", "bytes-prefix-trim"])
def test_a_marker_of_space_belongs_to_no_word(name: str) -> None:
    tokenizer = built(name)
    alignment = align(split_words("Љubav"), tokenizer)
    texts = tokenizer.convert_ids_to_tokens(list(alignment.ids))
    markers = [token for token, text in enumerate(texts) if text in ("▁", "Ġ")]
    assert markers
    assert all(alignment.words[token] is None for token in markers)


def test_letters_that_look_like_markers_are_words() -> None:
    tokenizer = Tokenizer(models.WordPiece({"[UNK]": 0, "ġ": 1, "Ġ": 2, "▁": 3}, unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.NFC(), pre_tokenizers.WhitespaceSplit()
    assert align(split_words("ġ Ġ ▁ G\u0307"), _fast(tokenizer)).words == (0, 1, 2, 3)


def test_special_tokens_written_in_the_text_are_words() -> None:
    alignment = align(split_words("[SEP] dog"), built("wordpiece-lower"))
    assert alignment.words[1] == 0
    assert not alignment.special[1]


def test_refused_sentences_are_counted_and_shown() -> None:
    lost = [replace(split_words("dog \u0301 cat"), origin=f"line {number}") for number in range(5)]
    remaining, refused = align_all([split_words("a dog"), *lost, split_words("a cat"), Annotated("x", ())], built("wordpiece-lower"))
    assert [actual.annotated.text for actual in remaining] == ["a dog", "a cat"]
    assert refused.counts == {Reason.UNCOVERED: 5, Reason.EMPTY: 1}
    assert len(refused) == 6
    assert [example.annotated.origin for example in refused.examples[Reason.UNCOVERED]] == ["line 0", "line 1", "line 2"]
    assert str(refused.examples[Reason.UNCOVERED][0]).startswith("line 0: a word without a token: word 1")


@pytest.mark.parametrize("offsets", [[(2, 3), (0, 1)], [(0, 1), (2, 9)], [(1, 0), (2, 3)]])
def test_offsets_out_of_order_or_bounds_are_refused(offsets: list[tuple[int, int]]) -> None:
    actual = assign_tokens_or_refuse(split_words("a b"), Tokens([1, 2], ["a", "b"], offsets, [0, 0], [False, False], None))
    assert isinstance(actual, SentenceRefusal)
    assert actual.reason is Reason.OFFSETS


def test_special_tokens_can_be_chosen_by_the_caller() -> None:
    tokenizer = build_tokenizer()
    alignment = align(split_words("the dog ."), tokenizer, add_special_tokens=False, end=[tokenizer.eos_token_id])
    assert tokenizer.convert_ids_to_tokens(list(alignment.ids)) == ["the", "dog", ".", "[SEP]"]
    assert alignment.special == (False, False, False, True)
    assert align(split_words("the dog ."), tokenizer, as_target=True).ids == align(split_words("the dog ."), tokenizer).ids
    short = align(split_words("the dog ."), tokenizer, 3, truncate=True, add_special_tokens=False, end=[tokenizer.eos_token_id])
    assert tokenizer.convert_ids_to_tokens(list(short.ids)) == ["the", "dog", "[SEP]"]


def test_chunks_and_mixtures_keep_their_order() -> None:
    many = [split_words(TEXTS[n % 8]) if n % 3 else join_pair(split_words("a"), split_words(TEXTS[n % 8])) for n in range(600)]
    remaining, refused = align_all(many, built("bytes"))
    assert [actual.annotated for actual in remaining] == many
    assert not refused


@pytest.mark.parametrize(
    ("made", "message"),
    [
        ({"words": (Word("a", "", "", None, "", 0, 9),)}, "word 0 .* 0:9 of a text of 5"),
        ({"words": (Word("", "", "", None, "", 1, 1),)}, "at 1:1"),
        ({"words": (Word("ab", "", "", None, "", 0, 2), Word("bc", "", "", None, "", 1, 3))}, "overlap in part"),
        ({"words": (Word("a", "", "", 4, "", 0, 1),)}, "the head of word 0 .* is 4"),
        ({"words": (Word("a", "", "", 0, "", 0, 1),)}, "the head of word 0 .* is 0"),
        ({"words": (), "clusters": (((0, 1),),)}, "mention spans the words 0:1 of 0"),
        ({"words": (), "links": frozenset({(0, 0)})}, "word 0 of 0 is linked to word 0 of 0"),
        ({"words": (), "pair_at": 5}, "cannot begin at character 5 of 5"),
        ({"words": (Word("abc", "", "", None, "", 0, 3),), "pair_at": 2}, "in both texts"),
        ({"words": (), "text": "ab\ud800"}, "character 2 is half of a surrogate pair"),
    ],
)
def test_impossible_sentences_are_errors(made: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=f"here: .*{message}"):
        Annotated(**{"text": "abcde", "origin": "here", **made})


# CoNLL-U


def row(number: object, form: str, head: object = "_", relation: str = "dep", misc: str = "_", lemma: str = "_") -> str:
    return "\t".join([str(number), form, lemma, "X", "_", "_", str(head), relation, "_", misc])


def write(path: Path, *rows: str) -> Path:
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return path


def conllu(tmp_path: Path, *rows: str) -> Annotated:
    (actual,) = read_conllu(write(tmp_path / "a.conllu", *rows))
    return actual


def test_multiword_tokens_empty_nodes_and_spaces(tmp_path: Path) -> None:
    sentences = conllu(
        tmp_path,
        "# text = Im Haus don't«.",
        row("1-2", "Im"),
        row(1, "In", 3, "case"),
        row(2, "dem", 3, "det", "SpaceAfter=No"),
        row(3, "Haus", 0, "root", lemma="Haus"),
        row("3.1", "is"),
        row("4-5", "don't", misc="SpaceAfter=No"),
        row(4, "do", 3, "aux:pass"),
        row(5, "n't", 3, "advmod"),
        row(6, "«", 3, misc="Gloss=x|SpaceAfter=No"),
        row(7, ".", 3),
    )
    assert sentences.text == "Im Haus don't«."
    assert [sentences.text[word.start : word.end] for word in sentences.words] == ["Im", "Im", "Haus", "do", "n't", "«", "."]
    assert [word.form for word in sentences.words] == ["In", "dem", "Haus", "do", "n't", "«", "."]
    assert [word.head for word in sentences.words] == [2, 2, -1, 2, 2, 2, 2]
    assert sentences.words[2] == Word("Haus", "Haus", "X", -1, "root", 3, 7)
    assert sentences.words[3].relation == "aux:pass"
    assert (base_relation("aux:pass"), base_relation("root")) == ("aux", "root")
    assert sentences.notes == ()
    assert sentences.origin.endswith("a.conllu, line 2")


def test_a_text_that_differs_from_the_forms_is_rebuilt_and_noted(tmp_path: Path) -> None:
    rows = [row(1, "a", 0, misc="SpaceAfter=No"), row(2, ",", 1), row(3, "b", 1)]
    for given_text, notes in [
        ("a,\u00a0 b", ()),
        ("a, b", ()),
        ("a , b", (Note.REBUILT,)),
        ("a,b", (Note.REBUILT,)),
        ("a, bc", (Note.REBUILT,)),
    ]:
        sentences = conllu(tmp_path, f"# text = {given_text}", *rows)
        assert sentences.notes == notes
        assert sentences.text == ("a, b" if notes else given_text)
        assert [sentences.text[word.start : word.end] for word in sentences.words] == ["a", ",", "b"]
    assert conllu(tmp_path, "# text_en = other", *rows).notes == ()


def test_a_sentence_without_tree_and_the_underscore(tmp_path: Path) -> None:
    sentences = conllu(tmp_path, row(1, "_", lemma="_"), row(2, "a b", relation="_"))
    assert sentences.words[0] == Word("_", "_", "X", None, "dep", 0, 1)
    assert sentences.words[1] == Word("a b", "", "X", None, "", 2, 5)


FORMS = st.lists(
    st.tuples(st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=6), st.booleans()), min_size=1, max_size=8
)


@settings(max_examples=50, deadline=None)
@given(forms=FORMS)
def test_offsets_reproduce_the_forms(forms: list[tuple[str, bool]], tmp_path_factory: pytest.TempPathFactory) -> None:
    rows = [row(n, form, n - 1, misc="_" if space else "SpaceAfter=No") for n, (form, space) in enumerate(forms, 1)]
    sentences = conllu(tmp_path_factory.mktemp("t"), *rows)
    assert [sentences.text[word.start : word.end] for word in sentences.words] == [form for form, _ in forms]
    last, _ = forms[-1]
    assert sentences.text == "".join(form + " " * gap for form, gap in forms[:-1]) + last


def test_the_embedded_trees_come_back_from_their_file(tmp_path: Path) -> None:
    clauses = draw_split(Random("trees/report/3"), "report", 40, draw_clause, lambda clause: str(english.say_clause(clause)))
    path = tmp_path / "e.conllu.gz"
    path.write_bytes(gzip.compress("".join(english.say_clause(clause).conllu() for clause in clauses).encode()))
    expected = draw_sentences("english", 40, seed=3)
    actual = list(read_conllu(path))
    assert [replace(one, origin="") for one in actual] == [replace(one, origin="") for one in expected]
    assert list(read_annotated(path)) == actual


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "holds no sentence"),
        (["# text = nothing", ""], "holds no sentence"),
        (["The dog sleeps ."], r"line 1 has 1 columns, but CoNLL-U has 10.*no CoNLL-U file"),
        (["a\tb\tc"], r"line 1 has 3 columns.*no CoNLL-U file"),
        ([row(1, "a", 0), "2\tb"], r"line 2 has 2 columns, but CoNLL-U has 10, set apart by tabs\.$"),
        ([row("x", "a", 0)], "line 1: the ID is 'x'"),
        ([row("1-2.1", "a", 0)], "line 1: the ID is"),
        ([row(2, "a", 0)], "line 1: word 2 follows word 0"),
        ([row(1, "a", 0), row(1, "b", 1)], "line 2: word 1 follows word 1"),
        ([row(1, "a", 0), row(2, "b", 3)], "line 2: the head of 'b' is 3, but the sentence has 2 words"),
        ([row(1, "a", 0), row(2, "b", 2)], "line 2: the head of 'b' is 2, but that is the word itself"),
        ([row(1, "a", 0), row(2, "b", "one")], "line 2: the head of 'b' is 'one'"),
        ([row(1, "a", 0), row(2, "b", "-1")], "line 2: the head of 'b' is '-1'"),
        ([row(1, "a", 0), row(2, "b", "_")], "line 2: the head of 'b' is '_'"),
        ([row(1, "a", 2), row(2, "b", 1)], "line 1: .* no root"),
        ([row(1, "a", 0), row(2, "b", 3), row(3, "c", 2)], "line 2: the heads from 'b' on go in a circle"),
        ([row(1, "", 0)], "line 1: the form is empty"),
        ([row("1-3", "ab"), row(1, "a", 0), row(2, "b", 1)], "line 1: the range 1-3 goes beyond the last word, 2"),
        ([row("2-3", "ab"), row(1, "a", 0)], "line 1: the range 2-3 cannot follow word 0"),
        ([row("1-2", "ab"), row(1, "a", 0), row("2-3", "b"), row(2, "b", 1)], "line 3: the range 2-3 cannot follow word 1"),
        ([row("0.1", "a")], "line 1: the sentence has no words"),
    ],
)
def test_a_broken_treebank_is_told_by_its_line(tmp_path: Path, rows: list[str], message: str) -> None:
    path = write(tmp_path / "bad.conllu", *rows)
    with pytest.raises(DataError, match=rf"bad\.conllu.*{message}"):
        list(read_conllu(path))


def test_a_treebank_that_is_not_utf8_or_not_there(tmp_path: Path) -> None:
    path = tmp_path / "latin.conllu"
    path.write_bytes(row(1, "ä", 0).encode("latin1"))
    with pytest.raises(DataError, match=r"latin\.conllu, line 1 is not UTF-8"):
        list(read_conllu(path))
    with pytest.raises(DataError, match="no file"):
        list(read_conllu(tmp_path / "none.conllu"))


def test_coreference_within_a_sentence(tmp_path: Path) -> None:
    marks = ["(e1-person-1(e2-place", "e2)", "e1)", "(e1)", "(e3)", "(e2", "(e4[1/2])", "e9)", "(e4[2/2])"]
    actual, left_out = find_clusters(marks)
    assert actual == (((0, 3), (3, 4)),)
    assert left_out == 4, "e2 stays open, e9 was never opened, e4 is in two parts"
    assert find_clusters(["(person-1", "person-1)", "(person-1)"], index_of_entity_name_field("etype-eid-head")) == ((((0, 2), (2, 3)),), 0)
    assert index_of_entity_name_field("etype-GRP") == 1
    read = conllu(
        tmp_path,
        "# global.Entity = eid-etype",
        row(1, "she", 2, misc="Entity=(e1-person)"),
        row(2, "sees", 0, misc="NamedEntity=Yes"),
        row("2.1", "it", misc="Entity=(e7-person)"),
        row(3, "herself", 2, misc="SpaceAfter=No|Entity=(e1-person)"),
    )
    assert read.clusters == (((0, 1), (2, 3)),)
    assert read.notes == (Note.MENTION,)


# plain text, tables, pairs


def test_lines_and_paragraphs(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "one two", "", "three  four ", "five", "", "")
    by_line = list(read_annotated(path))
    assert [one.text for one in by_line] == ["one two", "three  four ", "five"]
    assert by_line[1].origin == f"{path}, line 3"
    assert by_line[1].words == (Word("three", "", "", None, "", 0, 5), Word("four", "", "", None, "", 7, 11))
    paragraphs = list(read_annotated(str(path), by="paragraph"))
    assert [paragraph.text for paragraph in paragraphs] == ["one two", "three  four \nfive"]
    assert [paragraph.origin for paragraph in paragraphs] == [f"{path}, line 1", f"{path}, line 3"]


@settings(max_examples=50, deadline=None)
@given(text=SENTENCES)
def test_words_of_plain_text_are_its_runs_without_spaces(text: str) -> None:
    words = split_words(text)
    assert [words.text[word.start : word.end] for word in words.words] == [word.form for word in words.words] == text.split()


def test_tables_by_any_column(tmp_path: Path) -> None:
    import datasets
    import pyarrow as pa
    from pyarrow import parquet

    rows = [{"premise": "a dog runs", "hypothesis": "it moves", "other": "x y"}, {"premise": "b", "hypothesis": "c d", "other": "z"}]
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "t.parquet")
    write(tmp_path / "t.jsonl", *map(json.dumps, rows))
    write(tmp_path / "t.csv", ",".join(rows[0]), *(",".join(one.values()) for one in rows))
    write(tmp_path / "t.tsv", "\t".join(rows[0]), *("\t".join(one.values()) for one in rows))
    expected = [("a dog runs", "it moves"), ("b", "c d")]
    for source in [*(tmp_path / f"t.{kind}" for kind in ("parquet", "jsonl", "csv", "tsv")), datasets.Dataset.from_list(rows)]:
        assert [tuple(text for _, text in one.texts_with_start) for one in read_annotated(source)] == expected
        assert [one.text for one in read_annotated(source, text_column="other")] == ["x y", "z"]
        assert [one.pair_at for one in read_annotated(source, text_column="other", text_pair_column="premise")] == [3, 1]
    bare = write(tmp_path / "bare.tsv", "a dog\tit", "b\tc d")
    assert [tuple(text for _, text in one.texts_with_start) for one in read_annotated(bare)] == [("a dog", "it"), ("b", "c d")]
    assert [one.text for one in read_annotated(write(tmp_path / "one.tsv", "a dog", "b"))] == ["a dog", "b"]


@pytest.mark.parametrize(
    ("name", "rows", "options", "message"),
    [
        ("a.txt", [""], {}, "is empty"),
        ("a.tsv", ["a\tb\tc"], {}, "3 columns"),
        ("a.tsv", ["text\tlabel", "\t1"], {"text_column": "text"}, "line 2: the text is empty"),
        ("a.jsonl", ['{"text": "a"}'], {"text_column": "body"}, "no column 'body'"),
        ("a.jsonl", ['{"text": 3}'], {}, "must be text, got 3"),
        ("a.jsonl", ['{"text": "\\ud800"}'], {}, "line 1: character 0 is half"),
        ("a.jsonl", ['{"text": "a"}'], {"by": "paragraph"}, "is a table"),
        ("a.jsonl", ['{"text": "a"}'], {"text_pair_column": "b"}, "name both"),
        ("a.txt", ["a"], {"text_column": "text"}, "no columns"),
        ("a.conllu", [row(1, "a", 0)], {"by": "paragraph"}, "is a treebank"),
    ],
)
def test_unusable_texts_are_errors(tmp_path: Path, name: str, rows: list[str], options: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        list(read_annotated(write(tmp_path / name, *rows), **options))


def test_unknown_ways_to_divide() -> None:
    with pytest.raises(UnknownName, match="Did you mean 'line'"):
        read_annotated("a.txt", by="lines")  # pyright: ignore[reportArgumentType]


# translations


def test_translations_with_given_alignments(tmp_path: Path) -> None:
    links = write(tmp_path / "links", "0-1 1-0", "")
    actual = list(translations([split_words("a b"), split_words("c")], [split_words("x y"), split_words("z")], read_links(links)))
    assert actual[0].links == {(0, 1), (1, 0)}
    assert actual[0].target == split_words("x y")
    assert actual[1].links == frozenset()
    with pytest.raises(DataError, match=r"links, line 1: '0:1' is no alignment"):
        list(read_links(write(tmp_path / "links", "0:1")))
    with pytest.raises(DataError, match="only 1 targets"):
        list(translations([split_words("a"), split_words("b")], [split_words("x")]))
    with pytest.raises(DataError, match="word 3 of 1 is linked"):
        list(translations([split_words("a")], [split_words("x")], [frozenset({(3, 0)})]))


def test_embedded_sentences_have_trees_and_are_aligned_whole() -> None:
    for language in ("english", "tavi"):
        sentences = draw_sentences(language, 100, seed=1)
        assert sentences == draw_sentences(language, 100, seed=1)
        assert sentences != draw_sentences(language, 100, seed=2)
        remaining, refused = align_all(sentences, build_tokenizer())
        assert not refused
        assert all(sum(word.head == -1 for word in one.words) == 1 for one in sentences)
        assert all(one.text[word.start : word.end] == word.form for one in sentences for word in one.words)
        for actual in remaining:
            check_laws(actual)
            assert actual.shared == 0
    with pytest.raises(UnknownName, match="no embedded language 'tavy'"):
        draw_sentences("tavy")  # pyright: ignore[reportArgumentType]
    with pytest.raises(DataError, match="1 or more, got 0"):
        draw_sentences(number=0)


def test_draw_translations_link_every_content_word_once() -> None:
    actual = draw_translations(number=300, seed=5, split="selection")
    repeated = 0
    for one in actual:
        assert one.target is not None
        ours, theirs = one.words, one.target.words
        contents = [[n for n, word in enumerate(words) if word.upos in CONTENT] for words in (ours, theirs)]
        assert sorted(a for a, _ in one.links) == contents[0]
        assert sorted(b for _, b in one.links) == contents[1]
        assert all(STEMS[ours[a].upos, ours[a].lemma] == theirs[b].lemma and ours[a].relation == theirs[b].relation for a, b in one.links)
        repeated += max(Counter(word.lemma for word in theirs if word.upos in CONTENT).values()) > 1
    assert repeated > 10, "words that come twice are told apart by their place in the tree"
    back = draw_translations("tavi", 300, seed=5, split="selection")
    assert [{(b, a) for a, b in one.links} for one in back] == [set(one.links) for one in actual]
    assert [one.target and one.target.text for one in back] == [one.text for one in actual]


# parsers


def _spacy_doc() -> list[Any]:
    cells = [
        ("Dogs", "dog", "NOUN", 2, "nsubj", 0),
        ("\n", "\n", "SPACE", 0, "dep", 4),
        ("run", "run", "VERB", 2, "ROOT", 5),
        (".", ".", "PUNCT", 1, "punct", 8),
    ]
    doc = [
        SimpleNamespace(text=t, lemma_=lemma, pos_=pos, dep_=dep, idx=at, i=i, is_space=t.isspace())
        for i, (t, lemma, pos, _, dep, at) in enumerate(cells)
    ]
    for token, cell in zip(doc, cells, strict=True):
        token.head = doc[cell[3]]
    return doc


def test_spacy_documents_become_words() -> None:
    (sentences,) = parse_sentences([split_words("Dogs\nrun.")], lambda _: from_spacy(_spacy_doc()))
    assert sentences.words == (
        Word("Dogs", "dog", "NOUN", 1, "nsubj", 0, 4),
        Word("run", "run", "VERB", -1, "root", 5, 8),
        Word(".", ".", "PUNCT", 0, "punct", 8, 9),
    )


def test_stanza_documents_become_words() -> None:
    def token(text: str, start: int, *words: tuple[str, int, str]) -> Any:
        SimpleNamespaces = [SimpleNamespace(text=form, lemma=None, upos="X", head=head, deprel=relation) for form, head, relation in words]
        return SimpleNamespace(text=text, start_char=start, words=SimpleNamespaces)

    simple_namespace = SimpleNamespace(tokens=[token("Im", 0, ("In", 3, "case"), ("dem", 3, "det")), token("Haus", 3, ("Haus", 0, "root"))])
    two = SimpleNamespace(tokens=[token("Ja", 8, ("Ja", 0, "root"))])
    document = SimpleNamespace(sentences=[simple_namespace, two])
    (sentences,) = parse_sentences([split_words("Im Haus Ja")], lambda _: from_stanza(document))
    assert [(word.form, word.head, word.start, word.end) for word in sentences.words] == [
        ("In", 2, 0, 2),
        ("dem", 2, 0, 2),
        ("Haus", -1, 3, 7),
        ("Ja", -1, 8, 10),
    ]
    both = list(parse_sentences([join_pair(split_words("a b"), split_words("c"))], lambda text: split_words(text).words))
    assert both == [join_pair(split_words("a b"), split_words("c"))]


@pytest.mark.parametrize(("name", "parser"), [("spacy", spacy_parser), ("stanza", stanza_parser)])
def test_parsers_that_are_missing_or_have_no_models(name: str, parser: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError("no such model")

    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtra, match=rf"pip install 'headcount\[{name}\]'"):
        parser_of(f"{name}:xx")
    monkeypatch.setitem(sys.modules, name, SimpleNamespace(load=fail, Pipeline=fail))
    with pytest.raises(DataError, match=f"(?i){name} has no .*'xx'"):
        parser("xx")


class _Nlp:
    """Stands in for a pipeline of spaCy or stanza, with a parser or without."""

    def __init__(self, trees: bool) -> None:
        self.trees, self.pipe_names = trees, ["tagger"] * trees
        self.processors = {"depparse": None} if trees else {}

    def __call__(self, text: str) -> Any:
        class Doc(list):
            has_annotation = staticmethod(lambda _: self.trees)
            sentences = ()

        return Doc(_spacy_doc() if text == "Dogs\nrun." else ())


@pytest.mark.parametrize("name", ["spacy", "stanza"])
def test_a_pipeline_without_a_parser_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def stand_in(trees: bool) -> Any:
        return SimpleNamespace(load=lambda _: _Nlp(trees), Pipeline=lambda *_, **__: _Nlp(trees))

    monkeypatch.setitem(sys.modules, name, stand_in(False))
    with pytest.raises(DataError, match=r"'en' ha\w+ no dependency parser"):
        parser_of(f"{name}:en")
    monkeypatch.setitem(sys.modules, name, stand_in(True))
    assert parser_of(f"{name}:en")("a") == ()
    if name == "spacy":
        (sentences,) = parse_sentences([split_words("Dogs\nrun.")], parser_of("spacy:en"))
        assert [word.relation for word in sentences.words] == ["nsubj", "root", "punct"]


def test_parsers_are_named_by_package_and_model() -> None:
    with pytest.raises(UnknownName, match="Did you mean 'spacy'"):
        parser_of("spacey:en")
    with pytest.raises(DataError, match="names no model; say stanza:en"):
        parser_of("stanza")


# text in any form


def test_texts_pairs_datasets_and_examples_of_tasks_become_sentences(tmp_path: Path) -> None:
    import datasets

    table = datasets.Dataset.from_dict({"text": ["a dog", "b"], "other": ["x", "y"]})
    expected = ["a dog", "b"]
    for given_text in (expected, table, table["text"], write(tmp_path / "a.txt", *expected), str(tmp_path / "a.txt"), iter(expected)):
        assert [one.text for one in sentences_of(given_text)] == expected
    mixed = list(sentences_of(["a dog", ("b", "c d"), ["e", "f"], split_words("g")]))
    assert [one.pair_at for one in mixed] == [None, 1, 1, None]
    assert [one.origin for one in mixed[:2]] == ["sentence 0", "sentence 1"]
    for wrong in (3, ("a", "b", "c"), ("a", 2), {"text": "a"}):
        with pytest.raises(DataError, match="sentence 1 must be a text, a pair of two texts or an annotated sentence"):
            list(sentences_of(["a", wrong]))
    with pytest.raises(DataError, match="sentence 0: the text is empty"):
        list(sentences_of([" "]))
    one, two, three = annotate_examples([Text("line 1", "a b"), Text("line 2", "a", "b c"), Text("line 3", "a", target="x y")])
    assert (one, two) == (split_words("a b", "line 1"), join_pair(split_words("a", "line 2"), split_words("b c", "line 2")))
    assert three.target == split_words("x y", "line 3") and three.text == "a"


def test_a_label_is_not_read_as_the_second_text(tmp_path: Path) -> None:
    path = write(tmp_path / "sst.tsv", "a dog\t1", "b\t0")
    with pytest.raises(DataError, match="line 1: the second text is '1', which is a label rather than a text"):
        list(read_annotated(path))
    named = write(tmp_path / "named.tsv", "question\tanswer", "how many\t42")
    assert [one.pair_at for one in read_annotated(named, text_column="question", text_pair_column="answer")] == [8]


# languages


def _treebank(*tokens: str | tuple[str, ...], space: bool) -> list[str]:
    """CoNLL-U rows; a tuple is a multi-word token, its surface first. The last word is the root, all others hang on it."""
    total = sum(1 if isinstance(token, str) else len(token) - 1 for token in tokens)
    rows, number = [], 0

    def add(form: str, head: int, after: str) -> None:
        rows.append("\t".join([str(number), form, form, "X", "_", "_", str(head), "root" if head == 0 else "dep", "_", after]))

    for token in tokens:
        after = "_" if space else "SpaceAfter=No"
        forms = (token,) if isinstance(token, str) else token[1:]
        if not isinstance(token, str):
            rows.append("\t".join([f"{number + 1}-{number + len(forms)}", token[0], *"_" * 7, after]))
        for form in forms:
            number += 1
            add(form, 0 if number == total else total, after if isinstance(token, str) else "_")
    return rows


LANGUAGES = {
    "hebrew": _treebank("הכלב", "רואה", ("בבית", "ב", "ה", "בית"), "את", "החתול", ".", space=True),
    "arabic": _treebank(("وكتابه", "و", "كتاب", "ه"), "يرى", ("للكتاب", "ل", "ال", "كتاب"), "الكَلْبُ", "،", space=True),
    "chinese": _treebank("他", "今天", "没有", "去", "北京大学", "。", space=False),
    "japanese": _treebank("東京都", "に", "住んで", "いる", "カタカナ", "です", "。", space=False),
    "thai": _treebank("ภาษาไทย", "ไม่", "มี", "ช่องว่าง", space=False),
    "german": _treebank(("Im", "In", "dem"), "Straßencafé", ("zur", "zu", "der"), "Tür", ".", space=True),
    "french": _treebank(("Du", "De", "le"), "garçon", ("aux", "à", "les"), "élèves", "naïfs", space=True),
    "hindi": _treebank("कुत्ता", "बिल्ली", "को", "देखता", "है", "।", space=True),
    "korean": _treebank("고양이가", "강아지를", "본다", ".", space=True),
    "mixed": _treebank("iPhone", "15", "המכשיר", "北京", "👩‍👩‍👧", "ok", space=True),
}


@pytest.mark.parametrize("name", BUILDERS)
@pytest.mark.parametrize("language", LANGUAGES)
def test_words_of_every_language_have_exactly_their_characters(name: str, language: str, tmp_path: Path) -> None:
    """Pieces cover what the tokenizer keeps of a word and nothing of another one; no piece has two words but where these share characters."""
    (given_words,) = read_conllu(write(tmp_path / "a.conllu", *LANGUAGES[language], ""))
    alignment = align(given_words, built(name))
    check_laws(alignment)
    text, words = given_words.text, given_words.words
    order = [word for word in alignment.words if word is not None]
    assert order == sorted(order), "tokens and words come in the same order, also where text runs from right to left"
    owners: dict[int, set[tuple[int, int]]] = {}
    for number, word in enumerate(words):
        for token in alignment.pieces(number):
            owners.setdefault(token, set()).add((word.start, word.end))
    several = {token for token, spans in owners.items() if len(spans) > 1}
    straddling = {
        t
        for t, (a, b) in enumerate(alignment.offsets)
        if sum(a < end and start < b for start, end in {(w.start, w.end) for w in words}) > 1
    }
    assert several <= straddling, "only a token on several words may be lent"
    for number, word in enumerate(words):
        pieces = set(alignment.pieces(number))
        covered = {at for token in pieces for at in range(*alignment.offsets[token]) if not text[at].isspace()}
        remaining = {
            at
            for token, (start, end) in enumerate(alignment.offsets)
            if alignment.words[token] is not None and token not in straddling
            for at in range(max(start, word.start), min(end, word.end))
        }
        assert remaining <= covered
        if not pieces & straddling:
            assert covered <= set(range(word.start, word.end))
