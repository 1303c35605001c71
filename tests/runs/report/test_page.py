"""One file: nothing of the data leaves its place, nothing else runs or loads, the same run gives the same bytes, and the size is kept."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from contract import check
from hostile import HOSTILE
from kit import make_run
from packed import unpack_bytes

from headcount.core.errors import ArtifactError
from headcount.runs.report.collect import collect_report
from headcount.runs.report.page import BAD, FrontEnd, load_front_end, render_page, report_to_json
from headcount.runs.report.write import choose_heads_with_maps, fit_report, write_report

FRONT = FrontEnd("console.log('here');", "body { color: black }")
SAFE = {text: text.encode("utf-8", "replace").decode() for text in HOSTILE}
"""Surrogates cannot be written into a run folder; what is there instead can."""


class Elements(HTMLParser):
    """Every element of a page with its attributes, and the text in it."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[int, str] = {}
        self.comments: list[str] = []
        self.inside: list[int] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag != "meta":
            self.inside.append(len(self.tags) - 1)

    def handle_endtag(self, tag: str) -> None:
        assert self.inside and self.tags[self.inside.pop()][0] == tag, f"</{tag}> ends nothing"

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.texts[self.inside[-1]] = self.texts.get(self.inside[-1], "") + data

    def handle_comment(self, data: str) -> None:
        self.comments.append(data)

    def text_of(self, place: int) -> str:
        return self.texts.get(place, "")


SHAPE = ["html", "head", "meta", "meta", "meta", "meta", "title", "style", "body", "div", "noscript", "p", "script", "script"]


def parsed(text: str) -> tuple[Elements, Any]:
    elements = Elements(text)
    position = next(i for i, (tag, attrs) in enumerate(elements.tags) if tag == "script" and attrs.get("id") == "headcount-data")
    return elements, json.loads(elements.text_of(position))


def test_the_page_is_data_one_script_and_one_style_under_a_strict_policy(tmp_path: Path) -> None:
    report = collect_report(make_run(tmp_path / "run")).with_all_maps()
    made, data = parsed(render_page(report, FRONT))
    assert [tag for tag, _ in made.tags] == SHAPE
    assert data == json.loads(json.dumps(report))
    policy = next(attrs["content"] for tag, attrs in made.tags if attrs.get("http-equiv") == "Content-Security-Policy") or ""
    parts = dict(part.strip().split(" ", 1) for part in policy.split(";"))
    assert parts["default-src"] == "'none'" and parts["base-uri"] == "'none'" and parts["form-action"] == "'none'"
    assert "connect-src" not in parts and "unsafe" not in policy and "http" not in policy and "*" not in policy
    for name, text in (("script-src", FRONT.script), ("style-src", FRONT.style)):
        assert parts[name] == f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
    scripts = [made.text_of(i) for i, (tag, attrs) in enumerate(made.tags) if tag == "script" and "type" not in attrs]
    assert scripts == [FRONT.script] and dict(made.tags)["html"] == {"lang": "en"}
    live = {**report, "live": {"token": "t", "runs": []}}
    asks = [attrs["content"] for _, attrs in parsed(render_page(live, FRONT))[0].tags if attrs.get("http-equiv")]
    assert [text.endswith("; connect-src 'self'") for text in asks if text] == [True]


