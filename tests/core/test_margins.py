"""Margins: a share of the dense model's metric, or points of it."""

from __future__ import annotations

import pytest

from headcount.core.errors import OptionError
from headcount.core.margin import Margin


def test_shares_and_points() -> None:
    assert Margin.parse("1%").of_metric("accuracy", 0.8) == pytest.approx(0.008)
    assert Margin.parse("0.5pt").of_metric("accuracy", 0.8) == pytest.approx(0.005)
    assert Margin.parse(" .5 pt ").of_metric("BLEU", 40.0) == 0.5
    assert Margin.parse("2pt").of_metric("perplexity", 50.0) == 2.0
    assert Margin.parse("1pt").of_metric("Matthews correlation", 0.5) == 0.01
    assert str(Margin.parse("1.50%")) == "1.5%"
    assert Margin.parse(Margin(1, "%")) == Margin.parse("1%")


@pytest.mark.parametrize("bare", [1, 0.01, "1", "0.5"])
def test_a_bare_number_is_refused_with_both_readings(bare: object) -> None:
    with pytest.raises(OptionError, match=f"'{bare}%' .* '{bare}pt'"):
        Margin.parse(bare)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("wrong", ["one percent", "0%", "100%", "-1%", "1 %pt", None, True, "infpt"])
def test_what_is_no_margin_is_refused(wrong: object) -> None:
    with pytest.raises(OptionError, match="margin"):
        Margin.parse(wrong)  # pyright: ignore[reportArgumentType]
