"""The page of roles on treebanks: written from the stored numbers, and its verdicts follow their rules."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def treebanks(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    treebanks = importlib.import_module("treebanks")

    yield treebanks
    for name in ("treebanks", "verdicts", "peers", "peers.sidebyside"):
        sys.modules.pop(name, None)


def test_the_page_is_that_of_the_stored_numbers(treebanks: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = treebanks.DOCUMENT.read_text(encoding="utf-8")
    monkeypatch.setattr(treebanks, "DOCUMENT", tmp_path / "page.md")
    treebanks.write_page()
    assert (tmp_path / "page.md").read_text(encoding="utf-8") == stored


def relation(number: int, layers: tuple[int, ...] = ()) -> dict[str, Any]:
    return {"labels": {"beyond-distance": number}, "layers beyond distance": list(layers)}


def test_relations_hold_in_all_in_some_or_in_none(treebanks: ModuleType) -> None:
    names = [f"syntax:{name}" for name in treebanks.VOITA_RELATIONS]

    def judge(numbers: tuple[int, ...]) -> str:
        relations = {name: relation(number) for name, number in zip(names, numbers, strict=True)}
        return treebanks.judge_relations({"relations": relations}).sentence

    assert [judge(numbers) for numbers in ((1, 2, 1, 1), (0, 0, 3, 0), (0, 0, 0, 0))] == [
        "It holds: all four.",
        "It holds in part: 1 of four.",
        "It does not show.",
    ]


@pytest.mark.parametrize(
    ("roles", "sentence"),
    [
        ({"rare:1": relation(1, (0, 3))}, "It holds."),
        ({"rare:2": relation(1, (3,))}, "It holds in part: in other layers."),
        ({"rare:1": relation(0)}, "It does not show."),
        ({"syntax:obj": relation(1, (0,))}, "Open."),
    ],
)
def test_rare_words_are_judged_by_the_layers_of_their_heads(treebanks: ModuleType, roles: dict[str, Any], sentence: str) -> None:
    assert treebanks.judge_rare({"relations": roles}).sentence == sentence


def test_labels_that_remain_are_those_of_both_rules(treebanks: ModuleType) -> None:
    def judge(both: int, gone: int) -> tuple[str, str]:
        counts = {treebanks.PUBLISHED: {"both": both, "only beyond distance": 7, "only by this": gone}}
        verdict = treebanks.judge_syntactic({"disagreements": {"syntax": counts}, "swapped_alone": {"syntax": {"ratio": 0.04}}})
        return verdict.here, verdict.sentence

    assert judge(30, 70) == (
        "30 of 100 labels remain (30%); an estimated 4.0% of syntactic labels beyond distance are false",
        "It holds in part.",
    )
    assert judge(95, 5)[1] == "It holds."
    assert judge(0, 5)[1] == "It does not show."
    assert judge(0, 0)[1] == "Open."
