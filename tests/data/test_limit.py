"""`--limit`: no command shows a model more examples of a split than that, and which examples these are depends on their content alone."""

from __future__ import annotations

import gzip
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import result, run
from torch import nn
from toys import saved_classifier, saved_table, sentences

import headcount as hc
from headcount.app.cli._app import import_command, list_command_names
from headcount.app.cli.study import build_study_command
from headcount.app.jobs import demo
from headcount.core.errors import PartlyRead
from headcount.core.registry import STUDIES
from headcount.data.embedded.sentences import draw_sentences
from headcount.data.embedded.tokenizer import build_tokenizer
from headcount.data.open_task import open_task
from headcount.data.readers import tables
from headcount.data.readers.processor import tokenizer_or_image_processor
from headcount.data.task import SPLITS, Task
from headcount.data.tasks._splits import split_by_hash
from headcount.surgery.source import local_folder

LIMIT = 16
Words = tuple[object, ...]
TEXT: Words = ("demo/encoder", "--task", "demo/text", "--task-option", "size=40")
PAIRS: Words = ("demo/entailment", "--task", "demo/entailment")
QUICK: Words = ("--method", "magnitude", "--keep", "4")
SHORT: Words = ("--seeds", 1, "--steps", 4, "--train-batch", 8)
CURVE: Words = ("--methods", "gradient", "--keep", "50%", "--seeds", 1)

