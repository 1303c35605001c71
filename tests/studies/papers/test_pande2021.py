"""Every experiment of Pande et al. 2021 on an embedded model: the columns of its tables, and the data of its figures."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from headcount.behaviour.definitions.pande2021 import Pande2021
from headcount.core.figure import BarFigure, HeatMap, Histogram, LineFigure, ScatterFigure
from headcount.core.role_table import RoleTable
from headcount.core.study_result import StudyResult
from headcount.data.embedded.sentences import draw_sentences
from headcount.data.text.annotated import join_pair
from headcount.runs.store import Run
from headcount.studies._base import StudyContext
from headcount.studies._paper import Item, Paper
from headcount.studies._run_paper import list_items, run_paper
from headcount.studies._run_study import PythonSources
from headcount.workflows.roles import read_roles

FAMILIES = ("local", "syntactic", "block", "delimiter")
N_HEADS, N_PAIRS = 32, 60
OTHER = "demo/entailment=demo/entailment-english"


class Measured(NamedTuple):
    """The items and results of one quick run, and the roles that its run folder keeps, as published."""

    items: dict[str, Item]
    results: dict[str, StudyResult]
    roles: RoleTable


@pytest.fixture(scope="module")
def paper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Measured]:
    sentences = draw_sentences("english", 2 * N_PAIRS, seed=0)
    text = [join_pair(a, b) for a, b in zip(sentences[::2], sentences[1::2], strict=True)]
    chosen = Paper.parse(f"pande2021(quick=true;tuned=demo/entailment-english;other_task={OTHER})")
    folder: Path = tmp_path_factory.mktemp("pande2021")
    with Run.lead(folder) as run:
        context = StudyContext(PythonSources("demo/text", None, text, 0, 120, None), model="demo/encoder-english", run=run, limit=120)
        items = list_items(chosen, context)
        measured = run_paper(chosen, items, context)
    assert not measured.failures
    yield Measured({item.id: item for item in items}, dict(measured.results), read_roles(Run.open(folder)).relabel("pande2021"))


def records(result: StudyResult, table: str) -> list[dict[str, Any]]:
    return result.table(table).records()


def family_of(role: str) -> str | None:
    return Pande2021().family_of(role)


def test_all_thirteen_items_are_there(paper: Measured) -> None:
    assert list(paper.items) == list(paper.results) == [f"P{number}" for number in range(1, 14)]
    assert len({item.title for item in paper.items.values()}) == 13
    assert paper.items["P2"].published is not None and paper.items["P2"].published.rows[0][1] == 3.0


def test_p1_bias(paper: Measured) -> None:
    rows, figure = records(paper.results["P1"], "heads"), paper.results["P1"].figure("bias")
    assert len(rows) == len([row for row in paper.roles if family_of(row.role)]) and {row["head"] for row in rows} == set(
        map(str, paper.roles.heads)
    )
    bias = {(str(row.head), row.role): row.bias for row in paper.roles}
    assert all(row["bias low"] <= row["bias"] == bias[row["head"], row["role"]] <= row["bias high"] for row in rows)
    assert isinstance(figure, HeatMap) and figure.columns == ("L0", "L1", "L2", "L3") and figure.n == N_PAIRS
    for role, values in zip(figure.rows, figure.values, strict=True):
        for layer, value in zip(figure.columns, values, strict=True):
            assert value == max(row["bias"] for row in rows if row["role"] == role and row["head"].startswith(layer))


def test_p2_test(paper: Measured) -> None:
    rows, figure = records(paper.results["P2"], "roles"), paper.results["P2"].figure("labels")
    for row in rows:
        of_role = [score for score in paper.roles if score.role == row["role"]]
        assert row["heads tested"] == N_HEADS and row["family"] in FAMILIES
        assert (
            row["heads with the role"]
            == sum(s.has_role for s in of_role)
            <= row["heads with bias above τ"]
            == sum(s.bias > 3 for s in of_role)
        )
        assert all(s.has_role == (s.p_t is not None and s.p_t <= 0.05 and s.bias > 3) for s in of_role if s.maximum > 3)
    sample = [row for row in rows if row["heads with bias above τ"] or row["heads with the role"]]
    assert isinstance(figure, BarFigure) and figure.categories == tuple(row["role"] for row in sample) and 0 < len(sample) < len(rows)
    assert f"{len(rows) - len(sample)} roles that no head has are left out" in figure.note
    assert figure.bars[1].values == tuple(row["heads with the role"] for row in sample) and sum(map(float, figure.bars[1].values)) > 5  # type: ignore[arg-type]


def test_p3_p_values(paper: Measured) -> None:
    rows, figure = records(paper.results["P3"], "p-values"), paper.results["P3"].figure("p-values")
    p = [row.p_t for row in paper.roles if family_of(row.role)]
    everything = rows[-1]
    assert everything["family"] == "all" and everything["tests"] == len(p) and [row["family"] for row in rows[:-1]] == list(FAMILIES)
    near = sum(value <= 0.01 or value >= 0.99 for value in p if value is not None)
    assert everything["near 0 or 1"] == pytest.approx(near / len(p)) == pytest.approx(everything["near 0"] + everything["near 1"])
    assert isinstance(figure, Histogram) and figure.n == len(p) == sum(sum(group.counts) for group in figure.groups)


def test_p4_role_map(paper: Measured) -> None:
    result = paper.results["P4"]
    rows, figure = records(result, "map"), result.figure("map")
    assert len(rows) == N_HEADS and all(
        row["number of families"] == len(row["families"].split(", ") if row["families"] else []) for row in rows
    )
    labels = {str(head): {family_of(role) for role in roles} - {None} for head, roles in paper.roles.labels().items()}
    assert all(set(row["families"].split(", ")) - {""} == labels[row["head"]] for row in rows)
    assert isinstance(figure, HeatMap) and [value for values in figure.values for value in values] == [
        row["number of families"] for row in rows
    ]
    chart = result.figure("map-syntactic")
    assert isinstance(chart, HeatMap) and all(0 <= value <= 1 for values in chart.values for value in values if value is not None)
    assert sum(map(sum, chart.marks)) == sum("syntactic" in families for families in labels.values())


def test_p5_shares_over_tasks(paper: Measured) -> None:
    rows, figure = records(paper.results["P5"], "shares"), paper.results["P5"].figure("shares")
    assert [(row["text"], row["family"]) for row in rows] == [(text, family) for text in ("text", OTHER) for family in FAMILIES]
    by = {(row["text"], row["family"]): row for row in rows}
    assert by[OTHER, "syntactic"]["share"] is None and by[OTHER, "block"]["of tested"] == N_HEADS, "the task has pairs and no trees"
    assert all(row["share"] == row["heads"] / N_HEADS for row in rows if row["of tested"])
    assert isinstance(figure, BarFigure) and figure.bars[0].values == tuple(by["text", family]["share"] for family in FAMILIES)


def test_p6_overlap_against_chance(paper: Measured) -> None:
    rows, figure = records(paper.results["P6"], "overlap"), paper.results["P6"].figure("overlap")
    members = paper.results["P6"].measurements["families"]
    several = rows[-1]
    assert several["families"] == "two families or more" and len(rows) > 1
    assert several["heads of both"] == sum(sum(head in heads for heads in members.values()) >= 2 for head in map(str, paper.roles.heads))
    for row in rows[:-1]:
        a, b = (set(members[family]) for family in row["families"].split(" and "))
        assert row["heads of both"] == len(a & b) and row["by chance"] == pytest.approx(len(a) * len(b) / N_HEADS)
        assert row["by chance low"] <= row["by chance"] <= row["by chance high"] and 0 < row["p"] <= row["q"] <= 1
        assert (row["p"] < 0.05) <= (not row["by chance low"] < row["heads of both"] < row["by chance high"])
    assert isinstance(figure, BarFigure) and figure.bars[0].values == tuple(row["heads of both"] for row in rows)


def test_published_shares_stand_beside_ours() -> None:
    """42 to 88 % of the heads are both local and syntactic; of a multilingual model 68 % are delimiter heads, and 71 % of syntactic heads local."""
    sources = PythonSources("demo/text", None, None, 0, 20, None)
    items = {item.id: item for item in list_items(Paper.parse("pande2021"), StudyContext(sources, model="demo/encoder-english"))}
    shares, overlap = items["P5"].published, items["P6"].published
    assert shares is not None and overlap is not None and shares.records()[0]["share of heads, mean"] == 0.68
    assert [(row["lowest"], row["highest"]) for row in overlap.records()] == [(0.42, 0.88), (0.71, 0.71)]


def test_p7_layers(paper: Measured) -> None:
    rows, figure = records(paper.results["P7"], "layers"), paper.results["P7"].figure("layers")
    members = paper.results["P7"].measurements["families"]
    for family in FAMILIES:
        of_family = [row for row in rows if row["family"] == family]
        assert sum(row["heads"] for row in of_family) == len(members[family]) and sum(row["of tested"] for row in of_family) == N_HEADS
    assert isinstance(figure, HeatMap) and figure.rows == FAMILIES
    assert [value for values in figure.values for value in values] == [row["share"] for row in rows]


def test_p8_depth(paper: Measured) -> None:
    rows, figure = records(paper.results["P8"], "thirds"), paper.results["P8"].figure("thirds")
    assert [(row["third"], row["heads"]) for row in rows] == [("early", 8), ("middle", 16), ("late", 8)]
    several = records(paper.results["P6"], "overlap")[-1]["heads of both"]
    assert sum(row["with several families"] for row in rows) == several == pytest.approx(sum(row["by chance"] for row in rows))
    assert all(0 < row["p"] <= row["q"] <= 1 for row in rows)
    assert isinstance(figure, BarFigure) and figure.bars[0].values == tuple(row["with several families"] for row in rows)


def test_p9_changes_by_layer(paper: Measured) -> None:
    result = paper.results["P9"]
    rows, figure = records(result, "roles"), result.figure("roles")
    assert result.table("roles").is_printed, "role x layer: before, after, lost, gained"
    for row in rows:
        assert row["heads"] == 8 and row["have it"] == row["had the role"] - row["roles lost"] + row["roles gained"]
        assert row["change"] == pytest.approx(row["after"] - row["before"], abs=1e-5)
    had = {(role, str(head)) for head, roles in paper.roles.labels().items() for role in roles}
    assert sum(row["had the role"] for row in rows if row["role"] == "local") == sum(role == "local" for role, _ in had)
    trends = records(result, "trend")
    assert [row["family"] for row in trends] == [*FAMILIES, "all roles"]
    assert all(-1 <= row["rank correlation with the layer"] <= 1 and 0 < row["p"] <= row["q"] <= 1 for row in trends)
    assert isinstance(figure, HeatMap) and figure.is_diverging and figure.columns == ("L0", "L1", "L2", "L3")
    marked = {
        (role, layer)
        for role, marks in zip(figure.rows, figure.marks, strict=True)
        for layer, mark in zip(figure.columns, marks, strict=True)
        if mark
    }
    assert marked == {(row["role"], row["layer"]) for row in rows if row["roles lost"] or row["roles gained"]}
    assert 0 < len(marked) < len(rows), "dots tell cells apart"


def test_p10_from_delimiters_to_other_tokens(paper: Measured) -> None:
    rows, figure = records(paper.results["P10"], "families"), paper.results["P10"].figure("families")
    by_layer = records(paper.results["P9"], "roles")
    assert [row["family"] for row in rows] == list(FAMILIES)
    for row in rows:
        own = [other for other in by_layer if family_of(other["role"]) == row["family"]]
        assert (row["lost"], row["gained"]) == tuple(sum(other[f"roles {name}"] for other in own) for name in ("lost", "gained"))
        assert row["bias rose"] + row["bias fell"] == sum(other["heads changed"] for other in own) <= row["heads × roles"]
        assert row["have it"] == row["had the role"] - row["lost"] + row["gained"]
    assert isinstance(figure, BarFigure) and figure.categories == FAMILIES
    assert figure.bars[0].values == tuple(row["bias rose"] / row["heads × roles"] for row in rows)


def test_p11_tau_sweep(paper: Measured) -> None:
    rows, figure = records(paper.results["P11"], "sweep"), paper.results["P11"].figure("sweep")
    by = {(row["τ"], row["family"]): row for row in rows}
    for tau in (1.0, 3.0, 8.0):
        relabelled = paper.roles.relabel(Pande2021(tau=tau))
        owners = {row.head for row in relabelled if row.has_role and family_of(row.role) == "syntactic"}
        assert by[tau, "syntactic"]["heads, published test"] == len(owners)
    for family in FAMILIES:
        counts = [by[tau, family]["heads, published test"] for tau in (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)]
        assert counts == sorted(counts, reverse=True)
    assert isinstance(figure, LineFigure) and [line.label for line in figure.lines] == [*FAMILIES, "any family"]
    assert (
        figure.lines[0].x == (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0) and figure.lines[-1].y[0] == by[1.0, "any family"]["heads, published test"]
    )


def test_p12_rules(paper: Measured) -> None:
    rows, figure = records(paper.results["P12"], "rules"), paper.results["P12"].figure("rules")
    assert [row["family"] for row in rows] == [*FAMILIES, "any family"]
    argmax = paper.roles.relabel("voita2019")
    for row in rows[:-1]:
        assert row["bias above τ"] >= row["t-test (published)"] and row["test, BH"] >= row["test, Bonferroni"]
        assert row["strongest key (2019)"] == len({s.head for s in argmax if s.has_role and family_of(s.role) == row["family"]})
        tested = [s for s in paper.roles if family_of(s.role) == row["family"]]
        assert row["test alone"] == sum(s.has_role and not s.by_argmax for s in tested) and row["heads × roles"] == len(tested)
    assert isinstance(figure, BarFigure) and len(figure.bars) == 5 and figure.categories[-1] == "any family"


def test_p13_block_heads(paper: Measured) -> None:
    rows, figure = records(paper.results["P13"], "blocks"), paper.results["P13"].figure("blocks")
    assert len(rows) == N_HEADS and sum(row["block head"] for row in rows) > 0
    corrected = paper.roles.relabel("pande2021(correct=bh)")
    assert {row["head"] for row in rows if row["block head"]} == {str(s.head) for s in corrected if s.role == "segment" and s.has_role}
    assert all(row["nearness"] > 0.5 and row["bias"] < 3 for row in rows if row["block head"])
    assert all((row["bias × entropy"] > 3 and row["p"] <= 0.05) == row["block head as published"] for row in rows)
    assert isinstance(figure, ScatterFigure) and sum(len(group.x) for group in figure.groups) == N_HEADS
    assert "uniform" in paper.results["P13"].sentence and "uniform" in figure.note


def test_items_name_the_inputs_that_they_lack(tmp_path: Path) -> None:
    sources = PythonSources("demo/text", None, None, 0, 20, None)
    items = {item.id: item for item in list_items(Paper.parse("pande2021"), StudyContext(sources, model="demo/encoder-english"))}
    assert items["P9"].lacks == items["P10"].lacks == ("tuned",) and items["P9"].study is None and items["P1"].study is not None


def test_block_heads_of_a_text_without_pairs() -> None:
    """Consecutive sentences are paired where neither the text nor the task has pairs."""
    import headcount as hc

    text = draw_sentences("english", 60, seed=1)
    result = hc.study("role-definitions(show=blocks)", "demo/encoder-english", text=text, progress=False)
    assert len(result.tables[0].rows) == N_HEADS and "pairs of consecutive sentences of the text (30)" in result.notes[0]
