import assert from "node:assert/strict";
import { test } from "node:test";
import type { BenchRow, Point, RunData } from "../src/contract";
import { headsOf } from "../src/heads";
import { benchName, between, bound, byLayer, chosenOf, commandOf, computed, flips, goingFirst, guessText, latency, planFile, planFileName, planOf, pointOfBench, quantity, quoted, speedText, standingOf, usualShape, verdict, type Choice } from "../src/plan";
import { noiseOf, speedsOf } from "../src/views/cost";

const HEADS = 8;

function point(keep: number, removed: number[], more: Partial<Point> = {}): Point {
  return {
    id: `${more.method ?? "m"} ${keep} ${more.seed ?? 0}`, method: "m", is_random: false, is_trained: false, keep, seed: 0, value: keep / 10, loss: 0, difference: 0, low: null, high: null, bound: null, bound_text: "", procedure: "", margin: "", verdict: null, right_to_wrong: null, wrong_to_right: null, loss_difference: null, is_repaired: false,
    removed, parameters: 100 * keep, bytes: 400 * keep, flops: 10 * keep, kv_bytes_per_token: 0, command: `prune ${keep}`, ...more,
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
    scores: [{ name: "s", about: "", kind: "importance", higher_is_keep: true, values: Array.from({ length: HEADS }, (_, at) => at), stderr: null, low: null, high: null, significant: null, n_examples: null, removal_order: Array.from({ length: HEADS }, (_, at) => at), group_removal_order: groups && [[0, 1], [2, 3], [4, 5], [6, 7]] }],
    verdicts: null, roles: null,
    curves: {
      metric: "accuracy", higher_is_better: true,
      dense: { value: 0.9, loss: 0, n_examples: 10, low: null, high: null, parameters: 800, bytes: 3200, flops: 80, kv_bytes_per_token: 0, tokens: 8 },
      points: [point(6, [1, 7]), point(3, [0, 1, 4, 5, 7])], margin: "", by_size: [], sizes: [], chosen: null, commands: {}, unit: 1,
    },
    bench: [], profiles: null, attention: null, attention_left_out: false, tables: [], studies: [], papers: [],
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

test("heads of equal score go in the order that headcount breaks ties by, alone and in KV groups", () => {
  const some = run([0, 0, 1, 1]);
  some.scores[0] = { ...some.scores[0]!, values: Array.from({ length: HEADS }, () => 1), removal_order: [6, 1, 4, 7, 0, 2, 5, 3], group_removal_order: [[4, 5], [2, 3], [6, 7], [0, 1]] };
  const removed = (keep: number, more: Partial<Choice> = {}): number[] => sorted(planOf(headsOf(some), choice(keep, { method: "rank: s", ...more })).removed);
  assert.deepEqual(removed(5), [1, 4, 6]);
  assert.deepEqual(removed(3), [0, 1, 4, 6, 7]);
  assert.deepEqual(removed(6, { wholeGroups: true }), [4, 5]);
  assert.deepEqual(removed(4, { wholeGroups: true }), [2, 3, 4, 5]);
  assert.deepEqual(removed(4, { wholeGroups: true, protect: new Set([3]) }), [4, 5, 6, 7]);
  assert.deepEqual(removed(2, { wholeGroups: true, protect: new Set([3]), onePerBlock: true }), [0, 1, 4, 5]);
  assert.deepEqual(goingFirst(some, { method: "m", seed: 0, keep: 5 }).slice(0, 5), [1, 7, 4, 0, 5]);
});

test("units of several sizes fill K exactly where some of them do, else the next larger number stays", () => {
  const some = run([0, 0, 0, 1]);
  some.scores[0] = { ...some.scores[0]!, group_removal_order: [[3], [7], [0, 1, 2], [4, 5, 6]] };
  const removed = (keep: number): number[] => sorted(planOf(headsOf(some), choice(keep, { method: "rank: s", wholeGroups: true })).removed);
  assert.deepEqual(removed(7), [3]);
  assert.deepEqual(removed(5), [0, 1, 2]);
  assert.deepEqual(removed(2), [0, 1, 2, 4, 5, 6]);
  assert.deepEqual(removed(3), [0, 1, 2, 3, 7]);
});

test("numbers lie straight between measured ones and do not go beyond them", () => {
  assert.deepEqual(between([[2, 10], [4, 20]], 3), { value: 15, from: 2, to: 4 });
  assert.deepEqual(between([[2, 10], [4, null]], 2), { value: 10, from: 2, to: 2 });
  assert.equal(between([[2, 10], [4, 20]], 5), null);
  assert.equal(between([], 1), null);
});

test("a quantity is the mean over seeds and ends at the dense model", () => {
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
  assert.equal(command(6, { protect: new Set([7, 1]), onePerBlock: true }), "headcount prune x --method m --keep 6 --seed 0 --out o --protected L0H1,L1H3 --floor 1");
  assert.equal(command(HEADS), null);
  some.curves!.commands = { m: "prune --keep {keep} --floor 0 --unit even" };
  assert.equal(command(5, { onePerBlock: true, wholeGroups: true }), "prune --keep 5 --floor 1 --unit kv_group");
  some.curves!.commands = {};
  assert.equal(command(5), null);
  some.curves!.points = [point(6, [1, 7], { method: "constructor" })];
  assert.equal(command(5, { method: "constructor" }), null, "a name of no command");
});

test("the chosen model is the point that the report names", () => {
  const curves = run().curves!;
  assert.deepEqual(chosenOf({ ...curves, chosen: { point: "m 3 0", verdict: null } }), curves.points[1]);
  for (const none of [null, curves, { ...curves, chosen: { point: "gone", verdict: null } }]) assert.equal(chosenOf(none), null);
});

test("a timed model is the very point that was measured, whatever follows its seed", () => {
  const row = (of: string, more: Partial<BenchRow>): BenchRow => ({ ...timed("removed", 1, 1, 1), of, ...more });
  const curves = run().curves!;
  const repaired = point(6, [0, 2], { method: "m + repair", seed: 1, value: 0.8 });
  curves.points.push({ ...repaired, id: "m + repair 6 0", seed: 0, value: 0.7 }, repaired);
  for (const after of ["", ", repaired", ", not repaired", ", recovered 2"]) {
    const one = row(`rank, by=m, 6 heads, seed 1${after}`, { method: "m + repair", point: repaired.id, seed: 1 });
    assert.equal(pointOfBench(curves, one)?.value, 0.8);
    assert.equal(benchName(one), "m + repair, 6 heads, seed 1");
  }
  assert.equal(pointOfBench(curves, row("m, 6 heads", { point: "m 6 0" }))?.seed, 0);
  assert.equal(pointOfBench(curves, row("m, 6 heads, seed 9", { point: "m 6 9", seed: 9 })), null);
  const gone = row("m, 6 heads, seed 9", { point: null, method: null, keep: null, seed: null });
  assert.equal(pointOfBench(curves, gone), null);
  assert.equal(benchName(gone), "m, 6 heads, seed 9");
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
  assert.equal(standing(HEADS), "dense");
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

test("a model has its bound with its n, a verdict where there is a margin, and the answers that changed", () => {
  const { curves } = run();
  const some = point(6, [], { bound_text: "at most 2 points worse by accuracy", margin: "3pt", verdict: "certified", right_to_wrong: 18, wrong_to_right: 8 });
  assert.equal(bound(curves!, some), "at most 2 points worse by accuracy (95 %, one-sided, n = 10)");
  assert.equal(verdict(some), "certified, margin 3pt");
  assert.equal(flips(some), "18 right → wrong, 8 wrong → right");
  assert.equal(verdict(point(6, [])) + flips(point(6, [])), "");
});

test("sizes are computed from the number of heads only where the measured models agree", () => {
  const some = run();
  assert.deepEqual(computed(some, "parameters", 5), { value: 500, from: 3, to: 6 });
  some.curves!.points.push(point(6, [0, 2], { method: "n", parameters: 650 }));
  assert.equal(computed(some, "parameters", 5), null);
});

function timed(name: BenchRow["name"], seconds: number, low: number, high: number, batch = 8, more: Partial<BenchRow> = {}): BenchRow {
  return { of: "m, 6 heads", point: "m 6 0", method: "m", keep: 6, seed: 0, name, batch, length: 64, seconds, low, high, speedup: 1 / seconds, speedup_low: null, speedup_high: null, rounds: 15, is_noisy: false, is_apart: name === "removed", is_odd: false, ...more };
}

test("a speed is told of what was measured, where the report calls it one", () => {
  assert.equal(speedText(timed("removed", 0.5, 0.45, 0.6)), "2 times as fast as the dense model");
  assert.equal(speedText(timed("removed", 1.25, 1.2, 1.3)), "1.25 times as slow as the dense model");
  assert.equal(speedText(timed("removed", 0.5, 0.4, 0.95, 8, { is_apart: false })), "not distinguishable from the dense model");
  const some = { ...run(), bench: [timed("dense", 1, 0.9, 1.1), timed("removed", 0.5, 0.4, 0.6)] };
  const at = (keep: number, seed = 0): ReturnType<typeof latency> => latency(some, { method: "m", seed, keep }, 8, 64);
  assert.deepEqual(at(6), { seconds: 0.5, low: 0.4, high: 0.6, from: 6, to: 6, row: some.bench[1], isNoisy: false, dense: some.bench[0] });
  assert.deepEqual([at(7)?.seconds, at(7)?.row, at(7)?.from, at(7)?.to], [0.75, null, 6, 8]);
  assert.equal(at(5), null);
  some.bench.push(timed("removed", 0.25, 0.2, 0.3, 8, { seed: 1, point: "m 6 1", is_noisy: true }));
  assert.deepEqual([at(6, 0)?.seconds, at(6, 1)?.seconds, at(6, 9)?.seconds], [0.5, 0.25, 0.5]);
  assert.deepEqual([at(6, 0)?.isNoisy, at(6, 1)?.isNoisy], [false, true]);
});

test("the takeaway of latencies spans all sizes and takes noise for no fact", () => {
  const shapes: [number, number][] = [[1, 64], [8, 64]];
  const fast = [1, 8].flatMap((batch) => [timed("dense", 1, 0.95, 1.05, batch), timed("masked", 1, 0.95, 1.05, batch), timed("removed", batch === 1 ? 0.8 : 0.5, 0.5, batch === 1 ? 0.85 : 0.55, batch)]);
  assert.equal(speedsOf(fast, shapes, "m"), "Removing the heads of m makes a pass 1.25 to 2 times as fast over 2 sizes of batch and length.");
  const noisy = fast.map((row) => (row.batch === 8 && row.name === "removed" ? { ...row, high: 1.2, is_apart: false, is_noisy: true } : row));
  assert.match(speedsOf(noisy, shapes, "m"), /1\.25 times as fast at batch 1, length 64; at batch 8, length 64 it is not distinguishable from the dense model/);
  assert.match(speedsOf(noisy, [[8, 64]], "m"), /not distinguishable from the dense model at batch 8, length 64/);
  assert.deepEqual(noiseOf(fast, shapes), []);
  assert.match(noiseOf(noisy, shapes).join(), /Noisy measurement at .*batch 8, length 64/);
  assert.match(noiseOf([timed("dense", 1, 0.95, 1.05), timed("masked", 0.5, 0.49, 0.51, 8, { is_apart: true, is_odd: true })], [[8, 64]]).join(), /Masked heads seem faster than the dense model at batch 8/);
});
