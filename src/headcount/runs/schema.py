"""The files of a run, with their versions. No torch here: a report reads these and nothing else.

run.json                       what ran: command, configuration, seed, versions, machine, model and data, and the artifacts it shows
heads.json                     the blocks of the model and the addresses of their heads
artifacts/<kind>/<name>.<key>.artifact   one finished unit of work each (see headcount.runs.artifacts): scores, roles, profiles,
                               evaluation, pruned, bench, study, tuned, and block (of a pass that is under way)
scores.*, roles.*, curves.*, … tables of all results, as csv and parquet, made out of the artifacts
tables.json                    the hashes of these tables
models/<name>.<key>/           models, with manifests of their own
work/<key>/                    checkpoints of a training that is under way
log.txt                        what happened, for people
quarantine/                    files that were found damaged
lock, owner.json               who works here now
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

VERSION = 3
OLDER = {2: "0.1.0"}
"""Schemas of earlier releases, and the release to open their runs with."""


class Record(BaseModel):
    """What every file of a run has: its version; keys that are not known are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    schema_version: Literal[3] = VERSION


def other_version(path: Path, version: Any) -> str:
    """The sentence that refuses a file of another schema, with the release to open it with."""
    if isinstance(version, int) and version > VERSION:
        remedy = "Install a newer one to open this run."
    elif version in OLDER:
        remedy = f"Open it with headcount {OLDER[version]}, or run its command in a new folder."
    else:
        remedy = "It was written before the first release; run its command in a new folder."
    return f"{path} has schema version {version}; this headcount reads version {VERSION}. {remedy}"


class ModelRecord(BaseModel):
    """Which model: the name that was given, its class, and a hash of its weights."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str
    class_name: str
    model_type: str
    weights: str
    n_parameters: int


class RunRecord(Record):
    """run.json; `data` are the fingerprints of what was read, `results` the keys of the artifacts that the run shows, by kind and name.

    `heads` is the hash of what heads.json says, `models` are the seals of the models in models/, by folder: neither can be another run's.
    `compared` are the weights of further models that a study compares with the run's; their artifacts are kept and not shown as results of the run.
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


class ScoresRecord(BaseModel):
    """The content of an artifact of scores: one entry per head in the order of `heads`.

    `directions` and `describes` are missing in artifacts that were written before there were such.
    """

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
    """tables.json: the hash of every table as it is written last, and as it was `before` if the writing of it was cut short."""

    files: dict[str, str]
    before: dict[str, str] = Field(default_factory=dict)
