"""Roles of planted heads: each gets its role and no other, uniform attention scores 1 and gets none, nothing is left out in silence."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from planting import (
    COMMA,
    MENTIONS,
    NOUN,
    RAREST,
    SUBJECT,
    SUBJECT_OF,
    VOCABULARY,
    Row,
    annotated,
    everywhere,
    induction,
    offset,
    planted,
    same,
    tokenizer_of,
)

import headcount as hc
from headcount.behaviour.base import Corpus
from headcount.behaviour.corpus import read_corpus
from headcount.core.registry import ROLES
from headcount.core.role_table import RoleTable
from headcount.data.text.annotated import Annotated, join_pair
from headcount.models.tiny.build import tiny_model

BERT = tokenizer_of("[CLS] $A [SEP]")
DECODER = tokenizer_of("[CLS] $A")
LOCAL = {"local", "offset:-2", "offset:-1", "offset:0", "offset:+1", "offset:+2"}
"""A fixed offset lies in the window of five, so among more than fifteen tokens these may coincide."""


@cache
def encoder() -> Any:
    return tiny_model("bert", vocab_size=VOCABULARY, num_hidden_layers=3)


@cache
def decoder() -> Any:
    return tiny_model("llama", vocab_size=VOCABULARY, num_key_value_heads=2, bos_token_id=2, eos_token_id=3, pad_token_id=0)


def windowed(kind: str, **window: int) -> Any:
    """A model with sliding windows; in float64 the eager path of transformers makes NaN of padding that sees no token."""
    return tiny_model(kind, dtype=torch.float32, vocab_size=VOCABULARY, pad_token_id=0, bos_token_id=2, **window)


@cache
def text(kind: str) -> Corpus:
    return read_corpus(encoder(), annotated(120), BERT) if kind == "encoder" else read_corpus(decoder(), annotated(120), DECODER)


def complete(table: RoleTable) -> bool:
    """Whether every role file has rows or a reason for having none."""
    messages = {label.partition(":")[0] for label in (*table.roles(), *table.untested)}
    return messages == set(ROLES.names()) and all(table.untested.values()) and not set(table.roles()) & set(table.untested)


ENCODER_HEADS = {
    "L0H0": (offset(-1), "offset:-1", LOCAL),
    "L0H1": (offset(1), "offset:+1", LOCAL),
    "L0H2": (SUBJECT, "syntax:nsubj", set()),
    "L0H3": (SUBJECT_OF, "syntax:nsubj-of", set()),
    "L0H4": (everywhere(0), "delimiter:first", {"delimiter:any", "sink"}),
    "L0H5": (everywhere(-1), "delimiter:sep", {"delimiter:any"}),
    "L1H0": (everywhere(0, -1), "delimiter:any", {"delimiter:first", "delimiter:sep", "sink"}),
    "L1H1": (same, "same", set()),
    "L1H2": (RAREST, "rare:1", {"rare:2"}),
    "L1H3": (NOUN, "pos:NOUN", {"syntax:dep-of"}),  # most nouns are such dependents
    "L1H4": (COMMA, "punctuation", set()),
    "L1H5": (MENTIONS, "coreference", set()),
    "L2H1": (offset(3), "offset:+3", set()),
}
DECODER_HEADS = {
    "L0H0": (offset(-1), "offset:-1", LOCAL),
    "L0H1": (everywhere(0), "sink", {"delimiter:any", "delimiter:first"}),
    "L0H2": (same, "same", set()),
    "L0H3": (SUBJECT, "syntax:nsubj", set()),
    "L0H4": (SUBJECT_OF, "syntax:nsubj-of", set()),
    # Where a needle is copied, the token after the earlier occurrence of the last one is the one that is copied.
    "L1H0": (induction, "induction", {"retrieval"}),
    "L1H1": (RAREST, "rare:1", {"rare:2"}),
    "L1H2": (offset(-3), "offset:-3", set()),
}


@pytest.mark.parametrize(("kind", "heads"), [("encoder", ENCODER_HEADS), ("decoder", DECODER_HEADS)])
def test_planted_heads_get_their_role_and_no_other(kind: str, heads: dict[str, Any]) -> None:
    model, corpus = encoder() if kind == "encoder" else decoder(), text(kind)
    with planted(model, {head: rule for head, (rule, _, _) in heads.items()}, corpus):
        table = hc.roles(model, corpus)
    labels = {str(head): set(label) for head, label in table.labels().items()}
    for head, (_, role, coincide) in heads.items():
        assert role in labels[head] and labels[head] <= {role} | coincide, (head, role, labels[head])
        row = next(row for row in table.of(head) if row.role == role)
        assert row.bias == pytest.approx(row.maximum, rel=1e-5), role
        assert row.normalised == pytest.approx(1, abs=1e-5)
        assert row.accuracy == pytest.approx(1) and row.by_argmax, role
        assert row.q <= 0.05 and row.p_permutation <= 0.05
        if kind == "encoder" and role.startswith(("syntax", "coreference", "same")):
            assert row.n_tokens == sum(len({query for query, _ in heads[head][0](Row(s.ids, s))}) for s in corpus.sentences)
        assert table.strongest(role).bias == pytest.approx(row.bias, rel=1e-5)
        assert table.best(role).accuracy == pytest.approx(1), role
    remainder = [head for head in labels if head not in heads]
    assert remainder and not any(labels[head] for head in remainder)
    for head in remainder:
        assert all(row.bias == pytest.approx(1, abs=1e-6) for row in table.of(head))
    assert complete(table)


def test_accuracy_of_half_a_delimiter_head() -> None:
    """A head that looks at both delimiters alike has its strongest key in either half of the time."""
    with planted(encoder(), {"L0H0": everywhere(0, -1)}, text("encoder")):
        table = hc.roles(encoder(), text("encoder"), only=["delimiter"])
    accuracy = {row.role: row.accuracy for row in table.of("L0H0")}
    assert accuracy == pytest.approx({"delimiter:any": 1, "delimiter:first": 0.5, "delimiter:sep": 0.5})


@pytest.mark.parametrize("kind", ["encoder", "decoder", "mistral", "gemma2", "modernbert"])
def test_uniform_attention_scores_one_on_every_sieve_and_has_no_role(kind: str) -> None:
    """Also under sliding windows, which hide different keys from different blocks."""
    windows = {"mistral": {"sliding_window": 5}, "gemma2": {"sliding_window": 5}, "modernbert": {"local_attention": 10}}
    model = {"encoder": encoder, "decoder": decoder}.get(kind, lambda: windowed(kind, **windows[kind]))()
    corpus = text("encoder" if kind in ("encoder", "modernbert") else "decoder")
    with planted(model, {}):
        table = hc.roles(model, corpus)
    assert {row.head for row in table} == set(table.heads)
    assert all(row.bias == pytest.approx(1, abs=1e-6) for row in table)
    assert all(row.maximum > 1 - 1e-6 and row.normalised == pytest.approx(0, abs=1e-5) for row in table)
    assert not any(table.labels().values()) and table.colocation() == [] and table.multifunctional() == []
    assert not any(row.by_argmax for row in table)
    assert all(row.accuracy == pytest.approx(row.chance, abs=1e-5) for row in table)
    assert complete(table)


def test_a_window_that_holds_nothing_else_tells_no_local_head() -> None:
    """Where every visible key is in the sieve, no attention can differ from any other."""
    model = windowed("mistral", sliding_window=3)
    table = hc.roles(model, text("decoder"), only=["local"])
    assert {row.maximum for row in table} == {1.0}
    assert not any(row.has_role or row.normalised or row.by_argmax for row in table)


def test_the_baseline_is_that_of_the_block() -> None:
    """Behind a window of three, a subject's governor is never further than two places away, elsewhere it is."""
    model = windowed("gemma2", sliding_window=3)
    corpus = text("decoder")
    table = hc.roles(model, corpus, only=["syntax:nsubj"])
    arcs = [
        (s.pieces(w), s.pieces(word.head)) for s in corpus.sentences for w, word in enumerate(s.annotated.words) if word.relation == "nsubj"
    ]
    for layer, window in ((0, 3), (1, 99)):
        steps = [sorted({k - q for k in keys if 0 < q - k < window}) for queries, keys in arcs for q in queries]
        steps = [step for step in steps if step]
        best = max(sum(offset in step for step in steps) for offset in range(-16, 0))
        for row in (row for row in table if row.head.layer == layer):
            assert row.n_tokens == len(steps)
            assert row.baseline == pytest.approx(best / len(steps))


