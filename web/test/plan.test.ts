import assert from "node:assert/strict";
import { test } from "node:test";
import type { BenchRow, Point, RunData } from "../src/contract";
import { headsOf } from "../src/heads";
import { benchName, between, byLayer, commandOf, favourite, goingFirst, planFile, planOf, pointOfBench, quantity, quoted, usualShape, type Choice } from "../src/plan";

const HEADS = 8;

function point(keep: number, removed: number[], more: Partial<Point> = {}): Point {
  return {
    method: "m", is_random: false, is_trained: false, keep, seed: 0, value: keep / 10, loss: 0, difference: 0, low: null, high: null, p: null, test: "",
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
      dense: { value: 0.9, loss: 0, n_examples: 10, low: null, high: null, parameters: 800, bytes: 3200, flops: null, kv_bytes_per_token: null },
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
  assert.match(commandOf(headsOf(run()), { removed: new Set([1]), point: null }, choice(7, { method: "rank: s" })) ?? "", /^headcount cut 'my model' --plan/);
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
