import assert from "node:assert/strict";
import { test } from "node:test";
import type { BenchRow, Point, RunData } from "../src/contract";
import { headsOf } from "../src/heads";
import { benchName, between, byLayer, commandOf, computed, favourite, goingFirst, guessText, latency, planFile, planFileName, planOf, pointOfBench, quantity, quoted, speedText, standingOf, usualShape, verdict, type Choice } from "../src/plan";
import { noiseOf, speedsOf } from "../src/views/cost";

const HEADS = 8;

function point(keep: number, removed: number[], more: Partial<Point> = {}): Point {
  return {
    method: "m", is_random: false, is_trained: false, keep, seed: 0, value: keep / 10, loss: 0, difference: 0, low: null, high: null, p: null, test: "", loss_difference: null, loss_p: null, is_worse: false, is_repaired: null,
    removed, parameters: 100 * keep, bytes: 400 * keep, flops: null, kv_bytes_per_token: null, command: `prune ${keep}`, ...more,
  };
}

/** Two layers of four heads; importance rises with the number of the head. */
function run(groups: number[] | null = null): RunData {
  const block = (layer: number): RunData["blocks"][number] => ({ path: "", kind: "self", stack: "", layer, heads: [0, 1, 2, 3].map((head) => 4 * layer + head), kv_group: groups });
  return {
    name: "r", command: "", task: null, created: "", updated: "", seed: 0,
    model: { name: "my model", class_name: "", model_type: "", n_parameters: 0, weights: "" },
    versions: {}, machine: {}, config: {}, data: {}, summary: [], warnings: [],
    heads: Array.from({ length: HEADS }, (_, at) => `L${Math.floor(at / 4)}H${at % 4}`),
    blocks: [block(0), block(1)],
    scores: [{ name: "s", about: "", kind: "importance", higher_is_keep: true, values: Array.from({ length: HEADS }, (_, at) => at), stderr: null, significant: null, n_examples: null }],
    roles: null,
    curves: {
      metric: "accuracy", higher_is_better: true,
      dense: { value: 0.9, loss: 0, n_examples: 10, low: null, high: null, parameters: 800, bytes: 3200, flops: null, kv_bytes_per_token: null, tokens: null },
      points: [point(6, [1, 7]), point(3, [0, 1, 4, 5, 7])], smallest_safe: {}, commands: {}, unit: 1,
    },
    bench: [], portraits: null, attention: null, attention_left_out: false, tables: [],
  };
}

const choice = (keep: number, more: Partial<Choice> = {}): Choice => ({ method: "m", seed: 0, keep, protect: new Set(), onePerBlock: false, wholeGroups: false, ...more });
const sorted = (some: Iterable<number>): number[] => [...some].sort((a, b) => a - b);

test("a measured K gives the measured plan", () => {
  const plan = planOf(headsOf(run()), choice(6));
  assert.deepEqual(sorted(plan.removed), [1, 7]);
  assert.equal(plan.point?.command, "prune 6");
  assert.equal(commandOf(headsOf(run()), plan, choice(6)), "prune 6");
});

test("between two measured K the larger plan goes first, then the least important of the smaller", () => {
  assert.deepEqual(goingFirst(run(), { method: "m", seed: 0, keep: 5 }).slice(0, 5), [1, 7, 0, 4, 5]);
  const plan = planOf(headsOf(run()), choice(5));
  assert.deepEqual(sorted(plan.removed), [0, 1, 7]);
  assert.equal(plan.point, null);
});

test("every K removes exactly as many heads as it says, and each plan with fewer heads is of the right size", () => {
  for (let keep = 1; keep <= HEADS; keep += 1) assert.equal(planOf(headsOf(run()), choice(keep)).removed.size, HEADS - keep);
});

test("protected heads stay, and a changed plan is not the measured one", () => {
  const plan = planOf(headsOf(run()), choice(6, { protect: new Set([7]) }));
  assert.ok(!plan.removed.has(7));
  assert.equal(plan.removed.size, 2);
  assert.equal(plan.point, null);
});

