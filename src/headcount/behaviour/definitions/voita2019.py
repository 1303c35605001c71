from __future__ import annotations

from dataclasses import dataclass, replace

from headcount.core.definition import Definition, DefinitionInfo
from headcount.core.role_table import RoleTable


@dataclass(frozen=True)
class Voita2019(Definition):
    """A head has a role if its strongest key is in the sieve often enough; nothing is tested.

    A positional role needs 90 % of the tokens. Any other needs 10 points more than the best fixed offset. Both need 10 points more than a random
    key. Voita et al. 2019, sections 4 and 5.
    """

    info = DefinitionInfo(
        source="Voita et al. 2019", families={"positional": ("offset",), "syntactic": ("syntax",), "rare words": ("rare",)}
    )

    def relabel(self, table: RoleTable) -> RoleTable:
        """Returns the table with labels by the accuracy of the strongest key; the p-values stay as they are."""
        rows = tuple(replace(row, has_role=row.by_argmax) for row in table.rows)
        return replace(table, rows=rows, definition=str(self))
