"""How the page says how a pruned model is made again: as Python, unless the shell that writes the page passes a function for its command lines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from headcount.core.budget import SIZES
from headcount.core.files import model_path_or_name
from headcount.runs.artifacts import Artifact
from headcount.runs.results import method_label
from headcount.runs.schema import RunRecord

FolderName = str
KeepPlaceholder = str | None
PruneCommand = Callable[[RunRecord, FolderName, Artifact, KeepPlaceholder], str]
"""(run, name of the folder to write, pruned model, text in place of the number of heads) -> what makes the model again; "" where nothing says it."""
PRUNE_ARGUMENTS = ("method", "keep", "kinds", "protected", "floor", "unit", "ablation", "repair", "recover", "seed")
"""The arguments of `headcount.prune` that a request may have; others are those of its recipe."""
LOADING = ("auto", "dtype")
OPENING = ("train", "eval", "max_length", "truncate", "limit")


def format_prune_call(record: RunRecord, out_name: FolderName, artifact: Artifact, keep_placeholder: KeepPlaceholder = None) -> str:
    """Returns the Python that makes a pruned model again.

    Empty for any number of heads, for the control from scratch, and for a new head, which `headcount.prune` does not make.
    """
    arguments, opening_record = dict(artifact.content["arguments"]), record.config.get("opened", {})
    if keep_placeholder is not None or "scratch" in arguments or opening_record.get("new_head"):
        return ""
    limits = {name: arguments.pop(name) for name in SIZES if name in arguments and name != "keep"}
    limits |= {name: arguments.pop(name) for name in ("protected", "floor", "unit") if limits and name in arguments}
    recipe = {name: arguments.pop(name) for name in [*arguments] if name not in PRUNE_ARGUMENTS}
    calls = [f"keep=headcount.Budget({_keywords(limits)})"] if limits else []
    calls += [f"recipe=headcount.Recipe({_keywords(recipe)})"] if recipe else []
    columns = [name for name in opening_record if name.endswith("_column")]
    loading = [
        repr(model_path_or_name(record.model.name, record.config)),
        _keywords({name: opening_record[name] for name in LOADING if name in opening_record}),
    ]
    opening = {name: opening_record[name] for name in (*OPENING, *columns) if name in opening_record} | {"seed": record.seed}
    options = opening_record.get("task_option")
    task_text = f"{record.task}({';'.join(options)})" if record.task and options else record.task or None
    return "; ".join(
        [
            f"model = headcount.load({', '.join(filter(None, loading))})",
            f"task = headcount.open_task({task_text!r}, model, headcount.load_tokenizer({loading[0]}), {_keywords(opening)})",
            f"headcount.prune(model, task, {', '.join([_keywords(arguments), *calls])})",
        ]
    )


def _keywords(arguments: Mapping[str, object]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in arguments.items())


def prune_commands_by_method(
    record: RunRecord, out_name: FolderName, artifacts: Sequence[Artifact], prune_command: PruneCommand
) -> dict[str, str]:
    """Returns by method a command for any number of heads, `{keep}`, by its first seed.

    There is none where heads of some kinds of attention alone are counted, or where an option of the method decides how many stay.
    """
    commands: dict[str, str] = {}
    for artifact in sorted(artifacts, key=lambda artifact: artifact.content["spec"]["seed"]):
        arguments = artifact.content["arguments"]
        if "kinds" not in arguments and any(name in arguments for name in SIZES):
            command = prune_command(record, out_name, artifact, "{keep}")
            if command:
                commands.setdefault(method_label(artifact), command)
    return commands