test("at least one head per layer stays", () => {
  const heads = headsOf(run());
  const { removed } = planOf(heads, choice(1, { method: "rank: s", onePerBlock: true }));
  for (const block of heads.run.blocks) assert.ok(block.heads.some((head) => !removed.has(head)));
});

test("whole KV groups go together and never more than the budget", () => {
  const heads = headsOf(run([0, 0, 1, 1]));
  for (let keep = 1; keep <= HEADS; keep += 1) {
    const { removed } = planOf(heads, choice(keep, { method: "rank: s", wholeGroups: true }));
    assert.ok(removed.size <= HEADS - keep);
    for (const [a, b] of [[0, 1], [2, 3], [4, 5], [6, 7]] as const) assert.equal(removed.has(a), removed.has(b));
  }
});

test("numbers lie straight between measured ones and do not go beyond them", () => {
  assert.deepEqual(between([[2, 10], [4, 20]], 3), { value: 15, from: 2, to: 4 });
  assert.deepEqual(between([[2, 10], [4, null]], 2), { value: 10, from: 2, to: 2 });
  assert.equal(between([[2, 10], [4, 20]], 5), null);
  assert.equal(between([], 1), null);
});

test("a quantity is the mean over seeds and ends at the whole model", () => {
  const some = run();
  some.curves!.points.push(point(6, [0, 2], { seed: 1, value: 0.8 }));
  assert.ok(Math.abs(quantity(some, "m", "value", 6)!.value - 0.7) < 1e-12);
  assert.equal(quantity(some, "m", "value", 8)!.value, 0.9);
  assert.deepEqual(quantity(some, "m", "parameters", 7), { value: 700, from: 6, to: 8 });
});

test("plans leave the page in the shapes that headcount reads", () => {
  const heads = headsOf(run());
  assert.deepEqual(byLayer(heads, new Set([1, 7, 4])), { 0: [1], 1: [0, 3] });
  assert.deepEqual(planFile(heads.run, new Set([7, 1])), { schema_version: 1, removed: ["L0H1", "L1H3"] });
});

test("names are quoted for a shell", () => {
  assert.equal(quoted("org/model"), "org/model");
  assert.equal(quoted("a'; rm -rf /"), "'a'\\''; rm -rf /'");
  assert.match(commandOf(headsOf(run()), { removed: new Set([1]), point: null, guess: null }, choice(7, { method: "rank: s" })) ?? "", /^headcount cut 'my model' --plan plan-by-s-order-7.json /);
});

test("a K that was not measured keeps the method and the choices in its command", () => {
  const some = run();
  some.curves!.commands = { m: "headcount prune x --method m --keep {keep} --seed 0 --out o" };
  const heads = headsOf(some);
  const command = (keep: number, more: Partial<Choice> = {}): string | null => commandOf(heads, planOf(heads, choice(keep, more)), choice(keep, more));
  assert.equal(command(5), "headcount prune x --method m --keep 5 --seed 0 --out o");
  some.curves!.points.push(point(6, [0, 2], { seed: 2, command: "prune --keep 6 --seed 0 --method-seed 2 --out o" }));
  assert.equal(command(5, { seed: 2 }), "headcount prune x --method m --keep 5 --seed 0 --method-seed 2 --out o");
  assert.equal(command(6, { protect: new Set([7, 1]), onePerBlock: true }), "headcount prune x --method m --keep 6 --seed 0 --out o --protect L0H1,L1H3 --floor 1");
  assert.equal(command(HEADS), null);
  some.curves!.commands = { m: "prune --keep {keep} --floor 0 --unit even" };
  assert.equal(command(5, { onePerBlock: true, wholeGroups: true }), "prune --keep 5 --floor 1 --unit kv_group");
  some.curves!.commands = {};
  assert.equal(command(5), null);
});

