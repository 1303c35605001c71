"""Labels of methods in figures: what all of them share stands once, in the note of the figure. No torch here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

WITHOUT_REPAIR = " without repair"
_FEW_STEPS = re.compile(r", (only \d+ steps?)$")
_OPTIONS = re.compile(r"\(([^()]*)\)")


class ShortLabels(NamedTuple):
    """The short label of every method, and the note that says what all of them share; empty where they share nothing."""

    by_method: Mapping[str, str]
    note: str


def shorten_labels(methods: Iterable[str]) -> ShortLabels:
    """Returns labels of methods without what is the same for all that have it: options, missing repair, and too few steps of training."""
    names = list(dict.fromkeys(methods))
    options = [match[1].split(";") for name in names if (match := _OPTIONS.search(name))]
    shared = [text for text in options[0] if all(text in texts for texts in options)] if len(options) > 1 else []
    steps = {match[1] for name in names if (match := _FEW_STEPS.search(name))}
    has_no_repair = all(WITHOUT_REPAIR in name for name in names)
    short = {}
    for name in names:
        text = _OPTIONS.sub(lambda match: _without_shared_options(match[1], shared), name, count=1)
        text = text.replace(WITHOUT_REPAIR, "") if has_no_repair else text
        short[name] = _FEW_STEPS.sub("", text) if len(steps) == 1 else text
    if len(set(short.values())) < len(names):
        return ShortLabels({name: name for name in names}, "")
    common = [*shared, *([WITHOUT_REPAIR.strip()] if has_no_repair else [])]
    parts = [f"all {', '.join(common)}"] if common else []
    parts += [f"methods that train took {next(iter(steps))}"] if len(steps) == 1 else []
    note = "; ".join(parts)
    return ShortLabels(short, f"{note[0].upper()}{note[1:]}." if note else "")


def _without_shared_options(text: str, shared: Sequence[str]) -> str:
    """Returns options in parentheses without those that are shared; nothing if none is left."""
    own = [option for option in text.split(";") if option not in shared]
    return f"({';'.join(own)})" if own else ""
