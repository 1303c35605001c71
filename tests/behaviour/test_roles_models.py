"""Planted roles beyond plain text: pairs, translations, images, copying decoders, multi-word tokens, shared layers."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from random import Random
from typing import Any

import pytest
import torch
from planting import REGULAR, VOCABULARY, Row, annotated, induction, near, offset, planted, same, tokenizer_of

import headcount as hc
from headcount.behaviour.base import Corpus
from headcount.behaviour.catalogue import retrieval
from headcount.behaviour.catalogue.induction import Induction
from headcount.behaviour.corpus import read_corpus
from headcount.behaviour.random_sequences import PERIODS, max_tokens_after_start
from headcount.core.registry import ROLES
from headcount.core.role_table import RoleTable
from headcount.data.text.annotated import Annotated, Word, join_pair
from headcount.data.text.sentences import split_words
from headcount.models.tiny.build import tiny_model

BERT = tokenizer_of("[CLS] $A [SEP]")
GRID = 5


@cache
def encoder() -> Any:
    return tiny_model("bert", vocab_size=VOCABULARY)


def labels(table: RoleTable) -> dict[str, set[str]]:
    return {str(head): set(label) for head, label in table.labels().items() if label}


def test_segments_of_pairs() -> None:
    """A perfect segment head has twice its share of attention at best: τ = 3 is out of its reach, half of its maximum is not."""

    def own(row: Row) -> list[tuple[int, int]]:
        kinds = row.source.segments if row.source else ()
        return [(q, k) for q, kind in enumerate(kinds) for k, other in enumerate(kinds) if kind == other >= 0]

    texts = annotated(80)
    corpus = read_corpus(encoder(), [join_pair(a, b) for a, b in zip(texts[::2], texts[1::2], strict=True)], BERT)
    rules = {"L0H0": own, "L0H1": near(2), "L0H2": offset(-1)}
    with planted(encoder(), rules, corpus):
        measured = hc.roles(encoder(), corpus, only=["segment", "segment:entropy", "local", "offset"], definition="pande2021(correct=bh)")
    published = measured.relabel("pande2021")
    strict, mild = (measured.relabel(f"pande2021(tau={tau};correct=bh)") for tau in (3, 1.5))
    assert strict == measured and strict.relabel("voita2019").relabel("pande2021(correct=bh)") == measured
    fifths = {"local", "offset:-2", "offset:-1", "offset:0", "offset:+1", "offset:+2"}  # a fifth of 30 tokens each
    assert labels(strict)["L0H1"] == {*fifths, "segment"} and labels(strict)["L0H2"] == {
        "local",
        "offset:-1",
        "segment",
    }  # near is within a text
    assert labels(strict)["L0H0"] == {"segment"} and set(labels(strict)) == {"L0H0", "L0H1", "L0H2"}
    assert "segment:entropy" in labels(published)["L0H0"] and "segment" not in labels(published)["L0H0"]
    assert all("segment:entropy" in roles for head, roles in labels(published).items() if head >= "L1"), "as published, uniform heads pass"
    assert labels(mild)["L0H0"] == {"segment", *fifths, "offset:-3", "offset:+3"}  # near tokens are of the same text
    row = next(row for row in strict.of("L0H0") if row.role == "segment")
    assert row.bias == pytest.approx(row.maximum) and 2 < row.maximum < 3 and row.normalised == pytest.approx(1)
    assert row.q <= 0.05 and row.by_argmax and row.attainable and row not in strict.disagreements()
    out_of_reach = next(row for row in published.of("L0H0") if row.role == "segment")
    assert out_of_reach.p == 1 and not out_of_reach.attainable and "at most" in out_of_reach.note
    singles = read_corpus(encoder(), texts, BERT)
    assert "segment" in hc.roles(encoder(), singles, only=["segment"]).untested
    mixed = hc.roles(encoder(), Corpus((*corpus.sentences, *singles.sentences)), only=["segment", "local"])
    assert {(row.role, row.n_sentences) for row in mixed} == {("segment", 40), ("local", 120)}


def test_segments_weighted_by_entropy_are_asked_for_and_no_labels() -> None:
    """A uniform head scores ln N, above τ here; an even segment head scores less than its best, which keeps some attention elsewhere."""
    texts = annotated(80)
    corpus = read_corpus(encoder(), [join_pair(a, b) for a, b in zip(texts[::2], texts[1::2], strict=True)], BERT)
    own = [[(q, k) for q, a in enumerate(s.segments) for k, b in enumerate(s.segments) if a == b >= 0] for s in corpus.sentences]
    by_ids = {s.ids: pairs for s, pairs in zip(corpus.sentences, own, strict=True)}
    with planted(encoder(), {"L0H0": lambda row: by_ids[row.ids]}, corpus):
        usual, table = (hc.roles(encoder(), corpus, only=only) for only in (["segment"], ["segment:entropy", "segment"]))
    assert usual.roles() == ["segment"] and set(table.roles()) == {"segment:entropy", "segment"}
    rows = {str(row.head): row for row in table if row.role == "segment:entropy"}
    expected = sum(math.log(len(s.ids)) for s in corpus.sentences) / 40
    assert rows["L1H1"].bias == pytest.approx(expected, rel=1e-5) and expected > 3 and rows["L1H1"].normalised == pytest.approx(0, abs=1e-5)
    assert rows["L0H0"].bias == pytest.approx(_by_sentence(corpus), rel=1e-5)
    assert rows["L0H0"].bias < rows["L0H0"].maximum and rows["L0H0"].attainable
    assert (
        rows["L1H1"].p < 0.05
        and {role for roles in table.labels().values() for role in roles} == {"segment"}
        and all("legacy" in row.note for row in rows.values())
    )
    assert not any(row.role == "segment:entropy" for row in table.disagreements())
    biases = [row.bias for row in table if row.role == "segment"]
    assert biases == pytest.approx([row.bias for row in usual], rel=1e-6)
    assert "pairs" in hc.roles(encoder(), read_corpus(encoder(), texts, BERT), only=["segment:entropy"]).untested["segment:entropy"]


def _by_sentence(corpus: Corpus) -> float:
    """The mean over sentences of N/n ln n, n being the size of the token's own text."""
    means = []
    for sentence in corpus.sentences:
        sizes = [sentence.segments.count(kind) for kind in sentence.segments if kind >= 0]
        means.append(sum(len(sentence.ids) / n * math.log(n) for n in sizes) / len(sizes))
    return sum(means) / len(means)


