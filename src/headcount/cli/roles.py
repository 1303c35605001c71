"""`headcount roles`: what every head does, tested over sentences."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headcount.cli import _data
from headcount.cli._options import AllowPickle, Auto, Device, Dtype, Json, Model, Quiet, Seed, TrustRemoteCode, Verbose, split
from headcount.cli._session import Session, session

if TYPE_CHECKING:
    from headcount.roles import RoleTable

Text = Annotated[Path | None, typer.Option("--text", metavar="FILE", help="CoNLL-U, plain text (a sentence a line), or a table.")]
Embedded = Annotated[
    str | None, typer.Option("--embedded", metavar="NAME", help="Instead of a file: english, tavi or translation, embedded.")
]
Only = Annotated[str | None, typer.Option("--only", metavar="NAME,…", help="Roles of `headcount ls roles`, as file or file:name.")]
Out = Annotated[Path | None, typer.Option("--out", metavar="RUN", help="The run folder to write roles.json and tables to.")]
Tau = Annotated[float, typer.Option("--tau", min=0.0, help="The bias that a head must exceed: 3 is the published threshold.")]
Alpha = Annotated[float, typer.Option("--alpha", min=1e-6, max=0.5, help="The level of the test after correction.")]
Correct = Annotated[str, typer.Option("--correct", metavar="HOW", help="bh, bonferroni or none, over all heads and roles.")]


def _show(say: Session, table: RoleTable) -> None:
    labels = table.labels()
    rows = [(head, ", ".join(roles[:5]) + (f" and {len(roles) - 5} more" if len(roles) > 5 else "")) for head, roles in labels.items()]
    say.table(("head", "roles, strongest first"), [row for row in rows if row[1]])
    say.line(f"{sum(1 for roles in labels.values() if not roles)} of {len(labels)} heads have none of the roles tested")
    say.line("")
    best = [table.best(role) for role in table.roles()]
    having = {role: sum(row.has_role for row in table if row.role == role) for role in table.roles()}
    columns = ("role", "heads", "best", "bias", "95% interval", "of at most", "q", "accuracy", "baseline", "at", "n")
    say.table(
        columns,
        [
            (
                row.role,
                having[row.role],
                row.head,
                f"{row.bias:.2f}",
                f"{row.low:.2f} … {row.high:.2f}",
                f"{row.maximum:.1f}",
                f"{row.q:.2g}",
                f"{row.accuracy:.2f}",
                f"{row.baseline:.2f}",
                f"{row.baseline_offset:+d}",
                row.n_sentences,
            )
            for row in best
        ],
        right=("heads", "bias", "of at most", "accuracy", "baseline", "at", "n"),
    )
    pairs = sorted((pair for pair in table.colocation() if pair.q <= table.alpha), key=lambda pair: (-pair.both, pair.a, pair.b))[:10]
    say.table(
        ("roles in the same heads", "", "heads", "by chance", "q"),
        [(pair.a, pair.b, pair.both, f"{pair.expected:.1f}", f"{pair.q:.2g}") for pair in pairs],
    )
    disagree = table.disagreements()
    say.line(f"test and strongest key (2019) disagree on {len(disagree)} of {len(table)} heads × roles")
    for role, reason in table.untested.items():
        say.note(f"not tested: {role}: {reason}")
    for reason, count in table.refused.items():
        say.note(f"{count} sentences left out: {reason}")


def run(
    context: typer.Context,
    model: Model,
    text: Text = None,
    embedded: Embedded = None,
    only: Only = None,
    out: Out = None,
    tau: Tau = 3.0,
    alpha: Alpha = 0.05,
    correct: Correct = "bh",
    text_column: _data.TextColumn = None,
    text_pair_column: _data.TextPairColumn = None,
    max_length: _data.MaxLength = None,
    truncate: _data.Truncate = False,
    limit: _data.Limit = None,
    batch_size: _data.BatchSize = "auto",
    auto: Auto = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    seed: Seed = 0,
    allow_pickle: AllowPickle = False,
    trust_remote_code: TrustRemoteCode = False,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Label every head with what it does, how strongly, and how sure that is."""
    with session(context, json=json, quiet=quiet, verbose=verbose) as say:
        from headcount.cli._models import open_model
        from headcount.cli._text import alignment, open_text
        from headcount.roles import roles, write_roles
        from headcount.runs import Run, describe_run
        from headcount.runs.weights import model_record

        trust = {"allow_pickle": allow_pickle, "trust_remote_code": trust_remote_code}
        live, heads, folder = open_model(say, model, device=device, dtype=dtype, auto=auto, **trust)
        facts: dict[str, Any] = {
            "command": say.command,
            "seed": seed,
            "config": {"text": str(text or embedded), "tau": tau, "alpha": alpha},
        }
        record = describe_run(model_record(live, model), **facts)
        if out is not None:
            Run.check(out, record)
        columns = {"text_column": text_column, "text_pair_column": text_pair_column}
        tokenizer = _data.reader_of(live, folder)
        read = open_text(text, embedded, limit=limit, seed=seed, **columns)
        with _data.progress(say, "roles") as advance:
            table = roles(
                live,
                read,
                tokenizer,
                alignment=alignment(embedded, tokenizer, max_length=max_length, truncate=truncate),
                only=split(only) if only else None,
                tau=tau,
                alpha=alpha,
                correct=correct,  # pyright: ignore[reportArgumentType]
                batch_size=None if batch_size == "auto" else int(batch_size),
                seed=seed,
                progress=advance,
            )
        if out is not None and say.leads:
            say.note(f"written: {write_roles(Run.begin(out, record, heads), table)}")
        _show(say, table)
        say.result(_result(model, table))
        say.next("study", "roles-importance", model, *(["--text", text] if text else ["--embedded", embedded or ""]))


def _result(model: str, table: RoleTable) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "model": model,
        "tau": table.tau,
        "alpha": table.alpha,
        "labels": {str(head): roles for head, roles in table.labels().items()},
        "rows": [{**asdict(row), "head": str(row.head)} for row in table],
        "colocation": [asdict(pair) for pair in table.colocation()],
        "share": table.share(),
        "untested": dict(table.untested),
        "refused": dict(table.refused),
        "conditions": dict(table.conditions),
    }
