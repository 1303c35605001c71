"""Declared options: one grammar in text and Python, values checked when the object is made."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headcount.core.errors import DuplicateName, OptionError, UnknownName
from headcount.core.options import Configurable, format_value, option, options_of
from headcount.core.registry import Registry


@dataclass(frozen=True)
class Sample(Configurable):
    """A sample of every type of option.

    More of it.
    """

    variant: Literal["joint", "straight"] = option("joint", "Which of two")
    _: KW_ONLY
    tau: float = option(1.0, "Temperature", above=0)
    rounds: int = option(4, "Rounds", minimum=1)
    repeats: bool = option(False, "Again after each round")
    limit: int | None = option(None, "Examples", minimum=1)
    by: str = option("gradient", "An importance")
    roles: tuple[str, ...] = option((), "Roles")
    info = "declared"


@dataclass(frozen=True)
class Required(Configurable):
    """Needs its first option."""

    offset: str = option(help="Where to look")
    info = "declared"


@pytest.fixture
def registry() -> Registry:
    kinds = Registry("samples", "sample", "headcount.no_such_package")
    kinds.register("sample")(Sample)
    kinds.register("required")(Required)
    return kinds


def test_text_and_python_are_equal(registry: Registry) -> None:
    text = "sample:straight(tau=2;rounds=3;repeats=yes;limit=5;by=ablation:mean;roles=a+b)"
    expected = Sample("straight", tau=2.0, rounds=3, repeats=True, limit=5, by="ablation:mean", roles=("a", "b"))
    assert registry.parse(text, Sample) == expected
    assert registry.parse(str(expected), Sample) == expected
    assert registry.parse("sample", Sample) == Sample() and str(Sample()) == "sample"
    assert registry.parse("sample()", Sample) == Sample()
    assert registry.parse(expected, Sample) is expected
    assert str(Sample(tau=0.5)) == "sample(tau=0.5)" and str(Sample("straight")) == "sample:straight"
    assert registry.parse("sample(limit=none)", Sample).limit is None
    assert registry.parse("required:-1", Required) == Required("-1") and str(Required("-1")) == "required:-1"


def test_equal_requests_are_equal(registry: Registry) -> None:
    texts = ("sample(repeats=true)", "sample(repeats=yes;limit=none)", "sample:joint(repeats=1)", " sample ( repeats = True ) ")
    assert len({registry.parse(text, Sample) for text in texts}) == 1


@given(
    st.sampled_from(["joint", "straight"]),
    st.floats(min_value=1e-300, max_value=1e300, allow_nan=False),
    st.integers(min_value=1, max_value=10**12),
    st.booleans(),
    st.none() | st.integers(min_value=1),
)
def test_text_gives_back_every_value(
    variant: Literal["joint", "straight"], tau: float, rounds: int, repeats: bool, limit: int | None
) -> None:
    sample = Sample(variant, tau=tau, rounds=rounds, repeats=repeats, limit=limit)
    assert Sample.from_text(str(sample).removeprefix("sample")) == sample
    assert Sample.from_dict(sample.to_dict()) == sample


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sample(tau=-1)", "option tau of sample must be a float above 0; got -1.0"),
        ("sample(tau=warm)", "option tau of sample must be a float above 0; got 'warm'"),
        ("sample(tau=nan)", "option tau of sample must be a float above 0; got nan"),
        ("sample(rounds=2.5)", "option rounds of sample must be an int of at least 1; got '2.5'"),
        ("sample(rounds=0)", "option rounds of sample must be an int of at least 1; got 0"),
        ("sample(repeats=maybe)", "option repeats of sample must be true or false; got 'maybe'"),
        ("sample(tau=1", "options of sample stand in parentheses"),
        ("sample(tau)", "an option of sample is name=value; got 'tau'"),
        ("sample(tau=1;tau=2)", "option tau of sample is given twice"),
        ("sample:joint:more", "sample takes no 'more'"),
    ],
)
def test_wrong_values_are_refused_with_rule_and_value(registry: Registry, text: str, message: str) -> None:
    with pytest.raises(OptionError) as error:
        registry.parse(text, Sample)
    assert message in str(error.value)


def test_unknown_names_come_with_the_nearest(registry: Registry) -> None:
    for text, message in (
        ("sampel", "no sample 'sampel'. Did you mean 'sample'?"),
        ("sample:strait", "no variant of sample 'strait'. Did you mean 'straight'?"),
        ("sample(tua=1)", "no option of sample 'tua'. Did you mean 'tau'?"),
    ):
        with pytest.raises(UnknownName) as error:
            registry.parse(text, Sample)
        assert message in str(error.value)


@pytest.mark.parametrize("values", [{"rounds": True}, {"tau": "1"}, {"repeats": 1}, {"by": 3}, {"roles": "a"}, {"limit": 0}])
def test_python_values_are_checked_too(values: dict[str, object]) -> None:
    with pytest.raises(OptionError):
        replace(Sample(), **values)


def test_declarations_are_read_from_the_class(registry: Registry) -> None:
    tau = next(one for one in options_of(Sample) if one.name == "tau")
    assert (tau.default, tau.help, tau.is_positional, tau.type_label) == (1.0, "Temperature", False, "a float above 0")
    assert options_of(Sample)[0].choices == ("joint", "straight") and options_of(Sample)[0].is_positional
    assert registry.summary("sample") == "A sample of every type of option."
    assert format_value(0.1) == "0.1" and format_value(1e-8) == "1e-08" and format_value(1 / 3) == repr(1 / 3)


def test_a_field_that_is_no_option_is_refused() -> None:
    @dataclass(frozen=True)
    class Bare(Configurable):
        value: int = 3

    with pytest.raises(TypeError, match="field value of Bare is no option"):
        Bare()


def test_a_name_is_registered_once(registry: Registry) -> None:
    with pytest.raises(DuplicateName, match="registered already"):
        registry.register("sample")(Required)