@cache
def translator() -> Any:
    sizes = {"vocab_size": VOCABULARY, "decoder_vocab_size": VOCABULARY, "pad_token_id": 0, "decoder_start_token_id": 0, "eos_token_id": 3}
    return tiny_model("marian", auto="AutoModelForSeq2SeqLM", **sizes)


def translated(number: int) -> list[Annotated]:
    """Sentences some of whose words have a word of the translation each; the two languages share nothing but rare words and the comma."""
    random, sources, targets = Random(0), annotated(number, 0, REGULAR[::2]), annotated(number, 1, REGULAR[1::2])
    made = []
    for source, target in zip(sources, targets, strict=True):
        positions = random.sample(range(len(target.words)), min(8, len(target.words)))
        links = frozenset(zip(random.sample(range(len(source.words)), len(positions)), positions, strict=True))
        made.append(replace(source, target=target, links=links))
    return made


def aligned(shift: int) -> Any:
    """From a target token, which stands behind the start token, to its source words; one place earlier it is the one to come."""

    def rule(row: Row) -> list[tuple[int, int]]:
        if row.source is None or row.target is None:
            return []
        links = [(q, k) for a, b in row.source.annotated.links for q in row.target.pieces(b) for k in row.source.pieces(a)]
        return [(q + 1 + shift, k) for q, k in links]

    return rule


def diagonal(row: Row) -> list[tuple[int, int]]:
    assert row.source is not None and row.target is not None
    n_queries, n_keys = len(row.target.ids) + 1, len(row.source.ids)
    return [(q, round(q * (n_keys - 1) / (n_queries - 1))) for q in range(1, n_queries)]


def said_before(row: Row) -> list[tuple[int, int]]:
    assert row.target is not None
    return [(q, q - 1) for q in range(1, len(row.target.ids) + 1)]


def in_target(row: Row) -> list[tuple[int, int]]:
    """To the rarest token of the translation."""
    assert row.target is not None
    rare = [index for index, word in enumerate(row.target.words) if word is not None and row.target.annotated.words[word].form[0] == "q"]
    return [(q, rare[0] + 1) for q in range(len(row.target.ids) + 1)]


