"""Writes and reads the folder of a run; every file appears whole or not at all."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.numpy import load as read_tensors
from safetensors.numpy import save as tensor_bytes

from headcount.errors import ArtefactError
from headcount.files import check_place, read_json, sha256, write_atomic, write_json
from headcount.heads import Head, HeadMap
from headcount.runs.schema import VERSION, BlockRecord, HeadsRecord, ModelRecord, Record, RunRecord, ScoresRecord, key_of
from headcount.scores import Scores
from headcount.stats import Samples

Kind = TypeVar("Kind", bound=Record)
PACKAGES = ("headcount", "torch", "transformers", "numpy", "scipy")


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def describe_run(model: ModelRecord, **facts: Any) -> RunRecord:
    """What run.json says of a run that begins now: its `facts` (command, seed, task, config), the versions and the machine."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    machine = {"system": platform.platform(), "cpus": os.cpu_count(), **facts.pop("machine", {})}
    return RunRecord(created=now, updated=now, model=model, versions=_versions(), machine=machine, **facts)


def read_record(path: Path, kind: type[Kind]) -> Kind:
    """A file of a run, checked; ArtefactError says what is wrong with it."""
    content = read_json(path)
    told = content.get("schema_version") if isinstance(content, dict) else None
    if isinstance(told, int) and told > VERSION:
        raise ArtefactError(
            f"{path} has schema version {told}; this headcount reads up to {VERSION}. Install a newer one to open this run."
        )
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        raise ArtefactError(f"{path} is no {kind.__name__}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error


@dataclass(frozen=True, slots=True)
class Run:
    """A run by its folder."""

    folder: Path

    @classmethod
    def begin(cls, folder: Path, record: RunRecord, heads: HeadMap) -> Run:
        """Opens the folder for more results of the same model, or makes it."""
        cls.check(folder, record)
        run = cls(folder)
        if run.exists():
            record = record.model_copy(update={"created": run.record().created})
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / "heads.json", HeadsRecord(blocks=[_block(block) for block in heads.blocks]).model_dump())
        write_json(folder / "run.json", record.model_dump())
        return run

    @classmethod
    def check(cls, folder: Path, record: RunRecord) -> None:
        """Refuses, before work is done for it, a folder that cannot take this run: another model's, or somebody else's files."""
        run = cls(folder)
        if not run.exists():
            _check_fresh(folder)
        elif (before := run.record()).model.weights != record.model.weights:
            raise ArtefactError(
                f"{folder} is a run of another model ({before.model.name}, weights {before.model.weights[:12]}; this one has "
                f"{record.model.weights[:12]}); name another folder"
            )

    @classmethod
    def open(cls, folder: Path) -> Run:
        """An existing run."""
        run = cls(folder)
        if not run.exists():
            raise ArtefactError(
                f"{folder} holds no run: it has no run.json. Make one with: headcount score MODEL --task TASK --out {folder}"
            )
        run.record()
        return run

    def exists(self) -> bool:
        """Whether the folder holds a run."""
        return (self.folder / "run.json").is_file()

    def record(self) -> RunRecord:
        """What run.json says."""
        return read_record(self.folder / "run.json", RunRecord)

    def heads(self) -> HeadsRecord:
        """What heads.json says."""
        return read_record(self.folder / "heads.json", HeadsRecord)

    def write_scores(self, scores: Scores) -> Path:
        """Writes one method's scores, over earlier ones of the same method, and renews the tables of all."""
        place = self.folder / "scores" / f"{_file_name(scores.method)}.json"
        place.parent.mkdir(exist_ok=True)
        samples = None
        if scores.samples is not None:
            samples = place.with_suffix(".safetensors")
            write_atomic(samples, _sample_bytes(scores.samples))
        write_json(place, _scores_record(scores, self.record().model.weights, samples).model_dump())
        self._write_tables()
        return place

    def methods(self) -> list[str]:
        """The methods that have scores here."""
        return [record.method for record in self._score_records()]

    def scores(self, method: str) -> Scores:
        """One method's scores."""
        known = {record.method: record for record in self._score_records()}
        if method not in known:
            raise ArtefactError(f"{self.folder} has no scores by '{method}'; it has {', '.join(known) or 'none'}")
        return _scores(known[method], self.folder / "scores")

    def _score_records(self) -> list[ScoresRecord]:
        return [read_record(path, ScoresRecord) for path in sorted((self.folder / "scores").glob("*.json"))]

    def _write_tables(self) -> None:
        import io

        import pandas

        frames = [_scores(record, None).to_pandas().assign(method=record.method) for record in self._score_records()]
        table = pandas.concat(frames, ignore_index=True)
        table = table[["method", *[column for column in table.columns if column != "method"]]]
        write_atomic(self.folder / "scores.csv", table.to_csv(index=False).encode())
        packed = io.BytesIO()
        table.to_parquet(packed, index=False)
        write_atomic(self.folder / "scores.parquet", packed.getvalue())


