"""Arguments as the words of command lines, such as those that make a pruned model of a run again. An option has the name of its argument."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from headcount.core.budget import SIZES
from headcount.core.files import model_path_or_name
from headcount.runs.artifacts import Artifact
from headcount.runs.report.plain import format_exact_number
from headcount.runs.schema import RunRecord

OPENING = ("task", "train", "eval", "task_option", "max_length", "limit", "truncate", "auto", "dtype", "new_head")
"""The arguments that open a model and its task, beside the columns of the data."""
Argument = str | float | list[Any] | tuple[Any, ...]
"""The value of an argument that can be written on a command line."""


def prune_command(record: RunRecord, out_name: str, artifact: Artifact, keep_placeholder: str | None = None) -> str:
    """Returns the command that makes a pruned model again; with `keep_placeholder`, one with that in place of the number of heads, not quoted."""
    arguments = dict(artifact.content["arguments"])
    method, seed = arguments.pop("method"), arguments.pop("seed", 0)
    size = {name: arguments.pop(name) for name in SIZES if name in arguments}
    opening = task_words({"task": record.task or None, **record.config.get("opened", {})})
    subject = ["headcount", "prune", model_path_or_name(record.model.name, record.config), *opening, *argument_words({"method": method})]
    seeds = {"seed": record.seed, **({} if seed == record.seed else {"method_seed": seed})}
    options = argument_words({**arguments, **seeds, "out": f"runs/{out_name}"})
    size_text = (
        " ".join([*argument_words({"keep": ""})[:1], keep_placeholder])
        if keep_placeholder is not None
        else shlex.join(argument_words(size))
    )
    return " ".join(filter(None, [shlex.join(subject), size_text, shlex.join(options)]))


def argument_words(arguments: Mapping[str, Argument]) -> list[str]:
    """Returns arguments as the words of a command line: the option and its value, `no-` before an option that is False, lists with commas."""
    words: list[str] = []
    for name, value in arguments.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{'' if value else 'no-'}{flag}")
        elif isinstance(value, list | tuple):
            words += [f"--{flag}", ",".join(map(str, value))]
        elif isinstance(value, str):
            words += [f"--{flag}", value]
        else:
            words += [f"--{flag}", format_as_milliseconds(value) if name == "latency" else format_exact_number(value)]
    return words


def format_as_milliseconds(seconds: float) -> str:
    """Returns seconds as milliseconds, in as few digits as give them back when they are divided by 1000."""
    texts = [f"{1000 * seconds:.{digits}g}" for digits in range(1, 18)]
    return next((text for text in texts if float(text) / 1000 == seconds), texts[-1])


def task_words(arguments: Mapping[str, Argument | None]) -> list[str]:
    """Returns the words of a command line that name a task and its data, and how the model is opened; a list repeats its option for each entry."""
    names = [*OPENING[:3], *(name for name in arguments if name.endswith("_column")), *OPENING[3:]]
    words: list[str] = []
    for name in names:
        value = arguments.get(name)
        if value in (None, False) or (name, value) == ("dtype", "auto"):
            continue
        if value is True:
            words += argument_words({name: True})
        else:
            entries = value if isinstance(value, list | tuple) else [value]
            words += [word for entry in entries for word in argument_words({name: str(entry)})]
    return words
