"""Every class and every type alias of the package has a name of its own."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[2] / "src" / "headcount"
ONE_LETTER_TYPE_VARIABLE = 1


def _names_type(statement: ast.stmt) -> str | None:
    """Returns the class, type alias or type variable that a statement of a module defines: an assignment to a CamelCase name is one of a type."""
    if isinstance(statement, ast.ClassDef):
        return statement.name
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1 and isinstance(statement.targets[0], ast.Name):
        name = statement.targets[0].id
        is_type_name = name.lstrip("_")[:1].isupper() and not name.isupper() and len(name) > ONE_LETTER_TYPE_VARIABLE
        return name if is_type_name else None
    return None


def type_definitions(sources: Path) -> dict[str, list[str]]:
    """Returns where each class and type alias is defined at the top of a module, by its name."""
    definitions = defaultdict(list)
    for path in sorted(sources.rglob("*.py")):
        for statement in ast.parse(path.read_text(encoding="utf-8")).body:
            if name := _names_type(statement):
                definitions[name].append(f"{path.relative_to(sources)}:{statement.lineno}")
    return definitions


def test_no_two_types_share_a_name() -> None:
    definitions = type_definitions(SOURCES)
    assert len(definitions) > 300
    shared = {name: locations for name, locations in definitions.items() if len(locations) > 1}
    assert not shared, "\n".join(f"{name}: {', '.join(locations)}" for name, locations in shared.items())


@pytest.mark.parametrize("second", ["class Level:\n    pass\n", "Level = int | str\n", "Level = Literal['low', 'high']\n"])
def test_a_shared_name_is_noticed(tmp_path: Path, second: str) -> None:
    (tmp_path / "first.py").write_text("LEVEL = 3\nlevel = 4\n\n\nclass Level:\n    pass\n")
    (tmp_path / "second.py").write_text(second)
    assert type_definitions(tmp_path) == {"Level": ["first.py:5", "second.py:1"]}
