import assert from "node:assert/strict";
import { test } from "node:test";
import { contrast, diverging, ink, paint, sequential, weight, type Rgb } from "../src/colour";
import { argmax, hiddenShares, inflate, named, namesOf, pool, quotedName, unitsOf } from "../src/decode";
import { disagreement, extent } from "../src/fields";
import { interval, num, plural, pValue, seconds, secondsRange, short, signed, weightNumber } from "../src/format";
import { codesOf, order, ranks, spearman } from "../src/heads";
import type { RunData, Verdicts } from "../src/contract";
import { distinct } from "../src/parts/axes";
import { linearScale } from "../src/parts/scale";
import { atMost, boundText, conditions, missing, safeText } from "../src/verdicts";

test("numbers are short and honest", () => {
  assert.deepEqual([num(0.41234), num(-0.5), num(null), num(1234567), num(0.00001234), num(NaN), num(1234)], ["0.412", "−0.5", "–", "1.23e+6", "1.23e-5", "–", "1234"]);
  assert.deepEqual([signed(0.2), signed(-0.2), signed(0)], ["+0.2", "−0.2", "0"]);
  assert.deepEqual([short(109_483_778), short(437e6, "B"), short(12)], ["109 M", "437 MB", "12"]);
  assert.deepEqual([seconds(0.0042), seconds(2), seconds(3e-6)], ["4.2 ms", "2 s", "3 µs"]);
  assert.deepEqual([secondsRange(0.004, 0.0052), secondsRange(0.9, 1.2)], ["4 to 5.2 ms", "900 ms to 1.2 s"]);
  assert.deepEqual([weightNumber(0.123456), weightNumber(0.0123456)], [0.12, 0.012]);
  assert.deepEqual([interval(0.37, 0.45), interval(null, 1), pValue(0.0001), plural(1, "head"), plural(1200, "head")], ["0.37 to 0.45", "–", "< 0.001", "1 head", "1,200 heads"]);
});

test("ranks share places where values are equal and skip what is missing", () => {
  assert.deepEqual(ranks([3, 1, 3, null]), [1.5, 3, 1.5, null]);
  assert.deepEqual(order([2, null, 5, 1], true), [2, 0, 3, 1]);
  assert.deepEqual(order([2, null, 5, 1], false), [3, 0, 2, 1]);
});

test("rank correlation is 1 for any rising relation and −1 for a falling one", () => {
  assert.equal(spearman([1, 2, 3, 4], [1, 10, 100, 1000]), 1);
  assert.equal(spearman([1, 2, 3, 4], [4, 3, 2, 1]), -1);
  assert.equal(spearman([1, 2, null], [1, null, 3]), null);
});

test("extents ignore what is missing and are never empty", () => {
  assert.deepEqual(extent([null, 2, 5]), [2, 5]);
  assert.deepEqual(extent([null]), [0, 1]);
  const [low, high] = extent([3, 3]);
  assert.ok(low < 3 && high > 3);
});

test("text on any colour of a scale has a contrast of 4.5 at least", () => {
  for (const dark of [true, false]) {
    for (let at = -20; at <= 20; at += 1) {
      for (const colour of [sequential(Math.abs(at) / 20, dark), weight(Math.abs(at) / 20, dark), diverging(at / 20, dark)]) {
        const text: Rgb = ink(colour) === "#000" ? [0, 0, 0] : [255, 255, 255];
        assert.ok(contrast(colour, text) >= 4.5, `${colour}`);
      }
    }
  }
});

test("scales are monotone in lightness, so that they read without hue", () => {
  for (const dark of [true, false]) {
    const light = Array.from({ length: 21 }, (_, at) => contrast(sequential(at / 20, dark), [0, 0, 0]));
    for (let at = 1; at < light.length; at += 1) assert.ok(dark ? light[at]! >= light[at - 1]! : light[at]! <= light[at - 1]!);
  }
});

test("packed maps are read back", async () => {
  // Raw deflate of the bytes 0, 255, 128, 64.
  assert.deepEqual([...(await inflate("Y/jf4AAA"))], [0, 255, 128, 64]);
});

const SIDE = { tokens: ["[CLS]", "un", "##do", "it"], special: [true, false, false, false], word: [-1, 0, 0, 1], words: ["undo", "it"], pos: null, arcs: null };

test("word pieces become words, and special tokens can be left out", () => {
  assert.deepEqual(unitsOf(SIDE, true, true).map((unit) => unit.text), ["undo", "it"]);
  assert.deepEqual(unitsOf(SIDE, true, false).map((unit) => unit.tokens), [[0], [1, 2], [3]]);
  assert.deepEqual(unitsOf(SIDE, false, false).map((unit) => unit.text), SIDE.tokens);
});

test("attention between words sums over keys, averages over queries, and keeps rows that sum to 1", () => {
  const weights = Float32Array.from([0.25, 0.25, 0.25, 0.25, 0.1, 0.2, 0.3, 0.4, 0.5, 0.1, 0.1, 0.3, 0, 0, 0, 1]);
  const units = unitsOf(SIDE, true, false);
  const pooled = pool({ rows: 4, columns: 4, weights }, units, units);
  for (let row = 0; row < 3; row += 1) assert.ok(Math.abs(pooled.weights.subarray(3 * row, 3 * row + 3).reduce((sum, value) => sum + value, 0) - 1) < 1e-6);
  assert.ok(Math.abs(pooled.weights[1 * 3 + 1]! - 0.35) < 1e-6);
  assert.deepEqual(argmax(pooled), [1, 1, 2]);
});

