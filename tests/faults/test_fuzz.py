"""Mutated files: whatever bytes a parser gets, it gives a result or a typed error."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from random import Random

import pandas
import pytest
from bad_kit import Stock

import headcount as hc
from headcount.core.errors import HeadcountError
from headcount.core.plan import Plan
from headcount.core.scores import Scores
from headcount.core.tensor_files import read_tensor_shapes
from headcount.runs.artifacts import Artifact
from headcount.surgery import manifest
from headcount.surgery.source import read_config

ROUNDS = int(os.environ.get("HEADCOUNT_FUZZ", "200"))
TOKENS = [
    b"NaN",
    b"-1",
    b"1e999",
    b"null",
    b"true",
    b"[]",
    b"{}",
    b'""',
    b"\0",
    b"\xff",
    b"\xef\xbb\xbf",
    b"9" * 30,
    b"[" * 2000,
    b'"' * 3,
    b"../",
    b"\r\n",
]


def mutated(content: bytes, draw: Random) -> bytes:
    """A few bytes flipped, cut out, doubled, or replaced by something awkward."""
    made = bytearray(content)
    for _ in range(draw.randint(1, 4)):
        position, kind = draw.randrange(len(made) + 1), draw.randrange(5)
        end = min(len(made), position + draw.randint(1, 30))
        if kind == 0 and position < len(made):
            made[position] ^= 1 << draw.randrange(8)
        elif kind == 1:
            del made[position:end]
        elif kind == 2:
            made[position:position] = made[position:end]
        elif kind == 3:
            made[position:end] = draw.choice(TOKENS)
        else:
            del made[position:]
    return bytes(made)


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Stock:
    return Stock(tmp_path_factory.mktemp("fuzz"))


def _plan(stock: Stock, path: Path) -> Callable[[], object]:
    hc.Plan.removing(["L0H1", "L1H2"], protected=["L0H0"]).write(path, hc.HeadMap.of(stock.bert), weights="a" * 64)
    return lambda: Plan.read(path).check(hc.HeadMap.of(stock.bert))


def _csv(stock: Stock, path: Path) -> Callable[[], object]:
    path.write_bytes((stock.run() / "scores.csv").read_bytes())
    return lambda: Scores.read(path, only_method="random").reorder(hc.HeadMap.of(stock.bert))


def _json(stock: Stock, path: Path) -> Callable[[], object]:
    path.write_text(json.dumps([{"head": str(head), "score": 0.5, "stderr": 0.1} for head in hc.HeadMap.of(stock.bert)]))
    return lambda: Scores.read(path).reorder(hc.HeadMap.of(stock.bert))


def _parquet(stock: Stock, path: Path) -> Callable[[], object]:
    pandas.DataFrame({"head": [str(head) for head in hc.HeadMap.of(stock.bert)], "score": 0.5}).to_parquet(path)
    return lambda: Scores.read(path)


def _weights(stock: Stock, path: Path) -> Callable[[], object]:
    path.write_bytes((stock.plain() / "model.safetensors").read_bytes()[:6000])
    return lambda: read_tensor_shapes(path)


def _manifest(stock: Stock, path: Path) -> Callable[[], object]:
    path.write_bytes((stock.cut() / "heads.json").read_bytes())

    def read() -> None:
        listed = manifest.read_manifest(path.parent)
        if listed is not None:
            manifest.check_files_match(path.parent, listed)

    return read


def _config(stock: Stock, path: Path) -> Callable[[], object]:
    path.write_bytes((stock.cut() / "config.json").read_bytes())

    def read() -> None:
        from headcount.models.archs import cut_record as record

        record.parse_cut_record(read_config(path.parent).get(record.KEY))

    return read


def _artifact(stock: Stock, path: Path) -> Callable[[], object]:
    path.write_bytes(sorted((stock.run() / "artifacts" / "scores").glob("random.*"))[0].read_bytes())
    return lambda: Artifact.unpack(path.read_bytes(), path)


PARSERS = {"plan.json": _plan, "scores.csv": _csv, "scores.json": _json, "scores.parquet": _parquet, "model.safetensors": _weights,
           "heads.json": _manifest, "config.json": _config, "x.artifact": _artifact}  # fmt: skip


@pytest.mark.parametrize("name", PARSERS)
def test_a_parser_gives_a_result_or_a_typed_error(name: str, stock: Stock, tmp_path: Path) -> None:
    path = tmp_path / name
    read = PARSERS[name](stock, path)
    good = path.read_bytes()
    refused = 0
    for seed in range(ROUNDS):
        bad = mutated(good, Random(f"{name} {seed}"))
        path.write_bytes(bad)
        try:
            read()
        except HeadcountError:
            refused += 1
        except Exception as error:
            raise AssertionError(f"{name}, seed {seed}: {type(error).__name__}: {error}; bytes {bad[:200]!r}") from error
    assert refused > ROUNDS // 4
