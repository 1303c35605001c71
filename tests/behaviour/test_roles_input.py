"""Roles on tasks, datasets, pairs and texts of any script: what is read, and that planted heads are found in it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from planting import VOCABULARY, by_words, planted, tokenizer_of
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

import headcount as hc
from headcount.behaviour.corpus import read_corpus
from headcount.core.errors import DataError, UnknownTokens
from headcount.core.role_table import RoleTable
from headcount.data.open_task import open_task
from headcount.data.task import SPLITS, pad
from headcount.data.text.annotated import Annotated, Word
from headcount.models.tiny.build import tiny_model
from headcount.surgery.source import local_folder

BERT = tokenizer_of("[CLS] $A [SEP]")


@cache
def demo(name: str) -> tuple[Any, Any]:
    return hc.load(f"demo/{name}").eval(), AutoTokenizer.from_pretrained(local_folder(f"demo/{name}"))


@pytest.mark.parametrize(
    ("name", "task"),
    [
        ("encoder", "demo/text"),
        ("entailment", "demo/entailment"),
        ("decoder", "demo/stories"),
        ("translator", "demo/translation"),
    ],
)
@pytest.mark.parametrize("split", SPLITS)
def test_the_texts_of_a_task_are_what_its_examples_hold(name: str, task: str, split: Any) -> None:
    """Token for token; where the task hides tokens under the mask, what they were."""
    model, tokenizer = demo(name)
    made = open_task(f"{task}(size=12)", model, tokenizer)
    corpus = read_corpus(model, made, tokenizer, split=split, limit=9)
    assert len(corpus.sentences) == 9
    for aligned, target, example in zip(corpus.sentences, corpus.targets or [None] * 9, made.split(split), strict=False):
        hidden = [index for index, token in enumerate(example["input_ids"]) if token == tokenizer.mask_token_id]
        assert [i for index, i in enumerate(aligned.ids) if index not in hidden] == [
            i for index, i in enumerate(example["input_ids"]) if index not in hidden
        ]
        assert bool(hidden) == (task == "demo/text")
        assert target is None or list(target.ids) == example["labels"]
        assert aligned.annotated.words
    assert bool(corpus.targets) == (task == "demo/translation") and corpus.has_two_text_sentences == (task == "demo/entailment")


def test_a_task_gives_the_roles_of_its_texts() -> None:
    model, tokenizer = demo("translator")
    task = open_task("demo/translation(size=20)", model, tokenizer)
    table = hc.roles(model, task, tokenizer, only=["diagonal", "offset:-1", "alignment"], limit=12)
    assert {row.head.stack for row in table if row.role == "diagonal"} == {"cross"}
    assert table.conditions["n_examples"] == 12 and "links" in table.untested["alignment"]


def _classifier() -> Any:
    return tiny_model("bert", auto="AutoModelForSequenceClassification", vocab_size=VOCABULARY, num_labels=2, pad_token_id=0)


def test_files_of_a_task_are_read_anew_and_cut_as_it_cuts_them(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text(
        "".join(
            f"bal bam {word} bal\tbam bal\t{i % 2}\n" for i, word in enumerate(("ban", "bar", "das", "dat", "fal", "fam", "fan", "far"))
        )
    )
    model = _classifier()
    task = open_task("nli", model, BERT, train=path, max_length=6, truncate=True)
    corpus = read_corpus(model, task, BERT)
    assert [list(sentence.ids) for sentence in corpus.sentences] == [example["input_ids"] for example in task.calibration]
    assert [list(sentence.type_ids or ()) for sentence in corpus.sentences] == [example["token_type_ids"] for example in task.calibration]
    assert all(sentence.truncated and str(path) in sentence.annotated.origin for sentence in corpus.sentences)


@pytest.mark.parametrize("by", ["window", "line", "paragraph"])
@pytest.mark.parametrize("kind", ["masked-lm", "causal-lm"])
def test_running_text_by_window_line_and_paragraph(kind: str, by: str, tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    random = Random(0)
    words = ["bal", "bam", "ban", "bar", "das", "dat"]
    path.write_text("".join(" ".join(random.choices(words, k=9)) + "\n" * (1 + i % 2) for i in range(96)))
    auto = "AutoModelForMaskedLM" if kind == "masked-lm" else "AutoModelForCausalLM"
    model = tiny_model(
        "bert" if kind == "masked-lm" else "gpt2", auto=auto, vocab_size=VOCABULARY, pad_token_id=0, bos_token_id=2, eos_token_id=3
    )
    task = open_task(f"{kind}(by={by})", model, BERT, train=path)
    corpus = read_corpus(model, task, BERT)
    assert len(corpus.sentences) == len(task.calibration)
    for sentence, example in zip(corpus.sentences, task.calibration, strict=True):
        assert BERT.mask_token_id not in sentence.ids and len(sentence.ids) == len(example["input_ids"])
        assert all(a in (b, label) for a, b, label in zip(sentence.ids, example["input_ids"], example["labels"], strict=True))
        assert bool(sentence.annotated.words) == (by != "window")
        assert sentence.special == tuple(i in (2, 3) for i in sentence.ids)
    assert hc.roles(model, corpus, only=["offset", "delimiter"]).rows
    if by == "window":
        with pytest.raises(DataError, match="holds tokens, not texts, so there is nothing to parse; in language modelling say by=line"):
            read_corpus(model, task, BERT, parser=lambda sentences: sentences)


def test_words_of_token_classification(tmp_path: Path) -> None:
    path = tmp_path / "a.conll"
    path.write_text("".join(f"bal A\nsam B\n{word} A\n\n" for word in ("ban", "bar", "das", "dat", "fal", "fam", "fan", "far")))
    model = tiny_model(
        "bert",
        auto="AutoModelForTokenClassification",
        vocab_size=VOCABULARY,
        id2label={0: "A", 1: "B"},
        label2id={"A": 0, "B": 1},
        pad_token_id=0,
    )
    task = open_task("token-classification", model, BERT, train=path)
    corpus = read_corpus(model, task, BERT)
    assert [list(sentence.ids) for sentence in corpus.sentences] == [example["input_ids"] for example in task.calibration]
    assert corpus.sentences[0].words[1:5] == (0, 1, 1, 2)


def test_a_task_of_ones_own_is_told_by_its_tokens() -> None:
    model = _classifier()
    rows = [{"input_ids": [2, 10 + i, 11, 3, 12, 3], "token_type_ids": [0, 0, 0, 0, 1, 1], "labels": 0} for i in range(6)]
    task = hc.Task("mine", rows, rows, rows, pad, special_ids=frozenset({2, 3}))
    corpus = read_corpus(model, task)
    assert corpus.sentences[0].segments == (-1, 0, 0, -1, 1, -1) and corpus.has_two_text_sentences
    assert {row.role for row in hc.roles(model, task, only=["offset:-1", "delimiter:first", "sink"])} == {
        "offset:-1",
        "delimiter:first",
        "sink",
    }
    seq2seq = tiny_model("marian", auto="AutoModelForSeq2SeqLM", decoder_start_token_id=0)
    pairs = [{"input_ids": [10 + i, 11, 12], "labels": [7, 8, 9, -100]} for i in range(6)]
    actual = read_corpus(seq2seq, hc.Task("mine", pairs, pairs, pairs, pad))
    assert actual.targets[0].ids == (7, 8, 9)
    assert {row.head.stack for row in hc.roles(seq2seq, actual, only=["diagonal", "offset:-1"])} == {"enc", "dec", "cross"}
    with pytest.raises(DataError, match="hold values; roles need input_ids or pixel_values"):
        read_corpus(model, hc.Task("mine", *[[{"values": 1}]] * 3, collate=pad))
    with pytest.raises(DataError, match="no split 'test'"):
        read_corpus(model, task, split="test")  # pyright: ignore[reportArgumentType]


def test_images_of_a_task_are_read_when_asked_for() -> None:
    class Pictures:
        requests = 0

        def __len__(self) -> int:
            return 8

        def __getitem__(self, index: int) -> dict[str, Any]:
            Pictures.requests += 1
            generator = torch.Generator().manual_seed(index)
            return {"pixel_values": torch.randn(3, 10, 10, generator=generator, dtype=torch.float64), "labels": 0}

    model: Any = tiny_model("vit", image_size=10, patch_size=2)
    corpus = read_corpus(model, hc.Task("pictures", *[Pictures()] * 3, collate=pad), limit=5)  # pyright: ignore[reportArgumentType]
    assert corpus.grid == (5, 5) and len(corpus.images) == 5 and Pictures.requests <= 3
    assert set(corpus.images[0]) == {"pixel_values"}
    assert {"row", "column", "near"} <= {row.role for row in hc.roles(model, corpus)}


def test_lists_pairs_and_datasets() -> None:
    import datasets

    model = tiny_model("bert", vocab_size=VOCABULARY)
    texts = ["bal bam ban", "bar das", "fal fam fan far"]
    table = datasets.Dataset.from_dict({"text": texts})
    actual = [
        [sentence.ids for sentence in read_corpus(model, given, BERT).sentences] for given in (texts, table, table["text"], iter(texts))
    ]
    assert actual[0] == actual[1] == actual[2] == actual[3]
    assert read_corpus(model, [("bal bam", "ban"), ("bar", "das")], BERT).has_two_text_sentences
    assert len(read_corpus(model, texts, BERT, limit=2).sentences) == 2
    for wrong, message in (({"limit": 0}, "limit must be 1 or more"), ({"max_length": 10**4}, "the model has positions for")):
        with pytest.raises(DataError, match=message):
            read_corpus(model, texts, BERT, **wrong)


def test_much_that_the_tokenizer_does_not_know_is_told(tmp_path: Path) -> None:
    model = tiny_model("bert", vocab_size=VOCABULARY)
    with pytest.warns(
        UnknownTokens, match=r"the text: 33% of the tokens are unknown to the tokenizer \(\[UNK\]\), such as 'Bonjour' in sentence 1"
    ):
        read_corpus(model, ["bal bam ban", "bar Bonjour monde"], BERT)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read_corpus(model, ["bal bam ban bar", "bar das bal bam bal Bonjour"], BERT)
    path = tmp_path / "a.tsv"
    path.write_text("".join(f"Bonjour {i} bal\t{i % 2}\n" for i in range(12)))
    with pytest.warns(UnknownTokens, match=r"task 'classification': 67% .* such as 'Bonjour' in .*a\.tsv, line \d") as caught:
        task = open_task("classification", _classifier(), BERT, train=path)
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read_corpus(_classifier(), task, BERT)


# languages

ALPHABETS = {
    "hebrew": "אבגדהוזחטיכלמנסעפצקרשת",
    "arabic": "ابتثجحخدذرزسشصضطظعغفقكلمنهوي",
    "chinese": "他今天没有去北京大学是中国的首都人来说你我好山水火木",
    "japanese": "あいうえおかきくけこ東京都住カタナハマヤ",
    "thai": "กขคงจฉชซญดตถทธนบปผพฟมยรลวสหอ",
    "german": "abcdefghijklmnopqrstuvwxyzäöüß",
}
SPACED = ("hebrew", "arabic", "german")


def _said(language: str, number: int = 60) -> list[Annotated]:
    """Sentences of 10 words in a script; one is the subject of another, both drawn."""
    random, made = Random(language), []
    for _ in range(number):
        forms = ["".join(random.choices(ALPHABETS[language], k=random.randint(2, 4))) for _ in range(10)]
        root, subject = random.sample(range(10), 2)
        words, at, gap = [], 0, int(language in SPACED)
        for index, form in enumerate(forms):
            span, head = (at, at + len(form)), (-1, "root") if index == root else (root, "nsubj" if index == subject else "dep")
            words.append(Word(form, form, "X", *head, *span))
            at += len(form) + gap
        made.append(Annotated((" " * gap).join(forms), tuple(words)))
    return made


def _byte_level() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return tokenizer


def _unigram() -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.NFKC(), pre_tokenizers.Metaspace()
    return tokenizer


def _wordpiece() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece({"[UNK]": 0}, unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.BertNormalizer(strip_accents=False), pre_tokenizers.BertPreTokenizer()
    return tokenizer


SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
KINDS: dict[str, tuple[Callable[[], Tokenizer], Callable[[], Any]]] = {
    "bytes": (_byte_level, lambda: trainers.BpeTrainer(vocab_size=500, special_tokens=SPECIAL, show_progress=False)),
    "unigram": (_unigram, lambda: trainers.UnigramTrainer(vocab_size=300, unk_token="[UNK]", special_tokens=SPECIAL, show_progress=False)),
    "wordpiece": (_wordpiece, lambda: trainers.WordPieceTrainer(vocab_size=400, special_tokens=SPECIAL, show_progress=False)),
}


def _trained(kind: str, language: str) -> PreTrainedTokenizerFast:
    build, trainer = KINDS[kind]
    model = build()
    model.train_from_iterator([one.text for one in _said(language)], trainer())
    ids = [(token, model.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    model.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ids)
    return PreTrainedTokenizerFast(tokenizer_object=model, unk_token="[UNK]", model_max_length=128)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("language", ALPHABETS)
def test_a_subject_head_is_found_in_every_script(kind: str, language: str) -> None:
    model: Any = tiny_model("bert", vocab_size=600)
    corpus = read_corpus(model, _said(language), _trained(kind, language))
    assert len(corpus.sentences) == 60 and not corpus.refused
    to_verb = by_words(lambda s: [(index, word.head or 0) for index, word in enumerate(s.words) if word.relation == "nsubj"])
    with planted(model, {"L1H2": to_verb}, corpus):
        table = hc.roles(model, corpus, only=["syntax:nsubj", "syntax:nsubj-of", "offset:-1", "offset:+1"])
    assert _labels(table) == {"L1H2": ["syntax:nsubj"]}
    row = table.strongest("syntax:nsubj")
    apart = row.n_sentences  # without spaces a token may hold both words, which then say nothing about each other
    assert apart == 60 if language in SPACED else 57 <= apart <= 60
    assert row.accuracy == pytest.approx(1, abs=1e-6) and row.bias == pytest.approx(row.maximum, rel=1e-5)


def _labels(table: RoleTable) -> dict[str, list[str]]:
    return {str(head): roles for head, roles in table.labels().items() if roles}