def _check_fresh(folder: Path) -> None:
    if folder.is_file():
        raise ArtefactError(f"{folder} is a file; name a folder for the run")
    check_place(folder)
    if folder.exists() and any(folder.iterdir()):
        raise ArtefactError(f"{folder} is not empty and holds no run; name another folder")


def _block(block: Any) -> BlockRecord:
    names = ("name", "kind", "stack", "layer", "path", "n_original", "n_kv_heads", "head_dim", "can_cut")
    return BlockRecord(heads=[str(head) for head in block.heads], **{name: getattr(block, name) for name in names})


def _file_name(method: str) -> str:
    return re.sub(r"[^a-z0-9-]+", ".", method.lower())


def _sample_bytes(samples: Samples) -> bytes:
    sums, weights = (np.ascontiguousarray(array, dtype=np.float64) for array in (samples.sums, samples.weights))
    return tensor_bytes({"sums": sums, "weights": weights, "n": np.array([samples.n], dtype=np.int64)})


def _scores_record(scores: Scores, weights: str, samples: Path | None) -> ScoresRecord:
    determined = {"method": scores.method, "normalise": scores.normalise, "data": scores.data, "seed": scores.seed, "weights": weights}
    return ScoresRecord(
        key=key_of(schema=VERSION, **determined, conditions=dict(scores.conditions)),
        method=scores.method,
        higher_is_keep=scores.higher_is_keep,
        normalise=scores.normalise,
        heads=[str(head) for head in scores.heads],
        units=[[str(head) for head in unit] for unit in scores.units],
        values=list(scores.values),
        stderr=list(scores.stderr),
        n_examples=scores.n_examples,
        data=scores.data,
        seed=scores.seed,
        columns={name: list(column) for name, column in scores.columns.items()},
        conditions=dict(scores.conditions),
        samples=samples.name if samples else None,
        samples_sha256=sha256(samples) if samples else None,
    )


def _scores(record: ScoresRecord, folder: Path | None) -> Scores:
    parse: Any = Head.parse
    return Scores(
        heads=tuple(map(parse, record.heads)),
        values=tuple(record.values),
        method=record.method,
        higher_is_keep=record.higher_is_keep,
        units=tuple(tuple(map(parse, unit)) for unit in record.units),
        stderr=tuple(record.stderr),
        n_examples=record.n_examples,
        samples=_samples(record, folder) if folder is not None and record.samples else None,
        data=record.data,
        seed=record.seed,
        normalise=record.normalise,
        columns={name: tuple(column) for name, column in record.columns.items()},
        conditions=record.conditions,
    )


def _samples(record: ScoresRecord, folder: Path) -> Samples:
    path = folder / Path(record.samples or "").name
    if not path.is_file() or sha256(path) != record.samples_sha256:
        raise ArtefactError(f"{path} is missing or damaged (its hash is not the recorded one); score {record.method} again")
    try:
        tensors = read_tensors(path.read_bytes())
        return Samples(tensors["sums"], tensors["weights"], int(tensors["n"][0]))
    except (SafetensorError, KeyError) as error:
        raise ArtefactError(f"{path} holds no samples: {error}") from error


def same_heads(tables: Sequence[Scores]) -> None:
    """Raises ArtefactError unless all scores are of the same heads in the same order."""
    for other in tables[1:]:
        if other.heads != tables[0].heads:
            raise ArtefactError(
                f"these scores are of different heads ({len(tables[0].heads)} and {len(other.heads)}); compare scores of one model, or of models "
                "of the same shape"
            )
