"""Laws of roles on every family that reads text: uniform attention scores 1, real attention gives numbers; others are refused with a reason."""

from __future__ import annotations

import functools
import inspect
import math
from dataclasses import KW_ONLY, MISSING, dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import headcount as hc
from headcount.behaviour import roles as behaviour_roles
from headcount.behaviour.base import Corpus, ProbeRole, Role, RoleInfo, Sieve, View, make_wordless_sequence
from headcount.behaviour.catalogue.offset import Offset
from headcount.behaviour.catalogue.segment import Segment
from headcount.behaviour.catalogue.sink import Sink
from headcount.behaviour.corpus import read_corpus
from headcount.behaviour.views import build_view
from headcount.core.errors import DataError, OptionError, UnsupportedModel
from headcount.core.heads import AttentionBlock
from headcount.core.options import option, options_of
from headcount.core.registry import ROLES
from headcount.data.embedded.sentences import draw_sentences
from headcount.data.embedded.tokenizer import build_tokenizer
from headcount.models.attention import AttentionTap
from headcount.models.tiny.families import VARIANTS, family_variant

DEAF = {"whisper": "input_features", "wav2vec2": "input_values", "clip": "images"} | dict.fromkeys(
    ("vit", "deit", "dinov2", "swin"), "pixel_values"
)
"""Families that do not read text alone, and what the refusal must name."""
TEXT = [v.name for v in VARIANTS if v.name not in DEAF]
PLAIN = ["local", "offset", "sink", "same"]
"""Roles that need nothing but tokens."""


def uniform(_block: AttentionBlock, _probabilities: Tensor, visible: Tensor) -> Tensor:
    return visible / visible.sum(-1, keepdim=True).clamp(min=1)


@functools.lru_cache(maxsize=2)
def model_of(name: str) -> nn.Module:
    """In float32: in float64, the eager path of transformers makes NaN of padding that sees no token through its sliding window."""
    return family_variant(name).build(dtype=torch.float32).eval()


def corpus_of(model: nn.Module) -> Corpus:
    """Sequences of uneven lengths, each with a token that comes twice."""
    rng = np.random.default_rng(0)
    token_ids = [rng.choice(np.arange(5, 60), size=int(rng.integers(5, 10)), replace=False).tolist() for _ in range(6)]
    sentences = tuple(make_wordless_sequence([*ids, ids[0]]) for ids in token_ids)
    return Corpus(sentences, sentences[::-1] if model.config.is_encoder_decoder else ())


def reached(model: nn.Module) -> list[AttentionBlock]:
    """The blocks that these roles are about: no cross-attention, no tower for images."""
    return [block for block in hc.HeadMap.of(model).blocks if block.kind != "cross" and "vision" not in block.path]


def heads_of(model: nn.Module) -> set[hc.Head]:
    return {head for block in reached(model) for head in block.heads}


@pytest.mark.parametrize("name", TEXT)
def test_uniform_attention_scores_one(name: str) -> None:
    model = model_of(name)
    with AttentionTap(model, hc.HeadMap.of(model).blocks, uniform):
        table = hc.roles(model, corpus_of(model), only=PLAIN)
    assert {row.head for row in table} == heads_of(model)
    assert all(row.bias == pytest.approx(1, abs=1e-6) for row in table)
    assert not any(table.labels().values()) and not any(row.by_argmax for row in table)
    assert {label.partition(":")[0] for label in (*table.roles(), *table.untested)} == set(PLAIN)
    causal = {block.kind for block in reached(model)} == {"decoder-self"}
    assert ("offset:+1" in table.untested) == causal


@pytest.mark.parametrize("name", TEXT)
def test_numbers_are_finite_and_do_not_depend_on_batches(name: str) -> None:
    model = model_of(name)
    batched, single = (hc.roles(model, corpus_of(model), only=PLAIN, batch_size=size) for size in (6, 1))
    values, single_values = (table.to_pandas().drop(columns=["head", "role", "note"]).astype(float) for table in (batched, single))
    twins = ["compared_bias", "twin_bias", "excess", "excess_stderr", "excess_low", "excess_high"]  # none for roles of position
    assert np.isfinite(values.drop(columns=twins).to_numpy()).all() and np.isfinite(values[twins].dropna().to_numpy()).all()
    assert ((values.bias >= 0) & (values.bias <= values.maximum * (1 + 1e-6))).all()
    assert values[["accuracy", "baseline", "chance", "p", "p_t", "q", "p_permutation"]].stack().between(0, 1).all()
    columns = ["bias", "maximum", "n_tokens", "n_sentences"]
    np.testing.assert_allclose(values[columns], single_values[columns], rtol=1e-4, atol=1e-5)
    assert len({(row.head, row.role) for row in batched}) == len(batched) and {row.head for row in batched} == heads_of(model)


