"""The stored rows of the census: nothing raw, nothing wrong, and a reason for everything that is refused."""

from __future__ import annotations

import json
from pathlib import Path

ROOT = Path(__file__).parents[2]
VERSIONS, *ROWS = map(json.loads, (ROOT / "benchmarks" / "census.jsonl").read_text(encoding="utf-8").splitlines())


def test_no_row_is_raw_or_wrong() -> None:
    defects = {
        f"{row['name']} {row.get('variant', '')}": row["stages"] for row in ROWS if {"raw", "wrong"} & {*row.get("stages", {}).values()}
    }
    assert not defects


def test_every_refusal_has_a_reason() -> None:
    refused = [row for row in ROWS if {"refused", "part"} & {*row.get("stages", {}).values()}]
    assert refused
    assert all(row.get("notes") for row in refused)


def test_every_class_is_there_once() -> None:
    keys = [(row["name"], row.get("variant", "")) for row in ROWS]
    assert len(keys) == len(set(keys))
    assert len({name for name, variant in keys if not variant}) == int(VERSIONS["classes"])
