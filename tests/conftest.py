"""What tests of several rooms share: quiet libraries, a small classifier with its table, and a run of the whole job."""

from __future__ import annotations

import gc
import signal
from pathlib import Path

import pytest
import torch
import transformers
from toys import saved_classifier, saved_table


def pytest_collection() -> None:
    gc.disable()


def pytest_collection_finish() -> None:
    """Takes what was imported and collected out of garbage collection: every pass, of which each training asks for some, would walk over it.

    Passes that nobody asks for are rare: models are small.
    """
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    gc.enable()


@pytest.fixture(autouse=True, scope="session")
def _quiet() -> None:
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


@pytest.fixture(autouse=True, scope="session")
def _handle_interrupts() -> None:
    """A shell starts background jobs with Ctrl-C ignored, which tests that send it and processes that they start would inherit."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def small_bench(monkeypatch: pytest.MonkeyPatch) -> None:
    """Latency is measured of two rows of eight tokens at most, whatever sizes are asked for: as many rounds and rows of the table, soon."""
    from headcount.surgery import bench

    repeat = bench.repeat_probe_batch
    monkeypatch.setattr(
        bench, "repeat_probe_batch", lambda model, batch_size, n_tokens: repeat(model, min(batch_size, 2), min(n_tokens, 8))
    )


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a classifier."""
    return saved_classifier(tmp_path_factory.mktemp("models") / "bert")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of texts and labels."""
    return saved_table(tmp_path_factory.mktemp("data") / "data.csv")


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
        score_limit=16,
        comparison_limit=40,
        by=("gradient", "confidence"),
        methods=("random",),
        keep=(0.5,),
        seeds=1,
        bench_sizes=BenchSizes((1,), (8,), 1),
        profile_limit=12,
    )
    return out
