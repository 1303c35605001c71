"""Definitions: the rule that turns the measured numbers of a RoleTable into labels, and the families that its paper groups roles into."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from headcount.core.options import Configurable
from headcount.core.registry import DEFINITIONS

if TYPE_CHECKING:
    from headcount.core.role_table import RoleScore, RoleTable

DEFAULT_DEFINITION = "beyond-distance"
"""The definition that labels heads unless the caller names another."""
N_SWAPS = 20
"""How often annotations are swapped among sentences to estimate how many labels are false."""
TAU = 3.0
"""The bias that p-values are tested against by a definition that has no threshold of its own."""


@dataclass(frozen=True, slots=True)
class DefinitionInfo:
    """The paper of a definition, and the families that it speaks of, each with the names of its roles (`syntax` for all of `syntax:…`)."""

    source: str
    families: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class Definition(Configurable):
    """When a head has a role. A definition reads measured numbers alone, so labels by another definition cost no pass of the model."""

    info: ClassVar[DefinitionInfo]

    @property
    def tested_bias(self) -> float:
        """The bias that p-values are tested against."""
        return TAU

    @property
    def further_roles(self) -> tuple[str, ...]:
        """Roles that the definition labels and that are otherwise measured only when named."""
        return ()

    @property
    def roles_of_families(self) -> tuple[str, ...]:
        """The roles of all families, by the names under which they are measured."""
        return tuple(name for names in self.info.families.values() for name in names)

    def accuracy_threshold(self, row: RoleScore) -> float | None:
        """Returns the share of tokens whose strongest key must be in the sieve for a role; None if the sieve bias decides."""
        return None

    @abstractmethod
    def relabel(self, table: RoleTable) -> RoleTable:
        """Returns the table with the labels of this definition."""

    def family_of(self, role: str) -> str | None:
        """Returns the family of a role; None if the paper has none for it."""
        name = role.partition(":")[0].partition("(")[0]
        return next((family for family, names in self.info.families.items() if name in names), None)

    def families_of(self, roles: Iterable[str]) -> list[str]:
        """Returns the families that some roles belong to, in the order of the paper."""
        families = {self.family_of(role) for role in roles}
        return [family for family in self.info.families if family in families]

    @classmethod
    def parse(cls, definition: str | Definition) -> Definition:
        """Returns the definition of a text such as `pande2021(tau=2)`; a definition is returned as it is.

        Raises:
            UnknownName: no definition of that name is registered, or it has no such option.
            OptionError: a value has the wrong type or is out of range.
        """
        return DEFINITIONS.parse(definition, Definition)
