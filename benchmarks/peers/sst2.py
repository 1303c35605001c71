"""SST-2 and a classifier of it, the same sentences in the same batches for headcount and for its peers."""

from __future__ import annotations

import copy
import csv
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import ConcatDataset
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import headcount as hc
from headcount.data.open_task import open_task


class Sst2:
    """A classifier with its task: `examples` training sentences for scores, `limit` test sentences for accuracy, `batch` at once."""

    def __init__(self, model: Path, data: Path, *, examples: int = 512, limit: int | None = None, batch: int = 32) -> None:
        self.model: Any = AutoModelForSequenceClassification.from_pretrained(model).eval()
        self.heads, self.batch = hc.HeadMap.of(self.model), batch
        tokenizer = AutoTokenizer.from_pretrained(model)
        with tempfile.TemporaryDirectory() as folder:
            read = (("train", examples), ("dev", None), ("test", None))
            files = [_table(data / "sst2" / f"{name}.tsv", Path(folder) / f"{name}.csv", first) for name, first in read]
            how = {"text_column": "text", "label_column": "label", "max_length": 128, "truncate": True}
            judged, shown = (
                open_task("classification", self.model, tokenizer, train=[train], eval=[other], **how)
                for train, other in ((files[0], files[1]), (files[1], files[2]))
            )
        report: Any = ConcatDataset([shown.selection, shown.report])
        self.test = [report[i] for i in range(len(report) if limit is None else limit)]
        calibration = [judged.calibration[i] for i in range(examples)]
        selection: Any = ConcatDataset([judged.selection, judged.report])
        self.task = replace(judged, calibration=calibration, selection=selection, report=self.test)

    def first(self, examples: int, batch: int) -> Sst2:
        """The same with fewer calibration sentences, in batches of another size."""
        made = copy.copy(self)
        made.task, made.batch = replace(self.task, calibration=list(self.task.calibration)[:examples]), batch
        return made

    def batches(self) -> Iterator[dict[str, torch.Tensor]]:
        """The calibration sentences in their order."""
        examples = list(self.task.calibration)
        for start in range(0, len(examples), self.batch):
            yield dict(self.task.collate(examples[start : start + self.batch]))

    def prune(self, method: str, keep: int, *, repair: bool) -> Any:
        """The model that a method of headcount leaves with `keep` heads."""
        return hc.prune(self.model, self.task, method, keep=keep, repair=repair).model

    def tests(self) -> Iterator[dict[str, torch.Tensor]]:
        """The test sentences by length, 64 at once."""
        ordered = sorted(self.test, key=lambda example: len(example["input_ids"]))
        for start in range(0, len(ordered), 64):
            yield dict(self.task.collate(ordered[start : start + 64]))

    @torch.no_grad()
    def accuracy(self, model: Any) -> float:
        """The share of test sentences that a model classifies rightly."""
        right = sum(int((model(**batch).logits.argmax(-1) == batch["labels"]).sum()) for batch in self.tests())
        return right / len(self.test)


def _table(source: Path, path: Path, first: int | None) -> Path:
    lines = [line.rpartition("\t") for line in source.read_text(encoding="utf-8").splitlines() if line.strip()][:first]
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("text", "label"), *[(text, label) for text, _, label in lines]])
    return path
