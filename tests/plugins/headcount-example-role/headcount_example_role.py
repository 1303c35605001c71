from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from headcount.behaviour.base import Role, RoleInfo, Sieve, View
from headcount.core.options import option


@dataclass(frozen=True)
class FirstToken(Role):
    """First token: attends to the first ordinary token of the text, or to one of those after it."""

    _: KW_ONLY
    skip: int = option(0, "How many ordinary tokens come before the one that is meant", minimum=0)
    info = RoleInfo(source="an example")

    def sieve(self, view: View) -> Sieve:
        """Returns the key that is the first ordinary token after the skipped ones."""
        number = view.keys.ordinary.long().cumsum(1)  # [batch, k]
        is_target = (number == 1 + self.skip) & view.keys.ordinary
        return view.ordinary & is_target[:, None, :]