@pytest.mark.parametrize("share", [0.25, 0.6])
def test_a_mixture_has_the_bias_that_follows(share: float) -> None:
    """On its sieve of one key among N, a head with share s there has the bias s N + 1 − s; on others of which it sees nothing, 1 − s."""
    with planted(encoder(), {"L1H1": offset(-1)}, text("encoder"), share=share):
        by_role = {row.role: row for row in hc.roles(encoder(), text("encoder"), only=["offset"]).of("L1H1")}
    expected = sum(share * len(s.ids) + 1 - share for s in text("encoder").sentences) / 120
    assert by_role["offset:-1"].bias == pytest.approx(expected, rel=1e-6)
    assert by_role["offset:-1"].normalised == pytest.approx(share, abs=1e-6)
    assert by_role["offset:+2"].bias == pytest.approx(1 - share, rel=1e-6)


def numbers(table: RoleTable, *names: str) -> dict[tuple[str, str], Any]:
    names = (*names, "bias", "stderr", "low", "high", "maximum", "normalised", "accuracy", "accuracy_low", "baseline", "effect")
    return {(str(row.head), row.role): [getattr(row, name) or 0.0 for name in names] for row in table}


@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_batches_padding_and_order_do_not_matter(kind: str) -> None:
    model, corpus = encoder() if kind == "encoder" else decoder(), text(kind)
    corpus = Corpus(corpus.sentences[:30])
    role_table = hc.roles(model, corpus)
    single = hc.roles(model, corpus, batch_size=1)
    turned = hc.roles(model, Corpus(corpus.sentences[::-1]), batch_size=7)
    assert role_table.data == single.data != turned.data
    folds = ("p", "q", "excess", "excess_stderr", "twin_bias", "compared_bias")  # other sentences are together in other orders
    for other, names in ((single, folds), (turned, ())):
        assert numbers(other).keys() == numbers(role_table).keys()
        for key, values in numbers(role_table, *names).items():
            assert numbers(other, *names)[key] == pytest.approx(values, rel=1e-4, abs=1e-6), key
    assert any(row.excess is not None for row in role_table) and single.swapped == role_table.swapped
    assert len({(row.head, row.role) for row in role_table}) == len(role_table)


