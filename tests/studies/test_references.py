"""The references of the papers, and what they report, beside ours."""

from __future__ import annotations

import pytest

import headcount as hc
from headcount.core.registry import PAPERS
from headcount.studies._paper import Item, Paper, PaperSubject


@pytest.fixture(scope="module")
def items() -> dict[str, Item]:
    """All items of all papers, for a model that translates."""
    model = hc.load("demo/translator")
    subject = PaperSubject(
        hc.HeadMap.of(model), hc.open_task("demo/translation", model, hc.load_tokenizer("demo/translator"), limit=8), True
    )
    return {item.id: item for name in PAPERS.names() for item in Paper.parse(name).items(subject)}


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("voita2019", ["@inproceedings{voita2019,", "  pages = {5797--5808},"]),
        ("li2021", ["@article{li2021,", "  journal = {Transactions of the Association for Computational Linguistics},", "  volume = {9},"]),
        ("budhraja2021", ["@misc{budhraja2021,", "  howpublished = {arXiv},", "  eprint = {2109.12683},"]),
        ("budhraja2020", ["@inproceedings{budhraja2020,", "  doi = {10.18653/v1/2020.emnlp-main.260},"]),
    ],
)
def test_a_reference_is_of_the_right_type(name: str, lines: list[str]) -> None:
    entry = Paper.parse(name).info.bibtex(name).splitlines()
    assert set(lines) <= set(entry) and entry[0] == lines[0] and entry[-1] == "}"
    assert ("booktitle" in "".join(entry)) == (lines[0].startswith("@inproceedings"))


def test_what_is_from_scratch_in_the_paper_stands_beside_its_item(items: dict[str, Item]) -> None:
    """Table 2 compares the same heads, section 6.2 the gates."""
    heads, gates = items["V12"].published, items["V17"].published
    assert heads is not None and gates is not None and items["V17"].part == "section 6.2"
    gains = [row["pruned"] - row["from scratch"] for row in heads.records()]  # pyright: ignore[reportOperatorIssue]
    assert gains == pytest.approx([0.15, 0.41, 0.50, 0.49]) and [row[1] for row in gates.rows] == [0.2, 0.6]


def test_the_best_single_heads_are_a_table_by_layer_and_kind(items: dict[str, Item]) -> None:
    published = items["M3"].published
    assert published is not None and [column.name for column in published.columns] == ["layer", "encoder-self", "cross", "decoder-self"]
    assert min((row["cross"], row["layer"]) for row in published.records()) == (-13.56, 6)  # pyright: ignore[reportArgumentType]
    of_bert = items["M4"].published
    assert of_bert is not None and len(of_bert.rows) == 12 and items["M13"].published is not None
