"""`headcount check`: proves the laws on this very model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import typer

from headcount.cli._options import AllowPickle, Auto, Device, Dtype, Json, Model, Quiet, SomeHeads, Verbose, split
from headcount.cli._session import session

if TYPE_CHECKING:
    from torch import nn

    from headcount.plan import Plan
    from headcount.testing.laws import LawResult


def _results(model: nn.Module, plan: Plan | None) -> Iterator[LawResult]:
    """The laws, and then the plan itself, if one was given: `cut` proves its own result."""
    from headcount.errors import VerificationError
    from headcount.surgery import cut
    from headcount.testing.laws import LawResult, check_model

    yield from check_model(model)
    if plan is not None:
        law = f"cut equals gate for {', '.join(map(str, plan.removed))}"
        try:
            left = sum(p.numel() for p in cut(model, plan).parameters())
            yield LawResult(law, True, f"{left:,} parameters left")
        except VerificationError as error:
            yield LawResult(law, False, str(error))


def run(
    context: typer.Context,
    model: Model,
    heads: SomeHeads = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    auto: Auto = None,
    allow_pickle: AllowPickle = False,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> int:
    """Prove on this very model that gates act and leave no trace, that a cut equals the gates, and that a reload equals what was saved."""
    with session(context, json=json, quiet=quiet, verbose=verbose) as say:
        from headcount.cli._models import open_model
        from headcount.plan import Plan

        plan = Plan.removing(split(heads)) if heads else None
        live, found, _ = open_model(say, model, device=device, dtype=dtype, auto=auto, allow_pickle=allow_pickle)
        if plan is not None:
            plan.check(found)
        results = []
        for result in _results(live, plan):
            results.append(result)
            verdict = f"{'ok    ' if result.passed else 'FAILED'} {result.law}{f': {result.detail}' if result.detail else ''}"
            say.note(verdict) if json else say.line(verdict)
        failed = [result.law for result in results if not result.passed]
        laws = [{"law": result.law, "passed": result.passed, "detail": result.detail} for result in results]
        say.result({"model": model, "passed": not failed, "laws": laws})
        say.note(f"{len(failed)} of {len(results)} laws failed" if failed else f"all {len(results)} laws hold")
        if not failed:
            first = ",".join(map(str, next(iter(found.units()), ())))
            say.next("cut", model, "--heads", heads or first, "--out", "smaller")
        return 1 if failed else 0