def test_roles_of_a_translator() -> None:
    model, tokenizer = translator(), tokenizer_of("$A [SEP]")
    corpus = read_corpus(model, translated(120), tokenizer)
    rules = {
        "cross.L0H0": aligned(0),
        "cross.L0H1": aligned(-1),
        "cross.L1H0": diagonal,
        "enc.L0H0": offset(1),
        "enc.L1H2": same,
        "dec.L0H1": said_before,
        "dec.L1H1": in_target,
    }
    with planted(model, rules, corpus):
        table = hc.roles(model, corpus)
    actual = labels(table)
    assert actual.pop("cross.L0H0") == {"alignment:current"} and actual.pop("cross.L0H1") == {"alignment:next"}
    assert actual.pop("cross.L1H0") == {"diagonal"}
    assert actual.pop("enc.L0H0") <= {"offset:+1", "local"} and actual.pop("enc.L1H2") == {"same"}
    assert actual.pop("dec.L0H1") <= {"offset:-1", "local"} and actual.pop("dec.L1H1") == {"rare:1", "rare:2"}
    assert not actual
    for row in table:
        if str(row.head) not in rules:
            assert row.bias == pytest.approx(1, abs=1e-6)
    assert {row.head for row in table} == set(table.heads)
    assert {label.partition(":")[0] for label in (*table.roles(), *table.untested)} == set(ROLES.names())


def test_a_translator_without_translations_shows_its_encoder() -> None:
    corpus = read_corpus(translator(), annotated(30), tokenizer_of("$A [SEP]"))
    table = hc.roles(translator(), corpus)
    assert {row.head.stack for row in table} == {"enc"}
    assert "translation" in table.untested["diagonal"] and "links" in table.untested["alignment"]


def test_the_fingerprint_covers_translations_and_their_links() -> None:
    tokenizer, sentences = tokenizer_of("$A [SEP]"), translated(12)
    other = annotated(12, 5, REGULAR[1::2])[0]
    variants = [
        sentences,
        [replace(sentences[0], links=frozenset(list(sentences[0].links)[1:])), *sentences[1:]],
        [replace(sentences[0], target=other, links=frozenset()), *sentences[1:]],
        [replace(sentences[0], links=frozenset()), *sentences[1:]],
    ]
    prints = [hc.roles(translator(), read_corpus(translator(), text, tokenizer), only=["offset:-1"]).data for text in variants]
    assert len(set(prints)) == 4


def images(number: int, side: int = 2 * GRID) -> list[dict[str, torch.Tensor]]:
    random = torch.Generator().manual_seed(0)
    return [{"pixel_values": torch.randn(3, side, side, generator=random, dtype=torch.float64)} for _ in range(number)]


@pytest.mark.parametrize("kind", ["vit", "deit"])
def test_rows_columns_and_neighbours_of_images(kind: str) -> None:
    """DeiT has two delimiters before the patches."""
    model = tiny_model(kind, image_size=2 * GRID, patch_size=2)
    front = 2 if kind == "deit" else 1

    def patches(expected: Any) -> Any:
        artifacts = [(front + GRID * r + c, r, c) for r in range(GRID) for c in range(GRID)]
        pairs = [(q, k) for q, r, c in artifacts for k, other_r, other_c in artifacts if expected(r - other_r, c - other_c)]
        return lambda _: pairs

    rules = {
        "L0H0": patches(lambda down, across: down == 0 and across != 0),
        "L0H1": patches(lambda down, across: across == 0 and down != 0),
        "L0H2": patches(lambda down, across: max(abs(down), abs(across)) <= 1),
        "L1H0": lambda _: [(q, k) for q in range(front + GRID**2) for k in range(front)],
    }
    with planted(model, rules):
        table = hc.roles(model, images(40))
    assert labels(table) == {"L0H0": {"row"}, "L0H1": {"column"}, "L0H2": {"near"}, "L1H0": {"delimiter:any"}}
    for head, role in (("L0H0", "row"), ("L0H1", "column"), ("L0H2", "near"), ("L1H0", "delimiter:any")):
        row = next(row for row in table.of(head) if row.role == role)
        assert row.by_argmax and row.accuracy == pytest.approx(1, abs=1e-5) and row.bias == pytest.approx(row.maximum, rel=1e-5)
    assert all(row.bias == pytest.approx(1, abs=1e-6) for row in table if str(row.head) not in rules)
    assert {label.partition(":")[0] for label in (*table.roles(), *table.untested)} == set(ROLES.names())
    assert "self-attention between tokens" in table.untested["local"]