def test_what_a_decoder_cannot_see_is_told() -> None:
    table = hc.roles(decoder(), text("decoder"), only=["offset", "delimiter", "alignment", "segment", "near", "diagonal", "local"])
    for ahead in ("offset:+1", "offset:+2", "offset:+3"):
        assert "the causal mask hides it" in table.untested[ahead]
    assert "pairs" in table.untested["segment"] and "links" in table.untested["alignment"]
    assert "images" in table.untested["near"] and "translation" in table.untested["diagonal"]
    assert not {"local", "offset:-1", "delimiter:any"} & set(table.untested)


def test_too_little_text_is_told() -> None:
    corpus = Corpus(text("encoder").sentences[:1])
    table = hc.roles(encoder(), corpus)
    assert not table.rows and complete(table)
    assert "two" in table.untested["local"]
    assert "needs a decoder of text" in table.untested["induction"]
    few = hc.roles(decoder(), Corpus(text("decoder").sentences[:2]), only=["syntax", "rare"])
    assert "no query can attend" in few.untested["rare:1"]


def test_rare_relations_and_tags_are_told_with_their_number() -> None:
    """19 subjects are too few, 20 enough; what is asked for by name is told too, and what never occurs is unknown."""
    sentences = text("encoder").sentences
    few, enough = (hc.roles(encoder(), Corpus(sentences[:n]), only=["syntax", "pos"]) for n in (19, 20))
    for label in ("syntax:nsubj", "syntax:nsubj-of", "syntax:obj", "pos:NOUN"):
        assert few.untested[label] == "19 of the 20 occurrences that a test needs" and label not in few.roles()
        assert label in enough.roles() and label not in enough.untested
    assert "syntax:dep" in few.roles() and not {"syntax:root", "syntax:punct", "pos:PUNCT"} & {*few.roles(), *few.untested}
    named = hc.roles(encoder(), Corpus(sentences[:19]), only=["syntax:nsubj"])
    assert not named.rows and list(named.untested) == ["syntax:nsubj"]
    bare = Corpus(read_corpus(encoder(), ["bal bam ban", "bar bas"], BERT).sentences)
    assert "tree" in hc.roles(encoder(), bare, only=["syntax"]).untested["syntax"]


def test_the_fingerprint_covers_annotations() -> None:
    """Equal tokens, other trees, tags or clusters: other data. Where a sentence stood in its file is no part of it."""
    sentences = annotated(12)
    first = sentences[3]
    heads = next(w for w, word in enumerate(first.words) if word.relation == "nsubj")
    changed = {
        "relation": replace(first, words=tuple(replace(w, relation="obl") if i == heads else w for i, w in enumerate(first.words))),
        "head": replace(first, words=tuple(replace(w, head=-1) if i == heads else w for i, w in enumerate(first.words))),
        "tag": replace(first, words=tuple(replace(w, upos="ADV") if i == heads else w for i, w in enumerate(first.words))),
        "clusters": replace(first, clusters=()),
        "same": replace(first, origin="line 7"),
    }
    actual = {"none": fingerprint(sentences)}
    actual |= {name: fingerprint([*sentences[:3], other, *sentences[4:]]) for name, other in changed.items()}
    assert actual.pop("same") == actual["none"]
    assert len(set(actual.values())) == len(actual)


