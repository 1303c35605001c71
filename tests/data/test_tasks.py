from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from functools import cache
from inspect import getdoc
from pathlib import Path
from random import Random
from typing import Any

import pandas
import pytest
import torch
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertModel,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MarianConfig,
    MarianMTModel,
    RobertaConfig,
    RobertaForSequenceClassification,
    T5Config,
    T5ForConditionalGeneration,
    ViTConfig,
    ViTForImageClassification,
)

import headcount as hc
from headcount.core.errors import DataError, HeadcountError, MissingExtra, NonFinite, OptionError, UnknownName
from headcount.core.options import Option, option, options_of
from headcount.core.plan import Plan
from headcount.core.registry import TASKS
from headcount.data.checks import check_batch, check_finite_weights, input_vocabulary_size, n_positions
from headcount.data.embedded import english, tavi
from headcount.data.embedded.entailment import LABELS
from headcount.data.embedded.grammar import draw_clause
from headcount.data.embedded.tokenizer import build_tokenizer
from headcount.data.evaluate import evaluate
from headcount.data.mask import mask
from headcount.data.metrics import IGNORED
from headcount.data.open_task import default_task, open_task
from headcount.data.readers.tables import TABLES
from headcount.data.task import SPLITS, Task, pad
from headcount.data.task_builder import ARGUMENTS, TaskBuilder, TaskInfo, TaskRequest
from headcount.data.text.sentences import read_annotated

SIZES: dict[str, Any] = {
    "vocab_size": 240,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "max_position_embeddings": 64,
}
NAMES = {"id2label": dict(enumerate(LABELS)), "label2id": {name: number for number, name in enumerate(LABELS)}}
TAGS = {"id2label": {0: "DET", 1: "NOUN", 2: "VERB"}, "label2id": {"DET": 0, "NOUN": 1, "VERB": 2}}
TOKENS = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
TOKENIZER = build_tokenizer()


def _marian(**options: Any) -> MarianMTModel:
    sizes = {f"{side}_{what}": n for side in ("encoder", "decoder") for what, n in (("layers", 1), ("attention_heads", 2), ("ffn_dim", 16))}
    return MarianMTModel(
        MarianConfig(
            vocab_size=240,
            d_model=16,
            max_position_embeddings=64,
            decoder_start_token_id=0,
            forced_eos_token_id=3,
            **TOKENS,
            **sizes,
            **options,
        )
    )


MODELS: dict[str, Callable[[], torch.nn.Module]] = {
    "pairs": lambda: BertForSequenceClassification(BertConfig(**SIZES, **NAMES)),
    "two": lambda: BertForSequenceClassification(BertConfig(**SIZES, num_labels=2)),
    "regression": lambda: BertForSequenceClassification(BertConfig(**SIZES, num_labels=1)),
    "tags": lambda: BertForTokenClassification(BertConfig(**SIZES, **TAGS)),
    "masked": lambda: BertForMaskedLM(BertConfig(**SIZES)),
    "causal": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, num_key_value_heads=1, **TOKENS)),
    "marian": _marian,
    "images": lambda: ViTForImageClassification(
        ViTConfig(
            hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, image_size=8, patch_size=4, num_labels=2
        )
    ),
    "bare": lambda: BertModel(BertConfig(**SIZES)),
}


@cache
def model(name: str) -> torch.nn.Module:
    torch.manual_seed(0)
    return MODELS[name]().eval()


def sentences(number: int, seed: int = 0) -> list[str]:
    random = Random(seed)
    return [str(english.say_clause(draw_clause(random))) for _ in range(number)]


def write(path: Path, lines: list[str], end: str = "\n") -> Path:
    path.write_text("".join(line + end for line in lines), encoding="utf-8")
    return path


def table(folder: Path, number: int = 40, name: str = "data.tsv", seed: int = 0) -> Path:
    return write(folder / name, [f"{text}\t{i % 2}" for i, text in enumerate(sentences(number, seed))])


def contents(task: Task) -> list[set[str]]:
    return [{json.dumps(example["input_ids"]) for example in task.split(split)} for split in SPLITS]


def check_task(task: Task, of: torch.nn.Module) -> None:
    """A task is three disjoint splits whose batches the model runs, with a finite loss and a metric that adds up."""
    one, two, three = contents(task)
    assert not (one & two or one & three or two & three)
    for split in SPLITS:
        rows = [task.split(split)[i] for i in range(min(5, len(task.split(split))))]
        batch = task.collate(rows)
        check_batch(of, batch)
        with torch.no_grad():
            output = of(**batch)
        assert torch.isfinite(output.loss)
        assert task.metric is not None
        parts = task.metric.parts(of, output, batch)
        assert parts.shape[0] == len(rows)
        assert torch.isfinite(torch.as_tensor(task.metric.total(parts.sum(0).numpy())))


def test_registry_lists_the_tasks() -> None:
    known = "causal-lm classification demo glue image-classification lm masked-lm nli summarisation token-classification translation"
    assert TASKS.names() == known.split()


def _sample(declared: Option) -> Any:
    """A value of an option that is not its default."""
    if declared.choices:
        return declared.choices[-1]
    return "before" if declared.type is str else 7


@pytest.mark.parametrize("name", TASKS.names())
def test_laws_of_every_task(name: str) -> None:
    """Its fields are options with help, its text gives it back, its info is complete, and its label names the variant."""
    cls = TASKS.get(name)
    assert issubclass(cls, TaskBuilder) and cls.name == name and getdoc(cls) and TASKS.summary(name).endswith(".")
    declared = options_of(cls)
    assert all(one.help for one in declared) and sum(one.is_positional for one in declared) <= 1
    assert isinstance(cls.info, TaskInfo) and cls.info.model and cls.info.metric and set(cls.info.uses) <= set(ARGUMENTS)
    assert "build" in {name for base in cls.__mro__[: cls.__mro__.index(TaskBuilder)] for name in vars(base)}
    builder = cls(**{one.name: _sample(one) for one in declared})
    assert TaskBuilder.parse(str(builder)) == builder and TaskBuilder.parse(builder) is builder
    assert TaskBuilder.parse(str(builder).replace("/", ":", 1)) == builder
    assert cls.from_dict(builder.to_dict()) == builder
    variant = next((f"/{one.choices[-1]}" for one in declared if one.is_positional), "")
    assert builder.label == name + variant and str(builder).startswith(builder.label)
    assert TaskBuilder.parse(builder.label).with_texts({one.name: str(_sample(one)) for one in declared}) == builder


