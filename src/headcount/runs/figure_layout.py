"""How texts, legends and rows of a figure fit into the column of a paper: lines of text, and heights in inches. Draws nothing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

from headcount.core.figure import Axis, BarFigure, Figure, HeatMap, Histogram, LineFigure, ScatterFigure
from headcount.runs.report.plain import replace_control_characters

WIDTH, MOST_HEIGHT = 3.3, 6.2
"""Inches: a column of a paper with two columns, and the height up to which rows are made thinner rather than the figure taller."""
LETTERS = 46
"""Letters of small text in one line of the figure."""
LINE = 0.125
"""Inches from a line of text to the next."""
NAME_LETTERS, BESIDE_LETTERS = 26, 18
"""Letters in a line of the name of a row or category, and of a label beside a line."""
BESIDE_HEIGHT = 1.5
"""Inches that the labels beside lines have together."""
FEW_COLUMNS = 6
NO_BREAK = "\N{NO-BREAK SPACE}"
COLOUR_BAR = 12
"""Letters in the width that a colour bar and the title of the rows take from a heat map."""


def wrap_text(text: str, line_length: int) -> list[str]:
    """Returns lines of at most so many letters, broken at spaces and after semicolons, within a word only where it is longer than a line."""
    return _break_into_lines(replace_control_characters(text), line_length)


def _break_into_lines(text: str, line_length: int) -> list[str]:
    lines = [""]
    for word in text.split(" "):
        glue = " " if lines[-1] else ""
        for piece in re.findall(r"[^;]*;|[^;]+$", word):
            if lines[-1] and len(lines[-1] + glue + piece) > line_length:
                lines.append("")
                glue = ""
            lines[-1] += glue + piece
            glue = ""
            while len(lines[-1]) > line_length:
                lines[-1:] = _break_word(lines[-1], line_length)
    return [line.replace(NO_BREAK, " ") for line in lines if line]


def _break_word(text: str, line_length: int) -> tuple[str, str]:
    """Returns the two parts of a text that is longer than a line, after the last sign in it that ends a part of a name, if there is one."""
    ends = [match.end() for match in re.finditer(rf"[{NO_BREAK} :/,(=+-]", text[:line_length])]
    at = next((end for end in reversed(ends) if end > line_length // 3), line_length)
    return text[:at], text[at:]


def wrap_name(name: str) -> list[str]:
    """Returns the lines of the name of a row or category."""
    return wrap_text(name, NAME_LETTERS) or [""]


def wrap_axis(axis: Axis, line_length: int = LETTERS - 8) -> str:
    """Returns the title of an axis with line breaks, none of them within its unit."""
    unit = replace_control_characters(f"({axis.unit})").replace(" ", NO_BREAK) if axis.unit else ""
    return "\n".join(_break_into_lines(f"{replace_control_characters(axis.label)} {unit}".rstrip(" "), line_length))


def title_lines(figure: Figure) -> list[str]:
    """Returns the lines above a figure: its title, how many units it rests on, and its note."""
    count = [] if figure.n is None else wrap_text(f"n = {figure.n:,} {figure.n_unit}", LETTERS)
    title = f"{figure.title[:1].upper()}{figure.title[1:]}"
    return [*wrap_text(title, LETTERS), *count, *wrap_text(figure.note, LETTERS)]


def legend_labels(figure: Figure) -> list[str]:
    """Returns the labels of the legend below a figure: none of a single series, and none where lines are labelled at their ends."""
    if isinstance(figure, LineFigure):
        return (
            []
            if has_labels_at_ends(figure)
            else [*(line.label for line in figure.lines), *(reference.label for reference in figure.references)]
        )
    if isinstance(figure, HeatMap):
        has_missing = any(value is None for row in figure.values for value in row)
        return [*([figure.mark_label] if figure.marks else []), *([figure.missing_label] if has_missing else [])]
    parts = figure.bars if isinstance(figure, BarFigure) else figure.groups if isinstance(figure, ScatterFigure | Histogram) else ()
    return [part.label for part in parts] if len(parts) > 1 else []


def has_labels_at_ends(figure: LineFigure) -> bool:
    """Whether every line ends at the same x, not where all begin, and all labels have room beside the ends, so that no legend is needed."""
    joined = [line.with_start_as_point() for line in figure.lines]
    ends = {max((x for x, y in zip(line.x, line.y, strict=True) if y is not None), default=None) for line in joined}
    labels = [*(line.label for line in figure.lines), *(reference.label for reference in figure.references)]
    lines = [wrap_text(label, BESIDE_LETTERS) for label in labels]
    begins_there = any(line.start and line.start[0] in ends for line in figure.lines)
    is_narrow = all(len(label) <= 2 or len(label) == len(labels) for label in lines)
    return len(ends) == 1 and not begins_there and len(labels) > 1 and is_narrow and LINE * sum(map(len, lines)) <= BESIDE_HEIGHT


def wrap_legend(label: str) -> str:
    """Returns a label of the legend with line breaks."""
    return "\n".join(wrap_text(label, LETTERS - 6))


def count_legend_columns(labels: Sequence[str]) -> int:
    """Returns how many labels stand side by side."""
    widest = max(map(len, labels), default=0)
    return next((number for number in (4, 3, 2) if number <= len(labels) and number * (widest + 6) <= LETTERS + 6), 1)


def figure_height(figure: Figure) -> float:
    """Returns the height in inches: room for the title, for the legend below, and for the rows of heat maps and lying bars."""
    height = _height_without_rows(figure)
    if isinstance(figure, HeatMap):
        return height + row_height(figure) * len(figure.rows)
    if isinstance(figure, BarFigure) and figure.is_horizontal:
        return height + row_height(figure) * len(figure.categories)
    return height


def row_height(figure: HeatMap | BarFigure) -> float:
    """Returns the height of a row in inches: as its name needs, less where there are so many rows that the figure would be too tall."""
    names = figure.rows if isinstance(figure, HeatMap) else figure.categories
    natural = max(0.16, *(LINE * len(wrap_name(name)) for name in names), 0.0)
    if isinstance(figure, BarFigure):
        natural = max(natural, 0.17, 0.06 + 0.09 * (1 if figure.is_stacked else len(figure.bars)))
    available = (MOST_HEIGHT - _height_without_rows(figure)) / max(1, len(names))
    return min(natural, available) if isinstance(figure, HeatMap) else min(natural, max(available, 0.11))


def _height_without_rows(figure: Figure) -> float:
    """Returns the height of everything but rows."""
    labels = legend_labels(figure)
    n_columns = count_legend_columns(labels)
    legend_lines = -(-len(labels) // n_columns) if n_columns > 1 else sum(wrap_legend(label).count("\n") + 1 for label in labels)
    height = 0.25 + LINE * len(title_lines(figure)) + 0.14 * legend_lines
    if isinstance(figure, HeatMap):
        letters = max((len(line) for lines in wrap_column_names(figure) for line in lines), default=0)
        return height + 0.8 + 0.06 * letters * must_turn_names(wrap_column_names(figure), letters_under_columns(figure))
    if isinstance(figure, BarFigure) and figure.is_horizontal:
        return height + 0.5
    if isinstance(figure, BarFigure):
        names = [wrap_name(name) for name in figure.categories]
        return height + 2.0 + 0.05 * max((len(line) for lines in names for line in lines), default=0) * must_turn_names(names, LETTERS - 8)
    return height + 2.2


def letters_under_columns(figure: HeatMap) -> int:
    """Returns the letters that have room under the columns of a heat map."""
    rows = max((len(line) for row in figure.rows for line in wrap_name(row)), default=0)
    return LETTERS - min(rows, NAME_LETTERS) - COLOUR_BAR


def wrap_column_names(figure: HeatMap) -> list[list[str]]:
    """Returns the lines of the names of columns; of many columns, whose names have room for a single line, one."""
    return [wrap_name(column) if len(figure.columns) <= FEW_COLUMNS else [replace_control_characters(column)] for column in figure.columns]


def must_turn_names(wrapped_names: Sequence[Sequence[str]], total_letters: int) -> bool:
    """Whether names of several lines must stand upright to fit side by side: two neighbours have less room than their letters take."""
    widths = [max(map(len, lines), default=0) for lines in wrapped_names]
    slot = total_letters / max(1, len(wrapped_names))
    return any((first + second) / 2 + 1.2 > slot for first, second in pairwise(widths))
