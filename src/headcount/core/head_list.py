"""The heads that do a job, with the scores that they were chosen and tested by, and their JSON file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from headcount.core.errors import ArtifactError
from headcount.core.files import read_json, write_json
from headcount.core.heads import Head

ALIGNMENT = "alignment"
PROBED = ("retrieval", "induction")
JOBS = (ALIGNMENT, *PROBED)
"""The jobs by name; those that are probed bring their own sequences."""
SCHEMA = 1


@dataclass(frozen=True, slots=True)
class SetScore:
    """The score of a set of heads on examples that did not choose it, and its 95 % interval, whose ends are bounds by betting."""

    n_heads: int
    score: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class HeadList:
    """The heads that do a job.

    Attributes:
        job: alignment, retrieval or induction.
        heads: The heads, best first.
        tested: The score of the set on the half of the examples that did not choose it, with its 95 % interval.
        compared: The scores of other sets on that half: the best head alone, all heads, and the list that the model had.
        ranking: The score of each head alone on the half that chose, best first.
        set_scores: The scores of the first 1, 2, … heads of the ranking on that half.
        metric: What a score is.
        baseline: What attention that knows nothing scores on the half that tested: tokens that divide the sound evenly, or a key drawn at random.
        n_choosing: How many examples chose.
        n_testing: How many examples tested.
        boundary_seconds: By how many seconds the start of a word is missed on average, on the half that tested; None but for alignment.
        model: What the scores depend on: the hash of the weights, dtype, attention implementation and device type.
        data: The fingerprint of the examples.
        seed: The seed of ties, and of sequences that were drawn.
        command: The command line that found the heads.
    """

    job: str
    heads: tuple[Head, ...]
    tested: SetScore
    compared: Mapping[str, SetScore]
    ranking: tuple[tuple[Head, float], ...]
    set_scores: tuple[float, ...]
    metric: str
    baseline: float
    n_choosing: int
    n_testing: int
    boundary_seconds: float | None = None
    model: Mapping[str, Any] = field(default_factory=dict)
    data: str = ""
    seed: int = 0
    command: str = ""

    @property
    def beats_baseline(self) -> bool:
        """Whether the set does the job better than attention that knows nothing: its interval lies above the baseline."""
        return self.tested.low > self.baseline

    def to_dict(self) -> dict[str, Any]:
        """Returns the list as plain data, heads as addresses."""
        values = {name: getattr(self, name) for name in self.__slots__}
        return {
            "schema_version": SCHEMA,
            **values,
            "heads": [str(head) for head in self.heads],
            "tested": _score_to_dict(self.tested),
            "compared": {name: _score_to_dict(score) for name, score in self.compared.items()},
            "ranking": [{"head": str(head), "score": score} for head, score in self.ranking],
            "set_scores": list(self.set_scores),
            "model": dict(self.model),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Returns the list that `to_dict` described; raises KeyError, TypeError or ValueError for other data."""
        scores = {name: SetScore(**score) for name, score in values["compared"].items()}
        entries = {
            "heads": tuple(Head.parse(head) for head in values["heads"]),
            "tested": SetScore(**values["tested"]),
            "compared": scores,
            "ranking": tuple((Head.parse(entry["head"]), entry["score"]) for entry in values["ranking"]),
            "set_scores": tuple(values["set_scores"]),
        }
        return cls(**{name: value for name, value in {**values, **entries}.items() if name != "schema_version"})

    def with_command(self, command: str) -> Self:
        """Returns the list with the command line that found it."""
        return replace(self, command=command)

    def write(self, path: str | Path) -> Path:
        """Writes the list as JSON, and returns the path."""
        write_json(Path(path), self.to_dict())
        return Path(path)

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """Returns the list in a file that `write` wrote.

        Raises:
            ArtifactError: the file is missing, damaged or of another version.
        """
        content = read_json(Path(path), remedy_if_missing="make one with headcount find")
        version = content.get("schema_version") if isinstance(content, dict) else None
        if version != SCHEMA:
            raise ArtifactError(
                f"{path} has schema version {version!r:.20}, this headcount reads {SCHEMA}; make it again with headcount find"
            )
        try:
            return cls.from_dict(content)
        except (KeyError, TypeError, ValueError) as error:
            raise ArtifactError(f"{path} holds no list of heads: {error!r:.80}; make it again with headcount find") from error


def _score_to_dict(score: SetScore) -> dict[str, Any]:
    return {name: getattr(score, name) for name in SetScore.__slots__}