def fingerprint(sentences: list[Annotated]) -> str:
    corpus = read_corpus(encoder(), sentences, BERT)
    assert [s.ids for s in corpus.sentences] == [s.ids for s in read_corpus(encoder(), annotated(len(sentences)), BERT).sentences]
    return hc.roles(encoder(), corpus, only=["offset:-1"]).data


def test_a_mark_that_looks_at_itself_looks_at_no_punctuation() -> None:
    """The only comma of each sentence does not ask; where there are two, each is about the other."""
    sentences = [*annotated(10), *(join_pair(a, b) for a, b in zip(annotated(20)[:10], annotated(20)[10:], strict=True))]
    corpus = read_corpus(encoder(), sentences, BERT)
    marks = [
        [index for index, word in enumerate(s.words) if word is not None and s.annotated.words[word].form == ","] for s in corpus.sentences
    ]
    ordinary = [s.special.count(False) for s in corpus.sentences]
    with planted(encoder(), {"L0H0": offset(0), "L0H1": COMMA}, corpus):
        table = hc.roles(encoder(), corpus, only=["punctuation"])
    expected = sum(number - (len(mark) == 1) for number, mark in zip(ordinary, marks, strict=True))
    assert {row.n_tokens for row in table} == {expected}
    by_head = {str(row.head): row for row in table}
    assert by_head["L0H0"].bias == 0 and by_head["L0H0"].accuracy == 0
    assert by_head["L0H1"].bias == pytest.approx(by_head["L0H1"].maximum, rel=1e-5)


@pytest.mark.parametrize(
    ("only", "message"),
    [
        (["ofset"], "no role 'ofset'. Did you mean 'offset'?"),
        (["offset:-7"], "no distance of offset '-7'. Known: +1, +2, +3, -1, -2, -3, 0"),
        (["syntax:nsubjj"], "Did you mean 'nsubj'?"),
        (["induction:early"], "induction has no variants, so 'induction:early' names nothing"),
    ],
)
def test_an_unknown_role_has_the_nearest_one_named(only: list[str], message: str) -> None:
    with pytest.raises(hc.HeadcountError) as caught:
        hc.roles(decoder(), text("decoder"), only=only)
    assert message in str(caught.value)


def test_a_role_named_twice_is_tested_once() -> None:
    """A second copy would count as a second test in the correction."""
    table = hc.roles(encoder(), text("encoder"), only=["offset", "offset:-1", "local", "local"])
    assert table.roles() == [*(f"offset:{o}" for o in ("-3", "-2", "-1", "0", "+1", "+2", "+3")), "local"]
    assert len(table) == 8 * len(table.heads)


def test_wrong_input_is_told() -> None:
    sentences = annotated(3)
    with pytest.raises(hc.HeadcountError, match="tokenizer"):
        hc.roles(encoder(), sentences)
    with pytest.raises(hc.HeadcountError, match="empty"):
        hc.roles(encoder(), [], BERT)
    with pytest.raises(hc.HeadcountError, match="empty"):
        hc.roles(encoder(), Corpus())
    broken = tiny_model("bert", vocab_size=VOCABULARY)
    with torch.no_grad():
        next(broken.parameters())[0, 0] = float("nan")
    with pytest.raises(hc.HeadcountError, match="not finite"):
        hc.roles(broken, sentences, BERT)
    with pytest.raises(hc.HeadcountError, match="vocabulary ends at 127"):
        hc.roles(tiny_model("bert"), sentences, BERT)
    with pytest.raises(hc.HeadcountError, match="reads input_ids"):
        hc.roles(encoder(), Corpus(images=[{"pixel_values": torch.zeros(3, 8, 8)}], grid=(2, 2)))


def test_a_decoder_without_room_for_a_probe_says_so() -> None:
    short = tiny_model("gpt2", vocab_size=VOCABULARY, n_positions=24, bos_token_id=2, pad_token_id=0)
    table = hc.roles(short, text("decoder"), only=["induction", "local"])
    assert table.roles() == ["local"] and "positions" in table.untested["induction"]
