"""Finds code that nothing uses, by vulture; `make check` runs it.

First the package, the benchmarks and the tools, where a use by tests does not count, then the tests. What other libraries or users reach by name
stands below, with the reason. An entry that excuses nothing is reported too, so that the list stays short.
"""

from __future__ import annotations

import sys
from fnmatch import fnmatch
from pathlib import Path

from vulture import Vulture

ROOT = Path(__file__).resolve().parents[1]
CODE = ("src", "benchmarks", "tools")
CONTRACT = "src/headcount/runs/report/contract.py"
"""The types of the page's data: their fields are read by TypeScript."""
METHODS = (
    "src/headcount/importance/methods/*.py",
    "src/headcount/pruning/methods/*.py",
    "src/headcount/behaviour/catalogue/*.py",
    "src/headcount/behaviour/definitions/*.py",
    "src/headcount/data/tasks/*.py",
    "src/headcount/surgery/export/*.py",
    "src/headcount/studies/[a-z]*.py",
    "src/headcount/studies/papers/[a-z]*.py",
    "tests/plugins/*/*.py",
)
"""Files whose classes a registry finds by the name of the file, or by an entry point."""
DECORATORS = ("@pytest.fixture", "@case", "@breaks")
"""Decorators that register a function."""
USED_BY_NAME = {
    "the import system and Python itself": "__getattr__ __dir__ __class__ __signature__ __annotations__ showwarning",
    "attributes of objects of numpy, tokenizers, transformers, accelerate and onnx": "writeable pre_tokenizer post_processor current_load label2id "
    "_from_model_config prepare_model device_placement evaluation_mode output_attentions producer_version",
    "called by typer": "list_commands format_help formatter",
    "called by torch, the Trainer of transformers, mkdocs, notebooks and html.parser": "extra_repr set_epoch on_train_begin on_train_end on_step_end "
    "on_log on_save on_evaluate on_config on_files _repr_html_ handle_starttag handle_endtag handle_data handle_comment",
    "pytest and its cases, which are found by prefix": "pytestmark pytest_* damage_* wrong_*",
    "fields that are read through `fields`, `asdict` or pydantic": "schema_version shortest named_heads rank_with rank_without is_noisy "
    "lost_by_others weighted_p "
    "mean_with mean_without survivors_with heads_with",
    "arguments of a protocol": "operation display_id",
    "called by the server by the name of an action": "attend ablate prune_run",
    "kept so that its address stays taken": "storage",
    "results and functions for users": "attainable conllu read_links unregister check_error_* "
    "total_cost share_between_layers correlation_with_heads_lost",
    "for tests, of plug-ins too": "check_* require_calls_change_nothing family_supports_sdpa with_all_maps compare_values no_such",
}


def find_unused(folders: tuple[str, ...]) -> list[tuple[str, int, str, str]]:
    """Returns path, line, kind and name of all that vulture finds in some folders and no registry would find."""
    search = Vulture(ignore_decorators=list(DECORATORS))
    search.scavenge([ROOT / folder for folder in folders], exclude=["*/node_modules/*"])
    unused = [
        (Path(item.filename).resolve().relative_to(ROOT).as_posix(), item.first_lineno, item.typ, item.name)
        for item in search.get_unused_code()
    ]
    is_registered = [item[2] == "class" and any(fnmatch(item[0], pattern) for pattern in METHODS) for item in unused]
    return [item for item, registered in zip(unused, is_registered, strict=True) if not registered and item[0] != CONTRACT]


def main() -> int:
    """Prints what is unused and what is excused without need; returns 1 if there is any."""
    in_tests = [item for item in find_unused((*CODE, "tests")) if item[0].startswith("tests/")]
    unused = find_unused(CODE) + in_tests
    excused = [pattern for patterns in USED_BY_NAME.values() for pattern in patterns.split()]
    lines = [
        f"{path}:{line}: unused {kind} '{name}'"
        for path, line, kind, name in unused
        if not any(fnmatch(name, pattern) for pattern in excused)
    ]
    lines += [f"tools/unused.py: nothing needs '{pattern}'" for pattern in excused if not any(fnmatch(item[3], pattern) for item in unused)]
    print("\n".join(lines) or "nothing is unused")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
