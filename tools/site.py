"""The pages of the site that are made out of the code: one for every importance, pruner and role, with its formula, source, options and figure.

A hook of mkdocs (`make docs`). A page is made from the docstring of the method, what it declares in `info` and its declared
options, so that none can be forgotten; figures are in docs/figures, made by `make figures`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from headcount.core.options import Configurable, describe_options
from headcount.core.registry import IMPORTANCES, PRUNERS, ROLES, Registry

KINDS: dict[str, tuple[str, str, Registry]] = {
    "importance": ("Importances", "How much a head matters, by one number.", IMPORTANCES),
    "pruners": ("Pruners", "Which heads stay when K of them may.", PRUNERS),
    "roles": ("Roles", "What a head does: on which keys it would look, tested against chance.", ROLES),
}
USES = {
    "importance": "    headcount score MODEL --task TASK --by {name} --out RUN\n\n"
    '```python\nscores = hc.score(model, task, by="{name}")\n```\n',
    "pruners": "    headcount prune MODEL --task TASK --method {name} --keep 25% --out RUN\n\n"
    '```python\ndone = hc.prune(model, task, "{name}", fraction=0.25)\n```\n',
    "roles": "    headcount roles MODEL --text TEXT --only {name} --out RUN\n\n"
    '```python\ntable = hc.roles(model, texts, tokenizer, only=["{name}"])\n```\n',
}
CAPTIONS = {
    "importance": "Every head of an embedded model by this score; a dot is away from zero.",
    "pruners": "Left: the smallest size at which each head is still kept. Right: the metric by heads kept, beside random heads and the dense model.",
    "roles": "Left: on which keys a head with this role looks, in an example. Right, where an embedded model can have it: attention there "
    "against chance, which is 1.",
}


def methods(kind: str) -> Iterator[tuple[str, Any]]:
    """The classes of the methods of a kind, by name."""
    registry = KINDS[kind][2]
    return ((name, registry.get(name)) for name in registry.names())


def page(kind: str, name: str, method: Any, figures: Path) -> str:
    """The page of a method."""
    picture = figures / f"{kind}-{name}.svg"
    parts = [f"# {name}", _lists(inspect.getdoc(method) or ""), *_facts(method.info), *_options(method)]
    if picture.is_file():
        parts += [f"![{CAPTIONS[kind]}](../../figures/{picture.name})", f"*{CAPTIONS[kind]} Made by `make figures`.*"]
    parts += ["## Use", USES[kind].format(name=name), f"File: `src/headcount/{_path(method)}`."]
    return "\n\n".join(parts) + "\n"


def _lists(text: str) -> str:
    """Lines that explain one word after the other become a list."""
    return re.sub(r"^([a-z]+) {2,}(?=\S)(.*?;?)$", r"\n- **\1**: \2", text, flags=re.MULTILINE)


def _path(method: Any) -> str:
    """The file of a method under src/headcount."""
    return Path(inspect.getfile(method)).as_posix().rpartition("/headcount/")[2]


def _facts(info: Any) -> Iterator[str]:
    facts = {"Source": info.source or "headcount"}
    facts |= {"Variants": ", ".join(f"`{v}`" for v in info.variants)} if any(getattr(info, "variants", ())) else {}
    for field, name in (("needs", "Needs"), ("cost", "Cost"), ("trains", "Trains"), ("where", "Attention")):
        value = getattr(info, field, None)
        if value:
            facts[name] = value if isinstance(value, str) else ", ".join(sorted(value))
    if hasattr(info, "higher_is_keep"):
        facts["Kept first"] = "the highest" if info.higher_is_keep else "the lowest"
    yield "| | |\n|---|---|\n" + "\n".join(f"| {key} | {value} |" for key, value in facts.items())
    if getattr(info, "options", None):
        yield "| option | default |\n|---|---|\n" + "\n".join(f"| `{key}` | `{value}` |" for key, value in info.options.items())


def _options(method: Any) -> Iterator[str]:
    """The table of declared options, if there are any."""
    if inspect.isclass(method) and issubclass(method, Configurable) and (rows := describe_options(method)):
        lines = [f"| `{row['option']}` | {row['type']} | `{row['default']}` | {row['what']} |" for row in rows]
        yield "\n".join(["| option | type | default | what |", "|---|---|---|---|", *lines])


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Puts the pages into the navigation."""
    made = [
        {title: [f"methods/{kind}/index.md", *({name: f"methods/{kind}/{name}.md"} for name in KINDS[kind][2].names())]}
        for kind, (title, _, _) in KINDS.items()
    ]
    config.nav = [{"Methods": made} if "Methods" in entry else entry for entry in config.nav or []]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Makes the pages."""
    figures = Path(config.docs_dir) / "figures"
    for kind, (title, about, _) in KINDS.items():
        by_name = dict(methods(kind))
        lines = [f"- [{name}]({name}.md): {_first(method)}" for name, method in by_name.items()]
        files.append(File.generated(config, f"methods/{kind}/index.md", content=f"# {title}\n\n{about}\n\n" + "\n".join(lines) + "\n"))
        for name, method in by_name.items():
            files.append(File.generated(config, f"methods/{kind}/{name}.md", content=page(kind, name, method, figures)))
    return files


def _first(method: Any) -> str:
    return (method.__doc__ or "").partition("\n")[0].partition(": ")[2]
