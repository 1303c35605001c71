from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace

from headcount.core.definition import Definition, DefinitionInfo
from headcount.core.options import option
from headcount.core.role_table import MARGIN, POSITIONAL_ACCURACY, RoleScore, RoleTable

POSITIONAL = "positional"

FREQUENT = 500
"""The default of the role `rare`, so that a definition without options labels what is measured by default."""


@dataclass(frozen=True)
class Voita2019(Definition):
    """A head has a role if its strongest key is in the sieve often enough; nothing is tested.

    A positional role needs 90 % of the tokens. Any other needs 10 points more than the best fixed offset. Both need 10 points more than a random
    key. Voita et al. 2019, sections 4 and 5. Rare words are those outside the 500 most frequent tokens of the text, or the number that `frequent`
    names for smaller texts.
    """

    _: KW_ONLY
    frequent: int = option(FREQUENT, "Rare words: sentences count whose rarest token is outside so many most frequent tokens", minimum=0)
    info = DefinitionInfo(source="Voita et al. 2019", families={POSITIONAL: ("offset",), "syntactic": ("syntax",), "rare words": ("rare",)})

    @property
    def further_roles(self) -> tuple[str, ...]:
        """The roles of rare words, where these are not rare by the default number of frequent tokens."""
        return () if self.frequent == FREQUENT else tuple(f"rare:{number}(frequent={self.frequent})" for number in (1, 2))

    @property
    def roles_of_families(self) -> tuple[str, ...]:
        """The roles of all families; those of rare words with the number of frequent tokens."""
        return tuple(name for name in super().roles_of_families if name != "rare" or not self.further_roles) + self.further_roles

    def accuracy_threshold(self, row: RoleScore) -> float:
        """Returns 90 % for a positional role, else 10 points more than the best fixed offset; both at least 10 points more than a random key."""
        if self.family_of(row.role) == POSITIONAL:
            return max(POSITIONAL_ACCURACY, row.chance + MARGIN)
        return max(row.baseline, row.chance) + MARGIN

    def relabel(self, table: RoleTable) -> RoleTable:
        """Returns the table with labels by the accuracy of the strongest key; the p-values stay as they are."""
        rows = tuple(replace(row, has_role=row.by_argmax) for row in table.rows)
        return replace(table, rows=rows, definition=str(self))
