"""What notebooks and model cards show: names from models and data stay text there too."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hostile import HOSTILE
from kit import make_run
from markdown_it import MarkdownIt

import headcount as hc
from headcount.core import html as notebook
from headcount.core.heads import Head
from headcount.core.role_table import RoleScore, RoleTable
from headcount.surgery.card import format_card
from headcount.surgery.manifest import BlockEntry, Manifest

STEERING = set("\x1b\x00\x07\u202e\u202c\u2066\u2069\u2028\u2029")
ALLOWED = {"table", "caption", "thead", "tbody", "tr", "th", "td"}


class Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_comment(self, data: str) -> None:
        self.found.append(("comment", {}))


def check(text: str, allowed: set[str]) -> None:
    for tag, attrs in Tags(text).found:
        assert tag in allowed, tag
        assert set(attrs) <= {"title", "style", "colspan", "class"}, attrs
        assert all(re.fullmatch(r"[-+\w.:;#% ]*", value or "") for value in attrs.values()), attrs
    assert not STEERING & set(text)


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_notebook_tables_escape_everything(text: str) -> None:
    scores = hc.Scores((Head("", 0, 0), Head("", 0, 1)), (0.5, -1.0), method=text)
    numbers: dict[str, Any] = dict.fromkeys(RoleScore.__dataclass_fields__, 1.0)
    row = RoleScore(**{**numbers, "head": Head("", 0, 0), "role": text, "has_role": True, "note": text})
    table = RoleTable((row,), (Head("", 0, 0),))
    for made in (scores, table):
        check(made._repr_html_(), ALLOWED)
    check(notebook.html_table((text,), [(text,)], text), ALLOWED)
    check(notebook.html_grid([text], [[1.0, float("nan")]], text), ALLOWED)


def test_notebooks_show_what_there_is(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", n=20, kinds=("scores", "evaluation"))
    repr_html_ = run._repr_html_()
    check(repr_html_, ALLOWED)
    assert "plain" in repr_html_ and "3 scores" in repr_html_
    plan = hc.Plan.removing(["L0H1", "L2H3", "L2H0"], protected=["L1H1"])._repr_html_()
    check(plan, ALLOWED)
    assert "<td>L2</td><td>0, 3</td>" in plan and "3 heads go, 1 are protected" in plan
    scores = hc.Scores((Head("", 0, 0), Head("", 1, 1)), (0.25, 4.0), method="gradient")._repr_html_()
    assert scores.count("<td></td>") == 2 and 'title="4"' in scores and 'title="0.25"' in scores
    many = notebook.html_table(("a",), [(i,) for i in range(100)])
    assert many.count("<tr>") == notebook.MAX_ROWS + 2 and "and 80 more" in many


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_a_model_card_holds_no_markup_from_names(text: str) -> None:
    block = BlockEntry.model_construct(block=text, path=text, kind="cross", heads=[0], of=2)
    manifest = Manifest.model_construct(
        schema_version=1,
        headcount="0",
        transformers="5",
        model_class=text,
        model_type=text,
        command=text,
        removed=[text],
        blocks=[block],
        cost=None,
        notes=[text, text],
        files={},
    )
    card = format_card(manifest, loads_without_headcount=False)
    assert not STEERING & set(card)
    front, remainder = card.removeprefix("---\n").split("---\n", 1)
    assert [line.partition(":")[0] for line in front.splitlines()] == ["library_name", "tags"]
    plain = {"h1", "h2", "p", "ul", "li", "code", "pre", "table", "thead", "tbody", "tr", "th", "td"}
    made = MarkdownIt("commonmark", {"html": True}).enable("table").render(remainder)
    check(made, plain)
    tags = [tag for tag, _ in Tags(made).found]
    assert (tags.count("h1"), tags.count("h2"), tags.count("td"), tags.count("li")) == (1, 2, 3, 2), "no heading, artifact or item more"