@pytest.mark.parametrize("text", SAFE.values(), ids=range(len(SAFE)))
def test_hostile_text_stays_text(text: str, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", text=text, n=20, layers=1, shown=1)
    report = collect_report(run, run).with_all_maps()
    check(report, "Report")
    made, data = parsed(render_page(report, FRONT))
    assert [tag for tag, _ in made.tags] == SHAPE and not made.comments, "no element more than in any other page"
    assert data == json.loads(json.dumps(report)), "and the data come back as they were"
    assert data["runs"][0]["model"]["name"] == text
    raw = render_page(report, FRONT)
    inside = raw[raw.index('id="headcount-data">') + len('id="headcount-data">') : raw.rindex("</script>\n<script>")]
    assert not set(inside) & set("<>&\u2028\u2029\x00\x1b\u202e") and inside.isascii()
    title = made.text_of(SHAPE.index("title"))
    assert title.isprintable() and not set(title) & set("\x1b\x00\u202e\u2028")


def test_data_of_any_characters_come_back() -> None:
    for text in HOSTILE:
        made = report_to_json({"a": text, text: [text]})
        assert json.loads(made) == {"a": text, text: [text]} and not re.search("[<>&]", made)
    with pytest.raises(ValueError):
        report_to_json({"a": float("nan")})


def test_the_front_end_comes_with_the_package_and_is_checked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    front_end = load_front_end()
    assert len(front_end.script) > 1000 and "\r" not in front_end.script + front_end.style
    assert not BAD["script"].search(front_end.script) and not BAD["style"].search(front_end.style)
    import importlib

    module = importlib.import_module("headcount.runs.report.page")
    monkeypatch.setattr(module.resources, "files", lambda _: tmp_path)
    with pytest.raises(ArtifactError, match=r"bundle/app\.js is missing.*make web"):
        load_front_end()
    (tmp_path / "bundle").mkdir()
    (tmp_path / "bundle" / "app.js").write_text("a\r\nb")
    (tmp_path / "bundle" / "app.css").write_text("body{}")
    assert load_front_end().script == "a\nb", "as a browser reads it, so that its hash holds"
    (tmp_path / "bundle" / "app.js").write_text("'</script>'")
    with pytest.raises(ArtifactError, match="end its element early"):
        load_front_end()


def test_the_same_run_gives_the_same_bytes(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    first = write_report(run).read_bytes()
    (tmp_path / "again").mkdir()
    assert write_report(run, out=tmp_path / "again" / "r.html").read_bytes() == first
    assert run.report() == tmp_path / "run" / "report.html" and run.report().read_bytes() == first
    assert not list(tmp_path.rglob("*.partial"))


def test_maps_are_left_out_until_the_file_fits_and_it_says_so(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", tokens=32, shown=6, layers=4, heads=8)
    collected = collect_report(run)
    count = len(render_page(collected.with_all_maps(), FRONT))
    bare = len(render_page({**collected.report}, FRONT))
    before = (7, 2.0)
    for room in range(count, bare, -(count - bare) // 12):
        report = fit_report(collected, room, FRONT)
        check(report, "Report")
        attention = report["runs"][0]["attention"]
        assert len(render_page(report, FRONT).encode()) <= room + len(report["left_out"]) * 400
        sentences = 0 if attention is None else len(attention["sentences"])
        included = None if attention is None else attention["included"]
        heads = 1.0 if included == [None] * 4 else sum(8 if mine is None else len(mine) for mine in included or []) / 32
        assert (sentences, heads) <= before or sentences == before[0]
        before = (sentences, heads)
        assert bool(report["left_out"]) == (sentences < 6 or heads < 1)
    assert fit_report(collected, bare + 100, FRONT)["runs"][0]["attention"] is None


def test_the_maps_of_one_sentence_are_all_there_where_they_fit(tmp_path: Path) -> None:
    report = fit_report(collect_report(make_run(tmp_path / "run", tokens=8, shown=1)), 5_000_000, FRONT)
    attention = report["runs"][0]["attention"]
    assert attention is not None and set(attention["included"]) == {None} and report["left_out"] == []


def test_maps_of_the_most_important_heads_stay(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", tokens=32, shown=2, layers=4, heads=8)
    collected = collect_report(run)
    data = collected.report["runs"][0]
    heads_with_maps = choose_heads_with_maps(data["scores"], collected.maps[0], 0.25)
    flat = {8 * block + place for block, heads_with_map in enumerate(heads_with_maps) for place in heads_with_map}
    values = next(score["values"] for score in data["scores"] if score["kind"] == "importance")
    assert len(flat) == 8 and min(values[head] for head in flat) >= max(values[head] for head in set(range(32)) - flat)
    packed = collected.maps[0].pack_sentences(1, heads_with_maps)
    assert packed is not None
    arrays = next(iter(run.results("profiles").values())).arrays
    for block, heads_with_map in enumerate(heads_with_maps):
        text = packed["maps"][0][block]
        assert (text is None) == (not heads_with_map)
        assert text is None or unpack_bytes(text) == arrays[f"0/{block}"][heads_with_map].tobytes()
        assert packed["included"][block] == heads_with_map


def test_sizes_and_places_that_cannot_be_are_refused(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", n=20, kinds=("scores",))
    for size in (0.0, -1.0, 11.0, float("nan"), float("inf")):
        with pytest.raises(ArtifactError, match=r"above 0 and at most 10 MB.*got"):
            write_report(run, max_mb=size)
    with pytest.raises(ArtifactError, match="is a folder"):
        write_report(run, out=tmp_path)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("thesis.tex", "only a report that headcount wrote is replaced"),
        ("run/run.json", r"a report is called report\*\.html"),
        ("run/new.html", r"a report is called report\*\.html"),
        ("run/artifacts/report.html", r"a report is called report\*\.html"),
        ("run/../run/log.txt", r"a report is called report\*\.html"),
        ("no/such/folder/r.html", "into a folder that exists"),
    ],
)
def test_a_report_replaces_nothing_but_reports(name: str, text: str, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", n=20, kinds=("scores",))
    (tmp_path / "thesis.tex").write_text("years of work")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(ArtifactError, match=text):
        write_report(run, out=tmp_path / name)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before and not (tmp_path / "no").exists()
    for own in ("run/report-small.html", "r.html", "r.html"):
        assert write_report(run, out=tmp_path / own).is_file()


def test_a_page_that_is_too_large_without_maps_loses_examples_and_says_so(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", text="word " * 300, n=20, tokens=40, shown=1)
    collected = collect_report(run)
    room = len(render_page(collected.report, FRONT)) - 50_000
    report = fit_report(collected, room, FRONT)
    assert "Examples of tokens on the pages of heads are left out, for the size of the file." in report["left_out"]
    assert report["runs"][0]["attention_left_out"] is True and collected.with_all_maps()["runs"][0]["attention_left_out"] is False
    least = fit_report(collected, 1000, FRONT)["left_out"]
    assert any("could not be made as small as the 0.001 MB" in text for text in least) and all(text.endswith(".") for text in least)
    assert report["runs"][0]["profiles"]["examples"][0] == {"top": [], "middle": [], "random": []}
    check(report, "Report")
