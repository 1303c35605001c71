from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headcount.behaviour.base import Corpus, OfferedRoles, Role, RoleInfo, Sieve, View
from headcount.core.options import option


@dataclass(frozen=True)
class Delimiter(Role):
    """Delimiter: attends to the special tokens: all of them (delimiter:any), the first (delimiter:first, [CLS]) or the others (delimiter:sep)."""

    token: Literal["any", "first", "sep"] = option(help="Which special tokens count: all, the first token, or all but the first")
    info = RoleInfo(source="Pande et al. 2021", attention=frozenset({"self", "image"}), special_targets=True)

    @classmethod
    def list_offered(cls, corpus: Corpus) -> OfferedRoles:
        """Returns the roles whose special tokens occur in the text."""
        if corpus.grid:
            return OfferedRoles((cls("any"),))
        has_first = any(s.special[:1] == (True,) for s in corpus.sentences)
        has_sep = any(any(s.special[1:]) for s in corpus.sentences)
        occurs = {cls("any"): has_first or has_sep, cls("first"): has_first, cls("sep"): has_sep}
        return OfferedRoles(tuple(role for role, is_there in occurs.items() if is_there))

    def sieve(self, view: View) -> Sieve:
        """Returns the special keys, for ordinary queries."""
        keys = view.keys.special & view.keys.real
        is_first = view.keys.positions[None, :] == 0
        keys = {"any": keys, "first": keys & is_first, "sep": keys & ~is_first}[self.token]
        return keys[:, None, :] & view.queries.ordinary[:, :, None]
