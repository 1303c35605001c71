"""`headcount check`: proves the laws on this very model."""

from __future__ import annotations

import typer

from headcount.terminal.options import AllowPickle, Auto, Device, Dtype, Json, Model, Quiet, SomeHeads, TrustRemoteCode, Verbose, split
from headcount.terminal.session import session


def run(
    context: typer.Context,
    model: Model,
    heads: SomeHeads = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    auto: Auto = None,
    allow_pickle: AllowPickle = False,
    trust_remote_code: TrustRemoteCode = False,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> int:
    """Prove on this very model that gates act and leave no trace, that a cut equals the gates, and that a reload equals what was saved."""
    with session(context, json=json, quiet=quiet, verbose=verbose) as say:
        from headcount.plan import Plan
        from headcount.terminal.models import open_model
        from headcount.testing.laws import check_model

        plan = Plan.removing(split(heads)) if heads else None
        live, found, _ = open_model(
            say, model, device=device, dtype=dtype, auto=auto, allow_pickle=allow_pickle, trust_remote_code=trust_remote_code
        )
        if plan is not None:
            plan.check(found)
        results = []
        say.doing("proving the laws")
        for result in check_model(live, plan=plan):
            results.append(result)
            say.doing(f"proving the laws, {len(results)} done")
            mark = "n/a   " if not result.applies else "ok    " if result.passed else "FAILED"
            verdict = f"{mark} {result.law}{f': {result.detail}' if result.detail else ''}"
            say.note(verdict) if json else say.line(verdict)
        failed = [result.law for result in results if not result.passed]
        laws = [{"law": r.law, "passed": r.passed, "applies": r.applies, "detail": r.detail} for r in results]
        say.result({"model": model, "passed": not failed, "laws": laws})
        apply = sum(result.applies for result in results)
        say.note(f"{len(failed)} of {apply} laws failed" if failed else f"all {apply} laws that apply hold")
        if not failed and not any(block.can_cut for block in found.blocks):
            say.next("map", model)
        elif not failed:
            first = ",".join(map(str, next(iter(found.units()), ())))
            say.next("cut", model, "--heads", heads or first, "--out", "smaller")
        return 1 if failed else 0