@pytest.mark.parametrize("name", DEAF)
def test_families_that_read_no_text_are_refused(name: str) -> None:
    with pytest.raises(UnsupportedModel, match=DEAF[name]):
        hc.roles(model_of(name), corpus_of(model_of(name)), only=PLAIN)


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma3_text", "falcon-alibi"])
def test_decoders_run_their_probes(name: str) -> None:
    model = model_of(name)
    with AttentionTap(model, hc.HeadMap.of(model).blocks, uniform):
        table = hc.roles(model, corpus_of(model), only=["induction", "retrieval"])
    assert "induction" in table.roles() and {*table.roles(), *table.untested} == {"induction", "retrieval"}
    assert all(row.bias == pytest.approx(1, abs=1e-5) and math.isfinite(row.p) for row in table)


def roles_of(name: str) -> list[Role]:
    """Some roles of a class: every choice of its first field, or what the rich corpus offers."""
    cls = ROLES.get(name)
    assert issubclass(cls, Role)
    declared = options_of(cls)
    if not declared:
        return [cls()]
    if declared[0].choices:
        return [cls(choice) for choice in declared[0].choices]
    offered = cls.list_offered(annotated_corpus())
    return [*offered.testable, *offered.too_rare]


@functools.cache
def annotated_corpus() -> Corpus:
    """Sentences with trees and tags; some relations are frequent, some rare."""
    return read_corpus(model_of("bert"), draw_sentences("english", 30), build_tokenizer(segments=True))


@pytest.mark.parametrize("name", ROLES.names())
def test_every_role_declares_itself(name: str) -> None:
    cls = ROLES.get(name)
    assert issubclass(cls, Role) and cls.name == name
    assert ROLES.documentation(name) == inspect.getdoc(cls) and ROLES.summary(name).endswith((".", ","))
    assert isinstance(cls.info, RoleInfo) and cls.info.source
    assert cls.info.attention and cls.info.attention <= {"self", "cross", "image"}
    assert cls.sieve is not Role.sieve and list(inspect.signature(cls.sieve).parameters) == ["self", "view"]
    if issubclass(cls, ProbeRole):
        assert cls.probe is not ProbeRole.probe


@pytest.mark.parametrize("name", ROLES.names())
def test_fields_of_roles_are_options_with_help(name: str) -> None:
    for declared in options_of(ROLES.get(name)):
        assert declared.help, f"option {declared.name} of {name} has no help text"
        assert declared.is_positional or declared.default is not MISSING, "a keyword option has a default"


@pytest.mark.parametrize("name", ROLES.names())
def test_text_and_role_are_equal(name: str) -> None:
    roles = roles_of(name)
    assert roles and len(set(roles)) == len(roles) == len({str(role) for role in roles})
    for role in roles:
        assert Role.parse(str(role)) == role and Role.parse(role) is role
        assert type(role).from_dict(role.to_dict()) == role
        assert str(role).partition(":")[0] == name
    with pytest.raises(hc.HeadcountError):
        Role.parse(f"{name}:no:such")
    if any(declared.default is MISSING for declared in options_of(ROLES.get(name))):
        with pytest.raises(OptionError, match=f"{name} needs its"):
            Role.parse(name)


@pytest.mark.parametrize("name", [name for name in ROLES.names() if "image" not in ROLES.get(name).info.attention])  # pyright: ignore[reportAttributeAccessIssue]
def test_sieves_of_text_are_boolean_and_respect_delimiters(name: str) -> None:
    """Ordinary queries alone have a sieve, and a role that does not look for delimiters marks none of them."""
    corpus = annotated_corpus()
    corpus = replace(corpus, targets=corpus.sentences)
    for role in roles_of(name):
        if isinstance(role, ProbeRole):
            actual = role.probe(model_of("llama"), 0)
            assert actual is not None
            length = max(len(sentence.ids) for sentence in actual.sentences[:4])
            view = build_view(actual, "source", range(4), (length, length))
        else:
            length = max(len(sentence.ids) for sentence in corpus.sentences[:4])
            view = build_view(corpus, "cross" if "cross" in role.info.attention else "source", range(4), (length + 1, length))
        sieve = role.sieve(view)
        assert sieve.dtype == torch.bool and sieve.shape == (4, view.queries.ids.shape[1], view.keys.ids.shape[1])
        assert not sieve[(~view.queries.real)[:, :, None].expand_as(sieve)].any() and not sieve.transpose(1, 2)[~view.keys.real].any()


