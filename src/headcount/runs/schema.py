"""The files of a run and their schema. A report reads these files and nothing else.

run.json                       what ran: command, configuration, seed, versions, machine, model and data, and the artifacts it shows
heads.json                     the blocks of the model and the addresses of their heads
artifacts/<kind>/<name>.<digest>.artifact   one finished unit of work each (see headcount.runs.artifacts): scores, damage, roles, profiles,
                               evaluation, pruned, bench, comparison, latency, study, tuned, and chunk (of an unfinished pass over data)
scores.*, verdicts.*, roles.*, … tables of all results, as csv and parquet, made out of the artifacts
tables.json                    the hashes of these tables
models/<name>.<digest>/        models, with manifests of their own
work/<digest>/                 checkpoints of an unfinished training
log.txt                        log for people
quarantine/                    damaged files
lock, owner.json               locks, and the process that leads the run
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

VERSION = 3
OLDER = {2: "0.1.0"}
"""Earlier schema versions, and the release that opens their runs."""


class Record(BaseModel):
    """Base of the records in a run's JSON files: the schema version; unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    schema_version: Literal[3] = VERSION


def other_version_message(path: Path, version: Any) -> str:
    """Returns the error message for a file of another schema version, with the release that opens it."""
    if isinstance(version, int) and version > VERSION:
        remedy = "Install a newer one to open this run."
    elif version in OLDER:
        remedy = f"Open it with headcount {OLDER[version]}, or run its command in a new folder."
    else:
        remedy = "It was written before the first release; run its command in a new folder."
    return f"{path} has schema version {version}; this headcount reads version {VERSION}. {remedy}"


class ModelRecord(BaseModel):
    """Identifies a model: its name, its class and a hash of its weights."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str
    class_name: str
    model_type: str
    weights: str
    n_parameters: int


class RunRecord(Record):
    """run.json.

    Attributes:
        data: Fingerprints of the data that were read.
        results: Digests of the artifacts that are results of the run, by `kind/name`.
        heads: Hash of the content of heads.json.
        models: Seals of the models in models/, by folder.
        compared: Hashes of the weights of further models that a study compares with the run's; their artifacts are no results of the run.
    """

    command: str
    created: str
    updated: str
    seed: int
    model: ModelRecord
    task: str = ""
    config: dict[str, Any] = Field(default_factory=dict)
    versions: dict[str, str] = Field(default_factory=dict)
    machine: dict[str, Any] = Field(default_factory=dict)
    data: dict[str, str] = Field(default_factory=dict)
    results: dict[str, str] = Field(default_factory=dict)
    heads: str = ""
    models: dict[str, str] = Field(default_factory=dict)
    compared: tuple[str, ...] = ()


class BlockRecord(BaseModel):
    """One attention block and the addresses of its heads."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str
    kind: str
    stack: str
    layer: int
    path: str
    heads: list[str]
    n_original: int
    n_kv_heads: int
    head_dim: int
    can_cut: bool


class HeadsRecord(Record):
    """heads.json."""

    blocks: list[BlockRecord]

    @property
    def names(self) -> tuple[str, ...]:
        """The addresses of all heads, in flat order."""
        return tuple(head for block in self.blocks for head in block.heads)


class ScoresRecord(BaseModel):
    """The content of an artifact of scores: one entry per head, in the order of `heads`."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    method: str
    higher_is_keep: bool
    normalise: Literal["none", "layer", "global", "standard"]
    heads: list[str]
    units: list[list[str]]
    values: list[float]
    stderr: list[float]
    n_examples: int
    data: str
    seed: int
    columns: dict[str, list[float]] = Field(default_factory=dict)
    conditions: dict[str, Any] = Field(default_factory=dict)
    directions: dict[str, bool] = Field(default_factory=dict)
    describes: bool | None = None


class TablesRecord(Record):
    """tables.json: the hash of every table; `before` holds the previous hash while a table is being replaced."""

    files: dict[str, str]
    before: dict[str, str] = Field(default_factory=dict)
