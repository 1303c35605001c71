"""What models scored, example by example, and how two of them differ on the same examples. Read from artifacts, without torch."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from decimal import ROUND_HALF_UP, Decimal
from math import isfinite
from typing import Any

import numpy as np

from headcount.core.evaluation import Evaluation, compare_with
from headcount.core.stats.metric_parts import Total
from headcount.runs.artifacts import Artifact

EVALUATION, PRUNED = "evaluation", "pruned"
FIELDS = ("task", "split", "n_examples", "metric", "higher_is_better", "value", "data")
FEW_STEPS = 200
"""A method that trained for fewer optimiser steps than this is named as such, since it cannot be judged by what it did."""
NAMED = 4
"""So many protected heads are named; of more, their number and a hash."""


def pack_evaluation(made: Evaluation) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The content and the arrays of an artifact of an evaluation."""
    arrays = {"losses": made.losses} | ({} if made.parts is None else {"parts": made.parts})
    return {name: getattr(made, name) for name in FIELDS}, arrays


def unpack_evaluation(artifact: Artifact) -> Evaluation:
    """The evaluation of an artifact."""
    return Evaluation(
        **{name: artifact.content[name] for name in FIELDS}, losses=artifact.arrays["losses"], parts=artifact.arrays.get("parts")
    )


def outcome(artifact: Artifact) -> Evaluation:
    """The evaluation in an artifact of a pruned model."""
    told = artifact.content
    return Evaluation(
        task="",
        split="report",
        n_examples=told["n_examples"],
        losses=artifact.arrays["losses"],
        metric=told["metric"],
        higher_is_better=told["higher_is_better"],
        value=told["value"],
        parts=artifact.arrays.get("parts"),
        data=told["data"],
    )


def rows_of(dense: Evaluation, artifacts: Sequence[Artifact], total: Total | None, n_heads: int) -> list[dict[str, Any]]:
    """One row per pruned model: method, heads, seed, metric with its change, interval and p-value, parameters."""
    found = []
    for artifact in artifacts:
        change, wish = compare_with(dense, outcome(artifact), total), artifact.content["wish"]
        found.append(
            {
                "method": method_label(artifact),
                "keep": wish["keep"] or n_heads - len(artifact.content["removed"]),
                "removed": len(artifact.content["removed"]),
                "seed": wish["seed"],
                "steps": fewest_steps(artifact),
                "loss": artifact.content["loss"],
                "value": artifact.content["value"],
                "higher_is_better": artifact.content["higher_is_better"],
                **{f"{what} {name}": value for what, made in change.items() for name, value in asdict(made).items()},
                "parameters": artifact.content["cost"]["parameters"],
            }
        )
    return found


def fewest_steps(artifact: Artifact) -> int | None:
    """The optimiser steps of the shortest stage that trained a model; None where nothing trained, or an older run does not say."""
    return min(artifact.content.get("steps", {}).values(), default=None)


def method_label(artifact: Artifact) -> str:
    """How tables and the report call the method of a pruned model: its name, and a word where it trained for too few steps to be judged."""
    steps = fewest_steps(artifact)
    return method_name(artifact.content["wish"]) + (f", only {plural_steps(steps)}" if steps is not None and steps < FEW_STEPS else "")


def plural_steps(number: int) -> str:
    """A number of optimiser steps in words."""
    return f"{number} step{'s' if number != 1 else ''}"


def format_length(length: float | str | Mapping[str, object]) -> str:
    """How long a training lasts, as a request says it: epochs as a plain number, "300steps", or "auto"; of a recipe, with its learning rate."""
    if isinstance(length, Mapping):
        steps, epochs = length.get("steps"), length.get("epochs")
        lasts = f"{steps}steps" if steps is not None else "auto" if epochs is None else f"{epochs:g}"
        return f"{lasts} at {length['rate']:g}"
    return length if isinstance(length, str) else f"{length:g}"