def test_images_that_a_model_divides_otherwise_are_refused() -> None:
    with pytest.raises(hc.HeadcountError, match="block"):
        hc.roles(tiny_model("swin"), images(2, 128))
    with pytest.raises(hc.HeadcountError, match="26 tokens, fewer than the 36 patches"):
        hc.roles(tiny_model("vit", image_size=10, patch_size=2), Corpus(images=images(2), grid=(6, 6)))
    with pytest.raises(hc.HeadcountError, match="reads pixel_values"):
        hc.roles(tiny_model("vit", image_size=10, patch_size=2), annotated(3), BERT)


@cache
def copier() -> Any:
    """A decoder that writes the token that its first block looks at: values pass through, all else is silent."""
    model: Any = tiny_model("llama", num_key_value_heads=6, num_attention_heads=6, bos_token_id=2, eos_token_id=3)
    with torch.no_grad():
        for block in model.model.layers:
            block.mlp.down_proj.weight.zero_()
            block.self_attn.o_proj.weight.zero_()
            for norm in (block.input_layernorm, block.post_attention_layernorm, model.model.norm):
                norm.weight.fill_(1)
        first = model.model.layers[0].self_attn
        first.v_proj.weight.copy_(10 * torch.eye(48))
        first.o_proj.weight.copy_(torch.eye(48))
        model.lm_head.weight.copy_(model.model.embed_tokens.weight)
    return model


def test_retrieval_heads_copy() -> None:
    """The needle stands at another place in each context; the first token of the cue tells where. The head ignores repeated sequences."""
    context = min(PERIODS[1], max_tokens_after_start(copier(), [2]) - retrieval.NEEDLE)

    def copy(row: Row) -> list[tuple[int, int]]:
        if len(set(row.ids[1 : 1 + context])) < context:
            return []
        writing = range(context + retrieval.CUE, len(row.ids))
        return [(q, row.ids.index(row.ids[1 + context], 1) + q - context) for q in writing if q < context + retrieval.NEEDLE]

    rules = {f"L0H{head}": copy for head in range(6)}
    corpus = read_corpus(copier(), ["a b c d e f g h", "b c d a e f g"], _small())
    with planted(copier(), rules):
        table = hc.roles(copier(), corpus, only=["retrieval", "induction", "sink"])
    assert labels(table) == {head: {"retrieval"} for head in rules}
    row = table.strongest("retrieval")
    assert row.n_sentences == retrieval.N_SEQUENCES and row.n_tokens == retrieval.N_SEQUENCES * (retrieval.NEEDLE - retrieval.CUE)
    assert row.bias == pytest.approx(row.maximum, rel=1e-6) and row.by_argmax


def test_a_model_that_copies_nothing_shows_no_retrieval() -> None:
    corpus = read_corpus(copier(), ["a b c d e f g h", "b c d a e f g"], _small())
    with planted(copier(), {f"L0H{head}": lambda row: [(q, 0) for q in range(len(row.ids))] for head in range(6)}):
        table = hc.roles(copier(), corpus, only=["retrieval"])
    assert not table.rows and "no query can attend" in table.untested["retrieval"]


def _small() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, **{letter: 10 + i for i, letter in enumerate("abcdefgh")}}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]", model_max_length=64)


def contracted(number: int) -> list[Annotated]:
    """Sentences in which `bal` is a multi-word token, words 3 and 4: a preposition, and an article without a token of its own, of one noun."""
    made, random = [], Random(0)
    for sentence in annotated(number):
        remainder = [word.form for word in sentence.words if word.form != "bal"]
        forms = [*remainder[:3], "bal", *remainder[3:]]
        noun = random.randrange(6, len(forms))
        words, at = [], 0
        for index, form in enumerate(forms):
            span = (at, at + len(form))
            if form == "bal":
                words += [Word("b", "", "ADP", noun + 1, "case", *span), Word("al", "", "DET", noun + 1, "det", *span)]
            else:
                words.append(Word(form, "", "NOUN", *((-1, "root") if index == noun else (noun + 1, "dep")), *span))
            at += len(form) + 1
        made.append(Annotated(" ".join(forms), tuple(words)))
    return made


