"""Labels of methods in figures: what all share stands once, in a note."""

from __future__ import annotations

from headcount.studies._labels import shorten_labels


def test_options_repair_and_steps_that_all_share_leave_the_labels() -> None:
    methods = (
        "dsp(limit=64) without repair, only 20 steps",
        "dsp:pipelined(limit=64) without repair, only 20 steps",
        "l0 without repair, only 20 steps",
        "gradient(limit=64) without repair",
        "random without repair",
    )
    labels, note = shorten_labels(methods)
    assert [labels[method] for method in methods] == ["dsp", "dsp:pipelined", "l0", "gradient", "random"]
    assert note == "All limit=64, without repair; methods that train took only 20 steps."


def test_what_differs_stays() -> None:
    methods = (
        "dsp(tau=1;limit=64) + repair",
        "dsp(tau=2;limit=64) without repair, only 20 steps",
        "dsp(limit=64) without repair, only 5 steps",
    )
    labels, note = shorten_labels(methods)
    assert list(labels.values()) == ["dsp(tau=1) + repair", "dsp(tau=2) without repair, only 20 steps", "dsp without repair, only 5 steps"]
    assert note == "All limit=64."
    assert shorten_labels(["gradient(limit=64)", "random"]) == ({"gradient(limit=64)": "gradient(limit=64)", "random": "random"}, "")
    same = ("a(limit=1)", "a(limit=1), only 3 steps")
    assert shorten_labels(same) == ({name: name for name in same}, ""), "labels stay different"
