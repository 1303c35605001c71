"""The files of a study's result: its tables as csv and LaTeX, its figures as SVG and PDF, and all of it as JSON."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from functools import partial
from pathlib import Path

from headcount.core.errors import ArtifactError, MissingExtra
from headcount.core.figure import Figure
from headcount.core.files import json_bytes, make_folder, read_json, remove, write_atomic
from headcount.core.study_result import StudyResult, Table
from headcount.runs.artifacts import safe_name
from headcount.runs.draw import FORMATS, draw_figure

RESULT = "result.json"
STUDIES = "studies"
"""The folder of a run that holds the files of its studies, each in a folder of its own."""
_LATEX = {
    "\\": r"\textbackslash{}",
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "–": "--",
    "…": r"\ldots{}",
    "−": "$-$",
    "×": r"$\times$",
    "≤": r"$\le$",
    "≥": r"$\ge$",
    "ℓ": r"$\ell$",
    "‖": r"$\|$",
    **{letter: f"$\\{name}$" for letter, name in zip("αβλτΔΣ", ("alpha", "beta", "lambda", "tau", "Delta", "Sigma"), strict=True)},
}


def table_to_csv(table: Table) -> str:
    """Returns a table as csv with every column, the ends of intervals included; a cell is empty where the number is not defined."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([column.name for column in table.columns])
    writer.writerows([["" if cell is None else cell for cell in row] for row in table.rows])
    return text.getvalue()


def table_to_latex(table: Table) -> str:
    """Returns a table as LaTeX with the rules of the package booktabs; intervals stand in parentheses behind their numbers."""
    formatted = table.format()
    cells = [
        [
            escape_latex(cell.replace("-", "−")) if is_number else escape_latex(cell)
            for cell, is_number in zip(row, formatted.are_numbers, strict=True)
        ]
        for row in formatted.rows
    ]
    lines = [
        *([f"% {' '.join(table.title.split())}"] if table.title else []),
        rf"\begin{{tabular}}{{{''.join('r' if is_number else 'l' for is_number in formatted.are_numbers)}}}",
        r"\toprule",
        f"{' & '.join(map(escape_latex, formatted.headings))} \\\\",
        r"\midrule",
        *(f"{' & '.join(row)} \\\\" for row in cells),
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return "\n".join(lines) + "\n"


def escape_latex(text: str) -> str:
    """Returns the text with everything that LaTeX would read as a command written out, and symbols as mathematics."""
    return "".join(_LATEX.get(character, character) for character in " ".join(text.split()))


def write_study_files(result: StudyResult, folder: Path) -> list[Path]:
    """Writes the tables, the figures and all data of a result to a folder, and returns the paths; the same result gives the same bytes.

    A file whose content does not change is left alone; files of an earlier result there that this one does not have are removed.

    Raises:
        MissingExtra: matplotlib is not installed, so that no figure is drawn; everything else is written.
    """
    make_folder(folder)
    contents = _file_contents_by_name(result)
    try:
        earlier = set(_file_contents_by_name(StudyResult.from_dict(read_json(folder / RESULT)))) if (folder / RESULT).is_file() else set()
    except (ArtifactError, KeyError, TypeError, ValueError):  # no result that this release could have written
        earlier = set()
    for name in sorted(earlier - set(contents)):
        remove(folder / name)
    paths, problem = [], None
    for name, make_content in contents.items():
        try:
            content = make_content()
        except MissingExtra as error:
            problem = error
            continue
        if not (folder / name).is_file() or (folder / name).read_bytes() != content:
            write_atomic(folder / name, content)
        paths.append(folder / name)
    if problem is not None:
        raise problem
    return paths


def figure_file_name(figure: Figure, format: str) -> str:
    """Returns the name of the file of a figure."""
    return f"{file_stem(figure.name)}.{format}"


def _file_contents_by_name(result: StudyResult) -> dict[str, Callable[[], bytes]]:
    """Returns the files of a result by name, each as a function that makes its content."""
    contents: dict[str, Callable[[], bytes]] = {}
    for table in result.tables:
        contents[f"{file_stem(table.name)}.csv"] = partial(lambda table: table_to_csv(table).encode(), table)
        contents[f"{file_stem(table.name)}.tex"] = partial(lambda table: table_to_latex(table).encode(), table)
    for figure in result.figures:
        contents |= {figure_file_name(figure, format): partial(draw_figure, figure, format) for format in FORMATS}
    return {**contents, RESULT: lambda: json_bytes(result.to_dict())}


def file_stem(name: str) -> str:
    """Returns the name of a file without its ending, and without a dot, which LaTeX would take for the beginning of its format."""
    return safe_name(name).replace(".", "-")
