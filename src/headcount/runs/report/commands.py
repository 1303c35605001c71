"""The command lines that make something of a run again."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from headcount.core.files import reopened_model
from headcount.core.registry import IMPORTANCES, PRUNERS
from headcount.runs.artifacts import Artifact
from headcount.runs.results import method_label
from headcount.runs.schema import RunRecord

RECIPE: Mapping[str, tuple[str, float | None]] = {
    "epochs": ("epochs", None),
    "steps": ("steps", None),
    "rate": ("rate", 5e-5),
    "batch": ("train-batch", 32),
    "distil": ("distil", 0.0),
}
"""Fields of a recipe, as options of headcount prune with their defaults."""


def command_of(record: RunRecord, out: str, artifact: Artifact, keep: str | None = None) -> str:
    """The command that makes a pruned model again; with `keep`, one with that many heads instead, which is not quoted."""
    wish, recipe = artifact.content["wish"], artifact.content["wish"].get("recipe", {})
    seed = recipe.get("seed", wish["seed"])
    words = ["headcount", "prune", reopened_model(record.model.name, record.config)]
    words += [*task_words({"task": record.task or None, **record.config.get("opened", {})}), *_method_words(wish)]
    size = _size_words(wish) if keep is None else ["--keep", keep]
    rest = ["--kinds", ",".join(wish["kinds"])] if wish.get("kinds") else []
    rest += ["--protect", ",".join(wish["protected"])] if wish.get("protected") else []
    rest += ["--floor", str(wish["floor"])] if wish.get("floor") else []
    rest += ["--unit", wish["unit"]] if wish.get("unit", "kv_group") != "kv_group" else []
    rest += ["--ablation", wish["ablation"]] if wish.get("ablation") else []
    rest += [] if wish["repair"] is None else ["--repair" if wish["repair"] else "--no-repair"]
    lengths = {"recover": wish["recover"], **(_scratch(wish["scratch"], recipe) if wish.get("scratch") else {})}
    training = {option: recipe[name] for name, (option, default) in RECIPE.items() if recipe.get(name, default) != default}
    rest += [word for name, value in {**lengths, **training}.items() if value is not None for word in (f"--{name}", _length(value))]
    rest += ["--seed", str(seed)] + ([] if wish["seed"] == seed else ["--method-seed", str(wish["seed"])])
    told = [
        shlex.join(words),
        *(size if keep is not None else filter(None, [shlex.join(size)])),
        shlex.join([*rest, "--out", f"runs/{out}"]),
    ]
    return " ".join(told)


def commands_of(record: RunRecord, out: str, artifacts: Sequence[Artifact]) -> dict[str, str]:
    """By method a command for any number of heads, `{keep}`, by its first seed.

    There is none where heads of some kinds of attention alone are counted, or where an option of the method decides how many stay.
    """
    found: dict[str, str] = {}
    for artifact in sorted(artifacts, key=lambda artifact: artifact.content["wish"]["seed"]):
        wish = artifact.content["wish"]
        if not wish.get("kinds") and (wish["keep"] or wish.get("limit")):
            found.setdefault(method_label(artifact), command_of(record, out, artifact, "{keep}"))
    return found


def _method_words(wish: Mapping[str, Any]) -> list[str]:
    """The method and its options; an importance by its own name, unless a pruner has that too."""
    options, method = dict(wish["options"]), wish["method"]
    base = str(options.get("by", "")).partition(":")[0]
    if method == "rank" and base in IMPORTANCES.names() and base not in PRUNERS.names():
        method = options.pop("by")
    return ["--method", method, *(word for name, value in sorted(options.items()) for word in ("--option", f"{name}={value}"))]


def _size_words(wish: Mapping[str, Any]) -> list[str]:
    limit = wish.get("limit")
    if not limit:
        return ["--keep", str(wish["keep"])] if wish["keep"] else []
    name, value = limit
    return [f"--{name.replace('_', '-')}", milliseconds(value) if name == "latency" else plain_number(value)]


def _length(value: float | str) -> str:
    """How long a training lasts, as an option."""
    return value if isinstance(value, str) else plain_number(value)


def _scratch(scratch: float | Mapping[str, Any], recipe: Mapping[str, Any]) -> dict[str, float | str | None]:
    """The control from scratch: how long and at which rate, by the names of the options; in older runs at the rate of the method."""
    if not isinstance(scratch, Mapping):
        return {"scratch": scratch, "scratch-rate": recipe.get("rate")}
    steps, epochs = scratch.get("steps"), scratch.get("epochs")
    return {"scratch": f"{steps}steps" if steps is not None else "auto" if epochs is None else epochs, "scratch-rate": scratch["rate"]}


def plain_number(value: float) -> str:
    """A number in as few digits as give it back."""
    if isinstance(value, int):
        return str(value)
    return next(text for digits in (6, 17) if float(text := f"{value:.{digits}g}") == value)


def milliseconds(value: float) -> str:
    """Seconds as milliseconds, in as few digits as give them back when they are divided by 1000."""
    texts = [f"{1000 * value:.{digits}g}" for digits in range(1, 18)]
    return next((text for text in texts if float(text) / 1000 == value), texts[-1])


def task_words(given: Mapping[str, Any]) -> list[str]:
    """The options of a command line that name a task and its data, and how the model is opened: what is given, by the names of the options."""
    columns = (name for name in given if name.endswith("_column"))
    names = ("task", "train", "eval", *columns, "task_option", "max_length", "limit", "auto", "dtype")
    told = {name: value for name, value in given.items() if (name, value) != ("dtype", "auto")}
    words = [word for name in names for value in _listed(told.get(name)) for word in (f"--{name.replace('_', '-')}", str(value))]
    return words + (["--truncate"] if given.get("truncate") else [])


def _listed(value: Any) -> list[Any]:
    return [] if value is None else list(value) if isinstance(value, list | tuple) else [value]
