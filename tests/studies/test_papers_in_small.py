"""The small version of a paper sets sizes and seeds itself; verdicts say in which direction methods differ."""

from __future__ import annotations

import pytest

from headcount.core.errors import OptionError
from headcount.studies._paper import Paper
from headcount.studies._rows import describe_better_and_worse


@pytest.mark.parametrize(
    ("text", "refused"),
    [
        ("li2021(quick=true;keep=90%|12%;seeds=1)", "keep, seeds"),
        ("voita2019(quick=true;scratch=300steps)", "scratch"),
        ("budhraja2020(quick=true;train_batch=4)", "train_batch"),
        ("budhraja2021(quick=true;recover=300steps)", "recover"),
    ],
)
def test_quick_refuses_what_it_sets_itself(text: str, refused: str) -> None:
    with pytest.raises(OptionError, match=rf"sets {refused} itself; leave out"):
        Paper.parse(text)
    assert Paper.parse(text.replace("quick=true;", ""))


def test_quick_takes_what_it_leaves_open() -> None:
    assert Paper.parse("li2021(quick=true;steps=3)") and Paper.parse("michel2019(quick=true;train_steps=300)")


def test_verdicts_tell_better_from_worse() -> None:
    tests = [(0.1, 0.01), (-0.2, 0.02), (0.3, 0.2), (None, None)]
    assert describe_better_and_worse(tests, higher_is_better=True) == "better at 1 of 4 sizes, worse at 1, undecided at 2"
    assert describe_better_and_worse(tests[:1], higher_is_better=False) == "better at 0 of 1 sizes, worse at 1"
    assert describe_better_and_worse(tests[2:], higher_is_better=True) == "better at 0 of 2 sizes, undecided at 2"
