"""What heads attend to: known answers, every kind of model, the same whatever the batch, kept and taken up again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from contract import check
from hypothesis import given, settings
from hypothesis import strategies as st
from packed import unpack_bytes
from transformers import AutoTokenizer

import headcount as hc
from headcount.behaviour.base import Corpus
from headcount.behaviour.corpus import read_corpus
from headcount.behaviour.profiles.numbers import (
    DISTANCES,
    confidences_and_top_query,
    mean_jensen_shannon_distances,
    n_affordable_queries,
    nearest_heads,
    one_hot_kinds,
    sum_attention_by_kind,
    uniform_attention,
    word_distance_bins,
)
from headcount.behaviour.profiles.profile import ProfileSpec, profile_heads, sentences_and_attention_maps
from headcount.behaviour.profiles.sample import sample_query_tokens
from headcount.behaviour.profiles.sentence import GAP, describe_query
from headcount.core.errors import UnsupportedModel
from headcount.data.embedded.sentences import draw_sentences, draw_translations
from headcount.models.provenance import model_record
from headcount.models.tiny.build import tiny_model
from headcount.runs.describe import describe_run
from headcount.runs.report.collect import collect_report
from headcount.runs.store import Run
from headcount.surgery.source import local_folder
from headcount.workflows import profiles as files
from headcount.workflows.profiles import profiles_into

PLACE = {name: place for place, name in enumerate(DISTANCES)}


def opened(name: str, number: int = 24) -> tuple[Any, Corpus, Any]:
    model, tokenizer = hc.load(f"demo/{name}").eval(), AutoTokenizer.from_pretrained(local_folder(f"demo/{name}"))
    if name == "translator":
        how = {"add_special_tokens": False, "end": (tokenizer.eos_token_id,)}
        return model, read_corpus(model, draw_translations(number=number), tokenizer, **how), tokenizer
    return model, read_corpus(model, draw_sentences("english", number), tokenizer), tokenizer


def test_a_previous_token_head_has_all_its_mass_one_word_back() -> None:
    words = torch.arange(6)[None]
    attention = torch.diag(torch.ones(5), -1)[None, None]  # row 0 attends to nothing
    actual = sum_attention_by_kind(attention, one_hot_kinds(word_distance_bins(words, words), len(DISTANCES)))[0, 0]
    assert actual[PLACE["−1"]] == 5 and actual.sum() == 5


def test_bins_name_the_distance_in_words_and_no_word() -> None:
    queries, keys = torch.tensor([[7, -1]]), torch.tensor([[0, 2, 3, 6, 7, 8, 12, 40, -1]])
    bins = word_distance_bins(queries, keys)[0]
    assert [DISTANCES[i] for i in bins[0]] == ["≤ −5", "≤ −5", "−4", "−1", "0", "+1", "≥ +5", "≥ +5", "no word"]
    assert {DISTANCES[i] for i in bins[1]} == {"no word"}


@given(st.integers(0, 10_000), st.integers(2, 9))
@settings(max_examples=40, deadline=None)
def test_even_attention_has_the_share_of_each_kind_among_visible_keys(seed: int, n: int) -> None:
    random = torch.Generator().manual_seed(seed)
    visible = torch.rand(2, n, n, generator=random) < 0.7
    visible |= torch.eye(n, dtype=torch.bool)
    kinds = torch.randint(0, 3, (2, n), generator=random)
    actual = sum_attention_by_kind(uniform_attention(visible), one_hot_kinds(kinds[:, None, :].expand(-1, n, -1), 3))[:, 0]
    for row in range(2):
        totals = [sum(float((visible[row, q] & (kinds[row] == k)).sum() / visible[row, q].sum()) for q in range(n)) for k in range(3)]
        assert np.allclose(actual[row], totals, atol=1e-5)
    assert np.allclose(actual.sum(-1), n, atol=1e-4)


def test_distance_is_zero_for_the_same_attention_and_one_for_nothing_in_common() -> None:
    from scipy.spatial.distance import jensenshannon

    rng = np.random.default_rng(0)
    rows = rng.dirichlet(np.ones(6), (5, 4))
    rows[:, 1] = rows[:, 0]
    rows[:, 2], rows[:, 3] = 0, 0
    rows[:, 2, :3], rows[:, 3, 3:] = 1 / 3, 1 / 3
    table = mean_jensen_shannon_distances(rows)
    assert table[0, 1] == 0 and table[2, 3] == pytest.approx(1) and np.allclose(np.diag(table), 0) and np.allclose(table, table.T)
    oracle = [[np.mean([jensenshannon(row[i], row[j], base=2) for row in rows]) for j in range(4)] for i in range(4)]
    assert np.allclose(table, oracle, atol=1e-7)
    assert nearest_heads(table, [10, 11, 12, 13], 2)[10][0] == (11, 0.0)


def test_the_work_of_distances_is_bounded() -> None:
    assert (
        n_affordable_queries(12, 32, 128) == 128
        and n_affordable_queries(1024, 64, 128) == 4
        and 4 <= n_affordable_queries(10**4, 512, 128) <= 128
    )


def test_the_surest_query_is_sought_among_those_that_ask_and_ordinary_keys() -> None:
    attention = torch.tensor([[[[0.9, 0.1, 0.0], [0.2, 0.5, 0.3], [0.1, 0.2, 0.7]]]])
    surest, top = confidences_and_top_query(attention, torch.tensor([[True, True, False]]), torch.tensor([[False, True, True]]))
    assert surest[0, 0].tolist() == pytest.approx([0.1, 0.5, 0.0])
    assert top[0, 0].tolist() == pytest.approx([1, 0.5, 1, 2, 0, 0.5, 0.3, 0.2])


def test_tokens_are_drawn_from_all_sentences_and_never_special() -> None:
    sizes = [[False, True, True, False], [False, False], [True] * 5]
    query_tokens = sample_query_tokens(sizes, 4, 0)
    assert sum(map(len, query_tokens.values())) == 4 and set(query_tokens) == {0, 2}
    assert all(sizes[key][token] for key, tokens in query_tokens.items() for token in tokens)
    assert sample_query_tokens(sizes, 100, 0) == {0: [1, 2], 2: [0, 1, 2, 3, 4]}
    assert sample_query_tokens(sizes, 4, 0) == query_tokens


def test_a_window_shows_query_and_keys_with_gaps_between() -> None:
    tokens = [f"t{i}" for i in range(60)]
    query = describe_query(tokens, 50, [(0, 0.9), (49, 0.05)], 0.9)
    assert query["tokens"][query["query"]] == "t50" and [query["tokens"][position] for position, _ in query["keys"]] == ["t0", "t49"]
    assert GAP in query["tokens"] and len(query["tokens"]) < 20
    crossed = describe_query(tokens[:5], 40, [(2, 0.5)], 0.5, tokens)
    assert crossed["query_tokens"][crossed["query"]] == "t40" and crossed["tokens"] == tokens[:5]


@pytest.mark.parametrize("name", ["entailment", "decoder", "translator"])
def test_profiles_agree_with_what_the_model_attends_to(name: str) -> None:
    model, corpus, tokenizer = opened(name)
    profiles = profile_heads(model, corpus, tokenizer, ProfileSpec(n_maps=2))
    content, heads = profiles.content, hc.HeadMap.of(model)
    for row in content["distance"]:
        assert sum(row) == pytest.approx(1, abs=2e-3), "every ordinary query gives all its attention"
    assert all(0 <= value <= 1 for value in content["confidence"]) and all(value >= 0 for value in content["entropy"])
    assert all(sum(row) == pytest.approx(1, abs=2e-3) for row in content["pos"]["share"])
    for place, near in enumerate(content["similar"]):
        kinds = {heads.block_of(heads[other]).kind for other, _ in near}
        assert kinds == {heads.block_of(heads[place]).kind} and place not in [other for other, _ in near]
    causal = [index for index, head in enumerate(heads) if heads.block_of(head).kind == "decoder-self"]
    ahead = [PLACE[name] for name in DISTANCES if name.startswith(("+", "≥"))]
    assert not any(content["distance"][position][bin] for position in causal for bin in ahead), "nobody looks ahead behind a mask"
    for key, array in profiles.maps.items():
        sums = (array / 255.0) ** 2
        assert np.allclose(sums.sum(-1), 1, atol=0.05), key


def test_examples_are_what_the_map_says() -> None:
    model, corpus, tokenizer = opened("entailment", 8)
    profiles = profile_heads(model, corpus, tokenizer)
    sentences = [tuple(sentence["source"]["tokens"]) for sentence in profiles.content["sentences"]]
    checked = 0
    for head, example in enumerate(profiles.content["examples"]):
        for one in (*example["top"], *example["middle"], *example["random"]):
            map_ = profiles.maps[f"{sentences.index(tuple(one['tokens']))}/{head // 8}"][head % 8]
            for key, weight in one["keys"]:
                assert (map_[one["query"], key] / 255.0) ** 2 == pytest.approx(weight, abs=0.01)
                checked += 1
    assert checked > 100


def test_the_batch_size_does_not_matter_and_the_seed_does() -> None:
    model, corpus, tokenizer = opened("entailment", 12)
    one, other = (profile_heads(model.double(), corpus, tokenizer, ProfileSpec(batch_size=size)) for size in (1, 12))
    assert one.content == other.content
    assert all(np.array_equal(one.maps[key], other.maps[key]) for key in one.maps)
    assert profile_heads(model, corpus, tokenizer, ProfileSpec(seed=1)).content["examples"] != one.content["examples"]


def test_even_attention_is_expected_by_kind() -> None:
    model, corpus, tokenizer = opened("translator", 12)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(("q_proj.weight", "q_proj.bias", ".q.weight")):
                weight.zero_()
    content = profile_heads(model, corpus, tokenizer).content
    heads = hc.HeadMap.of(model)
    for index, head in enumerate(heads):
        kind = heads.block_of(head).kind
        assert np.allclose(content["pos"]["share"][index], content["pos"]["expected_by_kind"][kind], atol=1e-4)


def test_a_text_without_translations_says_what_it_does_not_show() -> None:
    model, _, tokenizer = opened("translator", 4)
    profiles = profile_heads(model, read_corpus(model, draw_sentences("english", 6), tokenizer), tokenizer)
    assert any("no translations" in note for note in profiles.notes)
    heads = hc.HeadMap.of(model)
    for index, head in enumerate(heads):
        observed = heads.block_of(head).kind == "encoder-self"
        assert (profiles.content["entropy"][index] is not None) == observed and bool(profiles.content["similar"][index]) == observed


def test_images_have_entropy_and_neighbours_and_say_what_is_missing(tmp_path: Path) -> None:
    model = tiny_model("vit", auto="AutoModelForImageClassification")
    size = model.config.image_size
    images = [{"pixel_values": torch.randn(3, size, size, dtype=torch.float64)} for _ in range(4)]
    profiles = profile_heads(model, read_corpus(model, images), None)
    assert all(value is not None for value in profiles.content["entropy"]) and all(profiles.content["similar"])
    assert profiles.content["pos"] is None and not profiles.maps and "no words" in profiles.notes[0]


def test_tokens_without_words_count_tokens() -> None:
    model, corpus, tokenizer = opened("decoder", 6)
    task = hc.Task("bare", *[[{"input_ids": list(s.ids)} for s in corpus.sentences]] * 3, collate=lambda rows: {})  # pyright: ignore[reportArgumentType]
    profiles = profile_heads(model, read_corpus(model, task, tokenizer), tokenizer)
    assert any("distances count tokens" in note for note in profiles.notes) and profiles.content["pos"] is None
    assert profiles.content["sentences"][0]["source"]["words"] is None


def test_a_run_keeps_profiles_and_the_report_shows_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, corpus, tokenizer = opened("entailment", 10)
    with Run.lead(tmp_path / "run") as run:
        run.stage_records(describe_run(model_record(model, "demo/entailment"), command="c", seed=0), hc.HeadMap.of(model))
        first = profiles_into(run, model, corpus, tokenizer)
        monkeypatch.setattr(files, "profile_heads", None)
        again = profiles_into(run, model, corpus, tokenizer)
    assert first.content == again.content
    report = collect_report(Run.open(tmp_path / "run")).with_all_maps()
    check(report, "Report")
    attention = report["runs"][0]["attention"]
    assert len(attention["sentences"]) == 8
    assert unpack_bytes(attention["maps"][3][1]) == first.maps["3/1"].tobytes()


def test_a_model_whose_attention_cannot_be_seen_is_kept_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, corpus, tokenizer = opened("entailment", 4)

    def refuse(*_: Any, **__: Any) -> Any:
        raise UnsupportedModel("block 'x' runs a fused kernel")

    monkeypatch.setattr(files, "profile_heads", refuse)
    with Run.lead(tmp_path / "run") as run:
        run.stage_records(describe_run(model_record(model, "m"), command="c", seed=0), hc.HeadMap.of(model))
        profiles_into(run, model, corpus, tokenizer)
    report = collect_report(Run.open(tmp_path / "run")).with_all_maps()
    check(report, "Report")
    assert report["runs"][0]["profiles"] is None
    assert any("fused kernel" in warning for warning in report["runs"][0]["warnings"])


def test_a_model_that_reads_no_text_is_kept_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, corpus, tokenizer = opened("entailment", 4)
    monkeypatch.setattr(type(model), "main_input_name", "input_features")
    with Run.lead(tmp_path / "run") as run:
        run.stage_records(describe_run(model_record(model, "m"), command="c", seed=0), hc.HeadMap.of(model))
        first, again = (profiles_into(run, model, corpus, tokenizer) for _ in range(2))
    assert first.content == again.content and not first.content["heads"] and len(run.artifacts("profiles")) == 1
    report = collect_report(Run.open(tmp_path / "run")).with_all_maps()
    check(report, "Report")
    assert report["runs"][0]["profiles"] is None and "profiles" not in run.record().data
    assert any(warning.startswith("No head profiles: ") and "input_features" in warning for warning in report["runs"][0]["warnings"])


def test_attend_shows_one_sentence_whole() -> None:
    model, _, tokenizer = opened("decoder", 2)
    sentences, maps = sentences_and_attention_maps(model, read_corpus(model, ["the queen runs ."], tokenizer), tokenizer)
    assert sentences[0]["causal"] and len(maps) == len(hc.HeadMap.of(model).blocks)
    assert all(not np.triu(array, 1).any() for array in maps.values())


def test_maps_are_of_sentences_as_long_as_was_asked_for() -> None:
    model, _, tokenizer = opened("decoder", 2)
    texts = [" ".join(["the queen runs ."] * times) for times in (20, 1, 24, 2)]
    corpus = read_corpus(model, texts, tokenizer)
    lengths = [len(sentence.ids) for sentence in corpus.sentences]

    def shown(longest: int) -> list[int]:
        return sorted(
            len(sentence["source"]["tokens"])
            for sentence in profile_heads(model, corpus, tokenizer, ProfileSpec(max_map_length=longest, n_maps=2)).content["sentences"]
        )

    assert shown(lengths[3]) == sorted(lengths)[:2]
    assert shown(lengths[1] - 1) == sorted(lengths)[:2]  # none fits: the shortest
    many = {tuple(shown(length)) for length in range(lengths[2], lengths[2] + 2)}
    assert max(map(max, many)) >= lengths[0] > 80  # all fit: any of them
