"""The heads that do a job are found: planted alignment heads of a Whisper, induction heads of a decoder; roles over speech; what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from planting import induction, planted
from speaking import Aim, attending, utterances, whisper

import headcount as hc
from headcount.behaviour.speech import read_speech
from headcount.core.errors import ArtifactError, DataError, OptionError, UnknownName, UnsupportedModel
from headcount.core.head_list import HeadList, SetScore
from headcount.models.tiny.build import tiny_model
from headcount.surgery.alignment_heads import read_alignment_heads, set_alignment_heads, write_alignment_heads
from headcount.workflows.find import describe_head_list

SPOKEN = utterances(40)
AIMS: Mapping[str, Aim] = {
    "cross.L0H1": lambda frame, word: frame == word and (word is None or word % 2 == 0),
    "cross.L1H4": lambda frame, word: frame == word and (word is None or word % 2 == 1),
    "cross.L1H0": lambda frame, word: frame is not None and frame + 1 == word,  # one word late
}
"""Two heads that align half of the words each, and one that looks at the word that was just said."""


def test_the_two_heads_that_align_are_found_and_tested_on_other_utterances() -> None:
    model = whisper()
    with attending(model, SPOKEN, AIMS):
        best_heads = hc.find(model, "alignment", SPOKEN, progress=False)
    assert set(map(str, best_heads.heads)) == {"cross.L0H1", "cross.L1H4"}
    assert {str(head) for head, _ in best_heads.ranking[:2]} == set(map(str, best_heads.heads))
    assert best_heads.tested.score > 0.9 and 0.65 < best_heads.tested.low < best_heads.tested.score < best_heads.tested.high
    assert max(best_heads.compared["the best head alone"].score, best_heads.compared["all heads"].score) < 0.85
    assert best_heads.beats_baseline and best_heads.boundary_seconds is not None and best_heads.boundary_seconds < 0.02
    assert best_heads.n_choosing + best_heads.n_testing == len(SPOKEN) and len(best_heads.ranking) == 12 == len(best_heads.set_scores)
    assert best_heads.set_scores[1] == max(best_heads.set_scores) > 1.02 * best_heads.set_scores[0]
    assert not hasattr(model.generation_config, "alignment_heads"), "finding changes nothing"


def test_the_smallest_set_within_two_per_cent_is_taken() -> None:
    """A second head that adds nothing is left out, though it is as good alone."""
    aims = dict.fromkeys(("cross.L0H1", "cross.L1H4"), lambda frame, word: frame == word)
    model = whisper()
    with attending(model, SPOKEN, aims):
        best_heads = hc.find(model, "alignment", SPOKEN, progress=False)
    assert len(best_heads.heads) == 1 and str(best_heads.heads[0]) in aims
    assert describe_head_list(replace(best_heads, tested=SetScore(1, 0.5, 0.4, 0.6))).startswith(
        "1 of 12 heads for alignment: 0.500 (95 %: 0.400 … 0.600)"
    )
    assert {str(head) for head, _ in best_heads.ranking[:2]} == set(aims)


def test_neither_batches_nor_order_change_what_is_found() -> None:
    model = whisper()
    with attending(model, SPOKEN, AIMS):
        one, other = (
            hc.find(model, "alignment", spoken, batch_size=size, progress=False) for spoken, size in ((SPOKEN, 3), (SPOKEN[::-1], 7))
        )
    assert one.heads == other.heads and one.n_choosing == other.n_choosing
    assert one.tested.score == pytest.approx(other.tested.score, abs=1e-12)
    assert [score for _, score in one.ranking] == pytest.approx([score for _, score in other.ranking], abs=1e-12)
    limited = [hc.find(model, "alignment", spoken, limit=24, progress=False) for spoken in (SPOKEN, SPOKEN[::-1])]
    assert limited[0].n_choosing == limited[1].n_choosing == 24 - limited[0].n_testing
    assert limited[0].set_scores == pytest.approx(limited[1].set_scores), "a limit is drawn by content, not by position"


def test_the_list_survives_a_copy_a_cut_and_json(tmp_path: Path) -> None:
    model = whisper()
    set_alignment_heads(model, ["cross.L1H5"])
    with attending(model, SPOKEN, AIMS):
        best_heads = hc.find(model, "alignment", SPOKEN, out=tmp_path / "copy", progress=False)
        hc.find(model, "alignment", SPOKEN, out=tmp_path / "list.json", progress=False)
    assert best_heads.compared["the list so far"].n_heads == 1 and best_heads.compared["the list so far"].score < best_heads.tested.score
    assert model.generation_config.alignment_heads == [[1, 5]], "the live model keeps its own list"
    assert HeadList.read(tmp_path / "list.json") == best_heads
    copy: Any = hc.load(tmp_path / "copy")
    assert copy.generation_config.alignment_heads == [[0, 1], [1, 4]]
    small: Any = hc.load(hc.save(hc.cut(copy, hc.Plan.removing(["cross.L0H0", "cross.L1H0", "cross.L1H2"])), tmp_path / "small"))
    assert small.generation_config.alignment_heads == [[0, 0], [1, 2]]
    assert set(read_alignment_heads(small)) == set(best_heads.heads), "addresses are those of the dense model"
    assert set_alignment_heads(small, best_heads.heads) == [[0, 0], [1, 2]]
    features = SPOKEN[0]["input_features"][None]
    assert small.generate(features, return_token_timestamps=True, max_new_tokens=4)["token_timestamps"].shape[0] == 1
    (tmp_path / "list.json").write_text('{"schema_version": 7}')
    with pytest.raises(ArtifactError, match="schema version 7"):
        HeadList.read(tmp_path / "list.json")


@pytest.mark.parametrize("by", ["transformers", "headcount"])
def test_the_list_is_written_into_the_folder_itself(tmp_path: Path, by: str) -> None:
    """Nothing else changes there; a folder of headcount stays whole, the record of its cut included."""
    model = whisper()
    model.generation_config.suppress_tokens = [3]
    if by == "transformers":
        model.save_pretrained(tmp_path / "m")
    else:
        model = hc.cut(model, hc.Plan.removing(["cross.L0H0"]))
        hc.save(model, tmp_path / "m", notes=["Kept."])
    before = {path.name: path.read_bytes() for path in (tmp_path / "m").iterdir()}
    set_alignment_heads(model, ["cross.L0H1", "cross.L1H4"])
    written = write_alignment_heads(model, tmp_path / "m")
    changed = {path.name for path in (tmp_path / "m").iterdir() if path.read_bytes() != before.get(path.name)}
    assert changed == {written.name} | ({"heads.json"} if by == "headcount" else set())
    assert set(before) == {path.name for path in (tmp_path / "m").iterdir()} and not list(tmp_path.glob(".*"))
    again: Any = hc.load(tmp_path / "m")
    assert again.generation_config.alignment_heads == [[0, 1 if by == "transformers" else 0], [1, 4]]
    assert again.generation_config.suppress_tokens == [3]
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), again.state_dict().values(), strict=True))


def test_a_planted_induction_head_is_found(tmp_path: Path) -> None:
    model = tiny_model("llama", auto="AutoModelForCausalLM")
    with planted(model, {"L1H2": induction}):
        best_heads = hc.find(model, "induction", out=tmp_path / "heads.json", progress=False)
    assert list(map(str, best_heads.heads)) == ["L1H2"] and best_heads.tested.score == 1 and best_heads.beats_baseline
    assert best_heads.compared["all heads"].n_heads == 12 and best_heads.boundary_seconds is None and best_heads.baseline < 0.1
    assert HeadList.read(tmp_path / "heads.json") == best_heads
    with planted(model, {}):
        even = hc.find(model, "induction", limit=20, progress=False)
    assert not even.beats_baseline and even.n_choosing + even.n_testing == 20


def test_roles_over_speech() -> None:
    """Cross-attention over frames has alignment and diagonal, the decoder the roles of its tokens; frames themselves have no tokens to ask about."""
    aims = {
        "cross.L0H1": lambda frame, word: frame is not None and frame == word,
        "cross.L1H0": lambda frame, word: frame is not None and frame + 1 == word,
    }
    model = whisper()
    with attending(model, SPOKEN, aims):
        table = hc.roles(model, SPOKEN, only=["alignment", "diagonal", "offset:-1"], definition="pande2021(tau=1.5;correct=bh)")
    labels = {
        role: {str(row.head) for row in table if row.role == role and row.has_role} for role in ("alignment:next", "alignment:current")
    }
    assert "cross.L0H1" in labels["alignment:next"] and "cross.L1H0" not in labels["alignment:next"]
    assert "cross.L1H0" in labels["alignment:current"] and {head for heads in labels.values() for head in heads} == set(aims)
    assert [str(max((row for row in table if row.role == role), key=lambda row: row.accuracy).head) for role in labels] == list(aims)
    assert {row.head.stack for row in table if row.role == "diagonal"} == {"cross"}
    assert {row.head.stack for row in table if row.role == "offset:-1"} == {"dec"}
    shares = []  # of the frames with sound, silence behind them being no key, which those of a word are
    for one in SPOKEN:
        sizes = [after - first for first, after in one["word_frames"]]
        shares.append(np.mean([one["attention_mask"].sum().item() / 2 / sizes[word] for word in one["word_ids"] if word is not None]))
    assert all(row.maximum == pytest.approx(np.mean(shares)) for row in table if row.role == "alignment:next")
    silent = [{name: value for name, value in one.items() if not name.startswith("word")} for one in SPOKEN]
    assert "alignment" in hc.roles(model, silent, only=["alignment", "diagonal"]).untested


def test_without_words_the_tokens_of_the_configuration_are_special() -> None:
    """Word ids of None are as good as none, and a configuration may name several ends."""
    model = whisper()
    plain = {name: value for name, value in SPOKEN[0].items() if not name.startswith("word")}
    tokens = plain["labels"]
    model.config.eos_token_id = [tokens[-1], tokens[-2]]
    missing, named = (read_speech(model, [item]).targets[0] for item in (plain, {**plain, "word_ids": None}))
    assert missing == named
    others = {getattr(model.config, f"{name}_token_id") for name in ("bos", "pad", "decoder_start")}
    assert list(named.special) == [token in {*model.config.eos_token_id, *others} for token in named.ids]
    assert any(named.special) and not all(named.special)


def changed(**values: Any) -> list[dict[str, Any]]:
    """Utterances of which the second has other values; None takes one away."""
    second = {name: value for name, value in {**SPOKEN[1], **values}.items() if value is not None}
    return [SPOKEN[0], second, *SPOKEN[2:]]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "data holds no utterances"),
        (SPOKEN[:4], "half of the examples"),
        (changed(labels=None), "utterance 1 has no labels"),
        (changed(input_features=torch.zeros(80, 10)), r"utterance 1: input_features has shape \[80, 10\].* reads \[80, 64\]"),
        (changed(word_ids=[0]), "1 word_ids for"),
        (changed(word_ids=[1] * len(SPOKEN[1]["labels"])), "count the words from 0"),
        (changed(word_frames=None), "utterance 1 has no words with times"),
        (changed(word_frames=[(0, 2)]), "times for 1 words, but word_ids names 4"),
        (changed(word_frames=[(0, 2), (4, 3), (5, 6), (7, 8)]), "must end after it starts"),
        (changed(word_frames=[(0, 2), (3, 4), (5, 6), (70, 80)]), "word 3 is at .* its sound has"),
        (changed(word_frames=["a", "b"]), "pairs of start and end"),
        (changed(attention_mask=torch.zeros(64)), "leaves 0 frames"),
        (changed(input_features=torch.full((80, 64), float("nan"))), "finite"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_utterances_that_say_too_little_are_refused(data: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        hc.find(whisper(), "alignment", data, progress=False)


def test_requests_that_cannot_be_met_are_refused(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").touch()
    (tmp_path / "list.json").touch()
    model, decoder = whisper(), tiny_model("llama", auto="AutoModelForCausalLM")
    for error, message, arguments in (
        (UnknownName, "no job of find 'alignmnt'. Did you mean 'alignment'", (model, "alignmnt")),
        (OptionError, "option data of find must be", (model, "alignment", [1])),
        (OptionError, "give data=FILE", (model, "alignment")),
        (OptionError, "leave out data=FILE", (decoder, "induction", SPOKEN)),
        (UnsupportedModel, "no list of alignment heads", (tiny_model("bart", auto="AutoModelForSeq2SeqLM"), "alignment", SPOKEN)),
        (UnsupportedModel, "no induction heads to find", (model, "induction")),
        (DataError, "no file", (model, "alignment", tmp_path / "none.jsonl")),
    ):
        with pytest.raises(error, match=message):
            hc.find(*arguments, progress=False)
    for error, message, options in (
        (OptionError, "limit must be 8 or more", {"limit": 3}),
        (OptionError, "batch_size of find must be .* at least 1; got 0", {"batch_size": 0}),
        (OptionError, "seed of find must be .* at least 0; got -1", {"seed": -1}),
        (OptionError, "ends in .json", {"out": tmp_path / "folder"}),
        (ArtifactError, "exists already", {"out": tmp_path / "list.json"}),
        (OptionError, "progress of find must be", {"progress": 1}),
    ):
        with pytest.raises(error, match=message):
            hc.find(decoder, "induction", **{"progress": False, **options})
    with pytest.raises(ArtifactError, match="not empty"):
        hc.find(model, "alignment", SPOKEN, out=tmp_path / "taken", progress=False)
    with pytest.raises(DataError, match="by a processor"):
        path = tmp_path / "a.jsonl"
        (tmp_path / "a.wav").touch()
        path.write_text('{"audio": "a.wav", "words": []}')
        hc.find(model, "alignment", path, progress=False)
    with pytest.raises(hc.HeadcountError, match="cannot name L0H0"):
        set_alignment_heads(model, ["L0H0"])
