from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headcount.behaviour.base import Corpus, OfferedRoles, Role, RoleInfo, Sieve, View
from headcount.core.options import option, options_of


@dataclass(frozen=True)
class Offset(Role):
    """Offset: attends to one fixed relative position, such as the previous token (offset:-1) or the next one (offset:+1)."""

    distance: Literal["-3", "-2", "-1", "0", "+1", "+2", "+3"] = option(help="Position of the key minus position of the query")
    info = RoleInfo(source="Voita et al. 2019, positional heads", positional=True)

    @classmethod
    def list_offered(cls, corpus: Corpus) -> OfferedRoles:
        """Returns one role for each offset."""
        return OfferedRoles(tuple(cls(distance) for distance in options_of(cls)[0].choices))

    def sieve(self, view: View) -> Sieve:
        """Returns the key at that offset, unless it is a delimiter."""
        return (view.distance == int(self.distance))[None] & view.ordinary
