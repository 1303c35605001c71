"""Scores of a run: what is finished is taken from its folder, the rest is computed block by block and kept there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from typing import Any, Unpack

from torch import nn

from headcount.core.errors import HeadcountError, PlanError, RoundingError
from headcount.core.scores import Scores
from headcount.data.stream import agree, fingerprint, world
from headcount.data.task import Data, task_key
from headcount.importance.score import Method, Options, reading_of, score_each
from headcount.importance.shared_pass import shared_needs
from headcount.models.modules import unwrap
from headcount.models.provenance import model_key, provenance
from headcount.runs.artifacts import Artifact, ArtifactKey
from headcount.runs.chunks import Chunks, discard_chunks, unfinished_passes
from headcount.runs.scores import KIND, pack_scores, unpack_scores
from headcount.runs.store import Run

ASKED = ("split", "limit", "batch_size", "normalise", "seed", "checkpointing", "generate", "adaptive")


def score_into(run: Run | None, model: nn.Module, data: Data, by: Iterable[str], **options: Unpack[Options]) -> dict[str, Scores]:
    """Like `score_all`, with a run that keeps everything: finished scores are not computed again, others go on where they stopped.

    A method that meets a number that is not finite, or whose scores drown in rounding, fails alone, after the others are kept. Only the first
    of several processes that torchrun started has the run; without one, nothing is kept.
    """
    names = [str(Method.parse(name)) for name in by]
    leads = world()[0] == 0
    if not agree(run is not None):
        found, failed = score_each(model, data, names, **options)
    else:
        assert not leads or run is not None
        found, failed = _Scoring(run, unwrap(model), data, names, options).scores()
    for error in failed.values():
        raise error
    return {name: found[name] for name in names}


class _Scoring:
    """One call of `score_into`."""

    def __init__(self, run: Run | None, model: nn.Module, data: Data, names: list[str], options: Options) -> None:
        self.run, self.model, self.data, self.names, self.options = run, model, data, names, options
        self.made = provenance()
        self.needs = shared_needs(map(Method.parse, names))
        self.parts = self._parts()

    def _parts(self) -> dict[str, Any]:
        """What determines the scores of any of the methods."""
        asked = {name: self.options.get(name) for name in ASKED} | {"normalise": self.options.get("normalise", "published")}
        reads = any(Method.parse(name).reads_data for name in self.names)
        data = {**task_key(self.data), "fingerprint": fingerprint(reading_of(self.model, self.data, self.options))} if reads else {}
        return {**model_key(self.model), **asked, "data": data}

    def spec(self, name: str) -> ArtifactKey:
        """The artifact of one method; of one that shares its pass, by what all of them ask of it."""
        method = Method.parse(name)
        parts = {"method": name, **self.parts, "normalise": method.scaling(self.parts["normalise"])}
        if method.reads_data:
            return ArtifactKey(KIND, name, {**parts, "needs": self.needs if method.has("of_block") else []})
        return ArtifactKey(KIND, name, {**parts, "data": {}, "split": None, "limit": None})

    def scores(self) -> tuple[dict[str, Scores], dict[str, HeadcountError]]:
        """The scores that could be made, and why others could not."""
        artifacts = (
            {} if self.run is None else {name: artifact for name in self.names if (artifact := self.run.find(self.spec(name))) is not None}
        )
        found = agree({name: unpack_scores(artifact) for name, artifact in artifacts.items()})
        failed: dict[str, HeadcountError] = {}
        missing = [name for name in self.names if name not in found]
        if missing:
            made, failed, kept = self._compute(missing)
            found |= made
            artifacts |= kept
        if self.run is not None:
            self._present(artifacts, failed)
        return found, failed

    def _compute(self, missing: list[str]) -> tuple[dict[str, Scores], dict[str, HeadcountError], dict[str, Artifact]]:
        memory, names = self._memory(missing)
        options: Options = {**self.options, "memory": memory, "needs": self.needs}
        with nullcontext() if self.run is None else self.run.log_failure(", ".join(names)):
            made, failed = score_each(self.model, self.data, agree(names), **options)
        made = {name: scores for name, scores in made.items() if name in missing}
        artifacts: dict[str, Artifact] = {}
        if self.run is not None and memory is not None:
            artifacts = {
                name: self.run.commit(self.spec(name), *pack_scores(scores), provenance=self.made) for name, scores in made.items()
            }
            if not failed:
                memory.clear()
        return made, failed, artifacts

    def _memory(self, missing: list[str]) -> tuple[Chunks | None, list[str]]:
        """Where blocks are kept, and the methods of the pass: those of one that was stopped before, if it has all that are missing."""
        if self.run is None:
            return None, missing
        streamed = {name for name in missing if Method.parse(name).reads_data}
        before = unfinished_passes(self.run, lambda parts: self._is_mine(parts) and streamed <= set(parts["methods"])) if streamed else []
        names = missing if not before else [*missing, *(name for name in before[0]["methods"] if name not in missing)]
        return self._blocks(names), names

    def _is_mine(self, parts: Mapping[str, Any]) -> bool:
        """Whether a pass is one over the same data under the same options."""
        return "methods" in parts and parts == {"methods": parts["methods"], "needs": self.needs, **self.parts}

    def _blocks(self, names: list[str]) -> Chunks:
        assert self.run is not None
        streamed = sorted(name for name in names if Method.parse(name).reads_data)
        if self.options.get("adaptive") is not None and not self.run.leads:
            raise PlanError("an adaptive run decides block by block what to examine next, so that no worker can join it")
        in_order = self.options.get("adaptive") is not None
        parts, goal = {"methods": streamed, "needs": self.needs, **self.parts}, [self.spec(name) for name in names]
        return Chunks(self.run, "+".join(streamed) or "weights", parts, self.made, goal=goal, in_order=in_order)

    def _present(self, artifacts: dict[str, Artifact], failed: dict[str, HeadcountError]) -> None:
        assert self.run is not None
        if not failed and self.run.leads:
            discard_chunks(self.run, lambda parts: self._is_mine(parts) and set(parts["methods"]) <= artifacts.keys())
        for name, error in failed.items():
            self.run.log(f"failed ({'rounding' if isinstance(error, RoundingError) else 'non-finite'}): {name}: {error}")
        self.run.present(*artifacts.values(), data=_data_print(self.parts))


def _data_print(parts: dict[str, Any]) -> dict[str, str]:
    told = parts["data"]
    return {f"{told['task']} {parts['split'] or 'calibration'}": told["fingerprint"]} if told else {}
