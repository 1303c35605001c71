"""HeadProfiles as an artifact of a run."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Unpack

from torch import nn

from headcount.behaviour.base import Corpus
from headcount.behaviour.measure import check_input
from headcount.behaviour.profiles.profile import DEFAULTS, HeadProfiles, Options, _first, _task, profile_heads
from headcount.core.errors import UnsupportedModel
from headcount.data.stream import Reading, fingerprint
from headcount.models.head_map import HeadMap
from headcount.models.modules import unwrap
from headcount.models.provenance import model_key, provenance
from headcount.runs.artifacts import ArtifactKey
from headcount.runs.store import Run

KIND = "profiles"


def profiles_into(run: Run, model: nn.Module, corpus: Corpus, tokenizer: Any = None, **options: Unpack[Options]) -> HeadProfiles:
    """Like `profile_heads`, kept in a run: what is finished is not computed again. A model without profiles is recorded with the reason."""
    asked = {**DEFAULTS, **{name: value for name, value in options.items() if name in DEFAULTS}}
    inner = unwrap(model)
    first = _first(corpus, asked["limit"])
    parts = {**model_key(inner), **asked, "named": tokenizer is not None}
    try:
        check_input(inner, first)
        data = fingerprint(Reading(_task(inner, HeadMap.of(inner), first)))
    except UnsupportedModel as error:
        return _kept(run, ArtifactKey(KIND, KIND, {**parts, "data": "", "refused": str(error)}), partial(_none, error))
    return _kept(run, ArtifactKey(KIND, KIND, {**parts, "data": data}), lambda: profile_heads(inner, corpus, tokenizer, **options))


def _kept(run: Run, spec: ArtifactKey, make: Callable[[], HeadProfiles]) -> HeadProfiles:
    """The portraits of an artifact, made where it is not there yet."""
    artifact = run.find(spec)
    if artifact is None:
        try:
            made = make()
        except UnsupportedModel as error:
            made = _none(error)
        artifact = run.commit(spec, made.content, made.maps, provenance=provenance())
    data = spec.inputs["data"]
    run.present(artifact, data={"profiles": data} if data else None)
    return HeadProfiles(artifact.content, artifact.arrays)


def _none(error: UnsupportedModel) -> HeadProfiles:
    return HeadProfiles({"heads": [], "notes": [f"No portraits: {error}."]})
