"""Pruned models of a run against the whole one, on the same examples, as the page shows them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from headcount.report._plain import short
from headcount.runs.cells import Cell
from headcount.runs.outcomes import EVALUATION, PRUNED, Evaluation, rows_of, smallest_safe, unpack_evaluation
from headcount.runs.schema import HeadsRecord, RunRecord
from headcount.runs.store import Run
from headcount.stats import paired_t
from headcount.stats.parts import Total, total_of
from headcount.stats.resampling import draw_with_replacement

DENSE = "dense"
TRAINED = ("l0", "dsp", "gates")
"""Pruners that train; cells say it themselves since they do."""
REPEATS, CELLS = 1000, 2**21


def dense_of(run: Run) -> Evaluation | None:
    """The evaluation of the whole model, if there is one."""
    cell = run.results(EVALUATION).get(DENSE)
    return unpack_evaluation(cell) if cell is not None else None


def curves_of(run: Run, record: RunRecord, heads: HeadsRecord) -> tuple[dict[str, Any] | None, list[dict[str, Any]], list[str]]:
    """The curves, or None where nothing was pruned; the rows behind them, with the tests of loss and metric; and what is not in them."""
    dense, cells = dense_of(run), list(run.results(PRUNED).values())
    if dense is None or not cells:
        return None, [], []
    same = [cell for cell in cells if cell.content["data"] == dense.data and cell.content["metric"] == dense.metric]
    notes = [f"{len(cells) - len(same)} pruned models were evaluated on other examples than the whole model and are left out."] * (
        len(same) < len(cells)
    )
    if not same:
        return None, [], notes
    total = total_of(dense.metric)
    if dense.metric and total is None:
        notes.append(f"How {dense.metric} is made of examples is not known here: changes are tested by the loss alone.")
    n_heads = sum(len(block.heads) for block in heads.blocks)
    places = {head: i for i, head in enumerate(head for block in heads.blocks for head in block.heads)}
    table = [
        {**row, "keep": n_heads - len(cell.content["removed"])}
        for row, cell in zip(rows_of(dense, same, total, n_heads), same, strict=True)
    ]
    points = [_point(row, cell, dense, places, command_of(record, run.folder.name, cell)) for row, cell in zip(table, same, strict=True)]
    points.sort(key=lambda point: (point["method"], point["keep"], point["seed"]))
    made = {
        "metric": dense.metric or "loss",
        "higher_is_better": dense.higher_is_better if dense.value is not None else False,
        "dense": _dense(dense, total, record, same),
        "points": points,
        "smallest_safe": smallest_safe(table),
        "unit": max((len(block.heads) // block.n_kv_heads for block in heads.blocks if block.n_kv_heads and block.heads), default=1),
    }
    return made, table, notes


def _dense(dense: Evaluation, total: Total | None, record: RunRecord, cells: Sequence[Cell]) -> dict[str, Any]:
    value = dense.loss if dense.value is None else dense.value
    low, high = interval(dense, total)
    cost = next((cell.content["whole_cost"] for cell in cells if "whole_cost" in cell.content), {})
    some = cells[0].content["cost"]
    width = some["bytes"] / max(1, some["parameters"])
    return {
        "value": short(value),
        "loss": short(dense.loss),
        "n_examples": dense.n_examples,
        "low": short(low),
        "high": short(high),
        "parameters": cost.get("parameters", record.model.n_parameters),
        "bytes": cost.get("bytes", round(record.model.n_parameters * width)),
        "flops": cost.get("flops"),
        "kv_bytes_per_token": cost.get("kv_bytes_per_token"),
    }


def interval(made: Evaluation, total: Total | None) -> tuple[float | None, float | None]:
    """The 95 % interval of the metric by bootstrap over examples, of the loss by t where there is no metric."""
    if made.value is None:
        if made.n_examples < 2:
            return None, None
        shift = paired_t(made.losses)
        return shift.low, shift.high
    if total is None or made.parts is None or len(made.parts) < 2:
        return None, None
    draw, step = draw_with_replacement(len(made.parts), 0), max(1, CELLS // len(made.parts))
    drawn = np.concatenate([total(draw(min(step, REPEATS - start))[:, 0] @ made.parts) for start in range(0, REPEATS, step)])
    if not np.isfinite(drawn).all():
        return None, None
    low, high = np.quantile(drawn, [0.025, 0.975])
    return float(low), float(high)


def _point(row: Mapping[str, Any], cell: Cell, dense: Evaluation, places: Mapping[str, int], command: str) -> dict[str, Any]:
    told, wish = cell.content, cell.content["wish"]
    what = "metric" if "metric p" in row else "loss"
    value = row["loss"] if row["value"] is None else row["value"]
    base = dense.loss if dense.value is None else dense.value
    shown = what == "metric" or row["value"] is None
    return {
        "method": row["method"],
        "is_random": wish["method"] == "random",
        "is_trained": bool(told.get("trained", wish["method"].partition(":")[0] in TRAINED or wish["recover"])),
        "keep": row["keep"],
        "seed": row["seed"],
        "value": short(value),
        "loss": short(row["loss"]),
        "difference": short(value - base),
        "low": short(row[f"{what} low"]) if shown else None,
        "high": short(row[f"{what} high"]) if shown else None,
        "p": short(row[f"{what} p"], 3),
        "test": row[f"{what} by"],
        "removed": [places[head] for head in told["removed"] if head in places],
        "parameters": told["cost"]["parameters"],
        "bytes": told["cost"]["bytes"],
        "flops": told["cost"].get("flops"),
        "kv_bytes_per_token": told["cost"].get("kv_bytes_per_token"),
        "command": command,
    }


def command_of(record: RunRecord, out: str, cell: Cell) -> str:
    """The command that makes a pruned model again."""
    wish = cell.content["wish"]
    options = dict(wish["options"])
    method = options.pop("by", wish["method"]) if wish["method"] == "rank" else wish["method"]
    words = ["headcount", "prune", record.model.name, *task_words(record), "--method", method]
    words += [word for name, value in sorted(options.items()) for word in ("--option", f"{name}={value}")]
    limit = wish.get("limit")
    if limit:
        words += [f"--{limit[0].replace('_', '-')}", f"{limit[1] * 1000 if limit[0] == 'latency' else limit[1]:g}"]
    else:
        words += ["--keep", str(wish["keep"])]
    words += ["--kinds", ",".join(wish["kinds"])] if wish.get("kinds") else []
    words += ["--floor", str(wish["floor"])] if wish.get("floor") else []
    words += ["--unit", wish["unit"]] if wish.get("unit", "kv_group") != "kv_group" else []
    words += [] if wish["repair"] is None else ["--repair" if wish["repair"] else "--no-repair"]
    words += ["--recover", f"{wish['recover']:g}"] if wish["recover"] else []
    return shlex.join([*words, "--seed", str(wish["seed"]), "--out", out])


def task_words(record: RunRecord) -> list[str]:
    """The words of a command line that name the task and its data, as far as the run knows them."""
    opened = record.config.get("opened", {})
    names = ("task", "train", "eval", *(name for name in opened if name.endswith("_column")), "task_option", "max_length", "limit")
    given = {"task": record.task or None, **opened}
    words = []
    for name in names:
        for value in _listed(given.get(name)):
            words += [f"--{name.replace('_', '-')}", str(value)]
    return words + (["--truncate"] if opened.get("truncate") else [])


def _listed(value: Any) -> list[Any]:
    return [] if value is None or value is False else list(value) if isinstance(value, list | tuple) else [value]
