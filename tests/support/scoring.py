"""A script for test_distributed, run by torchrun.

scoring.py scores OUT METHOD…    scores a tiny model over uneven examples and writes every bit of the result, then meets bad examples
scoring.py commands FILE OUT     runs the command lines of a JSON file and writes their exit codes
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch


def bits(*methods: str) -> dict[str, Any]:
    """Values, standard errors and fingerprint of each method; floats as text that holds every bit."""
    from toys import shared, task

    from headcount.data.evaluate import evaluate
    from headcount.importance.score import score_all
    from headcount.importance.settings import ScoreSettings

    data = task("encoder", 300)
    actual = score_all(shared("encoder"), data, methods) | score_all(shared("encoder"), data, ["lrp"], ScoreSettings(limit=140))
    actual["raced"] = score_all(shared("encoder"), data, ["ablation"], ScoreSettings(adaptive=3))["ablation"]
    result: dict[str, Any] = {
        name: {
            "values": [value.hex() for value in scores.values],
            "stderr": [value.hex() for value in scores.stderr],
            "columns": {key: [value.hex() for value in column] for key, column in scores.columns.items()},
            "data": scores.data,
            "n": scores.n_examples,
        }
        for name, scores in actual.items()
    }
    return result | {"evaluation": [float(loss).hex() for loss in evaluate(shared("encoder"), data).losses]}


def meet(labels: int, **options: Any) -> None:
    """Scores examples of which number 150, which falls to the second process, is not as it should be."""
    from toys import examples, shared, task

    import headcount as hc

    rows = examples("encoder", 300)
    rows[150] = {"labels": labels, "input_ids": [101]}
    hc.score(shared("encoder"), task("encoder", rows=rows, **options))


def defect(output: Any, batch: Any) -> Any:
    """A loss that fails on that example."""
    if bool((batch["input_ids"] == 101).any()):
        raise ZeroDivisionError("a defect of the task")
    return output.logits.sum(-1)


def scores(out: str, *methods: str) -> None:
    """Writes results and the message of a bad example to `<out>.<rank>`; then dies of a defect in one process."""
    import headcount as hc

    actual = bits(*methods)
    try:
        meet(labels=17)
    except hc.HeadcountError as error:
        actual["error"] = str(error)
    Path(f"{out}.{os.environ['RANK']}").write_text(json.dumps(actual))
    meet(labels=1, loss=defect)


def commands(lines: str, out: str) -> None:
    """Writes the exit codes to `<out>.<rank>`."""
    from headcount.app.main import main

    codes = [main(words) for words in json.loads(Path(lines).read_text())]
    Path(f"{out}.{os.environ['RANK']}").write_text(json.dumps(codes))


if __name__ == "__main__":
    torch.set_num_threads(1)
    {"scores": scores, "commands": commands}[sys.argv[1]](*sys.argv[2:])
