"""The files of a run, with their versions. No torch here: a report reads these and nothing else.

    run.json                       what ran: command, configuration, seed, versions, machine, model and data
    heads.json                     the blocks of the model and the addresses of their heads
    scores/<method>.json           one method's scores with standard errors and conditions
    scores/<method>.safetensors    the grouped sums behind them, for bootstrap and tests
    scores.csv, scores.parquet     all scores as one table, for other tools
    roles.json, .csv, .parquet     every head and role with its test

`key` of a result is a hash over everything that determines it, the weights included: a result is used again only under the same key.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

VERSION = 1


class Record(BaseModel):
    """What every file of a run has: its version; keys that are not known are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    schema_version: Literal[1] = VERSION


class ModelRecord(BaseModel):
    """Which model: the name that was given, its class, and a hash of its weights."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str
    class_name: str
    model_type: str
    weights: str
    n_parameters: int


class RunRecord(Record):
    """run.json."""

    command: str
    created: str
    updated: str
    seed: int
    model: ModelRecord
    task: str = ""
    config: dict[str, Any] = Field(default_factory=dict)
    versions: dict[str, str] = Field(default_factory=dict)
    machine: dict[str, Any] = Field(default_factory=dict)


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


class ScoresRecord(Record):
    """scores/<method>.json: one entry per head in the order of `heads`."""

    key: str
    method: str
    higher_is_keep: bool
    normalise: Literal["none", "layer", "global"]
    heads: list[str]
    units: list[list[str]]
    values: list[float]
    stderr: list[float]
    n_examples: int
    data: str
    seed: int
    columns: dict[str, list[float]] = Field(default_factory=dict)
    conditions: dict[str, Any] = Field(default_factory=dict)
    samples: str | None = None
    samples_sha256: str | None = None


class RoleRecord(BaseModel):
    """One head and one role; the fields of headcount.roles.RoleScore."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    head: str
    role: str
    n_sentences: int
    n_tokens: int
    bias: float
    stderr: float
    low: float
    high: float
    p: float
    q: float
    p_permutation: float
    effect: float
    maximum: float
    normalised: float
    accuracy: float
    accuracy_low: float
    accuracy_high: float
    baseline: float
    baseline_offset: int
    has_role: bool
    by_argmax: bool


class RolesRecord(Record):
    """roles.json."""

    tau: float
    alpha: float
    data: str
    heads: list[str]
    rows: list[RoleRecord]
    untested: dict[str, str] = Field(default_factory=dict)
    refused: dict[str, int] = Field(default_factory=dict)
    conditions: dict[str, Any] = Field(default_factory=dict)


def key_of(**parts: Any) -> str:
    """The key of a result: a hash over everything that determines it."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, allow_nan=False, default=str).encode()).hexdigest()
