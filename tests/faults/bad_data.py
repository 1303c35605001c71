"""Data that must be refused: files that are none, rows that do not fit, batches that the stack would compute nonsense from."""

from __future__ import annotations

import gzip
import json
from typing import Any

import torch
from bad_kit import Call, Kit, as_nobody, case, line

import headcount as hc
from headcount.data.open_task import open_task

GOOD = "".join(f"{'the ' * (1 + i)}dog sees a cat\tthe dog sees\t{i % 3}\n" for i in range(12))


def _entailment() -> tuple[Any, Any]:
    from transformers import AutoTokenizer

    from headcount.surgery.source import embedded_folder

    folder = embedded_folder("demo/entailment")
    return hc.load("demo/entailment"), AutoTokenizer.from_pretrained(folder)


def _task(kit: Kit, content: str | bytes, name: str = "train.tsv", task: str = "classification", **options: Any) -> Call:
    path = kit.file(name, content)
    model, tokenizer = _entailment()
    return lambda: open_task(task, model, tokenizer, train=path, **options)


def _batch(kit: Kit, **changes: Any) -> Call:
    """Scoring on a batch with something changed."""
    good = {"input_ids": torch.full((2, 8), 7), "attention_mask": torch.ones(2, 8, dtype=torch.long), "labels": torch.tensor([0, 1])}
    batch = {name: value for name, value in (good | changes).items() if value is not None}
    return lambda: hc.score(kit.stock.bert, [batch], by="gradient")


@case("data", "train.tsv is empty", "give a file with examples")
def empty_file(kit: Kit) -> Call:
    return _task(kit, "")


@case("data", "nowhere.tsv", "check its name")
def file_that_is_missing(kit: Kit) -> Call:
    model, tokenizer = _entailment()
    return lambda: open_task("classification", model, tokenizer, train=kit.place / "nowhere.tsv")


@case("data", "is a folder, but not one that datasets' save_to_disk wrote", "give a file")
def folder_of_nothing(kit: Kit) -> Call:
    model, tokenizer = _entailment()
    return lambda: open_task("classification", model, tokenizer, train=kit.place)


@case("data", "unknown kind of file '.xlsx", "Parallel files come together, as a list")
def file_of_unknown_kind(kit: Kit) -> Call:
    return _task(kit, GOOD, "train.xlsx")


@case("data", "line 1 is not UTF-8: byte 0xf6", "Convert the file")
def file_in_latin_1(kit: Kit) -> Call:
    return _task(kit, GOOD.replace("dog", "dög").encode("latin-1"))


@case("data", "line 1 is not UTF-8: byte 0xff", "Convert the file")
def file_in_utf_16(kit: Kit) -> Call:
    return _task(kit, GOOD.encode("utf-16"))


@case("data", "Permission denied", "check its name and permissions")
def file_that_may_not_be_read(kit: Kit) -> Call:
    call = _task(kit, GOOD)
    (kit.place / "train.tsv").chmod(0)
    return as_nobody(call)


@case("data", "train.tsv", "check its name")
def file_that_links_to_itself(kit: Kit) -> Call:
    model, tokenizer = _entailment()
    (kit.place / "train.tsv").symlink_to("train.tsv")
    return lambda: open_task("classification", model, tokenizer, train=kit.place / "train.tsv")


@case("data", "line 13 has 2 columns, but the first line has 3", "give every line the same")
def line_with_a_column_less(kit: Kit) -> Call:
    return _task(kit, GOOD + "the dog\t1\n")


@case("data", "has 7 columns and no header that is known", "give 2 (text, label) or 3 (text, text_pair, label), or name")
def columns_without_names(kit: Kit) -> Call:
    return _task(kit, GOOD.replace("\t", "\tx\ty\t"))


@case("data", "has no column 'lable' for the label", "Did you mean 'label'? It has 'premise', 'hypothesis', 'label")
def column_that_is_not_there(kit: Kit) -> Call:
    return _task(kit, "premise\thypothesis\tlabel\n" + GOOD, label_column="lable", text_column="premise")


@case("data", "line 13 is empty, but lines follow it", "remove it")
def empty_line_within(kit: Kit) -> Call:
    return _task(kit, GOOD + "\n" + GOOD)


@case("data", "label 'maybe'", "Correct the labels")
def unknown_label(kit: Kit) -> Call:
    return _task(kit, GOOD + "a cat\ta dog\tmaybe\n")


@case("data", "label '3'", "Correct the labels")
def label_out_of_range(kit: Kit) -> Call:
    return _task(kit, GOOD + "a cat\ta dog\t3\n")