# The tasks


def test_classification_of_a_file_without_header(tmp_path: Path) -> None:
    task = open_task("classification", model("two"), TOKENIZER, train=table(tmp_path), eval=table(tmp_path, name="e.tsv", seed=9))
    check_task(task, model("two"))
    assert [len(task.split(split)) for split in SPLITS] == [40, 14, 26]
    assert task.metric is not None and task.metric.name == "accuracy"
    assert task.special_ids == frozenset(range(5))
    assert sorted(task.calibration[i]["labels"] for i in range(40)) == [0] * 20 + [1] * 20


def test_one_file_is_divided_in_a_half_and_two_quarters_without_shared_examples(tmp_path: Path) -> None:
    lines = [f"{text}\t{i % 2}" for i, text in enumerate(sentences(40))]
    task = open_task("classification", model("two"), TOKENIZER, train=write(tmp_path / "a.tsv", lines * 3))
    check_task(task, model("two"))
    assert [len(task.split(split)) for split in SPLITS] == [57, 24, 39], "the value of a hash decides, so shares are not exact"
    again = open_task("classification", model("two"), TOKENIZER, eval=write(tmp_path / "b.tsv", lines[::-1]))
    assert contents(again) == contents(task)


def _rows(kind: str, header: bool) -> tuple[str, list[str]]:
    texts = sentences(24)
    rows = [(a, b, LABELS[i % 3]) for i, (a, b) in enumerate(zip(texts[::2], texts[1::2], strict=True))]
    if kind == "jsonl":
        return "d.jsonl", [json.dumps({"premise": a, "hypothesis": b, "label": c, "more": None}) for a, b, c in rows]
    mark = {"tsv": "\t", "csv": ","}[kind]
    lines = [mark.join(f'"{cell}"' if kind == "csv" else cell for cell in row) for row in rows]
    return f"d.{kind}", [mark.join(("premise", "hypothesis", "label")), *lines] if header else lines


@pytest.mark.parametrize("name", ["classification", "nli"])
@pytest.mark.parametrize(("kind", "header"), [("jsonl", True), ("tsv", True), ("tsv", False), ("csv", True), ("csv", False)])
def test_pairs_of_every_kind_of_file_give_the_same_task(tmp_path: Path, name: str, kind: str, header: bool) -> None:
    reference = write(tmp_path / "ref.jsonl", _rows("jsonl", True)[1])
    file, lines = _rows(kind, header)
    task = open_task(name, model("pairs"), TOKENIZER, train=write(tmp_path / file, lines, "\r\n"))
    expected = open_task("classification", model("pairs"), TOKENIZER, train=reference)
    assert [list(task.split(split)) for split in SPLITS] == [list(expected.split(split)) for split in SPLITS]
    check_task(task, model("pairs"))