def test_a_role_with_required_fields_is_never_printed_without() -> None:
    assert str(Offset("-1")) == "offset:-1" and Role.parse("offset:+2") == Offset("+2")
    assert str(Segment()) == "segment" and str(Segment("entropy")) == "segment:entropy" and Segment("entropy").is_legacy
    for wrong in ("induction:early", "offset", "offset:9", "syntax", "sink(reach=1)", "no-such"):
        with pytest.raises(hc.HeadcountError):
            Role.parse(wrong)


def test_roles_are_named_by_text_or_objects() -> None:
    model = model_of("bert")
    corpus = corpus_of(model)
    table = hc.roles(model, corpus, only=["offset:-1", "sink"])
    assert table.roles() == hc.roles(model, corpus, only=[Offset("-1"), "sink"]).roles() == ["offset:-1", "sink"]
    assert hc.roles(model, corpus, only="sink").roles() == hc.roles(model, corpus, only=Sink()).roles() == ["sink"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"only": ["ofset"]}, "no role 'ofset'. Did you mean 'offset'?"),
        ({"only": []}, "only must name a role"),
        ({"only": [3]}, "option only of roles must be a text, Role, list of text or Role or none; got [3]"),
        ({"definition": "pande2021(tau=-1)"}, "option tau of pande2021 must be a float of at least 0; got -1"),
        ({"definition": "pande2021(tau=three)"}, "option tau of pande2021 must be a float"),
        ({"definition": "pande2021(alpha=0)"}, "option alpha of pande2021 must be a float above 0 and below 1; got 0"),
        ({"definition": "pande201"}, "no definition 'pande201'. Did you mean 'pande2021'?"),
        ({"definition": 3}, "option definition of roles must be a text or Definition; got 3"),
        ({"level": 1.0}, "level must be a number above 0 and below 1"),
        ({"definition": "pande2021(correct=bonferoni)"}, "Did you mean 'bonferroni'?"),
        ({"batch_size": 0}, "option batch_size of roles must be an int or none of at least 1; got 0"),
        ({"seed": 1.5}, "option seed of roles must be an int of at least 0"),
        ({"limit": 0}, "option limit of roles must be an int or none of at least 1; got 0"),
        ({"max_length": 10**9}, "max_length is 1000000000, but the model has positions for"),
        ({"split": "test"}, "no split of roles 'test'"),
        ({"split": "report"}, "the text is no task"),
    ],
)
def test_wrong_arguments_are_refused_before_any_work(options: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(behaviour_roles, "read_corpus", None)
    monkeypatch.setattr(behaviour_roles, "measure_roles", None)
    with pytest.raises(hc.HeadcountError) as error:
        hc.roles(model_of("bert"), ["a text"], None, **options)
    assert message in str(error.value)


def test_what_a_corpus_or_a_task_has_already_is_not_given_again() -> None:
    model = model_of("bert")
    for name, value in {"limit": 3, "max_length": 8, "truncate": True, "parser": "spacy:en"}.items():
        with pytest.raises(DataError, match=f"{name} has no effect on a corpus"):
            hc.roles(model, corpus_of(model), **{name: value})
    task = hc.Task("tokens", *[[{"input_ids": [5, 6, 7]}] * 2] * 3, collate=lambda rows: {})  # pyright: ignore[reportArgumentType]
    with pytest.raises(DataError, match="truncate has no effect on task 'tokens'"):
        hc.roles(model, task, truncate=True)


def test_the_help_of_roles_is_that_of_a_function() -> None:
    assert inspect.isfunction(hc.roles) and "Args:" in (inspect.getdoc(hc.roles) or "")
    parameters = inspect.signature(hc.roles).parameters
    assert not any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())


def test_a_registered_role_is_measured_and_obeys_its_options(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass(frozen=True)
    class Within(Role):
        """Within: attends to tokens at most some steps back."""

        _: KW_ONLY
        reach: int = option(1, "Steps", minimum=1)
        info = RoleInfo(source="a test", positional=True)

        def sieve(self, view: View) -> Sieve:
            return ((view.distance <= 0) & (view.distance >= -self.reach))[None] & view.ordinary

    monkeypatch.setattr(ROLES, "_registered", dict(ROLES._registered))
    ROLES.register("within")(Within)
    model = model_of("bert")
    table = hc.roles(model, corpus_of(model), only=["within", "within(reach=2)", Within(reach=2)])
    assert table.roles() == ["within", "within(reach=2)"]
    with pytest.raises(OptionError, match="option reach of within must be an int of at least 1; got 0"):
        hc.roles(model, corpus_of(model), only=["within(reach=0)"])
