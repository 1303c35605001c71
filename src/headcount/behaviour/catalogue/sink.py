from __future__ import annotations

from dataclasses import dataclass

from headcount.behaviour.base import Role, RoleInfo, Sieve, View


@dataclass(frozen=True)
class Sink(Role):
    """Sink: attends to the first token of the sequence, whatever it is; the attention of the first token itself does not count."""

    info = RoleInfo(source="Xiao et al. 2024, Efficient Streaming Language Models with Attention Sinks", special_targets=True)

    def sieve(self, view: View) -> Sieve:
        """Returns the first key, for all later queries."""
        is_first = (view.keys.positions == 0)[None, None, :]
        is_later = (view.queries.positions > 0)[None, :, None]
        return is_first & is_later & view.queries.ordinary[:, :, None]
