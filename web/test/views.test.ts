import assert from "node:assert/strict";
import { test } from "node:test";
import { csv } from "../src/page";
import { barsOf } from "../src/parts/bars";
import { filterRows, sortRows } from "../src/parts/table";
import { unselected } from "../src/state";
import { goldArcs, headArcs, staggered } from "../src/views/arcs";
import { frontier } from "../src/views/cost";
import { shrink, zoomed } from "../src/views/matrix";

test("tables sort numbers as numbers, names naturally, and what is missing last", () => {
  assert.deepEqual(sortRows([[10], [null], [9]], 0, false), [[9], [10], [null]]);
  assert.deepEqual(sortRows([[10], [null], [9]], 0, true), [[10], [9], [null]]);
  assert.deepEqual(sortRows([["L10H1"], ["L2H1"]], 0, false), [["L2H1"], ["L10H1"]]);
});

test("a filter needs all its words", () => {
  assert.deepEqual(filterRows([["a", "sink"], ["b", "sink"]], "SINK b"), [["b", "sink"]]);
});

test("a spreadsheet runs nothing of a CSV file", () => {
  assert.equal(csv(["a"], [["=cmd()"], ['say "x", y'], [null], [-1]]), "a\r\n'=cmd()\r\n\"say \"\"x\"\", y\"\r\n\r\n-1\r\n");
});

test("arcs agree whichever way round a dependency is", () => {
  const units = [0, 1, 2].map((word) => ({ text: "", special: false, tokens: [word], word, unknown: false, parted: false }));
  const gold = goldArcs([[0, 1, "det"], [2, 9, "gone"]], units);
  assert.deepEqual(gold, [{ from: 0, to: 1, label: "det" }]);
  const matrix = { rows: 3, columns: 3, weights: Float32Array.from([0, 0.9, 0, 0.8, 0, 0, 0.1, 0, 0.9]) };
  assert.deepEqual(headArcs([1, 0, 2], matrix, gold, 0.05).map((arc) => [arc.from, arc.to, arc.agrees]), [[0, 1, true], [1, 0, true]]);
  assert.deepEqual(headArcs([1, 0, 0], matrix, gold, 0.85).map((arc) => arc.from), [0]);
});

test("the frontier keeps what nothing beats in both", () => {
  const spot = (x: number, y: number): Parameters<typeof frontier>[0][number] => ({ method: "", at: 0, keep: 0, x, y, xRange: null, yRange: null });
  const [a, b, c] = [spot(1, 0.5), spot(2, 0.4), spot(3, 0.9)];
  assert.deepEqual(frontier([a, b, c], true), [a, c]);
  assert.deepEqual(frontier([a, b, c], false), [a, b]);
});

test("a zoom stays inside the matrix", () => {
  const matrix = { rows: 100, columns: 50 };
  const seen = zoomed(matrix, { row: 0, column: 0, rows: 100, columns: 50 }, 0.5, 99, 49);
  assert.deepEqual(seen, { rows: 50, columns: 25, row: 50, column: 25 });
  assert.deepEqual(zoomed(matrix, seen, 8, 0, 0), { row: 0, column: 0, rows: 100, columns: 50 });
});

test("a shrunk matrix keeps its strongest weights", () => {
  const weights = new Float32Array(16);
  weights[5] = 0.9;
  assert.deepEqual([...shrink({ rows: 4, columns: 4, weights }, 2).weights].map((value) => Math.round(value * 10)), [9, 0, 0, 0]);
});

test("bars are of what was measured", () => {
  assert.deepEqual(barsOf(["a", "b", "c"], [0.5, null, 0], [0.1, 0.2, 0.3]), [{ name: "a", value: 0.5, expected: 0.1 }, { name: "c", value: 0, expected: 0.3 }]);
  assert.deepEqual(barsOf(["a"], [null]), []);
});

test("labels of arcs do not lie on each other", () => {
  assert.deepEqual(staggered([{ x: 10, y: 0, text: "det" }, { x: 14, y: 0, text: "amod" }, { x: 90, y: 0, text: "obj" }]), [0, 1, 0]);
});

test("heads that the run does not have are named, a few of them", () => {
  assert.equal(unselected([]), "");
  assert.equal(unselected(["L9H9"]), "This run has no head “L9H9”, so it is not selected.");
  assert.equal(unselected(["a", "b", "c", "d", "e"]), "This run has no heads “a”, “b”, “c”, “d” and 1 more, so they are not selected.");
});
