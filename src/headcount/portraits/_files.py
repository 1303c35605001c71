"""Portraits as a cell of a run."""

from __future__ import annotations

from typing import Any, Unpack

from torch import nn

from headcount.archs.modules import unwrap
from headcount.errors import UnsupportedModel
from headcount.heads import HeadMap
from headcount.portraits.make import DEFAULTS, Options, Portraits, _first, _task, portray
from headcount.roles import Corpus, check_input
from headcount.runs.cells import Spec
from headcount.runs.store import Run
from headcount.runs.weights import determined_by, made_on
from headcount.stream import Reading, fingerprint

KIND = "portraits"


def portraits_into(run: Run, model: nn.Module, corpus: Corpus, tokenizer: Any = None, **options: Unpack[Options]) -> Portraits:
    """Like `portray`, with a run that keeps it: what is finished is not made again. A model without portraits is kept as such, with the reason."""
    asked = {**DEFAULTS, **{name: value for name, value in options.items() if name in DEFAULTS}}
    inner = unwrap(model)
    first = _first(corpus, asked["limit"])
    try:
        check_input(inner, first)
        data = fingerprint(Reading(_task(inner, HeadMap.of(inner), first)))
    except UnsupportedModel as error:
        return Portraits({"heads": [], "notes": [f"No portraits: {error}."]})
    spec = Spec(KIND, KIND, {**determined_by(inner), **asked, "data": data, "named": tokenizer is not None})
    cell = run.find(spec)
    if cell is None:
        try:
            made = portray(inner, corpus, tokenizer, **options)
        except UnsupportedModel as error:
            made = Portraits({"heads": [], "notes": [f"No portraits: {error}."]})
        cell = run.commit(spec, made.content, made.maps, made=made_on())
    run.present(cell, data={"portraits": data})
    return Portraits(cell.content, cell.arrays)
