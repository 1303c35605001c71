"""Every method gives the stored results of tests/golden/snapshot.json; `python tools/snapshot.py --reference` rewrites them.

A change that is meant to change results rewrites the file, and its commit says which results changed and why.
"""

from __future__ import annotations

import json

import pytest
from snapshot import REFERENCE, REFERENCE_EXAMPLES, REFERENCE_MODELS, TOLERANCES, collect, compare_values, is_in_reference

STORED = json.loads(REFERENCE.read_text(encoding="utf-8"))


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("model", REFERENCE_MODELS)
def test_results_are_as_stored(model: str) -> None:
    stored = {name: result for name, result in STORED.items() if name.split()[0] == model}
    assert len(stored) > 20
    results = collect([model], n_examples=REFERENCE_EXAMPLES, select=stored.__contains__)
    differences = compare_values(stored, results)
    assert not differences, "\n".join(differences)


def test_the_reference_is_small_and_holds_what_it_should() -> None:
    assert REFERENCE.stat().st_size < 400_000
    assert all(is_in_reference(name) for name in STORED)
    assert STORED.keys() >= TOLERANCES.keys()


def test_a_changed_number_or_name_is_reported() -> None:
    before = {"score": {"numbers": [1.0, 2.0]}, "plan": {"names": ["L0H1"]}, "gone": {"numbers": [1.0]}}
    rounded = {"score": {"numbers": [1.0, 2.00001]}, "plan": {"names": ["L0H1"]}, "gone": {"numbers": [1.0]}}
    assert compare_values(before, rounded) == []
    after = {"score": {"numbers": [1.0, 2.001]}, "plan": {"names": ["L0H2"]}}
    assert [line.partition(":")[0] for line in compare_values(before, after)] == ["gone", "plan", "score"]
