"""`headcount serve`: the report in a browser, with live actions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headcount.app.console.options import Quiet, Verbose
from headcount.app.console.session import open_session

Runs = Annotated[list[Path], typer.Argument(metavar="RUN…", help="Run folders; two are compared.", show_default=False)]
Port = Annotated[int, typer.Option("--port", metavar="N", min=0, max=65535, help="The port; 0 takes a free one.")]
Host = Annotated[
    str, typer.Option("--host", metavar="ADDRESS", help="The address to listen at; others than 127.0.0.1 open it to the network.")
]


def run(
    context: typer.Context,
    runs: Runs,
    port: Port = 0,
    host: Host = "127.0.0.1",
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Serve runs on this machine: the report, new sentences, ablations on the spot, pruning. Ctrl-C ends it."""
    with open_session(context, json=False, quiet=quiet, verbose=verbose) as session:
        session.begin_work("starting")
        session.pulse.paused = True
        from headcount.app.serve.run import LOCAL, serve

        if host not in LOCAL:
            session.write_note(
                f"warning: {host} can be reached from other machines; anyone who has the address with its token can use model and run folders"
            )
        serve(runs, host=host, port=port, show=session.write_line)
