"""The request of a role test: which roles are tested, and how."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from headcount.behaviour.base import Role
from headcount.core.definition import DEFAULT_DEFINITION, N_SWAPS, Definition
from headcount.core.errors import OptionError
from headcount.core.registry import ROLES

RoleNames = str | Role | Iterable[str | Role]


@dataclass(frozen=True, slots=True)
class RoleSpec:
    """How roles are tested; `headcount.roles` explains each field. `only` is a class for all its roles, or a single role.

    Labels under swapped annotations are counted where `swaps` is above 0. `patterns` are roles of the caller, which are tested too.

    Raises:
        OptionError: a value has the wrong type or is out of range.
    """

    only: tuple[type[Role] | Role, ...] | None = None
    definition: Definition = field(default_factory=lambda: Definition.parse(DEFAULT_DEFINITION))
    level: float = 0.95
    batch_size: int | None = None
    seed: int = 0
    swaps: int = N_SWAPS
    patterns: tuple[Role, ...] = ()

    def __post_init__(self) -> None:
        rules = {
            "level": ("a number above 0 and below 1", _is_number(self.level) and 0 < self.level < 1),
            "batch_size": ("None or an int of at least 1", self.batch_size is None or _is_int_of_at_least(self.batch_size, 1)),
            "seed": ("an int of at least 0", _is_int_of_at_least(self.seed, 0)),
            "swaps": ("an int of at least 0", _is_int_of_at_least(self.swaps, 0)),
        }
        for name, (rule, is_valid) in rules.items():
            if not is_valid:
                raise OptionError(f"{name} must be {rule}; got {getattr(self, name)!r}")

    def to_dict(self) -> dict[str, Any]:
        """Returns all fields as plain data, roles by their names."""
        names = None if self.only is None else [role.name if isinstance(role, type) else str(role) for role in self.only]
        fields = ("level", "batch_size", "seed", "swaps")
        return {"only": names, "definition": self.definition.to_dict(), **{name: getattr(self, name) for name in fields}}


def parse_roles(names: RoleNames | None) -> tuple[type[Role] | Role, ...] | None:
    """Returns the roles that names describe: a bare name such as `syntax` is the class of all its roles, `syntax:nsubj` one role.

    Raises:
        UnknownName: no role is registered under the name, or it has no such variant or option.
        OptionError: a name does not follow the grammar, or the list is empty.
    """
    if names is None:
        return None
    listed = [names] if isinstance(names, str | Role) else list(names)
    if not listed:
        raise OptionError("only must name a role, such as offset or syntax:nsubj; leave it out to test all roles")
    registered = ROLES.names()
    roles: dict[type[Role] | Role, None] = {}
    for item in listed:
        name = item.strip() if isinstance(item, str) else ""
        if name not in registered:
            roles[Role.parse(item)] = None
            continue
        cls = ROLES.get(name)
        if not issubclass(cls, Role):
            raise OptionError(f"{cls.__module__}:{cls.__qualname__}, registered as role '{name}', is no Role")
        roles[cls] = None
    return tuple(roles)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_int_of_at_least(value: object, minimum: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= minimum