def method_name(wish: Mapping[str, Any]) -> str:
    """How a table calls the method of a wish, with its options and what follows it."""
    options = dict(wish["options"])
    if wish["method"] == "rank" and "normalise" not in wish and "normalise" not in options:
        options["normalise"] = "none"  # of an older run, where nothing was normalised unless told
    name = options.pop("by", wish["method"]) if wish["method"] == "rank" else wish["method"]
    name += f"({';'.join(f'{key}={value}' for key, value in sorted(options.items()))})" if options else ""
    name += f" of {'+'.join(wish['kinds'])}" if wish.get("kinds") else ""
    name += f" sparing {spared(wish['protected'])}" if wish.get("protected") else ""
    limits = [f"floor {wish['floor']}"] if wish.get("floor") else []
    limits += [f"unit {wish['unit']}"] if wish.get("unit", "kv_group") != "kv_group" else []
    name += f" with {' and '.join(limits)}" if limits else ""
    name += f" + {wish['ablation']}" if wish.get("ablation") else ""
    name += "" if wish["repair"] is None else " + repair" if wish["repair"] else " without repair"
    name += f" + recover {format_length(wish['recover'])}" if wish["recover"] else ""
    return name + (f", from scratch {format_length(wish['scratch'])}" if wish.get("scratch") else "")


def spared(heads: Sequence[str]) -> str:
    """Protected heads in a few words; other heads give other words."""
    told = "+".join(sorted(heads))
    return told if len(heads) <= NAMED else f"{len(heads)} heads ({hashlib.sha256(told.encode()).hexdigest()[:4]})"


def format_p(p: float) -> str:
    """A p-value as the page writes it: `p = 0.63`, two digits, halves up as JavaScript rounds them, or `p < 0.001`."""
    if not isfinite(p):
        return "p unknown"
    p = float(f"{p:.3g}")  # the page has three digits of it
    if p < 0.001:
        return "p < 0.001"
    exact = Decimal(p)
    return f"p = {float(exact.quantize(Decimal(1).scaleb(exact.adjusted() - 1), ROUND_HALF_UP)):g}"


def format_speed(ratio: float) -> str:
    """How fast one model is against another, in words: `1.27 times as fast`, or, where the ratio is below 1, `1.27 times as slow`."""
    text = f"{ratio if ratio >= 1 else 1 / ratio:.2f}"
    return "as fast" if text == "1.00" else f"{text} times as {'fast' if ratio >= 1 else 'slow'}"


def format_smallest(table: Sequence[Mapping[str, Any]], method: str, number: int | None) -> str:
    """The fewest heads of a method without a significant loss, as an artifact of a table; how many sizes were tried where all of them lose."""
    sizes = {row["keep"] for row in table if row["method"] == method and row.get("removed") != 0}
    return str(number) if number is not None else f"none of {len(sizes)} tried" if sizes else "nothing was removed"


def worse_by(row: Mapping[str, Any], *, alpha: float = 0.05) -> list[str]:
    """By what a pruned model is significantly worse than the dense one: its metric, its loss, both or neither.

    Either counts: an overconfident model loses accuracy while its loss falls, and a metric of few examples sees little.
    """
    sign = 1 if row.get("higher_is_better", True) else -1
    found = ["metric"] * (row.get("metric p", 1.0) < alpha and sign * row["metric difference"] < 0)
    return found + ["loss"] * (row["loss p"] < alpha and row["loss difference"] > 0)


def smallest_safe(table: Sequence[Mapping[str, Any]], *, alpha: float = 0.05) -> dict[str, int | None]:
    """By method, the fewest heads with no significant loss, neither of the metric nor in the loss, by any seed.

    A model that lost no head is the whole one, and says nothing about what can go.
    """
    found: dict[str, int | None] = {}
    for method in dict.fromkeys(row["method"] for row in table):
        mine = [row for row in table if row["method"] == method and row.get("removed") != 0]
        safe = [
            keep
            for keep in sorted({row["keep"] for row in mine})
            if not any(worse_by(row, alpha=alpha) for row in mine if row["keep"] == keep)
        ]
        found[method] = safe[0] if safe else None
    return found


@dataclass(frozen=True, slots=True)
class Best:
    """The row of the best pruned model by its place in the table, and whether that many heads are without a significant loss by its method."""

    at: int
    is_safe: bool


def best_of(table: Sequence[Mapping[str, Any]]) -> Best | None:
    """The smallest model of a method without a significant loss by any seed; where every number of heads loses, the largest.

    Of models with as many heads, the one with the least loss. None where no model lost a head.
    """
    least = set(smallest_safe(table).items())
    pruned = [at for at, row in enumerate(table) if row["removed"]]
    safe = [at for at in pruned if (table[at]["method"], table[at]["keep"]) in least]
    if not pruned:
        return None

    def order(at: int) -> tuple[Any, ...]:
        row = table[at]
        return (row["keep"] if safe else -row["keep"], row["loss"], row["method"], row["seed"])

    return Best(min(safe or pruned, key=order), bool(safe))