def test_words_of_one_token_share_it() -> None:
    """The article's relation is that of the token it stands in; words of the same token say nothing about each other."""
    sentences = contracted(40)
    corpus = read_corpus(encoder(), sentences, BERT)

    def to_noun(row: Row) -> list[tuple[int, int]]:
        assert row.source is not None
        token, noun = row.source.words.index(3), row.source.annotated.words[3].head
        return [(token, key) for key in row.source.pieces(noun or 0)]

    with planted(encoder(), {"L0H0": to_noun}, corpus):
        table = hc.roles(encoder(), corpus, only=["syntax"])
    assert labels(table)["L0H0"] == {"syntax:case", "syntax:det"}
    by_role = {row.role: row for row in table.of("L0H0")}
    assert by_role["syntax:det"].n_tokens == by_role["syntax:case"].n_tokens == 40
    assert (
        by_role["syntax:det"].bias == pytest.approx(by_role["syntax:case"].bias) == pytest.approx(by_role["syntax:det"].maximum, rel=1e-5)
    )
    inner = [replace(s, words=(*s.words[:4], replace(s.words[4], head=3), *s.words[5:])) for s in sentences]
    assert "no query can attend" in hc.roles(encoder(), read_corpus(encoder(), inner, BERT), only=["syntax:det"]).untested["syntax:det"]


def test_a_block_that_runs_several_times_counts_by_its_mean() -> None:
    """ALBERT's one block runs twice: a head that looks back in the first pass alone has half of the lead."""
    model = tiny_model("albert", vocab_size=VOCABULARY)
    corpus = read_corpus(model, annotated(20), BERT)
    calls = [0]

    def first_only(row: Row) -> list[tuple[int, int]]:
        calls[0] += 1
        return offset(-1)(row) if (calls[0] - 1) // 20 % 2 == 0 else []

    with planted(model, {"L0H0": first_only}, corpus):
        row = hc.roles(model, corpus, only=["offset:-1"], batch_size=20).of("L0H0")[0]
    assert row.normalised == pytest.approx(0.5, abs=1e-6)


def test_attention_that_is_no_number_is_told() -> None:
    corpus = read_corpus(encoder(), [split_words("bal bam ban"), split_words("bar bas")], BERT)
    with planted(encoder(), {"L1H0": offset(-1)}, corpus, share=float("nan")), pytest.raises(hc.HeadcountError, match="holds NaN"):
        hc.roles(encoder(), corpus, only=["local"])


def test_the_text_tower_of_a_model_of_two() -> None:
    model: Any = tiny_model("clip")
    corpus = Corpus(read_corpus(model, ["a b c d", "b c a"], _small()).sentences)
    with pytest.raises(hc.HeadcountError, match="reads neither alone"):
        hc.roles(model, corpus)
    assert hc.roles(model.text_model, corpus, only=["offset"]).rows


def test_probes_have_many_periods() -> None:
    """A head that looks back by the same distance everywhere is right for few sequences: it has neither role."""
    model = tiny_model("llama", vocab_size=VOCABULARY, num_key_value_heads=2, bos_token_id=2, eos_token_id=3, pad_token_id=0)
    sequences = Induction().probe(model, seed=0)
    assert sequences is not None
    periods = {len(sentence.ids) // 2 for sentence in sequences.sentences}
    assert len(periods) > 10 and min(periods) >= PERIODS[0] and max(periods) <= PERIODS[1]
    corpus = read_corpus(model, annotated(20), tokenizer_of("[CLS] $A"))
    with planted(model, {"L0H0": offset(-23), "L0H1": induction}, corpus):
        table = hc.roles(model, corpus, only=["induction"])
    assert labels(table) == {"L0H1": {"induction"}}
    fixed, right = (table.of(head)[0] for head in ("L0H0", "L0H1"))
    assert abs(fixed.excess or 0) < 0.05 and (right.excess or 0) > 0.7
