"""`headcount cut`: removes heads for good and saves the smaller model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from headcount.cli._options import (
    AllowPickle,
    Auto,
    Device,
    Dtype,
    Heads,
    Json,
    Model,
    OutFolder,
    Overwrite,
    Quiet,
    TrustRemoteCode,
    Verbose,
    split,
)
from headcount.cli._session import Session, session

if TYPE_CHECKING:
    from headcount.surgery import Cost


def show_costs(say: Session, before: Cost, after: Cost) -> None:
    """Writes the costs of a model before and after a cut side by side."""
    old, new = before.to_dict(), after.to_dict()
    labels = {
        "heads": "attention heads",
        "parameters": "parameters",
        "bytes": "bytes of parameters",
        "flops": f"FLOPs of a pass over {before.tokens} tokens",
        "kv_bytes_per_token": "bytes of KV cache per token",
    }
    rows = [
        (label, f"{old[name]:,}", f"{new[name]:,}", f"{new[name] / old[name]:.1%}" if old[name] else "") for name, label in labels.items()
    ]
    say.table(("", "before", "after", "left"), rows, right=("before", "after", "left"))


def run(
    context: typer.Context,
    model: Model,
    heads: Heads,
    out: OutFolder,
    overwrite: Overwrite = False,
    device: Device = "auto",
    dtype: Dtype = "auto",
    auto: Auto = None,
    allow_pickle: AllowPickle = False,
    trust_remote_code: TrustRemoteCode = False,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Remove heads for good, prove that the smaller model equals the gated one, and save it."""
    with session(context, json=json, quiet=quiet, verbose=verbose) as say:
        from headcount.files import check_target
        from headcount.plan import Plan
        from headcount.surgery.manifest import NAME

        plan = Plan.removing(split(heads))
        check_target(Path(out), overwrite, NAME)
        from headcount.cli._models import open_model
        from headcount.surgery import cost, cut, save

        live, found, folder = open_model(
            say, model, device=device, dtype=dtype, auto=auto, allow_pickle=allow_pickle, trust_remote_code=trust_remote_code
        )
        plan.check(found)
        before = cost(live)
        small = cut(live, plan, in_place=True)
        after = cost(small)
        save(small, out, command=say.command, cost=(before, after), companions=folder, overwrite=overwrite)
        say.note(f"cut equals gate; wrote {out}")
        show_costs(say, before, after)
        removed = [str(head) for head in plan.removed]
        say.result({"model": model, "out": str(out), "removed": removed, "before": before.to_dict(), "after": after.to_dict()})
        say.next("check", out)