def test_three_parallel_files_and_parquet(tmp_path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    rows = [json.loads(line) for line in _rows("jsonl", True)[1]]
    files = [write(tmp_path / f"{column}.txt", [row[column] for row in rows]) for column in ("premise", "hypothesis", "label")]
    parquet.write_table(pyarrow.Table.from_pylist([{k: v for k, v in row.items() if v} for row in rows]), tmp_path / "d.parquet")
    lines = open_task("nli", model("pairs"), TOKENIZER, train=files)
    columns = open_task("nli", model("pairs"), TOKENIZER, train=tmp_path / "d.parquet")
    assert list(lines.report) == list(columns.report)


def test_byte_order_mark_quotes_and_named_columns(tmp_path: Path) -> None:
    lines = ["\ufeffQuality\t#1 String", *(f'{i % 2}\t"{text}' for i, text in enumerate(sentences(20)))]
    path = write(tmp_path / "mrpc.txt", lines)
    task = open_task("classification(metric=f1)", model("two"), TOKENIZER, train=path, text_column="#1 String", label_column="Quality")
    assert task.metric is not None and task.metric.name == "F1"


def test_dataset_labels_follow_the_names_of_the_model(tmp_path: Path) -> None:
    import datasets

    rows = [json.loads(line) for line in _rows("jsonl", True)[1]]
    order = ["contradiction", "entailment", "neutral"]
    features = datasets.Features(
        {"premise": datasets.Value("string"), "hypothesis": datasets.Value("string"), "label": datasets.ClassLabel(names=order)}
    )
    made = datasets.Dataset.from_list(
        [{**{name: row[name] for name in features}, "label": order.index(row["label"])} for row in rows], features=features
    )
    made.save_to_disk(str(tmp_path / "saved"))
    task = open_task("nli", model("pairs"), TOKENIZER, train=write(tmp_path / "d.jsonl", _rows("jsonl", True)[1]))
    for source in (made, tmp_path / "saved"):
        assert list(open_task("nli", model("pairs"), TOKENIZER, train=source).report) == list(task.report)


def test_regression(tmp_path: Path) -> None:
    path = write(
        tmp_path / "stsb.csv", [f"{a},{b},{i % 6}.5" for i, (a, b) in enumerate(zip(sentences(20), sentences(20, 1), strict=True))]
    )
    task = open_task("classification", model("regression"), TOKENIZER, train=path)
    assert task.metric is not None and task.metric.name == "Pearson correlation"
    check_task(task, model("regression"))
    assert task.collate([task.report[0]])["labels"].dtype == torch.float32


def test_glue_from_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    requests: list[tuple[str, str, str]] = []

    def load(hub: str, name: str, split: str) -> Any:
        requests.append((hub, name, split))
        names = datasets.Features({"sentence": datasets.Value("string"), "label": datasets.ClassLabel(names=["no", "yes"])})
        return datasets.Dataset.from_list(
            [{"sentence": s, "label": i % 2} for i, s in enumerate(sentences(20, len(split)))], features=names
        )

    monkeypatch.setattr(datasets, "load_dataset", load)
    task = open_task("glue/cola", model("two"), TOKENIZER)
    assert requests == [("nyu-mll/glue", "cola", "train"), ("nyu-mll/glue", "cola", "validation")]
    assert task.metric is not None and task.metric.name == "Matthews correlation" and task.name == "glue/cola"
    assert [len(task.split(split)) for split in SPLITS] == [20, 8, 12]


def test_glue_without_network_names_the_way_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import datasets

    def load(*_: Any, **__: Any) -> Any:
        raise ConnectionError("no route to the hub")

    monkeypatch.setattr(datasets, "load_dataset", load)
    with pytest.raises(DataError, match=r"no route to the hub.*local files for glue/sst2 as train and eval"):
        open_task("glue/sst2", model("two"), TOKENIZER)
    with pytest.raises(DataError, match=r"glue \(mnli, train\) cannot be loaded.*local files for glue/mnli-mismatched as train and eval"):
        open_task("glue/mnli-mismatched", model("two"), TOKENIZER)
    check_task(open_task("glue/sst2", model("two"), TOKENIZER, train=table(tmp_path)), model("two"))


def _tagged(number: int) -> list[list[tuple[str, str]]]:
    nouns = {"the": "DET", ".": "VERB"}
    return [[(word, nouns.get(word, "NOUN")) for word in text.split()] for text in sentences(number)]


def test_token_classification(tmp_path: Path) -> None:
    conll = [line for sentence in _tagged(20) for line in (*(f"{word} x {tag}" for word, tag in sentence), "")]
    rows = [json.dumps({"tokens": [w for w, _ in s], "tags": [t for _, t in s]}) for s in _tagged(20)]
    numbers = [json.dumps({"words": [w for w, _ in s], "labels": [TAGS["label2id"][t] for _, t in s]}) for s in _tagged(20)]
    conllu = [line for s in _tagged(20) for line in ("# text", *(f"{i}\t{w}\t_\t{t}" + "\t_" * 6 for i, (w, t) in enumerate(s, 1)), "")]
    files = [
        write(tmp_path / name, lines) for name, lines in (("a.conll", conll), ("a.jsonl", rows), ("b.jsonl", numbers), ("a.conllu", conllu))
    ]
    tasks = [open_task("token-classification", model("tags"), TOKENIZER, train=path) for path in files]
    check_task(tasks[0], model("tags"))
    assert all(list(task.report) == list(tasks[0].report) for task in tasks)


def test_labels_stand_at_the_first_piece_of_a_word(tmp_path: Path) -> None:
    words = str(tavi.say_clause(draw_clause(Random(3)))).split()
    rows = [
        json.dumps({"tokens": [*words, end], "tags": ["NOUN"] * len(words) + ["DET"]})
        for end in [clause for text in sentences(6) for clause in text.split()]
    ]
    task = open_task("token-classification", model("tags"), TOKENIZER, train=write(tmp_path / "a.jsonl", rows))
    example = task.calibration[0]
    pieces = TOKENIZER.convert_ids_to_tokens(example["input_ids"])
    assert [label != IGNORED for label in example["labels"]] == [p not in ("[CLS]", "[SEP]") and not p.startswith("##") for p in pieces]
    assert any(piece.startswith("##") for piece in pieces)


@pytest.mark.parametrize("by", ["window", "line", "paragraph"])
@pytest.mark.parametrize(
    ("task", "kind"), [("lm", "causal"), ("causal-lm", "causal"), ("lm", "masked"), ("masked-lm", "masked"), (None, "causal")]
)
def test_language_models(tmp_path: Path, task: str | None, kind: str, by: str) -> None:
    text = [line for sentence in sentences(60) for line in (sentence, "")]
    made = open_task(
        f"{task or default_task(model(kind))}(by={by})", model(kind), TOKENIZER, train=write(tmp_path / "a.txt", text), max_length=32
    )
    check_task(made, model(kind))
    if by == "window":
        assert {len(made.calibration[i]["input_ids"]) for i in range(len(made.calibration))} <= {32, len(made.calibration[-1]["input_ids"])}


@pytest.mark.parametrize("kind", TABLES)
def test_a_table_of_texts_is_one_to_language_models_and_roles(tmp_path: Path, kind: str) -> None:
    spoken_text = sentences(30)
    rows = pandas.DataFrame({"label": ["a"] * 30, "text": spoken_text})
    path = tmp_path / f"a{kind}"
    if kind in (".csv", ".tsv"):
        rows.to_csv(path, index=False, sep="," if kind == ".csv" else "\t")
    elif kind == ".parquet":
        rows.to_parquet(path)
    else:
        rows.to_json(path, orient="records", lines=True)
    plain = open_task("lm(by=line)", model("causal"), TOKENIZER, train=write(tmp_path / "a.txt", spoken_text))
    task = open_task("lm(by=line)", model("causal"), TOKENIZER, train=path)
    assert [list(task.split(split)) for split in SPLITS] == [list(plain.split(split)) for split in SPLITS]
    assert [sentence.text for sentence in read_annotated(path)] == spoken_text


def test_a_column_of_texts_without_a_header_is_enough(tmp_path: Path) -> None:
    plain, made = (open_task("lm", model("causal"), TOKENIZER, train=write(tmp_path / name, sentences(90))) for name in ("a.txt", "a.tsv"))
    assert list(made.report) == list(plain.report)
    two = write(tmp_path / "b.tsv", [f"{text}\tyes" for text in sentences(30)])
    with pytest.raises(DataError, match=r"has 2 columns and no header that is known; give 1 \(text\), or name columns by text_column"):
        open_task("lm", model("causal"), TOKENIZER, train=two)


def test_windows_hold_all_tokens_of_the_text(tmp_path: Path) -> None:
    task = open_task("lm", model("causal"), TOKENIZER, train=write(tmp_path / "a.txt", sentences(30)), max_length=16)
    windows = [task.split(split)[i]["input_ids"] for split in SPLITS for i in range(len(task.split(split)))]
    assert all(ids[0] == 2 and ids[-1] == 3 for ids in windows)
    tokens = [token for text in sentences(30) for token in TOKENIZER(text, add_special_tokens=False)["input_ids"]]
    assert sorted(token for ids in windows for token in ids[1:-1]) in (sorted(tokens), sorted(tokens[:-1]))


def test_masking_follows_the_seed_alone(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", sentences(300))

    def made(seed: int) -> list[dict[str, Any]]:
        torch.manual_seed(seed + 100)
        task = open_task("masked-lm(by=line)", model("masked"), TOKENIZER, train=path, seed=seed)
        return [dict(task.calibration[i]) for i in range(len(task.calibration))]

    assert made(0) == made(0) != made(1)
    labels = [label for row in made(0) for label in row["labels"]]
    ordinary = sum(len(row["input_ids"]) - 2 for row in made(0))
    assert 0.12 < sum(label != IGNORED for label in labels) / ordinary < 0.25
    for row in made(0):
        pairs = list(zip(row["input_ids"], row["labels"], strict=True))
        assert all((token == TOKENIZER.mask_token_id) == (label != IGNORED) for token, label in pairs)


def _parallel(folder: Path, number: int = 24) -> list[Path]:
    random = Random(1)
    clauses = [draw_clause(random) for _ in range(number)]
    source, target = folder / "s.en.gz", folder / "t.tavi"
    with gzip.open(source, "wt", encoding="utf-8") as file:
        file.writelines(f"{english.say_clause(clause)}\n" for clause in clauses)
    return [source, write(target, [str(tavi.say_clause(clause)) for clause in clauses])]


@pytest.mark.parametrize("name", ["translation", "summarisation"])
@pytest.mark.parametrize("metric", ["bleu", "chrf"])
def test_parallel_text(tmp_path: Path, name: str, metric: str) -> None:
    task = open_task(f"{name}(metric={metric};max_new_tokens=6)", model("marian"), TOKENIZER, train=_parallel(tmp_path))
    check_task(task, model("marian"))
    assert task.metric is not None and task.metric.name.lower() == metric and task.metric.generates


def test_parallel_text_in_tables(tmp_path: Path) -> None:
    rows = [{"source": s, "target": t} for s, t in zip(sentences(12), sentences(12, 1), strict=True)]
    lines = write(tmp_path / "a.jsonl", [json.dumps(row) for row in rows])
    cells = write(tmp_path / "a.tsv", [f"{row['source']}\t{row['target']}" for row in rows])
    tasks = [open_task("translation", model("marian"), TOKENIZER, train=path) for path in (lines, cells)]
    assert list(tasks[0].report) == list(tasks[1].report)


def test_bleu_compares_with_the_text_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens cannot give 'UNKNOWN7' back: a reference that was decoded would match the output [UNK]."""
    lines = [f"{a}\t{a} UNKNOWN{i}" for i, a in enumerate(sentences(24))]
    task = open_task("translation", model("marian"), TOKENIZER, train=write(tmp_path / "a.tsv", lines))
    batch = task.collate([task.report[0], task.report[1]])
    monkeypatch.setattr(model("marian"), "generate", lambda **_: batch["labels"].clamp(min=0))
    assert task.metric is not None
    parts = task.metric.parts(model("marian"), None, batch)
    assert torch.all(parts[:, 1] - parts[:, 2] == 1)  # every word of the reference but UNKNOWN is matched


def _images(folder: Path, size: int = 8) -> Path:
    from PIL import Image

    random = Random(0)
    for label in ("0", "1"):
        (folder / label).mkdir(parents=True)
        for number in range(6):
            Image.new("RGB", (size, size), tuple(random.randrange(256) for _ in range(3))).save(folder / label / f"{number}.png")
    return folder


def test_image_classification(tmp_path: Path) -> None:
    folder = _images(tmp_path / "pictures")
    task = open_task("image-classification", model("images"), train=folder)
    batch = task.collate([task.calibration[i] for i in range(4)])
    assert batch["pixel_values"].shape == (4, 3, 8, 8) and 0 <= batch["pixel_values"].min() <= batch["pixel_values"].max() <= 1
    check_batch(model("images"), batch)
    assert torch.isfinite(model("images")(**batch).loss)
    assert [len(task.split(split)) for split in SPLITS] == [6, 2, 4]


def test_images_through_a_processor_and_from_parquet(tmp_path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    try:  # older releases have one processor, which works on pillow images
        from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil
    except ModuleNotFoundError:
        from transformers.models.vit.image_processing_vit import ViTImageProcessor as ViTImageProcessorPil

    folder = _images(tmp_path / "pictures", size=20)
    rows = [
        {"image": {"bytes": path.read_bytes(), "path": None}, "label": int(path.parent.name)} for path in sorted(folder.glob("*/*.png"))
    ]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    processor = ViTImageProcessorPil(size={"height": 8, "width": 8})
    tasks = [open_task("image-classification", model("images"), processor, train=path) for path in (folder, tmp_path / "a.parquet")]
    for one, other in zip(tasks[0].report, tasks[1].report, strict=True):
        assert torch.equal(one["pixel_values"], other["pixel_values"]) and one["labels"] == other["labels"]


DEMOS = {
    "entailment": "pairs",
    "entailment-tavi": "pairs",
    "stories": "causal",
    "text": "masked",
    "text-tavi": "masked",
    "translation": "marian",
}


@pytest.mark.parametrize(("variant", "kind"), DEMOS.items())
def test_demo(variant: str, kind: str) -> None:
    options = "size=20;max_new_tokens=5" if variant == "translation" else "size=20"
    task, again = (open_task(f"demo/{variant}({options})", model(kind), None) for _ in range(2))
    other = open_task(f"demo/{variant}(size=20)", model(kind), TOKENIZER, limit=7, seed=1)
    check_task(task, model(kind))
    assert [list(task.split(split)) for split in SPLITS] == [list(again.split(split)) for split in SPLITS]
    assert len(other.report) == 7 and other.report[0] != task.report[0]
    assert not any(TOKENIZER.unk_token_id in task.report[i]["input_ids"] for i in range(20))


def test_demo_rare_words_labels_every_word_and_suits_its_own_model_alone() -> None:
    trained = hc.load("demo/rare-words")
    task = open_task("demo/rare-words(size=40)", trained)
    for example in task.report:
        is_ignored = [label == IGNORED for label in example["labels"]]
        assert is_ignored == [True, *[False] * (len(is_ignored) - 2), True], "[CLS] and [SEP]"
    assert evaluate(trained, task).value > 0.98
    with pytest.raises(DataError, match="only the tokenizer of the embedded models knows"):
        open_task("demo/rare-words", trained, TOKENIZER)


def test_demo_translation_is_tokenised_as_in_training() -> None:
    from train_embedded import RECIPES

    trained = RECIPES["translator"].rows(Random(0), TOKENIZER, 0.0005)
    task = open_task("demo/translation(size=20)", model("marian"), TOKENIZER)
    for row in (*trained, *task.report):
        assert row["input_ids"][0] != TOKENIZER.cls_token_id and row["input_ids"][-1] == row["labels"][-1] == TOKENIZER.eos_token_id
    say = [TOKENIZER.decode(task.report[0][name], skip_special_tokens=True) for name in ("input_ids", "labels")]
    assert say[0].split()[0] in {"the", "a", "an"} or say[0][0].isalpha()
    assert "##" not in say[1] and say[0] != say[1]


# What is wrong with options, models and data

Case = tuple[str, str, dict[str, Any], str]


def _tsv(*lines: str) -> Callable[[Path], Path]:
    return lambda folder: write(folder / "a.tsv", list(lines))


def _named(name: str, *lines: str) -> Callable[[Path], Path]:
    return lambda folder: write(folder / name, list(lines))


def _raw(name: str, data: bytes) -> Callable[[Path], Path]:
    def made(folder: Path) -> Path:
        (folder / name).write_bytes(data)
        return folder / name

    return made


S = sentences(24)
TAGGED = (("the", "DET"), ("a", "DET"), ("an", "DET"), ("dog", "NOUN"), ("bird", "NOUN"), ("cat", "NOUN"))
GOOD = [f"{text}\t{i % 2}" for i, text in enumerate(S)]
LONG = " ".join(S * 4)
MISSPELT = {"text_column": "sentense"}
GAP = ('{"text": "a", "label": 1}', '{"text": "a"}')
NUMBERS = [f'{{"text": {i}, "label": {i % 2}}}' for i in range(24)]
WORDLESS = ['{"tokens": [], "tags": []}', *(f'{{"tokens": ["{word}"], "tags": ["{tag}"]}}' for word, tag in TAGGED)]
UNTAGGED = [f'{{"tokens": ["the", "{word}"], "tags": ["DET"]}}' for word in "abcdef"]
STRANGE = [line for word in "abcdefghijkl" for line in (f"{word} DET", "the X", "")]
BAD_DATA: dict[str, tuple[str, str, Any, dict[str, Any], str]] = {
    "no data": ("classification", "two", None, {}, r"needs data: give train"),
    "no file": ("classification", "two", lambda folder: folder / "none.tsv", {}, r"no file .*none\.tsv"),
    "empty file": ("classification", "two", _tsv(), {}, r"a\.tsv is empty"),
    "too few examples": ("classification", "two", _tsv(*GOOD[:2]), {}, r"has 2 examples, too few different ones .* none falls into"),
    "one label": ("classification", "two", _tsv(*(f"{s}\t1" for s in S)), {}, r"all 24 examples .* label 1"),
    "label out of range": ("classification", "two", _tsv(*GOOD, f"{S[0]} dog\t2"), {}, r"a\.tsv, line 25: label '2'.*id2label is .*LABEL_1"),
    "unknown label": ("nli", "pairs", _tsv(*(f"{s}\t{s}\tmaybe" for s in S)), {}, r"line \d+: label 'maybe'.*contradiction"),
    "float label": ("classification", "two", _tsv(*GOOD, f"{S[0]} dog\t0.5"), {}, r"label '0\.5'"),
    "classes for regression": ("classification", "regression", _tsv(*GOOD), {}, r"num_labels=1.*regression"),
    "label that is no number": ("classification", "regression", _tsv(*(f"{s}\t1.5" for s in S), "dog\tnan"), {}, r"label 'nan' is no finite"),
    "ragged line": ("classification", "two", _tsv(*GOOD, "the dog"), {}, r"line 25 has 1 columns, but the first line has 2"),
    "empty line": ("classification", "two", _tsv(*GOOD, "", *GOOD), {}, r"line 25 is empty"),
    "too many columns": ("classification", "two", _tsv("a\tb\tc\td"), {}, r"4 columns and no header"),
    "missing column": ("classification", "two", _tsv("sentence\tlabel", *GOOD), MISSPELT, r"no column 'sentense'.*Did you mean 'sentence'"),
    "no column for the label": ("classification", "two", _named("a.jsonl", '{"text": "the dog"}'), {}, r"no column for the label: it has 'text'"),
    "missing value": ("classification", "two", _named("a.jsonl", *GAP), {}, r"line 2 has no value in column 'label'"),
    "text that is no text": ("classification", "two", _named("a.jsonl", *NUMBERS), {}, r"text must be text, got \d"),
    "invalid JSON": ("classification", "two", _named("a.jsonl", '{"text": "a", "label": 1}', '{"text": '), {}, r"a\.jsonl, line 2 is no JSON"),
    "JSON that is no object": ("classification", "two", _named("a.jsonl", "[1]"), {}, r"line 1 holds a list"),
    "deep JSON": ("classification", "two", _named("a.jsonl", "[" * 100_000), {}, r"line 1 is no JSON"),
    "not UTF-8": ("classification", "two", _raw("a.tsv", b"the dog\t0\ncaf\xe9\t1\n"), {}, r"line 2 is not UTF-8: byte 0xe9"),
    "bad csv": ("classification", "two", _raw("a.csv", b'"a"b,1\n'), {}, r"line 1 is no csv"),
    "bad gzip": ("classification", "two", _raw("a.tsv.gz", b"no gzip"), {}, r"cannot be read"),
    "bad parquet": ("classification", "two", _raw("a.parquet", b"no parquet"), {}, r"cannot be read as parquet"),
    "unknown ending": ("classification", "two", _named("a.xlsx", "x"), {}, r"unknown kind of file '\.xlsx'"),
    "folder": ("classification", "two", lambda folder: folder, {}, r"is a folder"),
    "too long": ("classification", "two", _tsv(*GOOD, f"{LONG}\t1"), {}, r"line 25 has \d+ tokens, but at most 64.*max_length=64, truncate=True"),
    "no words": ("token-classification", "tags", _named("a.jsonl", *WORDLESS), {}, r"no word of it got a token"),
    "words without tags": ("token-classification", "tags", _named("a.jsonl", *UNTAGGED), {}, r"2 words, but 1 labels"),
    "unknown tag": ("token-classification", "tags", _named("a.conll", *STRANGE), {}, r"word 2: label 'X'"),
    "ragged conll": ("token-classification", "tags", _named("a.conll", "the DET", "dog"), {}, r"line 2 has 1 columns"),
    "long line": ("masked-lm(by=line)", "masked", _named("a.txt", *S, LONG), {}, r"line 25 has \d+ tokens"),
    "empty text file": ("causal-lm", "causal", _named("a.txt", "", " "), {}, r"is empty"),
    "truncated windows": ("causal-lm", "causal", _named("a.txt", *S), {"truncate": True}, r"truncate means nothing"),
    "one long document": ("translation", "marian", _tsv(*(f"{s}\t{s}" for s in S), f"dog\t{LONG}"), {}, r"line 25 has \d+ tokens"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_DATA)
def test_bad_data(tmp_path: Path, case: str) -> None:
    name, kind, make, options, message = BAD_DATA[case]
    with pytest.raises(DataError, match=message):
        open_task(name, model(kind), TOKENIZER, train=make(tmp_path) if make else None, **options)


def test_long_texts_are_cut_when_asked(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", [*GOOD, f"{LONG}\t1"])
    task = open_task("classification", model("two"), TOKENIZER, train=path, max_length=10, truncate=True)
    assert max(len(task.split(s)[i]["input_ids"]) for s in SPLITS for i in range(len(task.split(s)))) == 10


def test_parallel_files_of_different_length(tmp_path: Path) -> None:
    files = [*_parallel(tmp_path)[:1], write(tmp_path / "short", S[:8])]
    with pytest.raises(DataError, match=r"s\.en\.gz has 24, .*short has 8"):
        open_task("translation", model("marian"), TOKENIZER, train=files)


def test_train_and_eval_must_differ(tmp_path: Path) -> None:
    path = table(tmp_path)
    with pytest.raises(DataError, match="same file"):
        open_task("classification", model("two"), TOKENIZER, train=path, eval=tmp_path / "." / path.name)


def test_parquet_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtra, match="pip install pyarrow"):
        open_task("classification", model("two"), TOKENIZER, train=tmp_path / "a.parquet")


def test_bad_images(tmp_path: Path) -> None:
    folder = _images(tmp_path / "pictures", size=9)
    with pytest.raises(DataError, match=r"shape \(3, 9, 9\), but the model takes \(3, 8, 8\)"):
        open_task("image-classification", model("images"), train=folder)
    (folder / "0" / "0.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"0\.png is no image"):
        open_task("image-classification", model("images"), train=folder)
    with pytest.raises(DataError, match="holds no folder"):
        open_task("image-classification", model("images"), train=folder / "1")


@pytest.mark.parametrize(
    ("spec", "kind", "options", "error", "message"),
    [
        ("clasification", "two", {}, UnknownName, "Did you mean 'classification'"),
        ("glue/sst", "two", {}, UnknownName, "Did you mean 'sst2'"),
        ("glue", "two", {}, DataError, "glue/cola, "),
        ("nli/x", "two", {}, DataError, "has no variants"),
        ("lm", "causal", {"label_column": "x"}, DataError, "'lm' does not use label_column; it uses train, "),
        ("demo/stories", "causal", {"train": "a.tsv"}, DataError, "does not use train"),
        ("demo/stories(num_beams=2)", "causal", {}, DataError, "does not use num_beams; it generates no text"),
        ("lm(by=word)", "causal", {"train": "a.tsv"}, UnknownName, "no by of lm 'word'"),
        ("classification(metric=bleu)", "two", {"train": "a.tsv"}, UnknownName, "no metric of classification 'bleu'"),
        ("classification(metric=f1)", "pairs", {"train": "a.tsv"}, DataError, "does not fit a model with 3 labels"),
        ("classification", "two", {"train": "a.tsv", "max_length": 65}, DataError, "positions for 64"),
        (
            "classification",
            "two",
            {"train": "a.tsv", "limit": 0},
            OptionError,
            "limit of open_task must be an int or none of at least 1; got 0",
        ),
        ("classification", "two", {"train": "a.tsv", "limit": "8"}, OptionError, "limit of open_task must be .*; got '8'"),
        ("classification", "two", {"train": "a.tsv", "max_length": True}, OptionError, "max_length of open_task must be .*; got True"),
        ("classification", "two", {"train": "a.tsv", "seed": "x"}, OptionError, "seed of open_task must be an int of at least 0; got 'x'"),
        ("classification", "two", {"train": "a.tsv", "truncate": 64}, OptionError, "truncate of open_task must be true or false; got 64"),
        (
            "classification",
            "two",
            {"train": "a.tsv", "text_column": 3},
            OptionError,
            "text_column of open_task must be a text or none; got 3",
        ),
        (
            "classification",
            "two",
            {"train": 3},
            DataError,
            "train must be a file, a list of parallel files, or a datasets.Dataset; got int",
        ),
        (7, "two", {}, OptionError, "task of open_task must be"),
        ("classification", "two", {"train": "a.tsv", "text_pair_column": "b"}, DataError, "name both"),
        ("nli", "pairs", {"train": "a.tsv", "text_column": "b"}, DataError, "name text_pair_column"),
        (
            "translation(num_beams=no)",
            "marian",
            {"train": "a.tsv"},
            OptionError,
            "option num_beams of translation must be an int of at least 1",
        ),
        ("classification", "masked", {}, DataError, "AutoModelForSequenceClassification"),
        ("classification", "bare", {}, DataError, "AutoModelForSequenceClassification"),
        ("token-classification", "two", {}, DataError, "AutoModelForTokenClassification"),
        ("masked-lm", "causal", {}, DataError, "AutoModelForMaskedLM"),
        ("causal-lm", "masked", {}, DataError, "AutoModelForCausalLM"),
        ("translation", "causal", {}, DataError, "encoder–decoder"),
        ("demo/entailment", "causal", {}, DataError, "load demo/entailment, which was trained for it"),
        (None, "bare", {}, DataError, "name the task: causal-lm, "),
    ],
)
def test_bad_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spec: Any, kind: str, options: Any, error: type, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "a.tsv", [f"{text}\t{i % 2}" for i, text in enumerate(sentences(12))])
    with pytest.raises(error, match=message):
        open_task(spec, model(kind), TOKENIZER, **options)


def test_a_tokenizer_of_another_model(tmp_path: Path) -> None:
    path = table(tmp_path)
    small = BertForSequenceClassification(BertConfig(**{**SIZES, "vocab_size": 50}, num_labels=2))
    with pytest.raises(DataError, match=rf"knows {len(TOKENIZER)} tokens, but the model's vocabulary has 50"):
        open_task("classification", small, TOKENIZER, train=path)
    bert_for_sequence_classification = BertForSequenceClassification(BertConfig(**SIZES, num_labels=2, pad_token_id=1))
    with pytest.raises(DataError, match=r"pad token is 0 \('\[PAD\]'\), but the model's configuration says 1"):
        open_task("classification", bert_for_sequence_classification, TOKENIZER, train=path)
    with pytest.raises(DataError, match="needs the model's tokenizer, got NoneType"):
        open_task("classification", model("two"), None, train=path)


def test_demo_needs_the_embedded_tokenizer() -> None:
    changed = build_tokenizer()
    changed.add_tokens(["new"])
    with pytest.raises(DataError, match="embedded languages"):
        open_task("demo/text", model("masked"), changed)


def test_a_plug_in_is_found_and_its_options_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TASKS, "_registered", {})

    @TASKS.register("plug")
    @dataclass(frozen=True)
    class Plug(TaskBuilder):
        """A task of somebody else."""

        _: KW_ONLY
        size: int = option(2, "Examples", minimum=1)
        info = TaskInfo(uses=("train",), model="AutoModel", metric="none")

        def build(self, request: TaskRequest) -> Task:
            rows = [{"labels": 0}] * self.size
            return Task(request.name, rows, rows, rows, pad)

    by_text, by_object = open_task("plug(size=3)", model("two"), None), open_task(Plug(size=3), model("two"))
    assert by_text == by_object and by_text.name == "plug" and len(by_text.report) == 3
    assert by_text.options == {"name": "plug", "size": 3}, "the key of an artifact holds all options"
    with pytest.raises(UnknownName, match="no option of plug 'more'"):
        open_task("plug(more=3)", model("two"), None)
    with pytest.raises(DataError, match="'plug' does not use label_column; it uses train"):
        open_task("plug", model("two"), None, label_column="x")
    with pytest.raises(ValueError, match="uses holds trian"):
        TaskInfo(uses=("trian",), model="AutoModel", metric="none")


# Batches and weights


def _batch(**changes: Any) -> dict[str, Any]:
    return {"input_ids": torch.full((3, 8), 7), "attention_mask": torch.ones(3, 8).long(), "labels": torch.tensor([0, 1, 0]), **changes}


def _at(value: torch.Tensor, position: Any, new: float) -> torch.Tensor:
    value = value.clone()
    value[position] = new
    return value


IDS, MASK = torch.full((3, 8), 7), torch.ones(3, 8).long()
BAD_BATCHES: dict[str, tuple[str, dict[str, Any], str]] = {
    "short mask": ("two", {"attention_mask": MASK[:, :5]}, r"\(3, 5\), but input_ids has \(3, 8\)"),
    "long mask": ("two", {"attention_mask": torch.ones(3, 12)}, r"\(3, 12\), but input_ids has \(3, 8\)"),
    "mask of one row": ("two", {"attention_mask": MASK[:1]}, r"\(1, 8\), but input_ids has \(3, 8\)"),
    "mask of four axes": ("two", {"attention_mask": torch.ones(3, 1, 8, 5)}, r"\(3, 1, 8, 5\)"),
    "masked row": ("two", {"attention_mask": _at(MASK, 1, 0)}, r"example 11: its attention_mask is all zeros"),
    "id beyond the vocabulary": ("two", {"input_ids": _at(IDS, (2, 3), 240)}, r"example 12: token id 240 .* ends at 239"),
    "negative id": ("two", {"input_ids": _at(IDS, (0, 3), -1)}, r"example 10: token id -1"),
    "too long": ("two", {"input_ids": IDS.repeat(1, 9), "attention_mask": MASK.repeat(1, 9)}, r"has 72 tokens .* positions for 64"),
    "label out of range": ("two", {"labels": torch.tensor([0, 2, 0])}, r"example 11: label 2 .*id2label"),
    "negative label": ("two", {"labels": torch.tensor([0, 0, -1])}, r"example 12: label -1"),
    "ignored class": ("two", {"labels": torch.tensor([0, 0, IGNORED])}, r"example 12: all its labels are -100"),
    "ignored tokens": ("masked", {"labels": _at(IDS, 1, IGNORED)}, r"example 11: all its labels"),
    "only the first label": ("causal", {"labels": _at(IDS, (1, slice(1, None)), IGNORED)}, r"example 11: all its labels after the first"),
    "token label out of range": ("masked", {"labels": _at(IDS, (2, 0), 240)}, r"example 12: label 240 .* 240 tokens"),
    "tag out of range": ("tags", {"labels": _at(IDS * 0, (2, 0), 3)}, r"example 12: label 3"),
    "infinite input": ("images", {"pixel_values": _at(torch.zeros(3, 3, 8, 8), (1, 0), torch.inf)}, r"example 11: pixel_values holds inf"),
    "long target": ("marian", {"labels": IDS.repeat(1, 9)}, r"72 tokens in labels"),
    "nothing": ("two", {"input_ids": IDS[:, :0], "attention_mask": MASK[:, :0]}, r"is empty: its shape is \(3, 0\)"),
}


@pytest.mark.parametrize("case", BAD_BATCHES)
def test_bad_batches(case: str) -> None:
    kind, changes, message = BAD_BATCHES[case]
    with pytest.raises(DataError, match=message):
        check_batch(model(kind), changes if "pixel_values" in changes else _batch(**changes), range(10, 20))


def test_good_batches_pass() -> None:
    check_batch(model("two"), _batch())
    check_batch(model("two"), _batch(attention_mask=torch.ones(3, 1, 8, 8)))
    check_batch(model("two"), _batch(labels=None))
    check_batch(model("regression"), _batch(labels=torch.rand(3)))
    check_batch(model("causal"), _batch(labels=_at(IDS, (0, slice(0, 3)), IGNORED)))
    check_batch(model("images"), {"pixel_values": torch.zeros(2, 3, 8, 8), "labels": torch.tensor([0, 1])})
    check_batch(model("marian"), _batch(labels=IDS[:, :4]))


def test_positions_and_vocabulary_of_families() -> None:
    roberta = RobertaForSequenceClassification(RobertaConfig(**{**SIZES, "max_position_embeddings": 20}))
    assert n_positions(roberta) == 18
    assert roberta(input_ids=torch.full((1, 18), 7)).logits.shape == (1, 2)
    with pytest.raises((IndexError, RuntimeError)):
        roberta(input_ids=torch.full((1, 19), 7))
    assert n_positions(T5ForConditionalGeneration(T5Config(vocab_size=50, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2))) is None
    assert n_positions(GPT2LMHeadModel(GPT2Config(vocab_size=50, n_positions=30, n_embd=8, n_layer=1, n_head=2))) == 30
    assert n_positions(model("two")) == 64 and input_vocabulary_size(model("two")) == 240


def test_weights_that_are_not_finite() -> None:
    broken = MODELS["two"]()
    check_finite_weights(broken)
    with torch.no_grad():
        broken.get_parameter("bert.encoder.layer.0.output.dense.weight")[1, 2] = torch.nan
    with pytest.raises(NonFinite, match=r"bert\.encoder\.layer\.0\.output\.dense\.weight' holds 1 of 256 values"):
        check_finite_weights(broken)


def test_finite_weights_may_have_a_sum_that_is_not() -> None:
    large = MODELS["two"]()
    weight = large.get_parameter("bert.encoder.layer.0.output.dense.weight")
    with torch.no_grad():
        weight[:] = 3e38
    assert not weight.sum().isfinite()
    check_finite_weights(large)
    with torch.no_grad():
        weight[0, 0], weight[0, 1] = torch.inf, -torch.inf
    with pytest.raises(NonFinite, match="holds 2 of 256 values"):
        check_finite_weights(large)


def test_all_errors_are_ours() -> None:
    assert issubclass(DataError, HeadcountError) and issubclass(MissingExtra, HeadcountError)


# Evaluation under a plan, and heads by layer


def test_a_plan_is_evaluated_by_gates() -> None:
    of, task = model("pairs"), open_task("demo/entailment(size=4)", model("pairs"))
    pruned = evaluate(of, task, plan=Plan.removing(["L0H1"]))
    with mask(of, {0: [1]}):
        masked = evaluate(of, task)
    assert pruned.losses.tolist() == masked.losses.tolist() != evaluate(of, task).losses.tolist()
    with pytest.raises(HeadcountError, match="no head L7H0"):
        mask(of, {7: [0]})
    with pytest.raises(UnknownName, match="no split of evaluate 'test'"):
        evaluate(of, task, split="test")  # pyright: ignore[reportArgumentType]
    with pytest.raises(OptionError, match="limit of evaluate must be an int or none of at least 1; got 0"):
        evaluate(of, task, limit=0)