test("without commands of methods that of a measured model is used", () => {
  const some = run();
  some.curves!.points = [point(6, [1, 7], { command: "headcount prune x --method m --keep 6 --seed 0" })];
  const { commands: _, ...old } = some.curves!;
  some.curves = old as NonNullable<RunData["curves"]>;
  const heads = headsOf(some);
  assert.equal(commandOf(heads, planOf(heads, choice(5)), choice(5)), "headcount prune x --method m --keep 5 --seed 0");
});

test("the favourite has the fewest safe heads, then the least loss, then the best value where fewest stay", () => {
  const curves = { ...run().curves!, points: [point(3, [], { method: "a", loss: 2, value: 0.5 }), point(3, [], { method: "b", loss: 1, value: 0.4 }), point(3, [], { method: "r", loss: 0, value: 1, is_random: true }), point(6, [], { method: "a" })] };
  assert.deepEqual(favourite({ ...curves, smallest_safe: { a: 3, b: 3, r: null } }), { method: "b", keep: 3 });
  assert.deepEqual(favourite({ ...curves, smallest_safe: { a: 6, b: null, r: null } }), { method: "a", keep: 6 });
  assert.deepEqual(favourite({ ...curves, smallest_safe: { a: null } }), { method: "a", keep: null });
  assert.deepEqual(favourite({ ...curves, higher_is_better: false, smallest_safe: {} }), { method: "b", keep: null });
  assert.equal(favourite(null), null);
});

test("a timed model is the very point that was measured, by the names of points", () => {
  const row = (of: string): BenchRow => ({ of, method: "m", keep: 6, name: "removed", batch: 8, length: 64, seconds: 1, low: 1, high: 1, speedup: 1, rounds: 1 });
  const curves = run().curves!;
  curves.points.push(point(6, [0, 2], { seed: 1, value: 0.8 }));
  assert.equal(pointOfBench(curves, row("rank, by=m, 6 heads, seed 1"))?.value, 0.8);
  assert.equal(pointOfBench(curves, row("m, 6 heads"))?.seed, 0);
  assert.equal(pointOfBench(curves, row("m, 6 heads, seed 9")), null);
  assert.equal(benchName(row("rank, by=m, 6 heads, seed 1")), "m, 6 heads, seed 1");
  assert.deepEqual(usualShape([[1, 512], [8, 64], [8, 128], [32, 128]]), [8, 128]);
});

test("a set that no measurement tells is a guess, by the order that filled it in", () => {
  const heads = headsOf(run());
  assert.equal(planOf(heads, choice(5)).guess, "s");
  assert.match(guessText(planOf(heads, choice(5))), /a guess, filled in by s order; the command may choose others/);
  for (const known of [choice(6), choice(HEADS), choice(5, { method: "rank: s" })]) assert.equal(planOf(heads, known).guess, null);
  const name = (of: Choice): string => planFileName(planOf(heads, of), of);
  assert.deepEqual([name(choice(6)), name(choice(5)), name(choice(5, { method: "rank: s" }))], ["plan-6.json", "plan-by-s-order-5.json", "plan-by-s-order-5.json"]);
});

test("what is known of a model is told in one way", () => {
  const some = run();
  some.curves!.points.push(point(4, [0, 1, 5, 7], { seed: 1 }));
  const heads = headsOf(some);
  const standing = (keep: number, more: Partial<Choice> = {}): string => standingOf(heads, choice(keep, more), planOf(heads, choice(keep, more)));
  assert.equal(standing(HEADS), "whole");
  assert.equal(standing(6), "measured");
  assert.equal(standing(5), "between");
  assert.equal(standing(7), "between");
  assert.equal(standing(2), "outside");
  assert.equal(standing(4), "seeds");
  assert.equal(standing(6, { protect: new Set([7]) }), "changed");
  assert.equal(standing(5, { protect: new Set([1]) }), "changed");
  assert.equal(standing(5, { protect: new Set([6]) }), "between", "a choice that changes nothing");
  assert.equal(standing(1, { protect: new Set([0, 1, 2]) }), "short");
  assert.equal(standing(5, { method: "rank: s" }), "ranking");
});

