"""Head profiles as an artifact of a run."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from torch import nn

from headcount.behaviour.base import Corpus
from headcount.behaviour.profiles.profile import HeadProfiles, ProfileSpec, profile_heads, take_first_examples
from headcount.behaviour.views import check_model_reads, corpus_examples
from headcount.core.errors import UnsupportedModel
from headcount.data.stream import Progress, Reading, fingerprint
from headcount.models.modules import unwrap
from headcount.models.provenance import model_key, rounding_provenance
from headcount.runs.artifacts import ArtifactKey
from headcount.runs.store import Run

KIND = "profiles"


def profiles_into(
    run: Run,
    model: nn.Module,
    corpus: Corpus,
    tokenizer: Any = None,
    spec: ProfileSpec = ProfileSpec(),  # noqa: B008  frozen
    *,
    progress: Progress | None = None,
) -> HeadProfiles:
    """Returns the head profiles of a model, stored in a run: finished ones are read from it.

    For a model whose attention cannot be observed, the reason is stored instead.
    """
    inner = unwrap(model)
    corpus = take_first_examples(corpus, spec.limit)
    parts = {**model_key(inner), **asdict(spec), "named": tokenizer is not None}
    parts["longest"] = parts.pop("max_map_length")  # the name in the keys of artifacts, which find those of existing runs
    data, refusal = "", None
    try:
        check_model_reads(inner, corpus)
        data = fingerprint(Reading(corpus_examples(inner, corpus)))
        key = ArtifactKey(KIND, KIND, {**parts, "data": data})
    except UnsupportedModel as error:
        refusal, key = error, ArtifactKey(KIND, KIND, {**parts, "data": data, "refused": str(error)})
    artifact = run.find(key)
    if artifact is None:
        try:
            if refusal is not None:
                raise refusal
            profiles = profile_heads(inner, corpus, tokenizer, spec, progress=progress)
        except UnsupportedModel as error:
            profiles = HeadProfiles({"heads": [], "notes": [f"No head profiles: {error}."]})
        artifact = run.commit(key, profiles.content, profiles.maps, provenance=rounding_provenance())
    run.register_results(artifact, data_fingerprints={KIND: data} if data else None)
    return HeadProfiles(artifact.content, artifact.arrays)