# Commands that have --limit: {model}, {other} and {data} stand for a classifier, another one, and a table for them.
COMMANDS: dict[str, Words] = {
    "score": ("score", "{model}", "--train", "{data}", "--by", "gradient,ablation,confidence"),
    "roles": ("roles", "{model}", "--task", "classification", "--train", "{data}", "--only", "offset"),
    "prune": ("prune", "{model}", "--train", "{data}", "--keep", "4", "--out", "{out}", "--no-bench"),
    "compare": (
        *("compare", "{model}", "--train", "{data}", "--methods", "fisher,l0,dsp", "--keep", "50%"),
        *("--seeds", 1, "--train-batch", 8, "--out", "{out}"),
    ),
    "certify": ("certify", "{model}", "--against", "{other}", "--train", "{data}", "--margin", "1pt", "--out", "{out}"),
    "analyze": ("analyze", "{model}", "--train", "{data}", "--methods", "surgeon", "--keep", "50%", "--seeds", 1, "--out", "{out}"),
    "demo": ("demo", "--out", "{out}"),
    "evaluate": ("evaluate", "{model}", "--train", "{data}", "--heads", "L0H1"),
    "study all-but-one": ("study", "all-but-one", "{model}", "--train", "{data}", "--how", "mean"),
    "study by-type": ("study", "by-type", "{model}", "--train", "{data}"),
    "study compensation": ("study", "compensation", "{model}", "--train", "{data}", *QUICK, "--train-batch", 8, "--out", "{out}"),
    "study dynamics": ("study", "dynamics", "{model}", "{other}", "--train", "{data}", "--keep", "50%", "--out", "{out}"),
    "study finetune-roles": ("study", "finetune-roles", "{model}", "{other}", "--task", "classification", "--train", "{data}", "--only", "offset"),
    "study languages": (
        *("study", "languages", "demo/entailment", "--tasks", "demo/entailment,demo/entailment-tavi"),
        *("--against", "demo/entailment-english", "--method", "magnitude", "--keep", "50%", "--out", "{out}"),
    ),
    "study importance-map": ("study", "importance-map", "{model}", "gradient", "--train", "{data}", "--out", "{out}"),
    "study importance-or-random": (
        *("study", "importance-or-random", "{model}", "--train", "{data}", "--by", "magnitude", "--keep", "50%", "--seeds", 1),
        *("--recover", "2steps", "--train-batch", 8, "--out", "{out}"),
    ),
    "study interventions": ("study", "interventions", "{model}", "--train", "{data}", "--keep", "50%", "--seeds", 1, "--out", "{out}"),
    "study kept": ("study", "kept", "{model}", "--train", "{data}", *CURVE, "--out", "{out}"),
    "study plan-transfer": ("study", "plan-transfer", *PAIRS[:1], "demo/entailment-tavi", *PAIRS[1:], *QUICK, "--seeds", 1, "--out", "{out}"),
    "study pruning-curve": ("study", "pruning-curve", "{model}", "--train", "{data}", *CURVE, "--out", "{out}"),
    "study role-families": ("study", "role-families", "{model}", "--task", "classification", "--train", "{data}"),
    "study role-map": ("study", "role-map", "{model}", "--task", "classification", "--train", "{data}"),
    "study single-heads": ("study", "single-heads", "{model}", "--train", "{data}", "--out", "{out}"),
    "study speed": (
        *("study", "speed", "{model}", "--train", "{data}", "--method", "gradient", "--keep", "50%"),
        *("--batches", "1", "--length", 8, "--rounds", 15, "--out", "{out}"),
    ),
    "study strategies": (
        *("study", "strategies", "{model}", "--train", "{data}", "--strategies", "layers:top", "--keep", "50%", "--seeds", 1),
        *("--recover", "2steps", "--train-batch", 8, "--out", "{out}"),
    ),
    "study task-transfer": ("study", "task-transfer", *PAIRS[:1], "demo/entailment-tavi", *PAIRS[1:], "--out", "{out}"),
    "study attention-maps": ("study", "attention-maps", "{model}", "--task", "classification", "--train", "{data}", "--out", "{out}"),
    "study from-scratch": ("study", "from-scratch", "{model}", "--train", "{data}", *SHORT, "--scratch", "2steps", "--out", "{out}"),
    "study penalty-sweep": ("study", "penalty-sweep", "{model}", "0.01", "--train", "{data}", *SHORT, "--out", "{out}"),
    "study remaining-roles": (
        *("study", "remaining-roles", "{model}", "--task", "classification", "--train", "{data}", *CURVE, "--out", "{out}"),
    ),
    "study training-log": ("study", "training-log", "{model}", "--train", "{data}", "--steps", 4, "--train-batch", 8, "--out", "{out}"),
    "study layers": ("study", "layers", "{model}", "--train", "{data}", "--how", "mean"),
    "study rare-words": ("study", "rare-words", "{model}", "--task", "classification", "--train", "{data}", "--frequent", 1),
    "study relation-accuracy": ("study", "relation-accuracy", "{model}", "--embedded", "english"),
    "study role-definitions": ("study", "role-definitions", "{model}", "--task", "classification", "--train", "{data}", "--show", "sweep"),
    "study role-pruning": ("study", "role-pruning", *TEXT, "--role", "any", "--keep", "50%", "--seeds", 1, "--out", "{out}"),
    "study roles-importance": ("study", "roles-importance", "{model}", "--train", "{data}", "--by", "gradient"),
    "study survivors": ("study", "survivors", "{run}", "--embedded", "english"),
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classifiers and a table."""
    folder = tmp_path_factory.mktemp("limited")
    saved_classifier(folder / "model")
    saved_classifier(folder / "other", seed=1)
    saved_table(folder / "data.csv", 400)
    return folder


@pytest.fixture
def sequences(monkeypatch: pytest.MonkeyPatch) -> set[tuple[int, ...]]:
    """Every sequence of tokens that a model reads meanwhile, without its padding."""
    actual: set[tuple[int, ...]] = set()
    size, forward = len(build_tokenizer()), nn.Embedding.forward

    def note(module: nn.Embedding, ids: torch.Tensor) -> torch.Tensor:
        if module.num_embeddings == size and ids.ndim == 2:
            actual.update(tuple(token for token in row if token) for row in ids.tolist())
        return forward(module, ids)

    monkeypatch.setattr(nn.Embedding, "forward", note)
    return actual


def splits_of(words: Words, folder: Path) -> list[set[tuple[int, ...]]]:
    """What a command line could read without a limit: the token ids of each split of its tasks, or of its text."""
    if words[1] in ("survivors", "relation-accuracy"):
        tokenizer = build_tokenizer()
        return [{tuple(tokenizer(sentence.text)["input_ids"]) for sentence in draw_sentences("english", 200)}]
    return [
        {tuple(task.split(split)[i]["input_ids"]) for i in range(len(task.split(split)))}
        for task in tasks_of(words, folder)
        for split in SPLITS
    ]


def tasks_of(words: Words, folder: Path) -> list[Task]:
    """The tasks of a command line, whole."""
    if words[0] == "demo":
        named = [("demo/entailment", "demo/entailment")]
    elif words[1] in ("languages", "plan-transfer", "task-transfer"):
        named = [("demo/entailment", "demo/entailment"), ("demo/entailment", "demo/entailment-tavi")]
    elif words[1] == "role-pruning":
        named = [("demo/encoder", "demo/text")]
    else:
        live = hc.load(folder / "model")
        return [open_task("classification", live, tokenizer_or_image_processor(live, folder / "model"), train=folder / "data.csv")]
    models = [(hc.load(model), local_folder(model), task) for model, task in named]
    return [open_task(task, live, tokenizer_or_image_processor(live, folder)) for live, folder, task in models]


def commands_with_limit() -> set[str]:
    own = ("study", "paper", "find")  # find reads recordings and sequences of its own: tests/app/test_find_cli.py
    verbs = {name: import_command(name) for name in list_command_names() if name not in own}
    verbs |= {
        f"study {name}": build_study_command(name) for name in STUDIES.names() if name != "weight-change"
    }  # which reads weights alone
    return {name for name, command in verbs.items() if any("--limit" in option.opts for option in command.params)}


def test_no_command_with_a_limit_is_forgotten() -> None:
    assert commands_with_limit() == set(COMMANDS)


@pytest.mark.usefixtures("small_bench")
@pytest.mark.parametrize("command", COMMANDS)
def test_no_model_reads_more_of_a_split(
    command: str,
    folder: Path,
    sequences: set[tuple[int, ...]],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    positions = {"{model}": folder / "model", "{other}": folder / "other", "{data}": folder / "data.csv", "{out}": tmp_path / "run"}
    if command == "study survivors":
        positions["{run}"] = tmp_path / "compared"
        compared = ("compare", folder / "model", "--train", folder / "data.csv", "--methods", "magnitude", "--keep", "50%", "--no-repair")
        assert run(capsys, *compared, "--limit", LIMIT, "--out", tmp_path / "compared")[0] == 0
    words = tuple(positions.get(str(word), word) for word in COMMANDS[command])
    splits = splits_of(COMMANDS[command], folder)
    monkeypatch.setattr(demo, "TASKS", {"entailment": "demo/entailment"})  # one of its models is enough
    sequences.clear()
    code, _, err = run(capsys, *words, "--limit", LIMIT)
    assert code == 0, err
    read = [len(sequences & split) for split in splits]
    assert max(read) <= LIMIT, f"examples read of each split: {read}"
    assert max(read) > LIMIT // 2, f"examples read of each split: {read}"


# Which examples these are.


def test_membership_does_not_change_with_the_limit(folder: Path) -> None:
    live, reader = hc.load(folder / "model"), tokenizer_or_image_processor(hc.load(folder / "model"), folder / "model")
    tasks = [open_task("classification", live, reader, train=folder / "data.csv", limit=limit) for limit in (None, 40, 7)]
    for split in SPLITS:
        complete, some, few = ([tuple(task.split(split)[i]["input_ids"]) for i in range(len(task.split(split)))] for task in tasks)
        assert len(some) == 40 and len(few) == 7 and set(few) < set(some) < set(complete)
        assert complete[:40] == some and some[:7] == few, "the first ones in the order of their hashes"


def test_parts_keep_the_smallest_hashes_of_each_share() -> None:
    import hashlib

    def value(item: str) -> int:
        return int.from_bytes(hashlib.sha256(item.encode()).digest()[:8])

    items = [f"text {number}" for number in range(4000)]
    by_hash = split_by_hash(items, str.encode, (2, 1, 1))
    some = split_by_hash(iter(items), str.encode, (2, 1, 1), 25)
    edges = [(0, 2**63), (2**63, 3 * 2**62), (3 * 2**62, 2**64)]
    for (low, high), all_of_it, remaining in zip(edges, by_hash, some, strict=True):
        assert all_of_it == sorted((item for item in items if low <= value(item) < high), key=value)
        assert remaining == all_of_it[:25]
    doubled = split_by_hash([*items, *items], str.encode, (2, 1, 1))
    assert [set(part) for part in doubled] == [set(part) for part in by_hash], "equal examples share a split"


# How much is read of a large file that is sorted by label.

ROWS, LABELS = 4000, 4


def _parquet(path: Path, texts: list[str], labels: list[int], group: int) -> Path:
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"text": texts, "label": labels, "rest": ["x" * 50] * len(texts)}), path, row_group_size=group)
    return path


def _lines(path: Path, lines: list[str]) -> Path:
    with gzip.open(path, "wt") if path.suffix == ".gz" else path.open("w") as file:
        file.write("".join(line + "\n" for line in lines))
    return path


WRITERS: dict[str, Callable[[Path, list[str], list[int]], Any]] = {
    "parquet, many groups": lambda place, texts, labels: _parquet(place / "a.parquet", texts, labels, 10),
    "parquet, large groups": lambda place, texts, labels: _parquet(place / "a.parquet", texts, labels, ROWS // 8),
    "parquet, one group": lambda place, texts, labels: _parquet(place / "a.parquet", texts, labels, ROWS),
    "tsv": lambda place, texts, labels: _lines(place / "a.tsv", [f"{t}\t{n}" for t, n in zip(texts, labels, strict=True)]),
    "tsv.gz": lambda place, texts, labels: _lines(place / "a.tsv.gz", [f"{t}\t{n}" for t, n in zip(texts, labels, strict=True)]),
    "csv": lambda place, texts, labels: _lines(
        place / "a.csv", ["text,label", *(f'"{t}\nx",{n}' for t, n in zip(texts, labels, strict=True))]
    ),
    "jsonl": lambda place, texts, labels: _lines(
        place / "a.jsonl", [json.dumps({"text": t, "label": n}) for t, n in zip(texts, labels, strict=True)]
    ),
    "dataset": lambda _, texts, labels: _dataset(texts, labels),
}


def _dataset(texts: list[str], labels: list[int]) -> Any:
    import datasets

    return datasets.Dataset.from_dict({"text": texts, "label": labels})


@pytest.mark.parametrize("kind", WRITERS)
def test_few_rows_of_a_sorted_file_are_read_and_all_labels_are_among_them(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "MOST", 500)
    saved_classifier(tmp_path / "model", names={n: f"LABEL_{n}" for n in range(LABELS)})
    live = hc.load(tmp_path / "model")
    texts = [f"{text} {number}" for number, text in enumerate(sentences(40) * (ROWS // 40))]
    source = WRITERS[kind](tmp_path, texts, [number * LABELS // ROWS for number in range(ROWS)])
    numbers: set[int] = set()

    class Noted(tables.TableRow):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            numbers.add(self.number)

    monkeypatch.setattr(tables, "TableRow", Noted)
    with pytest.warns(PartlyRead, match=rf"of {ROWS:,}|of {ROWS + 1:,}"):
        task = open_task("classification", live, build_tokenizer(), train=source, limit=5)
    read = len(numbers)
    assert 250 <= read <= 500 and all(len(task.split(split)) == 5 for split in SPLITS)
    lines = 2 if kind == "csv" else 1
    assert {(number // lines) * LABELS // (ROWS + 2) for number in numbers} == set(range(LABELS))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        numbers.clear()
        open_task("classification", live, build_tokenizer(), train=source, limit=50)
    assert len(numbers) == ROWS, "100 rows for each example of the limit"


@pytest.mark.parametrize("groups", [100, 1])
def test_memory_does_not_grow_with_the_file(groups: int, tmp_path: Path) -> None:
    """A tenth of a million rows is read, one after another."""
    import subprocess
    import sys

    import pyarrow
    from pyarrow import parquet

    rows = 1_000_000 // groups
    schema = pyarrow.schema({"text": pyarrow.string(), "label": pyarrow.int64()})
    with parquet.ParquetWriter(tmp_path / "a.parquet", schema) as writer:
        for group in range(groups):
            texts = pyarrow.array([f"the dog {group} {number}" for number in range(rows)])
            writer.write_table(pyarrow.table({"text": texts, "label": pyarrow.array([group % 2] * rows)}, schema=schema))
    code = (
        "import resource, sys, warnings; from pathlib import Path; warnings.simplefilter('ignore')\n"
        "from headcount.data.readers.tables import read_rows; import pyarrow.parquet\n"
        "from headcount.data.tasks.classification import text_and_label_layout\n"
        "from headcount.data.task_builder import TaskRequest; found = text_and_label_layout(TaskRequest('classification', None))\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "before = peak(); print(sum(1 for _ in read_rows((Path(sys.argv[1]),), found, 100_000)), (peak() - before) // 1024)"
    )
    outcome = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "a.parquet")], capture_output=True, text=True, check=True, timeout=120
    )
    number, megabytes = map(int, outcome.stdout.split())
    assert 90_000 <= number <= 100_000 and megabytes < 120, (number, megabytes)


@pytest.mark.filterwarnings("default::headcount.core.errors.PartlyRead")
def test_a_limited_command_says_that_rows_were_left_out(
    capsys: pytest.CaptureFixture[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "MOST", 100)
    monkeypatch.setattr(tables, "PER_EXAMPLE", 10)
    code, _, err = run(capsys, "score", folder / "model", "--train", folder / "data.csv", "--by", "gradient", "--limit", 4)
    assert code == 0 and err.count("rows, spread evenly over it, are read") == 1, err
    assert "task classification: 4 calibration, 4 selection, 4 report" in err
    assert result(capsys, "score", folder / "model", "--train", folder / "data.csv", "--by", "gradient", "--limit", 40)


def test_a_limit_below_the_number_of_labels_is_no_error(folder: Path) -> None:
    live = hc.load(folder / "model")
    task = open_task("classification", live, build_tokenizer(), train=folder / "data.csv", limit=1)
    assert [len(task.split(split)) for split in SPLITS] == [1, 1, 1]
    with torch.no_grad():
        assert torch.isfinite(live(**task.collate([task.report[0]])).loss)
