"""Pruned models of one model and task in a run that goes on after a stop, and what came of them as tables for a document."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import headcount as hc
from headcount.core.evaluation import Evaluation, interval
from headcount.core.stats.means import mean_interval, t_interval
from headcount.core.stats.significance import Difference, paired_bootstrap
from headcount.data.task import Task
from headcount.models.provenance import machine_of, model_record
from headcount.pruning.spec import PruneSpec
from headcount.runs.artifacts import Artifact
from headcount.runs.describe import describe_run
from headcount.runs.results import unpack_pruned
from headcount.runs.store import Run
from headcount.workflows.prune import Pruning, prune_all


def arguments(doc: str | None, methods: Sequence[str], keep: str = "75%,50%,25%,12.5%") -> argparse.ArgumentParser:
    """The options of scripts that prune a real model by several methods."""
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="the folder of the data sets")
    parser.add_argument("--model", type=Path, required=True, help="the folder of the model")
    parser.add_argument("--out", type=Path, required=True, help="where everything is kept; a run that was stopped goes on from there")
    parser.add_argument("--methods", default=",".join(methods))
    parser.add_argument("--keep", default=keep, help="shares of what can go, that stay")
    parser.add_argument("--seeds", type=int, default=3)
    return parser


def sizes(shares: str, total: int) -> list[int]:
    """Numbers of heads, from shares with commas."""
    return [hc.Budget(fraction=float(share.strip("% ")) / 100).heads(total) for share in shares.split(",")]


class Curves:
    """The dense model and every pruned one, on the report split of a task."""

    def __init__(
        self, folder: Path, name: str, model: Any, task: Task, specs: Sequence[PruneSpec], command: str, limit: int | None = None
    ) -> None:
        self.task, self.heads = task, hc.HeadMap.of(model)
        with Run.lead(folder, command=command) as run:
            run.describe(
                describe_run(model_record(model, name), command=command, seed=0, task=task.name, machine=machine_of(model)), self.heads
            )
            pruning = Pruning(run, model, task, limit=limit)
            self.dense, artifacts, self.failed = prune_all(pruning, specs, progress=lambda n, total: print(f"{n} of {total}", flush=True))
        self.artifacts: dict[tuple[str, int], list[Artifact]] = {}
        for artifact in artifacts:
            keep = artifact.content["arguments"]["keep"]
            self.artifacts.setdefault((artifact.content["label"], keep), []).append(artifact)

    @property
    def keeps(self) -> list[int]:
        """The sizes, largest first."""
        return sorted({keep for _, keep in self.artifacts}, reverse=True)

    @property
    def methods(self) -> list[str]:
        return list(dict.fromkeys(name for name, _ in self.artifacts))

    def mean(self, method: str, keep: int) -> Evaluation:
        """The outcome of a method, example by example the mean over its seeds."""
        made = [unpack_pruned(artifact) for artifact in self.artifacts[method, keep]]
        parts = None if made[0].parts is None else np.mean([one.parts for one in made if one.parts is not None], axis=0)
        total = self.task.metric.total if self.task.metric else None
        value = None if parts is None or total is None else float(total(parts.sum(axis=0)))
        return replace(made[0], losses=np.mean([one.losses for one in made], axis=0), parts=parts, value=value)

    def change(self, method: str, keep: int) -> Difference:
        """The change of the metric (or the loss) from the dense model's, over examples."""
        made = self.mean(method, keep)
        if self.dense.parts is None or made.parts is None or self.task.metric is None:
            return t_interval(made.losses - self.dense.losses)
        return paired_bootstrap(self.dense.parts, made.parts, self.task.metric.total, seed=0)

    def describe_dense(self, factor: float = 1.0, digits: int = 2) -> str:
        """The dense model's metric with its 95 % interval by bootstrap over examples, and its loss."""
        low, high = (factor * (end or 0.0) for end in interval(self.dense, self.task.metric.total if self.task.metric else None))
        value = factor * (self.dense.loss if self.dense.value is None else self.dense.value)
        return (
            f"Dense: {self.dense.metric or 'loss'} {value:.{digits}f} ({low:.{digits}f} … {high:.{digits}f}), loss {self.dense.loss:.4f}, "
            f"{self.dense.n_examples} examples"
        )

    def table(self, factor: float = 1.0, digits: int = 1) -> str:
        """Methods by sizes: the mean over seeds, and the change from dense with its 95 % interval over examples."""
        lines = [
            "| method | seeds |" + "".join(f" {keep} of {self._total()} heads |" for keep in self.keeps),
            "|---|---:|" + "---|" * len(self.keeps),
        ]
        for method in self.methods:
            here = [keep for keep in self.keeps if (method, keep) in self.artifacts]
            seeds = max(len(self.artifacts[method, keep]) for keep in here)
            lines.append(f"| {method} | {seeds} |" + "".join(f" {self._entry(method, keep, factor, digits)} |" for keep in self.keeps))
        return "\n".join(lines)

    def _total(self) -> int:
        kinds = next(iter(self.artifacts.values()))[0].content["spec"]["kinds"]
        return sum(block.n_heads for block in self.heads.blocks if not kinds or block.kind in kinds)

    def _entry(self, method: str, keep: int, factor: float, digits: int) -> str:
        if (method, keep) not in self.artifacts:
            return ""
        made, change = self.mean(method, keep), self.change(method, keep)
        value = made.loss if made.value is None else made.value
        values = [
            artifact.content["value"] if made.value is not None else artifact.content["loss"] for artifact in self.artifacts[method, keep]
        ]
        spread = f", seeds {factor * min(values):.{digits}f} … {factor * max(values):.{digits}f}" if len(values) > 1 else ""
        return (
            f"**{factor * value:.{digits}f}** ({factor * change.difference:+.{digits}f}; {factor * change.low:+.{digits}f} … "
            f"{factor * change.high:+.{digits}f}{spread})"
        )

    def order(self, keep: int) -> str:
        """Methods from the least loss to the most, each tested against the next one by the means over seeds, with Hall's transform."""
        ranked = sorted((method for method in self.methods if (method, keep) in self.artifacts), key=lambda m: self.mean(m, keep).loss)
        parts = []
        for first, second in zip(ranked, [*ranked[1:], None], strict=True):
            parts.append(f"{first} ({self.mean(first, keep).loss:.3f})")
            if second is not None:
                p = mean_interval(self.mean(second, keep).losses - self.mean(first, keep).losses).p
                parts.append(f"<{'' if p is not None and p < 0.05 else '?'} [p = {'unknown' if p is None else format(p, '.2g')}]")
        return " ".join(parts)

    def recovered(self, plain: str, repaired: str, keep: int) -> float:
        """The share of what a method loses that another one of the same plan wins back."""
        dense, before, after = self.dense.value, self.mean(plain, keep).value, self.mean(repaired, keep).value
        assert dense is not None and before is not None and after is not None
        return (after - before) / (dense - before)
