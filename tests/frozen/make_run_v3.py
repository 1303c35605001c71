"""Writes run-v3, a run folder of schema 3, which every later release with that schema must open; run once, then kept as it is.

python tests/frozen/make_run_v3.py
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import torch

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "support"))


def main() -> None:
    """Scores and evaluates a tiny model."""
    from toys import shared, task

    import headcount as hc
    from headcount.importance.settings import ScoreSettings
    from headcount.models.provenance import model_record
    from headcount.runs.describe import describe_run
    from headcount.runs.store import Run
    from headcount.workflows.evaluate import evaluate_into
    from headcount.workflows.score import score_into

    torch.set_num_threads(1)
    folder, model, data = HERE / "run-v3", shared("encoder"), task("encoder", 20)
    shutil.rmtree(folder, ignore_errors=True)
    with Run.lead(folder, command="headcount score toy") as run:
        record = describe_run(model_record(model, "toy"), command="headcount score toy", seed=3, task="toy encoder")
        run.stage_records(record, hc.HeadMap.of(model))
        score_into(run, model, data, ["gradient", "ablation", "magnitude"], ScoreSettings(seed=3))
        evaluate_into(run, "whole", model, data)
    (folder / "lock").unlink()


if __name__ == "__main__":
    main()
