"""`study survivors` judges by the roles of the dense model, which are not those of weights that a method trained before it cut."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from headcount.core.errors import ArtifactError
from headcount.pruning.spec import PruneSpec
from headcount.runs.artifacts import Artifact, ArtifactKey
from headcount.studies._measure.survivors import read_survivors

HEADS = [f"L0H{index}" for index in range(4)]
FROZEN, TRAINED = {"gates": None}, {}


def artifact(method: str, content: dict[str, Any]) -> Artifact:
    spec = PruneSpec.of(method, 2)
    stored = {"spec": spec.to_dict(), "label": spec.label, "removed": HEADS[:2], **content}
    return Artifact(ArtifactKey("pruned", spec.name, {"weights": "w"}), stored, {})


def run_of(*artifacts: Artifact) -> Any:
    return SimpleNamespace(
        folder="RUN",
        record=lambda: SimpleNamespace(model=SimpleNamespace(weights="w")),
        results=lambda _kind: dict(enumerate(artifacts)),
        heads=lambda: SimpleNamespace(blocks=[SimpleNamespace(heads=HEADS)]),
    )


def test_methods_that_trained_weights_are_left_out_and_named() -> None:
    run = run_of(
        artifact("surgeon", FROZEN),
        artifact("l0", TRAINED),
        artifact("dsp:joint", TRAINED),
        artifact("dsp:pipelined", FROZEN),
        artifact("gates", FROZEN),
    )
    sets, trained = read_survivors(run)
    assert [method for method, _ in sets] == ["dsp:pipelined", "gates", "surgeon"] and trained == ["dsp", "l0"]
    sets, trained = read_survivors(run, with_weight_training_methods=True)
    assert len(sets) == 5 and trained == ["dsp", "l0"], "asked for, they are judged, and still named"


def test_a_comparison_of_trained_weights_alone_is_refused() -> None:
    with pytest.raises(ArtifactError, match=r"l0 alone, which trained the weights before they cut.*dense_roles"):
        read_survivors(run_of(artifact("l0", TRAINED)))
    assert len(read_survivors(run_of(artifact("l0", TRAINED)), with_weight_training_methods=True)[0]) == 1
