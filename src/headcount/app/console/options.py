"""The options that commands share, under the names of their Python arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from headcount.core.errors import HeadcountError, unknown_name_error
from headcount.core.options import Configurable, options_of
from headcount.core.plan import Plan

LOCAL, RAY = "local", "ray"
ENGINES = (LOCAL, RAY)
DTYPES = ("auto", "float64", "float32", "bfloat16", "float16")


def _check_heads(head_list: str | None) -> str | None:
    try:
        if head_list is not None and not Plan.removing(split_at_commas(head_list)).removed:
            raise typer.BadParameter("name at least one head, such as L0H3")
    except HeadcountError as error:
        raise typer.BadParameter(str(error)) from error
    return head_list


def split_at_commas(text: str) -> list[str]:
    """Returns the entries of a list separated by commas."""
    return [part.strip() for part in text.split(",") if part.strip()]


def parse_numbers(text: str, flag: str) -> list[int]:
    """Returns the whole numbers above 0 in a list separated by commas."""
    parts = split_at_commas(text)
    if not parts or not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise typer.BadParameter(f"{flag} are numbers from 1 on with commas between them, got {text}")
    return [int(part) for part in parts]


def build_typer_option(declaring_class: type[Configurable], option_name: str, metavar: str | None = None) -> Any:
    """Returns the command-line option of a declared option: its flag, help and smallest value. The class itself checks other values."""
    (declared,) = (option for option in options_of(declaring_class) if option.name == option_name)
    return typer.Option(f"--{option_name.replace('_', '-')}", help=declared.help, min=declared.bounds.minimum, metavar=metavar)


def make_choice_callback(kind_of_choice: str, choices: Sequence[str]) -> Callable[[str], str]:
    """Returns the callback of an option whose value is one of some names; other names raise UnknownName with the nearest one."""

    def check_choice(name: str) -> str:
        if name not in choices:
            raise unknown_name_error(kind_of_choice, name, choices)
        return name

    return check_choice


Model = Annotated[str, typer.Argument(metavar="MODEL", help="A folder, a hub id, or demo/NAME.", show_default=False)]
HeadsText = Annotated[
    str | None, typer.Option("--heads", metavar="L0H3,…", callback=_check_heads, help="Head addresses, separated by commas.")
]
HeadsToProve = Annotated[
    str | None, typer.Option("--heads", metavar="L0H3,…", callback=_check_heads, help="Also prove that these heads can be cut.")
]
OutFolder = Annotated[Path, typer.Option("--out", metavar="DIR", help="The folder to write; it appears once it is complete.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what headcount wrote there before.")]
OptionalOutRun = Annotated[
    Path | None,
    typer.Option("--out", metavar="RUN", help="The run folder: finished work is kept there, and the same command resumes from it."),
]
Workers = Annotated[int, typer.Option("--workers", min=1, metavar="N", help="Share the work among N processes; needs --out.")]
Engine = Annotated[
    str,
    typer.Option(
        "--engine",
        metavar="NAME",
        callback=make_choice_callback("engine", ENGINES),
        help="Where workers run: local, or ray (a cluster; RUN on storage that all share).",
    ),
]
Join = Annotated[bool, typer.Option("--join", help="Help the process that runs this command in RUN already, from here or another machine.")]
Device = Annotated[str, typer.Option("--device", metavar="NAME", help="auto, cpu, cuda, cuda:1, mps…")]
Dtype = Annotated[
    str,
    typer.Option(
        "--dtype", metavar="NAME", callback=make_choice_callback("dtype", DTYPES), help="auto, float64, float32, bfloat16 or float16."
    ),
]
Seed = Annotated[int, typer.Option("--seed", metavar="N", min=0, help="The seed of everything drawn at random.")]
AutoClass = Annotated[
    str | None, typer.Option("--auto", metavar="CLASS", help="Load by this Auto class of transformers, such as AutoModel.")
]
AllowPickle = Annotated[bool, typer.Option("--allow-pickle", help="Read .bin weights, which are pickles: only if you trust their author.")]
TrustRemoteCode = Annotated[
    bool, typer.Option("--trust-remote-code", help="Run the code that the model folder brings: only if you trust its author.")
]
Json = Annotated[bool, typer.Option("--json", help="Write the result to stdout as JSON.")]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="Only results and errors.")]
Verbose = Annotated[bool, typer.Option("-v", "--verbose", help="Show the logs of libraries, all warnings, and tracebacks.")]
