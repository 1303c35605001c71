"""The files of a study: csv and LaTeX of its tables, figures that are readable in the column of a paper, and JSON that gives the result back."""

from __future__ import annotations

import builtins
import csv
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from figure_kinds import FIGURES

from headcount.core.errors import MissingExtra
from headcount.core.figure import Figure
from headcount.core.study_result import Column, StudyResult, Table, interval_columns
from headcount.runs.draw import STYLE, WIDTH, draw_figure, draw_matplotlib_figure
from headcount.runs.study_files import RESULT, escape_latex, table_to_csv, table_to_latex, write_study_files

TABLE = Table(
    "rows",
    (Column("layer_name"), Column("heads"), *interval_columns("change", "+.2f", "loss"), Column("share", format=".0%")),
    (("L0 & 50%", 3, -0.5, -0.75, -0.25, 0.5), ("L1", 4, None, None, None, None)),
    "By layer: 100 % of them",
)
RESULT_OF_STUDY = StudyResult("layers(how=mean)", (TABLE,), "Layers matter.", ("A note.",), {"rows": [{"value": 1.5}]}, FIGURES)


def test_csv_has_every_column_and_gives_the_numbers_back() -> None:
    rows = list(csv.DictReader(table_to_csv(TABLE).splitlines()))
    assert rows[0] == {
        "layer_name": "L0 & 50%",
        "heads": "3",
        "change": "-0.5",
        "change low": "-0.75",
        "change high": "-0.25",
        "share": "0.5",
    }
    assert rows[1]["change"] == rows[1]["share"] == ""


def test_latex_is_escaped_and_has_intervals() -> None:
    lines = table_to_latex(TABLE).splitlines()
    assert lines[0] == "% By layer: 100 % of them" and lines[1] == r"\begin{tabular}{lrrr}" and lines[2] == r"\toprule"
    assert lines[3] == r"layer\_name & heads & change (loss) & share \\"
    assert lines[5] == r"L0 \& 50\% & 3 & $-$0.50 ($-$0.75 \ldots{} $-$0.25) & 50\% \\"
    assert lines[6] == r"L1 & 4 & -- & -- \\" and lines[-2:] == [r"\bottomrule", r"\end{tabular}"]
    assert escape_latex("a\\b_{c}^2 ~ $x$ #1 q ≤ 0.05\nτ") == (
        r"a\textbackslash{}b\_\{c\}\textasciicircum{}2 \textasciitilde{} \$x\$ \#1 q $\le$ 0.05 $\tau$"
    )


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no LaTeX here")
def test_latex_compiles(tmp_path: Path) -> None:
    document = rf"\documentclass{{article}}\usepackage{{booktabs}}\begin{{document}}{table_to_latex(TABLE)}\end{{document}}"
    (tmp_path / "table.tex").write_text(document, encoding="utf-8")
    subprocess.run(["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "table.tex"], cwd=tmp_path, check=True, capture_output=True)


def labels_beyond(axis: Any) -> list[Any]:
    """The labels of ticks that an axis has in store and does not draw."""
    low, high = sorted(axis.get_view_interval())
    return [label for tick in axis.get_major_ticks() if not low <= tick.get_loc() <= high for label in (tick.label1, tick.label2)]


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.name)
def test_figures_are_readable_in_a_column(figure: Figure) -> None:
    matplotlib = pytest.importorskip("matplotlib")
    from matplotlib.text import Text

    with matplotlib.rc_context(STYLE):
        canvas = draw_matplotlib_figure(figure)
        canvas.draw_without_rendering()
        assert canvas.get_size_inches()[0] == WIDTH == 3.3
        beyond = {label for panel in canvas.axes for axis in (panel.xaxis, panel.yaxis) for label in labels_beyond(axis)}
        texts = [text for text in canvas.findobj(Text) if text.get_visible() and text.get_text().strip() and text not in beyond]
        limits = canvas.bbox
        for text in texts:
            box = text.get_window_extent()
            assert text.get_fontsize() >= 7, text
            assert box.x0 >= -1 and box.y0 >= -1 and box.x1 <= limits.x1 + 1 and box.y1 <= limits.y1 + 1, f"cut: {text.get_text()}"
        words = " ".join(text.get_text().replace("\n", " ") for text in texts)
        panel = canvas.axes[0].get_window_extent()
        for legend in canvas.legends:
            assert legend.get_window_extent().y1 <= panel.y0, "the legend stands below what is drawn"
        assert panel.height > 50 and panel.width > 80, "room for the numbers"
    assert figure.title in words and "n = 300 examples" in words
    assert figure.y.title in words and figure.x.title in words


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.name)
def test_the_same_figure_gives_the_same_bytes(figure: Figure) -> None:
    pytest.importorskip("matplotlib")
    for format, begin in (("svg", b"<?xml"), ("pdf", b"%PDF")):
        content = draw_figure(figure, format)
        assert content == draw_figure(figure, format) and content.startswith(begin)
        assert b"<dc:date>" not in content and b"CreationDate" not in content


def test_a_result_is_written_once(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    paths = write_study_files(RESULT_OF_STUDY, tmp_path / "study")
    names = {path.name for path in paths}
    assert names == {"rows.csv", "rows.tex", RESULT, *(f"{figure.name}.{format}" for figure in FIGURES for format in ("svg", "pdf"))}
    assert StudyResult.from_dict(json.loads((tmp_path / "study" / RESULT).read_text())) == RESULT_OF_STUDY
    times = {path: path.stat().st_mtime_ns for path in paths}
    assert write_study_files(RESULT_OF_STUDY, tmp_path / "study") == paths
    assert {path: path.stat().st_mtime_ns for path in paths} == times, "nothing changed, so nothing is written"


def test_files_of_an_earlier_result_go(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    write_study_files(RESULT_OF_STUDY, tmp_path)
    (tmp_path / "mine.svg").touch()
    smaller = StudyResult("layers", (TABLE,), "Layers matter.", figures=FIGURES[:1])
    write_study_files(smaller, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"rows.csv", "rows.tex", RESULT, "lines.svg", "lines.pdf", "mine.svg"}
    (tmp_path / RESULT).write_text("{}")
    write_study_files(smaller, tmp_path)
    assert json.loads((tmp_path / RESULT).read_text())["study"] == "layers"


def test_without_matplotlib_tables_are_written_and_the_remedy_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def refuse(name: str, *arguments: Any, **options: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(MissingExtra, match=r"figures need matplotlib: pip install 'headcount\[figures\]'"):
        write_study_files(RESULT_OF_STUDY, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"rows.csv", "rows.tex", RESULT}