test("hidden tokens part texts, and their share is told", () => {
  const pair = { ...SIDE, tokens: ["[CLS]", "a", "[SEP]", "b", "[SEP]"], special: [true, false, true, false, true], word: null, words: null };
  const shown = unitsOf(pair, false, true);
  assert.deepEqual(shown.map((unit) => unit.parted), [false, true]);
  assert.deepEqual(unitsOf(pair, false, false).map((unit) => unit.parted), [false, false, false, false, false]);
  const weights = new Float32Array(25);
  weights.set([0.5, 0.25, 0.25, 0, 0], 5);
  weights.set([0, 0.5, 0, 0.5, 0], 15);
  assert.deepEqual(hiddenShares({ rows: 5, columns: 5, weights }, shown, shown), [0.75, 0]);
});

test("tokens that occur several times have their place, unknown ones are called so", () => {
  const side = { ...SIDE, tokens: ["the", "dog", "the", "xq"], special: [false, false, false, false], unknown: [false, false, false, true], word: [0, 1, 2, 3], words: ["the", "dog", "the", "xq"] };
  const names = namesOf(unitsOf(side, true, false), (text) => text);
  assert.deepEqual(names.map(named), ["the (1)", "dog", "the (3)", "xq [unknown]"]);
  assert.equal(quotedName(names[0]), "“the” (1)");
});

test("no two codes of roles differ by case alone", () => {
  const names = ["pos:ADJ", "pos:ADV", "syntax:advmod", "syntax:advmod-of", "syntax:amod", "syntax:amod-of", "pos:DET", "syntax:det"];
  const codes = codesOf(names, ["AD", "AV", "ad", "AM", "am", "AO", "DE", "de"]);
  assert.equal(new Set(codes.map((code) => code.toLowerCase())).size, names.length);
  assert.deepEqual([codes[0], codes[4], codes[5]], ["AD", "am", "am←"]);
  assert.deepEqual(codesOf(["a", "b"], ["p", "Sn"]), ["p", "Sn"], "letters that differ stay");
  assert.equal(new Set(codesOf(["x", "x", "x"], ["q", "q", "q"])).size, 3);
});

test("ticks of an axis have different labels", () => {
  const scale = linearScale([12.15, 12.34], [0, 400]);
  const labels = distinct(scale, 5, (value) => num(value)).map((value) => num(value));
  assert.equal(new Set(labels).size, labels.length);
  assert.equal(distinct(scale, 5, () => "the same").length, 1);
});

test("random numbers do not count as a method that disagrees", () => {
  const score = (name: string, values: number[]): RunData["scores"][number] => ({ name, about: "", kind: "importance", higher_is_keep: true, values, stderr: null, low: null, high: null, significant: null, n_examples: null, removal_order: null, group_removal_order: null });
  const run = { heads: ["a", "b", "c"], scores: [score("ablation", [1, 2, 3]), score("gradient", [4, 5, 6]), score("random", [9, 1, 5])] } as unknown as RunData;
  assert.deepEqual(disagreement(run), [0, 0, 0]);
});

test("one dominant head does not make all other cells look alike", () => {
  const values = [10000, 0.3, 0.2, 0.1, null];
  const field = { key: "score:a", group: "", label: "a", about: "", values, low: null, high: null, significant: null, scale: "sequential" as const };
  const shades = (byQuantile: boolean): number => new Set(values.slice(0, 4).map((value) => String(paint(field, false, byQuantile).of(value)))).size;
  assert.deepEqual([shades(true), shades(false)], [4, 2]);
  assert.equal(paint(field, false, true).of(null), null);
  assert.deepEqual(paint(field, false, true).of(0.1), sequential(0, false));
  assert.deepEqual(paint(field, false, true).of(10000), sequential(1, false));
});

test("bounds of single heads are told with their conditions", () => {
  const verdicts: Verdicts = { method: "ablation", unit: "nats", tolerance: 0.02, clip: 2, level: 0.95, n_examples: 1000, n_documents: null, n_needed: 450, n_missing: 0, reason: "", cost: [0, 0.1], bound: [0.011, 0.2], q: [0.001, 1], safe: [true, false] };
  assert.equal(boundText(verdicts, 0), "removed alone costs at most 0.011 nats, safe alone");
  assert.equal(boundText(verdicts, 1), "removed alone costs at most 0.2 nats");
  assert.equal(boundText(null, 0), "");
  assert.deepEqual([atMost(verdicts, 0.0111), atMost(verdicts, 0.0951), atMost(verdicts, 0.2), atMost(verdicts, -0.00123)], ["0.012 nats", "0.096 nats", "0.2 nats", "−0.0012 nats"]);
  assert.match(conditions(verdicts), /1,000 report examples.*up to 2 nats per example/);
  assert.equal(missing(verdicts), "");
  const few = { ...verdicts, reason: "a verdict needs at least 450 examples; there are 64", safe: [null, null] };
  assert.match(missing(few), /needs at least 450 examples/);
  assert.deepEqual([safeText(verdicts, 0), safeText(verdicts, 1), safeText(few, 0)], ["yes", "no", "undecided"]);
  assert.equal(boundText({ ...verdicts, unit: "points", bound: [0.004, null] }, 0), "removed alone costs at most 0.4 points, safe alone");
});

test("a scale maps its domain to pixels, and widens it to round ends when asked", () => {
  const scale = linearScale([0.13, 9.4], [400, 0], true);
  assert.deepEqual(scale.domain(), [0, 10]);
  assert.deepEqual([scale(0), scale(5), scale(10)], [400, 200, 0]);
  assert.deepEqual(scale.ticks(5), [0, 2, 4, 6, 8, 10]);
  assert.deepEqual(linearScale([0.13, 9.4], [400, 0]).domain(), [0.13, 9.4]);
  assert.equal(linearScale([3, 3], [0, 10])(3), 5, "in the middle where there is no extent");
});