test("a loss is significant by the metric, by the loss, or by both", () => {
  const { curves } = run();
  const by = (more: Partial<Point>): unknown => verdict(curves!, point(6, [], more));
  assert.deepEqual(by({ is_worse: true, p: 0.3, difference: -0.01, loss_p: 0.02, loss_difference: 0.1 }), { worse: true, by: "by the loss" });
  assert.deepEqual(by({ is_worse: true, p: 0.01, difference: -0.01, loss_p: 0.02, loss_difference: 0.1 }), { worse: true, by: "by accuracy and by the loss" });
  assert.deepEqual(by({ is_worse: false, p: 0.01, difference: 0.02, loss_p: 0.5, loss_difference: 0.1 }), { worse: false, by: "" });
  assert.equal(verdict(curves!, { ...point(6, []), is_worse: undefined } as unknown as Point), null);
});

test("sizes are computed from the number of heads only where the measured models agree", () => {
  const some = run();
  assert.deepEqual(computed(some, "parameters", 5), { value: 500, from: 3, to: 6 });
  some.curves!.points.push(point(6, [0, 2], { method: "n", parameters: 650 }));
  assert.equal(computed(some, "parameters", 5), null);
});

const timed = (name: BenchRow["name"], seconds: number, low: number, high: number, batch = 8): BenchRow => ({ of: "m, 6 heads", method: "m", keep: 6, name, batch, length: 64, seconds, low, high, speedup: 1 / seconds, rounds: 5 });

test("a speed is told where the quartiles do not overlap", () => {
  assert.equal(speedText(timed("removed", 0.5, 0.45, 0.6), timed("dense", 1, 0.9, 1.1)), "2 × as fast as the whole model");
  assert.equal(speedText(timed("removed", 0.5, 0.4, 0.95), timed("dense", 1, 0.9, 1.1)), "not distinguishable from the whole model");
  const some = { ...run(), bench: [timed("dense", 1, 0.9, 1.1), timed("removed", 0.5, 0.4, 0.6)] };
  assert.deepEqual(latency(some, "m", 8, 64, 6), { seconds: 0.5, low: 0.4, high: 0.6, from: 6, to: 6, dense: some.bench[0] });
  assert.equal(latency(some, "m", 8, 64, 7)?.seconds, 0.75);
  assert.equal(latency(some, "m", 8, 64, 5), null);
});

test("the takeaway of latencies spans all sizes and takes noise for no fact", () => {
  const shapes: [number, number][] = [[1, 64], [8, 64]];
  const fast = [1, 8].flatMap((batch) => [timed("dense", 1, 0.95, 1.05, batch), timed("masked", 1, 0.95, 1.05, batch), timed("removed", batch === 1 ? 0.8 : 0.5, 0.5, batch === 1 ? 0.85 : 0.55, batch)]);
  assert.equal(speedsOf(fast, shapes, "m"), "Removing the heads of m makes a pass 1.25 to 2 times as fast over 2 sizes of batch and length.");
  const noisy = fast.map((row) => (row.batch === 8 && row.name === "removed" ? { ...row, high: 1.2 } : row));
  assert.match(speedsOf(noisy, shapes, "m"), /1\.25 times as fast at batch 1, length 64; at batch 8, length 64 it is not distinguishable from the whole model/);
  assert.match(speedsOf(noisy, [[8, 64]], "m"), /not distinguishable from the whole model at batch 8, length 64/);
  assert.deepEqual(noiseOf(fast.map((row) => ({ ...row, low: row.seconds * 0.99, high: row.seconds * 1.01 })), shapes), []);
  assert.match(noiseOf(noisy, shapes).join(), /Noisy measurement at .*batch 8, length 64/);
  assert.match(noiseOf([timed("dense", 1, 0.95, 1.05), timed("masked", 0.5, 0.49, 0.51)], [[8, 64]]).join(), /Masked heads seem faster than the whole model at batch 8/);
});
