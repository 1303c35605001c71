import assert from "node:assert/strict";
import { test } from "node:test";
import type { BarFigure, LineFigure, RunData, StudyColumn } from "../src/contract";
import { axisNumber, columnNumber, span, wrap } from "../src/drawing";
import { extentOf } from "../src/drawings/bars";
import { hasWhiskers, joinStart, segments, ticksAtPoints } from "../src/drawings/lines";
import { paperAt, paperPath, pageTitle } from "../src/pages";

const column = (format: string): StudyColumn => ({ name: "a", unit: "", format, interval: null });

test("numbers have the format of their column", () => {
  assert.equal(columnNumber(column("+.2f"), 0.5), "+0.50");
  assert.equal(columnNumber(column(".3f"), -1.23456), "−1.235");
  assert.equal(columnNumber(column(".1%"), 0.1234), "12.3\u00a0%");
  assert.equal(columnNumber(column("+.0%"), 0.1), "+10\u00a0%");
  assert.equal(columnNumber(column("+.3g"), 0.0123456), "+0.0123");
  assert.equal(columnNumber(column(".2g"), 0.00001234), "1.2e-5");
  assert.equal(columnNumber(column("+d"), 3), "+3");
  assert.equal(columnNumber(column(""), 12345), "12,345");
  assert.equal(columnNumber(column("no format"), 0.5), "0.5");
});

test("numbers of an axis have their name, or are percentages", () => {
  const axis = { label: "x", unit: "", is_share: true, ticks: [[1, "all"]] as [number, string][], is_count: false, limits: [] };
  assert.deepEqual([0.125, 1, null].map((value) => axisNumber(axis, value)), ["12.5 %", "all", "–"]);
});

test("texts are wrapped at words, long words broken, and the rest cut", () => {
  assert.deepEqual(wrap("a few short words", 10), ["a few", "short", "words"]);
  assert.deepEqual(wrap("abcdefghij", 4), ["abcd", "efgh", "ij"]);
  assert.deepEqual(wrap("tau=1000;init=none;settle=0", 10), ["tau=1000;", "init=none;", "settle=0"]);
  assert.deepEqual(wrap("one two three four", 5, 2), ["one", "two…"].map((line, at) => (at ? "two …" : line)));
  assert.deepEqual(wrap("", 5), [""]);
});

test("a range has room around a single value", () => {
  assert.deepEqual(span([2, null]), [1.8, 2.2]);
  assert.deepEqual(span([]), [0, 1]);
  assert.deepEqual(span([0.5, 0.7], true), [0, 0.7]);
});

test("lines break where a value is not defined", () => {
  assert.deepEqual(segments([1, 2, null, 3]), [[0, 1], [3]]);
  assert.deepEqual(segments([null]), []);
});

test("a line begins at the dense model, and many intervals are whiskers", () => {
  const axis = { label: "", unit: "", is_share: true, ticks: [], is_count: false, limits: [] };
  const line = (label: string): LineFigure["lines"][number] => ({ label, x: [0.25, 0.5], y: [0.8, 0.5], low: [0.7, 0.4], high: [0.9, 0.6], is_control: false, start: [0, 1] });
  const figure: LineFigure = { kind: "lines", name: "", title: "", x: axis, y: axis, table: "", n: null, n_unit: "", note: "", lines: ["a", "b", "c"].map(line), references: [] };
  const joined = joinStart(line("a"));
  assert.deepEqual([joined.x, joined.y, joined.low], [[0, 0.25, 0.5], [1, 0.8, 0.5], [null, 0.7, 0.4]]);
  assert.deepEqual(joinStart({ ...line("a"), start: [1, 0] }).x, [0.25, 0.5, 1]);
  assert.deepEqual([hasWhiskers(figure), hasWhiskers({ ...figure, lines: figure.lines.slice(1) })], [true, false]);
  assert.deepEqual(ticksAtPoints(figure), [0, 0.25, 0.5]);
});

test("stacked bars stand on those before them, on their side of 0", () => {
  const axis = { label: "", unit: "", is_share: false, ticks: [], is_count: false, limits: [] };
  const bars = [[1], [-2], [3]].map((values) => ({ label: "", values, low: [], high: [] }));
  const figure: BarFigure = { kind: "bars", name: "", title: "", x: axis, y: axis, table: "", n: null, n_unit: "", note: "", categories: ["a"], bars, is_stacked: true, is_horizontal: false };
  assert.deepEqual([0, 1, 2].map((series) => extentOf(figure, { series, at: 0, text: "" })).map(({ from, to }) => [from, to]), [[0, 1], [0, -2], [1, 4]]);
});

test("pages are found by their address, whatever their name", () => {
  const item = { id: "M/1 \ud800", title: "", part: "", reason: "", command: "", result: null, published: null };
  const paper = { name: "a paper", title: "", bibtex: "", command: "", conditions: [], items: [item] };
  const run = { papers: [paper], studies: [] } as unknown as RunData;
  assert.equal(paperAt(run, paperPath(paper, item))?.item, item);
  assert.deepEqual(paperAt(run, "a%20paper"), { paper, item: undefined });
  assert.equal(paperAt(run, "other"), undefined);
  assert.equal(pageTitle(run, "papers", paperPath(paper, item)), "M/1 \ud800, a paper");
});
