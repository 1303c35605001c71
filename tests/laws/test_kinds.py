"""Everything that is registered keeps the laws of its kind; what is added is tried by itself. Studies are tried in test_studies.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING
from functools import cache
from typing import Any

import pytest
from transformers import AutoTokenizer

import headcount as hc
from headcount.core.options import format_value, options_of
from headcount.core.registry import KINDS
from headcount.surgery.source import local_folder
from headcount.testing.kinds import CHECKS, LAWS

REQUIRED: Mapping[str, str] = {
    "roles/offset": "-1",
    "roles/pos": "NOUN",
    "roles/syntax": "nsubj",
}
"""Values of options that have neither a default nor a few choices."""
TEXTS = {
    "pruners/plan": "plan(removed=L0H3+L1H1)",
    "pruners/role": "role(definition=pande2021(tau=1))",
    "roles/rare": "rare:1(frequent=20)",
}
"""Methods that ask for nothing, or find nothing in the default inputs, without these options."""


@cache
def open_demo(name: str) -> tuple[Any, Any]:
    return hc.load(name).eval(), AutoTokenizer.from_pretrained(local_folder(name))


def inputs_of_role_pruner() -> dict[str, Any]:
    model, tokenizer = open_demo("demo/entailment")
    return {"model": model, "data": hc.open_task("demo/entailment", model, tokenizer, limit=32)}


def inputs_of_demo_task() -> dict[str, Any]:
    model, tokenizer = open_demo("demo/entailment")
    return {"model": model, "tokenizer": tokenizer}


INPUTS: Mapping[str, Callable[[], dict[str, Any]]] = {
    "pruners/role": inputs_of_role_pruner,
    "tasks/demo": inputs_of_demo_task,
}
"""Inputs of methods that the default inputs of their kind do not show."""


def text_of(kind: str, name: str) -> str:
    """The text of a method, with the first choice of each option that must be given."""
    if f"{kind}/{name}" in TEXTS:
        return TEXTS[f"{kind}/{name}"]
    required = [option for option in options_of(KINDS[kind].get(name)) if option.default is MISSING]
    values = [format_value(option.choices[0]) if option.choices else REQUIRED[f"{kind}/{name}"] for option in required]
    return ("/" if kind == "tasks" else ":").join([name, *values])


def list_registered() -> Iterator[tuple[str, str]]:
    """Every kind and name but those of studies."""
    return ((kind, name) for kind in CHECKS if kind != "studies" for name in KINDS[kind].names())


def test_every_kind_of_methods_has_laws() -> None:
    assert set(CHECKS) == set(LAWS) - {"declaration"} == set(KINDS) - {"papers"}, "a paper is a list of studies"


@pytest.mark.parametrize(("kind", "name"), list_registered())
def test_the_laws_of_its_kind_hold(kind: str, name: str) -> None:
    inputs = INPUTS.get(f"{kind}/{name}", dict)()
    CHECKS[kind](text_of(kind, name), **inputs)
