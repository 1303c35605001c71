"""`headcount map`: every attention block, its modules, and what can be gated and cut."""

from __future__ import annotations

from headcount.app.console.command import command
from headcount.app.console.inputs import ModelOptions
from headcount.app.console.options import AllowPickle, AutoClass, Model, TrustRemoteCode
from headcount.app.console.session import Session


@command
def run(
    session: Session,
    model: Model,
    auto: AutoClass = None,
    allow_pickle: AllowPickle = False,
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Show every attention block: its heads, its modules, what can be gated and cut, and what removing half of the heads saves at most.

    A configuration alone is enough.
    """
    from headcount.app.jobs.map import show_map

    show_map(session, model, ModelOptions(auto=auto, allow_pickle=allow_pickle, trust_remote_code=trust_remote_code))
