"""What bad inputs are made of: a stock of good models and runs, copied for each case, which then spoils its copy."""

from __future__ import annotations

import ctypes
import io
import json
import shutil
import struct
from collections.abc import Callable, Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

import headcount as hc
from headcount.models.tiny.build import tiny_model

Call = Callable[[], object]


class Refused(Exception):
    """A command that ended with an error: its exit code, and what it wrote to stderr."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


@dataclass(frozen=True)
class Case:
    """One bad input: `make` prepares it and returns the call that must fail; the message must hold every part of `says`."""

    group: str
    name: str
    make: Callable[[Kit], Call]
    says: tuple[str, ...]
    code: int = 1

    def __str__(self) -> str:
        return f"{self.group}-{self.name}"


CASES: list[Case] = []


def case(group: str, *says: str, code: int = 1) -> Callable[[Callable[[Kit], Call]], Callable[[Kit], Call]]:
    """Adds a function to the catalogue; `says` are what went wrong, the value at fault, and what to do about it."""

    def add(make: Callable[[Kit], Call]) -> Callable[[Kit], Call]:
        CASES.append(Case(group, make.__name__.replace("_", "-"), make, says, code))
        return make

    return add


class Stock:
    """Good things, made once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @cached_property
    def bert(self) -> torch.nn.Module:
        return tiny_model("bert", dtype=torch.float32, auto="AutoModelForSequenceClassification")

    @cached_property
    def llama(self) -> torch.nn.Module:
        return tiny_model("llama", dtype=torch.float32, num_key_value_heads=2)

    def plain(self) -> Path:
        """A model as save_pretrained writes it."""
        return self._once("plain", self.bert.save_pretrained)

    def cut(self) -> Path:
        """A cut model with its manifest."""
        return self._once("cut", lambda path: hc.save(hc.cut(self.bert, hc.Plan.removing(["L0H1", "L1H2"])), path))

    def grouped(self) -> Path:
        """A model whose query heads share KV heads."""
        return self._once("grouped", self.llama.save_pretrained)

    def run(self) -> Path:
        """A run with two methods."""
        return self._once("run", self._make_run)

    def _once(self, name: str, make: Callable[[Path], object]) -> Path:
        path = self.folder / name
        if not path.exists():
            make(path)
        return path

    def _make_run(self, path: Path) -> None:
        from headcount.models.provenance import model_record
        from headcount.runs.describe import describe_run
        from headcount.runs.store import Run
        from headcount.workflows.score import score_into

        with Run.lead(path) as run:
            record = describe_run(model_record(self.bert, "bert"), command="headcount score bert --out run", seed=0)
            run.stage_records(record, hc.HeadMap.of(self.bert))
            score_into(run, self.bert, None, ["magnitude", "random"])


class Kit:
    """The stock, and the folder of one case."""

    def __init__(self, stock: Stock, place: Path) -> None:
        self.stock, self.place = stock, place

    def copy(self, source: Path) -> Path:
        """A copy of a folder to spoil."""
        return Path(shutil.copytree(source, self.place / source.name))

    def file(self, name: str, content: str | bytes) -> Path:
        """A file of the case."""
        path = self.place / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    def plain(self, **config: Any) -> Path:
        """A plain model with some of its configuration changed."""
        folder = self.copy(self.stock.plain())
        if config:
            change(folder / "config.json", **config)
        return folder

    def weights(self, content: bytes) -> Call:
        """Loading a plain model whose weights are these bytes."""
        folder = self.plain()
        (folder / "model.safetensors").write_bytes(content)
        return lambda: hc.load(folder)

    def header(self, tensors: Any, data: bytes = b"") -> Call:
        """Loading a plain model whose weights have this header."""
        text = tensors if isinstance(tensors, bytes) else json.dumps(tensors).encode()
        return self.weights(struct.pack("<Q", len(text)) + text + data)

    def spoilt(self, change: Callable[[dict[str, torch.Tensor]], object]) -> Call:
        """Loading a plain model whose tensors were changed."""
        from safetensors.torch import load_file, save_file

        folder = self.plain()
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return lambda: hc.load(folder)


def change(path: Path, **values: Any) -> None:
    """Changes some fields of a JSON file; None takes one out."""
    content = json.loads(path.read_text()) | values
    path.write_text(json.dumps({name: value for name, value in content.items() if value is not None}))


def tensor(begin: int, end: int, dtype: str = "F32", shape: list[int] | None = None) -> dict[str, Any]:
    """An entry of a safetensors header."""
    return {"dtype": dtype, "shape": [(end - begin) // 4] if shape is None else shape, "data_offsets": [begin, end]}


def line(*words: object) -> Call:
    """A command line."""

    def run() -> None:
        from headcount.app.main import main

        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            code = main([str(word) for word in words])
        if code:
            raise Refused(code, err.getvalue() + out.getvalue())

    return run


def as_nobody(call: Call) -> Call:
    """A call in a process for which permissions hold even if it is root's; only for a process that ends afterwards."""

    def run() -> object:
        header, none = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
        if ctypes.CDLL(None, use_errno=True).capset(header, none):
            raise OSError(ctypes.get_errno(), "capset")
        return call()

    return run


def table(rows: Mapping[str, Any], header: str = "head,score") -> str:
    """A csv of scores."""
    return "\n".join([header, *(f"{head},{value}" for head, value in rows.items())]) + "\n"