@case("data", "have the label 1, so there is nothing to tell apart", "give examples of every label")
def one_label_alone(kit: Kit) -> Call:
    return _task(kit, "".join(f"dog {i}\tcat\t1\n" for i in range(24)))


@case("data", "has 2 examples, too few different ones to be divided into", "none falls into selection; give more")
def too_few_examples(kit: Kit) -> Call:
    return _task(kit, "a dog\ta cat\t0\na cat\ta dog\t1\n")


@case("data", "line 13 has 5005 tokens, but at most 128 are allowed", "max_length=128, truncate=True")
def text_that_is_too_long(kit: Kit) -> Call:
    return _task(kit, GOOD + "dog " * 5000 + "\ta cat\t0\n")


@case("data", "max_length is 1000000, but the model has positions for 128", "give 128 or less")
def max_length_beyond_the_model(kit: Kit) -> Call:
    return _task(kit, GOOD, max_length=10**6)


@case("data", "train and eval are the same file", "give one of them, and fixed parts of it are used")
def train_and_eval_the_same(kit: Kit) -> Call:
    path = kit.file("train.tsv", GOOD)
    model, tokenizer = _entailment()
    return lambda: open_task("classification", model, tokenizer, train=path, eval=path)


@case("data", "task 'classification' needs data", "give train, and eval or a part of train is held out")
def no_data_at_all(kit: Kit) -> Call:
    model, tokenizer = _entailment()
    return lambda: open_task("classification", model, tokenizer)


@case("data", "task 'classification' needs the model's tokenizer, got NoneType")
def no_tokenizer(kit: Kit) -> Call:
    path = kit.file("train.tsv", GOOD)
    model, _ = _entailment()
    return lambda: open_task("classification", model, None, train=path)


@case("data", "the tokenizer knows 223 tokens", "the model's vocabulary has 128", "it belongs to another model")
def tokenizer_of_another_model(kit: Kit) -> Call:
    path = kit.file("train.tsv", GOOD)
    _, tokenizer = _entailment()
    return lambda: open_task("classification", kit.stock.bert, tokenizer, train=path)


@case("data", "no task 'clasification'", "Did you mean 'classification'?")
def unknown_task(kit: Kit) -> Call:
    return _task(kit, GOOD, task="clasification")


@case("data", "no task '..'", "Known: ")
def task_whose_name_leads_out(kit: Kit) -> Call:
    return _task(kit, GOOD, task="../../etc/passwd")


@case("data", "task 'classification' does not use image_column", "it uses train, eval, text_column, text_pair_column, label_column,")
def option_that_the_task_does_not_use(kit: Kit) -> Call:
    return _task(kit, GOOD, image_column="image")


@case("data", "task 'masked-lm' needs a model with another head than", "load it as AutoModelForMaskedLM (auto=AutoModelForMaskedLM)")
def task_for_another_head(kit: Kit) -> Call:
    return _task(kit, GOOD, "train.txt", task="masked-lm")


@case("data", "holds a tokenizer that cannot be read", "Put the one of the model there")
def tokenizer_with_code_of_its_own(kit: Kit) -> Call:
    folder = kit.plain()
    own = {"auto_map": {"AutoTokenizer": ["evil.Tokenizer", None]}, "tokenizer_class": "EvilTokenizer"}
    (folder / "tokenizer_config.json").write_text(json.dumps(own))
    (folder / "evil.py").write_text("import os\nos.mkdir('/tmp/headcount-was-here')\n")
    return line("score", folder, "--train", kit.file("train.tsv", GOOD))


@case("data", "line 2 is no JSON", "Write one object a line")
def torn_json(kit: Kit) -> Call:
    return _task(kit, '{"text": "a dog", "label": 0}\n{"text": "a c', "train.jsonl")


@case("data", "line 1 holds a list", "write one JSON object a line")
def json_of_lists(kit: Kit) -> Call:
    return _task(kit, "[1, 2]\n", "train.jsonl")


@case("data", "line 1 is no JSON", "Write one object a line")
def json_of_brackets(kit: Kit) -> Call:
    return _task(kit, "[" * 1_000_000 + "\n", "train.jsonl")


@case("data", "line 1 is no JSON", "Write one object a line")
def json_with_a_number_of_five_thousand_digits(kit: Kit) -> Call:
    return _task(kit, '{"text": "a dog", "label": ' + "9" * 5000 + "}\n", "train.jsonl")


@case("data", "line 1 has no value in column 'label", "fill it, or remove the row")
def json_without_a_value(kit: Kit) -> Call:
    return _task(kit, "".join(json.dumps({"text": "a dog", "label": None}) + "\n" for _ in range(8)), "train.jsonl")


