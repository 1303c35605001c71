"""The embedded languages: trees are trees, words agree, the two languages say the same, labels are right."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from headcount.data.embedded import english, lexicon, tavi
from headcount.data.embedded.entailment import LABELS, _list_facts, draw_pair
from headcount.data.embedded.grammar import Clause, Phrase, Relative, draw_clause
from headcount.data.embedded.rare_words import FREQUENT, GENDER_OF, RARE, draw_rare_sentence, draw_rare_sentences
from headcount.data.embedded.stories import draw_story
from headcount.data.embedded.tokenizer import build_tokenizer, vocabulary
from headcount.data.embedded.trees import Sentence


def clauses(number: int = 400) -> list[Clause]:
    random = Random(1)
    return [draw_clause(random) for _ in range(number)]


@pytest.mark.parametrize("language", [english, tavi])
def test_every_sentence_is_one_projective_tree(language) -> None:
    for clause in clauses():
        sentence: Sentence = language.say_clause(clause)
        heads = [word.head for word in sentence.words]
        assert heads.count(0) == 1
        for index in range(1, len(heads) + 1):
            observed, at = set(), index
            while at:
                assert at not in observed
                observed.add(at)
                at = heads[at - 1]
        arcs = [tuple(sorted((i, h))) for i, h in enumerate(heads, 1) if h]
        assert not any(a < c < b < d for a, b in arcs for c, d in arcs)


def test_english_verbs_agree_at_a_distance() -> None:
    dogs = Phrase(lexicon.PEOPLE[0], plural=True, location=(lexicon.PLACES[1], Phrase(lexicon.THINGS[0])))
    assert str(english.say_clause(Clause(dogs, lexicon.INTRANSITIVE[0]))) == "the dogs near the box sleep ."
    dog = Phrase(lexicon.PEOPLE[0], relative=Relative(lexicon.TRANSITIVE[0], Phrase(lexicon.PEOPLE[1], plural=True), of_subject=False))
    assert str(english.say_clause(Clause(dog, lexicon.INTRANSITIVE[0], negated=True))) == "the dog that the cats see does not sleep ."


def test_tavi_agrees_in_gender_and_ends_in_the_verb() -> None:
    for clause in clauses():
        words = tavi.say_clause(clause).words
        assert words[-2].relation == "root"
        assert words[-2].form.removesuffix("mi")[-1] == lexicon.GENDER_SUFFIX[clause.subject.noun.gender]
        for word in words:
            if word.relation == "amod":
                noun = next(n for n in lexicon.NOUNS if n.stem == words[word.head - 1].lemma)
                assert word.form.removesuffix("mi")[-1] == lexicon.GENDER_SUFFIX[noun.gender]


def test_both_languages_carry_the_same_words() -> None:
    """Content words correspond one to one, with the same relations."""
    for clause in clauses():
        ours = Counter(w.relation for w in english.say_clause(clause).words if w.pos in ("NOUN", "ADJ", "VERB", "ADV"))
        theirs = Counter(w.relation for w in tavi.say_clause(clause).words if w.pos in ("NOUN", "ADJ", "VERB", "ADV"))
        assert ours == theirs


def test_the_tokenizer_knows_every_word_and_splits_tavi_at_its_suffixes() -> None:
    tokenizer = build_tokenizer()
    assert len(tokenizer) == len(vocabulary())
    for clause in clauses():
        for language in (english, tavi):
            sentence = language.say_clause(clause)
            pieces = tokenizer.tokenize(str(sentence))
            assert "[UNK]" not in pieces
            assert [p for p in pieces if not p.startswith("##")] == [w.lemma if language is tavi else w.form for w in sentence.words]
            ids = tokenizer(str(sentence))["input_ids"]
            assert tokenizer.decode(ids, skip_special_tokens=True) == str(sentence)


def test_labels_are_even_and_follow_from_the_facts() -> None:
    random = Random(2)
    pairs = [draw_pair(random) for _ in range(3000)]
    counts = Counter(pair.label for pair in pairs)
    assert all(abs(counts[label] - 1000) < 120 for label in LABELS)
    for pair in pairs:
        assert pair.premise != pair.hypothesis
        assert not pair.premise.negated
        cores = {(f.subject, f.verb, f.object) for f in _list_facts(pair.premise)}
        core = (pair.hypothesis.subject, pair.hypothesis.verb, pair.hypothesis.object)
        if pair.label != "neutral":
            assert core in cores
        if pair.label == "entailment":
            assert not pair.hypothesis.negated


def test_word_overlap_does_not_give_the_label_away() -> None:
    """A large share of neutral hypotheses uses only words of the premise."""
    random = Random(3)
    pairs = [p for p in (draw_pair(random) for _ in range(2000)) if p.label == "neutral"]
    contained = sum(set(str(english.say_clause(p.hypothesis)).split()) <= set(str(english.say_clause(p.premise)).split()) for p in pairs)
    assert contained / len(pairs) > 0.1


def test_stories_repeat_their_participants() -> None:
    story = draw_story(Random(4), n_sentences=8)
    adjectives = {m.word for m in lexicon.ADJECTIVES}
    pairs = Counter((a, b) for line in story for a, b in zip(line.split(), line.split()[1:], strict=False) if a in adjectives)
    assert pairs.most_common(1)[0][1] >= 3


def test_the_same_seed_gives_the_same_text() -> None:
    assert [str(english.say_clause(draw_clause(Random(7)))) for _ in range(3)] == [
        str(english.say_clause(draw_clause(Random(7)))) for _ in range(3)
    ]


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_recipes_train(tmp_path) -> None:
    """Every recipe runs on a thousandth of its text and repeats itself bit for bit."""
    import torch
    from safetensors.torch import load_file
    from train_embedded import train

    for name in ("encoder", "entailment", "translator", "decoder"):
        train(name, tmp_path / "a", share=0.001)
    train("decoder", tmp_path / "b", share=0.001)
    first, second = (load_file(tmp_path / side / "decoder" / "model.safetensors") for side in "ab")
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert max(path.stat().st_size for path in (tmp_path / "a").glob("*/model.safetensors")) < 4e6


def test_one_word_of_a_rare_sentence_is_rare_and_the_others_follow_zipf() -> None:
    random = Random(0)
    sample = [draw_rare_sentence(random) for _ in range(2000)]
    counts = Counter(word for sentence in sample for word in sentence.words)
    assert all(sum(word in RARE for word in sentence.words) == 1 and 6 <= len(sentence.words) <= 12 for sentence in sample)
    assert min(counts[word] for word in FREQUENT) > max(counts[word] for word in RARE), "the rare word is the rarest of its sentence"
    assert counts[FREQUENT[0]] == pytest.approx(10 * counts[FREQUENT[9]], rel=0.25)
    for sentence in sample[:50]:
        before, rarest = sentence.words[-2], next(word for word in sentence.words if word in RARE)
        assert sentence.rarest == rarest and sentence.gender_labels[-1] == f"{GENDER_OF[before]}, {GENDER_OF[rarest]}"
    ours, others = ({sentence.text for sentence in draw_rare_sentences(64, split=split)} for split in ("report", "calibration"))
    assert not ours & others and ours == {sentence.text for sentence in draw_rare_sentences(64)}
