"""`headcount check`: proves the laws on this very model."""

from __future__ import annotations

import typer

from headcount.cli._options import AllowPickle, Auto, Device, Dtype, Json, Model, Quiet, SomeHeads, Verbose, split
from headcount.cli._session import session


def run(
    context: typer.Context, model: Model, heads: SomeHeads = None, device: Device = "auto", dtype: Dtype = "auto",
    auto: Auto = None, allow_pickle: AllowPickle = False, json: Json = False, quiet: Quiet = False, verbose: Verbose = False,
) -> int:  # fmt: skip
    """Prove on this very model that gates act and leave no trace, that a cut equals the gates, and that a reload equals what was saved."""
    with session(context, json=json, quiet=quiet, verbose=verbose) as say:
        from headcount.cli._models import open_model
        from headcount.testing.laws import check_model

        live, _, _ = open_model(say, model, device=device, dtype=dtype, auto=auto, allow_pickle=allow_pickle)
        results = []
        for result in check_model(live, heads=split(heads)) if heads else check_model(live):
            results.append(result)
            verdict = f"{'ok    ' if result.passed else 'FAILED'} {result.law}{f': {result.detail}' if result.detail else ''}"
            say.note(verdict) if json else say.line(verdict)
        failed = [result.law for result in results if not result.passed]
        laws = [{"law": result.law, "passed": result.passed, "detail": result.detail} for result in results]
        say.result({"model": model, "passed": not failed, "laws": laws})
        say.note(f"{len(failed)} of {len(results)} laws failed" if failed else f"all {len(results)} laws hold")
        if not failed:
            say.next("cut", model, "--heads", heads or "L0H0", "--out", "smaller")
        return 1 if failed else 0