@case("data", "line ", "the text must be text, got ")
def number_for_a_text(kit: Kit) -> Call:
    return _task(kit, "".join(json.dumps({"text": i, "label": i % 3}) + "\n" for i in range(24)), "train.jsonl")


@case("data", "line 2 is no csv", "check its quotes")
def torn_quotes(kit: Kit) -> Call:
    return _task(kit, 'text,label\n"a dog,0\n', "train.csv")


@case("data", "line 1 is longer than 16777216 bytes", "this is no text with line ends")
def line_without_an_end(kit: Kit) -> Call:
    return _task(kit, b"a" * (20 * 2**20))


@case("data", "line 1 is longer than 16777216 bytes", "this is no text with line ends")
def gzip_bomb(kit: Kit) -> Call:
    return _task(kit, gzip.compress(bytes(300 * 2**20), 1), "train.tsv.gz")


@case("data", "train.tsv.gz cannot be read", "end-of-stream")
def torn_gzip(kit: Kit) -> Call:
    return _task(kit, gzip.compress(GOOD.encode())[:-10], "train.tsv.gz")


@case("data", "train.parquet cannot be read as parquet", "write it again")
def parquet_that_is_none(kit: Kit) -> Call:
    return _task(kit, b"PAR1" + bytes(100) + b"PAR1", "train.parquet")


@case("data", "(2, 5)", "(2, 8)", "a mask has one entry for each token")
def mask_of_another_length(kit: Kit) -> Call:
    return _batch(kit, attention_mask=torch.ones(2, 5, dtype=torch.long))


@case("data", "(1, 8)", "(2, 8)", "a mask has one entry for each token")
def mask_of_another_batch(kit: Kit) -> Call:
    return _batch(kit, attention_mask=torch.ones(1, 8, dtype=torch.long))


@case("data", "example 1: its attention_mask is all zeros", "remove it from the data")
def row_without_a_visible_token(kit: Kit) -> Call:
    return _batch(kit, attention_mask=torch.tensor([[1] * 8, [0] * 8]))


@case("data", "token id 1000000 in input_ids, but the model's vocabulary ends", "use the tokenizer that belongs to the model")
def token_beyond_the_vocabulary(kit: Kit) -> Call:
    return _batch(kit, input_ids=torch.full((2, 8), 10**6))


@case("data", "token id -1 in input_ids, but the model's vocabulary ends at 127", "use the tokenizer that belongs to the model")
def token_below_zero(kit: Kit) -> Call:
    return _batch(kit, input_ids=torch.full((2, 8), -1))


@case("data", "all its labels are -100, which means ignored, so it has no loss", "remove it")
def labels_all_ignored(kit: Kit) -> Call:
    return _batch(kit, labels=torch.tensor([-100, -100]))


@case("data", "label 9 is none of the model's 2 labels", "correct it, or load the model with more labels")
def label_beyond_the_classes(kit: Kit) -> Call:
    return _batch(kit, labels=torch.tensor([0, 9]))


@case("data", "example 0 has 129 tokens in input_ids, but", "max_length=128, truncate=True")
def more_tokens_than_positions(kit: Kit) -> Call:
    length = kit.stock.bert.config.max_position_embeddings + 1
    return _batch(kit, input_ids=torch.full((2, length), 7), attention_mask=None)


@case("data", "the batch that begins at example 0 is empty", "leave such batches out")
def empty_batch(kit: Kit) -> Call:
    return _batch(kit, input_ids=torch.zeros(0, 8, dtype=torch.long), attention_mask=None, labels=None)


@case("data", "input_ids of the batch that begins at example 0 is empty", "leave it out")
def sequences_of_no_tokens(kit: Kit) -> Call:
    return _batch(kit, input_ids=torch.zeros(2, 0, dtype=torch.long), attention_mask=None)


@case("data", "example 0: inputs_embeds holds nan", "inputs must be finite numbers")
def nan_for_an_embedding(kit: Kit) -> Call:
    width = kit.stock.bert.config.hidden_size
    return _batch(kit, input_ids=None, inputs_embeds=torch.full((2, 8, width), float("nan")))


@case("data", "the data are empty", "pass a list or a DataLoader")
def no_batches(kit: Kit) -> Call:
    return lambda: hc.score(kit.stock.bert, [], by="gradient")


@case("data", "option data of score must be", "got ['a dog']")
def batch_of_text(kit: Kit) -> Call:
    return lambda: hc.score(kit.stock.bert, ["a dog"], by="gradient")
