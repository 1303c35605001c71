"""`headcount check`: proves the laws on this very model."""

from __future__ import annotations

from headcount.terminal import inputs
from headcount.terminal.options import Model, SomeHeads, split
from headcount.terminal.session import Session
from headcount.terminal.verb import verb


@verb
def run(
    say: Session,
    model: Model,
    heads: SomeHeads = None,
    loading: inputs.Loading = inputs.ANYHOW,
) -> int:
    """Prove on this very model that gates act and leave no trace, that a cut equals the gates, and that a reload equals what was saved."""
    from headcount.plan import Plan
    from headcount.testing.laws import check_model

    plan = Plan.removing(split(heads)) if heads else None
    live, found, _ = loading.open(say, model)
    if plan is not None:
        plan.check(found)
    results = []
    say.doing("proving the laws")
    for result in check_model(live, plan=plan):
        results.append(result)
        say.doing(f"proving the laws, {len(results)} done")
        mark = "n/a   " if not result.applies else "ok    " if result.passed else "FAILED"
        verdict = f"{mark} {result.law}{f': {result.detail}' if result.detail else ''}"
        say.note(verdict) if say.json else say.line(verdict)
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
