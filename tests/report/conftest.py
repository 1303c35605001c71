from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def analysed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the whole job on an embedded model, as small as it gets; tests that change it copy it."""
    import headcount as hc
    from headcount.workflows.analysis_spec import BenchSizes

    out = tmp_path_factory.mktemp("analysed") / "run"
    hc.analyze(
        "demo/entailment",
        "demo/entailment",
        out=out,
        scored=16,
        reported=40,
        by=("gradient", "confidence"),
        methods=("random",),
        keep=(0.5,),
        seeds=1,
        bench_sizes=BenchSizes((1,), (8,), 1),
        profiled=12,
    )
    return out
