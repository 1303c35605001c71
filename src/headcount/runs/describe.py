"""What describes a run: the content of run.json and heads.json when it begins."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version

from headcount.core.heads import HeadIndex
from headcount.runs.schema import BlockRecord, HeadsRecord, ModelRecord, RunRecord

PACKAGES = ("headcount", "torch", "transformers", "numpy", "scipy")


def versions() -> dict[str, str]:
    """Returns the versions of Python and of the packages that results may depend on."""
    releases = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            releases[name] = version(name)
        except PackageNotFoundError:
            continue
    return releases


def describe_run(
    model: ModelRecord,
    *,
    command: str,
    seed: int,
    task: str = "",
    config: Mapping[str, object] | None = None,
    machine: Mapping[str, object] | None = None,
) -> RunRecord:
    """Returns the content of run.json for a run that begins now; versions, system and number of CPUs are added."""
    return RunRecord(
        command=command,
        created=timestamp(),
        updated=timestamp(),
        seed=seed,
        model=model,
        task=task,
        config=dict(config or {}),
        versions=versions(),
        machine={"system": platform.platform(), "cpus": os.cpu_count(), **(machine or {})},
    )


def describe_heads(heads: HeadIndex) -> HeadsRecord:
    """Returns the content of heads.json: the blocks of a model and the addresses of their heads."""
    names = ("name", "kind", "stack", "layer", "path", "n_original", "n_kv_heads", "head_dim", "can_cut")
    blocks = [
        BlockRecord(heads=[str(head) for head in block.heads], **{name: getattr(block, name) for name in names}) for block in heads.blocks
    ]
    return HeadsRecord(blocks=blocks)


def timestamp() -> str:
    """Returns the time in UTC to the second, in ISO format."""
    return datetime.now(UTC).isoformat(timespec="seconds")
