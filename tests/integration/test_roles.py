"""Roles of planted heads: each gets its role and no other, uniform attention scores 1 and gets none, nothing is left out in silence."""

from __future__ import annotations

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
    annotated,
    everywhere,
    induction,
    near,
    offset,
    planted,
    same,
    tokenizer_of,
)

import headcount as hc
from headcount.roles import ROLES, Corpus, RoleTable, corpus_of, measure
from headcount.testing.shrink import tiny_model

BERT = tokenizer_of("[CLS] $A [SEP]")
DECODER = tokenizer_of("[CLS] $A")
LOCAL = {"local", "offset:-2", "offset:-1", "offset:0", "offset:+1", "offset:+2"}
"""In a window of five among some fifteen tokens, each offset has three times its share: these may coincide."""


@cache
def encoder() -> Any:
    return tiny_model("bert", vocab_size=VOCABULARY, num_hidden_layers=3)


@cache
def decoder() -> Any:
    return tiny_model("llama", vocab_size=VOCABULARY, num_key_value_heads=2, bos_token_id=2, eos_token_id=3, pad_token_id=0)


@cache
def text(kind: str) -> Corpus:
    return corpus_of(encoder(), annotated(120), BERT) if kind == "encoder" else corpus_of(decoder(), annotated(120), DECODER)


def complete(table: RoleTable) -> bool:
    """Whether every role file has rows or a reason for having none."""
    told = {label.partition(":")[0] for label in (*table.roles(), *table.untested)}
    return told == set(ROLES.names()) and all(table.untested.values()) and not set(table.roles()) & set(table.untested)


ENCODER_HEADS = {
    "L0H0": (offset(-1), "offset:-1", LOCAL),
    "L0H1": (offset(1), "offset:+1", LOCAL),
    "L0H2": (SUBJECT, "syntax:nsubj", set()),
    "L0H3": (SUBJECT_OF, "syntax:nsubj-of", set()),
    "L0H4": (everywhere(0), "delimiter:first", {"delimiter:any", "sink"}),
    "L0H5": (everywhere(-1), "delimiter:sep", {"delimiter:any"}),
    "L1H0": (everywhere(0, -1), "delimiter:any", {"delimiter:first", "delimiter:sep", "sink"}),
    "L1H1": (same, "same", set()),
    "L1H2": (RAREST, "rare:1", set()),
    "L1H3": (NOUN, "pos:NOUN", set()),
    "L1H4": (COMMA, "punctuation", set()),
    "L1H5": (MENTIONS, "coreference", set()),
    "L2H0": (near(2), "local", LOCAL),
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
    "L1H1": (RAREST, "rare:1", set()),
    "L1H2": (offset(-3), "offset:-3", set()),
}


@pytest.mark.parametrize(("kind", "heads"), [("encoder", ENCODER_HEADS), ("decoder", DECODER_HEADS)])
def test_planted_heads_get_their_role_and_no_other(kind: str, heads: dict[str, Any]) -> None:
    model, corpus = encoder() if kind == "encoder" else decoder(), text(kind)
    with planted(model, {head: rule for head, (rule, _, _) in heads.items()}, corpus):
        table = measure(model, corpus)
    labels = {str(head): set(found) for head, found in table.labels().items()}
    for head, (_, role, coincide) in heads.items():
        assert role in labels[head] and labels[head] <= {role} | coincide, (head, role, labels[head])
        row = next(row for row in table.of(head) if row.role == role)
        assert row.bias == pytest.approx(row.maximum, rel=1e-5), role
        assert row.normalised == pytest.approx(1, abs=1e-5)
        assert row.accuracy == pytest.approx(1) and row.by_argmax, role
        assert row.q <= 0.05 and row.p_permutation <= 0.05
        assert table.best(role).bias == pytest.approx(row.bias, rel=1e-5)
    rest = [head for head in labels if head not in heads]
    assert rest and not any(labels[head] for head in rest)
    for head in rest:
        assert all(row.bias == pytest.approx(1, abs=1e-6) for row in table.of(head))
    assert complete(table)


def test_accuracy_of_half_a_delimiter_head() -> None:
    """A head that looks at both delimiters alike has its strongest key in either half of the time."""
    with planted(encoder(), {"L0H0": everywhere(0, -1)}, text("encoder")):
        table = measure(encoder(), text("encoder"), only=["delimiter"])
    accuracy = {row.role: row.accuracy for row in table.of("L0H0")}
    assert accuracy == pytest.approx({"delimiter:any": 1, "delimiter:first": 0.5, "delimiter:sep": 0.5})
