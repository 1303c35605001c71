"""`headcount roles` and its studies: what they read, print and write, and that bad input ends in one clear line with nothing written."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from command_line import refused, result, run
from toys import saved_classifier, saved_table, sentences

from headcount.models.tiny.build import tiny_model

ENCODER = ("roles", "demo/encoder")
QUICK = ("--only", "offset,local")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts in every form, right and wrong."""
    folder = tmp_path_factory.mktemp("texts")
    texts = sentences(12)
    (folder / "ok.txt").write_text("\n".join(texts))
    (folder / "empty.txt").write_text("")
    (folder / "empty.conllu").write_text("\n\n")
    (folder / "broken.conllu").write_text("1\tThe\tthe\tDET\t_\t_\t2\tdet\t_\t_\n2\tdog\tdog\n\n")
    (folder / "binary.txt").write_bytes(bytes(range(128, 256)))
    (folder / "binary.parquet").write_bytes(bytes(range(256)))
    (folder / "long.txt").write_text("the dog sees .\n" + "the dog " * 80)
    (folder / "labelled.tsv").write_text("the dog runs\t1\nthe cat runs\t0\n")
    (folder / "folder").mkdir()
    saved_table(folder / "table.csv", 12)
    pandas.DataFrame({"premise": texts[:6], "hypothesis": texts[6:], "n": range(6)}).to_json(
        folder / "pairs.jsonl", orient="records", lines=True
    )
    return folder


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("--text", "broken.conllu"), 1, "broken.conllu, line 2 has 3 columns, but CoNLL-U has 10, set apart by tabs"),
        (("--text", "empty.txt"), 1, "empty.txt is empty; give a file with text"),
        (("--text", "empty.conllu"), 1, "empty.conllu holds no sentence"),
        (("--text", "none.txt"), 1, "no file .*none.txt"),
        (("--text", "folder"), 1, "folder is a folder, but not one that datasets' save_to_disk wrote; give a file"),
        (("--text", "table.csv", "--text-column", "txt"), 1, "no column 'txt' for the text. Did you mean 'text'. It has 'text', 'label'"),
        (("--text", "ok.txt", "--text-column", "text"), 1, "has no columns that can be named"),
        (("--text", "labelled.tsv"), 1, "line 1: the second text is '1', which is a label"),
        (("--text", "binary.txt"), 1, "binary.txt, line 1 is not UTF-8: byte 0x80"),
        (("--text", "binary.parquet"), 1, "binary.parquet cannot be read as parquet"),
        (
            ("--text", "long.txt"),
            1,
            "long.txt, line 2 has 162 tokens, but at most 128 are allowed; to cut texts: --max-length 128, --truncate",
        ),
        (("--text", "ok.txt", "--max-length", "1000"), 1, "max_length is 1000, but the model has positions for 128"),
        (("--text", "ok.txt", "--limit", "0"), 2, "--limit"),
        (("--text", "ok.txt", "--only", "ofset"), 2, "Did you mean 'offset'"),
        (("--text", "ok.txt", "--only", ","), 2, "--only needs the name of a role"),
        (("--text", "ok.txt", "--definition", "pande2021(correct=bhh)"), 2, "Did you mean 'bh'"),
        (("--text", "ok.txt", "--definition", "pande201"), 2, "Did you mean 'pande2021'"),
        (("--text", "ok.txt", "--parser", "spcy:en"), 2, "no parser 'spcy'. Did you mean 'spacy'"),
        (("--text", "ok.txt", "--parser", "spacy"), 1, "names no model; say spacy:en_core_web_sm"),
        (("--embedded", "engish"), 2, "no embedded text 'engish'. Did you mean 'english'"),
        (("--embedded", "english", "--text-column", "x"), 2, "--text-column goes with --text or --task"),
        (("--text", "ok.txt", "--train", "ok.txt"), 2, "--train goes with --task"),
        ((), 2, "name one text: --text FILE, --embedded NAME or --task TASK; got none of them"),
        (("--text", "ok.txt", "--task", "demo/text"), 2, "got --text and --task"),
        (("--task", "demo/txt"), 2, "Did you mean 'text'"),
        (("--task", "demo/entailment"), 1, "another head than BertForMaskedLM; load demo/entailment, which was trained"),
        (("--task", "demo/text", "--split", "test"), 1, "no split 'test'; a task has calibration, selection, report"),
    ],
)
def test_bad_input_is_told(
    words: tuple[str, ...],
    code: int,
    message: str,
    files: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import re

    monkeypatch.chdir(files)
    error = refused(capsys, code, *ENCODER, *words, "--out", tmp_path / "run")
    assert re.search(message, error), error
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["spacy", "stanza"])
def test_a_parser_that_is_not_installed(
    name: str, files: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    error = refused(capsys, 1, *ENCODER, "--text", files / "ok.txt", "--parser", f"{name}:en")
    assert f"pip install 'headcount[{name}]'" in error


def test_trees_by_a_parser(files: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for spaCy whose trees are chains: every word hangs on the next."""

    class Doc(list[Any]):
        has_annotation = staticmethod(lambda _: True)

    def parse(text: str) -> Doc:
        doc, at = Doc(), 0
        for i, form in enumerate(text.split()):
            doc.append(SimpleNamespace(text=form, lemma_=form, pos_="X", dep_="chain", idx=text.index(form, at), i=i, is_space=False))
            at = doc[-1].idx + len(form)
        for token, head in zip(doc, [*doc[1:], doc[-1]], strict=True):
            token.head = head
        return doc

    monkeypatch.setitem(sys.modules, "spacy", SimpleNamespace(load=lambda _: parse))
    json_output = result(capsys, *ENCODER, "--text", files / "ok.txt", "--parser", "spacy:chains", "--only", "syntax,offset:+1")
    strength = {
        role: {row["head"]: row["bias"] for row in json_output["rows"] if row["role"] == role} for role in ("syntax:chain", "offset:+1")
    }
    assert strength["syntax:chain"].keys() == strength["offset:+1"].keys()
    best = [max(of, key=lambda head: of[head]) for of in strength.values()]
    assert best[0] == best[1], "the next word is the next token in the embedded language"
    json_output = result(
        capsys, "roles", "demo/entailment", "--task", "demo/entailment", "--limit", 8, "--parser", "spacy:chains", "--only", "syntax"
    )
    assert {row["role"] for row in json_output["rows"]} == {"syntax:chain", "syntax:chain-of"}


def test_columns_of_tables(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, *ENCODER, "--text", files / "table.csv", *QUICK)
    assert code == 0 and "read: 12 texts" in err and "pairs" not in err
    code, _, err = run(capsys, *ENCODER, "--text", files / "pairs.jsonl", "--only", "segment")
    assert code == 0 and "6 texts" in err and "6 pairs" in err
    code, _, err = run(capsys, *ENCODER, "--text", files / "pairs.jsonl", "--text-column", "hypothesis", *QUICK, "--limit", 4)
    assert code == 0 and "read: 4 texts" in err and " pairs" not in err


def test_a_task_and_everything_that_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = (
        "roles",
        "demo/entailment",
        "--task",
        "demo/entailment",
        "--limit",
        40,
        "--only",
        "offset,delimiter,segment,syntax",
        "--definition",
        "pande2021(tau=1.2;correct=bh)",
    )
    code, out, err = run(capsys, *words, "--out", tmp_path / "run")
    assert code == 0, err
    assert "40 texts" in err and "40 pairs" in err and "not tested: syntax: the text has no" in err
    assert "next: headcount study roles-importance demo/entailment --task demo/entailment" in err
    for shown in (
        "roles with their bias",
        "heads have a role",
        "more than one",
        "95% interval",
        "heads by layer (of 8)",
        "share more heads than by chance",
        "disagree on",
    ):
        assert shown in out
    assert len(run(capsys, *words, "--all")[1].splitlines()) > len(out.splitlines()) + 40
    json_output = result(capsys, *words)
    assert {
        "labels",
        "multifunctional",
        "best",
        "rows",
        "colocation",
        "share",
        "disagreements",
        "untested",
        "refused",
    } <= json_output.keys()
    several = [head for head, roles in json_output["labels"].items() if len(roles) > 1]
    nested = ({"delimiter:any", "delimiter:first"}, {"delimiter:any", "delimiter:sep"})
    assert json_output["multifunctional"] == [head for head in several if set(json_output["labels"][head]) not in nested]
    assert {"beyond-distance", "pande2021(correct=bh)", "voita2019"} < set(json_output["definitions"])
    assert {one["role"] for one in json_output["best"]} == {row["role"] for row in json_output["rows"]}
    assert json.loads(json.dumps(json_output["share"])).keys() == {row["role"] for row in json_output["rows"]}


def test_files_of_a_task_come_back_in_the_next_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, data = saved_classifier(tmp_path / "bert"), saved_table(tmp_path / "a.csv")
    code, _, err = run(capsys, "roles", model, "--task", "classification", "--train", data, "--text-column", "text", *QUICK)
    assert code == 0, err
    following = err.split("next: headcount ")[1].split()
    assert following == ["study", "roles-importance", str(model), "--task", "classification", "--train", str(data), "--text-column", "text"]
    assert run(capsys, *following, "--limit", 8)[0] == 0


@pytest.mark.filterwarnings("default::headcount.core.errors.UnknownTokens")
def test_much_that_is_unknown_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, data = saved_classifier(tmp_path / "bert"), tmp_path / "a.tsv"
    data.write_text("text\tlabel\n" + "".join(f"Bonjour monde {i}\t{('no', 'yes')[i % 2]}\n" for i in range(12)))
    text = "100% of the tokens are unknown to the tokenizer ([UNK]), such as 'Bonjour' in"
    for words in (
        ("score", model, "--train", data),
        ("roles", model, "--task", "classification", "--train", data, *QUICK),
        ("roles", model, "--text", data, *QUICK),
    ):
        code, _, err = run(capsys, *words)
        assert code == 0 and err.count(text) == 1, err
    assert text not in run(capsys, "score", model, "--train", data, "-q")[2]


def test_images_and_translations(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from PIL import Image

    names = {0: "cat", 1: "dog"}
    model: Any = tiny_model("vit", dtype=torch.float32, auto="AutoModelForImageClassification", image_size=16, patch_size=4, num_labels=2)
    model.config.id2label, model.config.label2id = names, {name: number for number, name in names.items()}
    model.save_pretrained(tmp_path / "vit")
    random = np.random.default_rng(0)
    for name in names.values():
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for i in range(6):
            Image.fromarray(random.integers(0, 255, (16, 16, 3), dtype=np.uint8)).save(tmp_path / "pictures" / name / f"{i}.png")
    json_output = result(capsys, "roles", tmp_path / "vit", "--task", "image-classification", "--train", tmp_path / "pictures")
    assert {"row", "column", "near"} <= {row["role"] for row in json_output["rows"]} and json_output["conditions"]["n_examples"] == 4
    (tmp_path / "a.txt").write_text("the dog runs .\n")
    assert "reads images, not text" in refused(capsys, 1, "roles", tmp_path / "vit", "--text", tmp_path / "a.txt")
    words = ("roles", "demo/translator", "--limit", 20, "--only", "diagonal,alignment")
    with_links = result(capsys, *words, "--embedded", "translation")
    assert {row["role"] for row in with_links["rows"]} == {"diagonal", "alignment:current", "alignment:next"}
    of_task = result(capsys, *words, "--task", "demo/translation")
    assert {row["role"] for row in of_task["rows"]} == {"diagonal"} and all(row["head"].startswith("cross.") for row in of_task["rows"])


def test_models_without_a_tokenizer_or_with_a_slow_one(files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from transformers import ByT5Tokenizer

    bare = tmp_path / "bare"
    tiny_model("bert", dtype=torch.float32).save_pretrained(bare)
    assert "holds no tokenizer" in refused(capsys, 1, "roles", bare, "--text", files / "ok.txt")
    slow = tmp_path / "slow"
    tiny_model("t5", dtype=torch.float32, vocab_size=400).save_pretrained(slow)
    ByT5Tokenizer().save_pretrained(slow)
    json_output = result(capsys, "roles", slow, "--text", files / "ok.txt", "--only", "offset")
    assert {row["role"] for row in json_output["rows"]} >= {"offset:-1", "offset:+1"}, "bytes are aligned with the text by what they spell"


def test_studies_read_tasks_too(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("study", "finetune-roles", "demo/encoder", "demo/entailment", "--only", "offset", "--limit", 12)
    by_second, by_first = (result(capsys, *words, "--task", task) for task in ("demo/entailment", "demo/text"))
    assert len(by_second["changes"]) == len(by_first["changes"]) == 32 * 7
    assert "name one text" in refused(capsys, 2, *words)
    importance = ("study", "roles-importance", "demo/encoder", "--definition", "voita2019", "--task", "demo/text", "--limit", 60)
    own, json_output = result(capsys, *importance), result(capsys, *importance, "--embedded", "english")
    assert own["rows"] and json_output["rows"] and own["rows"] != json_output["rows"]
    assert "not both" in refused(capsys, 2, *importance, "--embedded", "english", "--text", "a.txt")
