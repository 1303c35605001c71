/** Which heads go when K stay, by what was measured, and how the numbers lie between two measurements. */
import type { BenchRow, Curves, HeadIndex, Maybe, Point, RunData } from "./contract";
import { num } from "./format";
import { order, type Heads } from "./heads";
import { fileName } from "./names";

export interface Choice {
  method: string;
  seed: number;
  keep: number;
  /** Heads that stay whatever a method says. */
  protect: ReadonlySet<HeadIndex>;
  onePerBlock: boolean;
  wholeGroups: boolean;
}

export interface Plan {
  removed: Set<HeadIndex>;
  /** The very model that was measured; null if this one was not. */
  point: Point | null;
  /** The order that filled the set in where no measurement tells it, so that the method itself may choose others; null where the set is known: it was measured, it is that
   * of a ranking, or nothing goes. */
  guess: string | null;
}

export const RANKING = "rank: ";

/** Methods of the curves, then every importance as a ranking. */
export function methodsOf(run: RunData): string[] {
  const measured = [...new Set((run.curves?.points ?? []).map((point) => point.method))];
  const ranked = run.scores.filter((score) => score.kind === "importance").map((score) => RANKING + score.name);
  return [...measured, ...ranked];
}

export function pointsOf(curves: Curves | null, method: string, seed?: number): Point[] {
  const points = (curves?.points ?? []).filter((point) => point.method === method && (seed === undefined || point.seed === seed));
  return points.sort((a, b) => a.keep - b.keep || a.seed - b.seed);
}

export const seedsOf = (curves: Curves | null, method: string): number[] =>
  [...new Set(pointsOf(curves, method).map((point) => point.seed))].sort((a, b) => a - b);

/** Heads in the order in which an importance lets them go, and the name of the order: that of the method if it is an importance, else of the first there is. */
export function ranking(run: RunData, method: string): { name: string; heads: HeadIndex[] } {
  const name = method.replace(RANKING, "");
  const scores = run.scores.filter((score) => score.kind === "importance");
  const score = scores.find((one) => one.name === name) ?? scores.find((one) => method.startsWith(one.name)) ?? scores[0];
  return score ? { name: score.name, heads: order(score.values, !score.higher_is_keep) } : { name: "head", heads: run.heads.map((_, head) => head) };
}

/** Heads in the order in which a method lets them go when `keep` stay: first what goes at the next larger measured K, then what goes at the next smaller. */
export function goingFirst(run: RunData, choice: Pick<Choice, "method" | "seed" | "keep">): HeadIndex[] {
  const points = pointsOf(run.curves, choice.method, choice.seed);
  const base = ranking(run, choice.method).heads;
  const above = points.find((point) => point.keep >= choice.keep);
  const below = points.findLast((point) => point.keep < choice.keep);
  const placed: HeadIndex[] = [];
  const seen = new Set<HeadIndex>();
  for (const removed of [above?.removed ?? [], below?.removed ?? [], base]) {
    const going = new Set(removed);
    for (const head of base) {
      if (going.has(head) && !seen.has(head)) {
        placed.push(head);
        seen.add(head);
      }
    }
  }
  return placed;
}

/** Heads that only go together: KV groups, or every head by itself. */
function units(heads: Heads, going: HeadIndex[], wholeGroups: boolean): HeadIndex[][] {
  if (!wholeGroups || !heads.hasGroups) return going.map((head) => [head]);
  const groups = new Map<string, HeadIndex[]>();
  const place = new Map(going.map((head, at) => [head, at]));
  for (const head of going) {
    const { at, group } = heads.places[head]!;
    const key = group === null ? `head ${head}` : `${at} ${group}`;
    groups.set(key, [...(groups.get(key) ?? []), head]);
  }
  const mean = (group: HeadIndex[]): number => group.reduce((sum, head) => sum + (place.get(head) ?? 0), 0) / group.length;
  return [...groups.values()].sort((a, b) => mean(a) - mean(b));
}

export function planOf(heads: Heads, choice: Choice): Plan {
  const removed = goingOf(heads, choice);
  const point = measuredAs(heads.run.curves, choice, removed);
  const known = point !== null || removed.size === 0 || choice.method.startsWith(RANKING);
  return { removed, point, guess: known ? null : ranking(heads.run, choice.method).name };
}

function goingOf(heads: Heads, choice: Choice): Set<HeadIndex> {
  const { run } = heads;
  const budget = run.heads.length - choice.keep;
  const going = units(heads, goingFirst(run, choice), choice.wholeGroups);
  const left = run.blocks.map((block) => block.heads.length);
  const removed = new Set<HeadIndex>();
  for (const unit of going) {
    if (removed.size + unit.length > budget) continue;
    if (unit.some((head) => choice.protect.has(head))) continue;
    const block = heads.places[unit[0]!]!.at;
    if (choice.onePerBlock && left[block]! - unit.length < 1) continue;
    unit.forEach((head) => removed.add(head));
    left[block]! -= unit.length;
  }
  return removed;
}

function measuredAs(curves: Curves | null, choice: Choice, removed: ReadonlySet<HeadIndex>): Plan["point"] {
  const points = pointsOf(curves, choice.method, choice.seed).filter((one) => one.keep === choice.keep);
  return points.find((point) => point.removed.length === removed.size && point.removed.every((head) => removed.has(head))) ?? null;
}

/** What is known of the model that the slider stands at. Everything that speaks of it (the line under the slider, cards, what is read out) asks this. */
export type Standing =
  | "whole" // no head goes
  | "short" // the choices do not let as many go
  | "measured"
  | "ranking" // an order of heads, no model
  | "changed" // the choices lead to other heads than the method's, so its measurements do not hold
  | "seeds" // measured at this K with other seeds
  | "outside" // fewer heads than in any measured model of the method
  | "between";

export function standingOf(heads: Heads, choice: Choice, plan: Plan): Standing {
  const { run } = heads;
  const wanted = run.heads.length - choice.keep;
  if (wanted === 0) return "whole";
  if (plan.removed.size < wanted) return "short";
  if (plan.point) return "measured";
  if (choice.method.startsWith(RANKING)) return "ranking";
  const own = goingOf(heads, { ...choice, protect: new Set(), onePerBlock: false });
  if (![...own].every((head) => plan.removed.has(head))) return "changed";
  const points = pointsOf(run.curves, choice.method);
  const here = points.filter((point) => point.keep === choice.keep);
  if (here.some((point) => point.seed === choice.seed)) return "changed";
  if (here.length) return "seeds";
  return points.some((point) => point.keep < choice.keep) ? "between" : "outside";
}

const SAID: Record<Standing, string> = {
  whole: "the whole model",
  short: "not measured: these choices do not let so many go",
  measured: "measured",
  ranking: "a ranking, not measured",
  changed: "not measured: your choices change the plan",
  seeds: "measured with other seeds only",
  outside: "not measured: fewer heads than in any measured model of the method",
  between: "interpolated",
};

export const standingText = (standing: Standing): string => SAID[standing];

/** Says that a set is a guess, and how it was made; empty where it is known. */
export const guessText = (plan: Plan): string => (plan.guess === null ? "" : `a guess, filled in by ${plan.guess} order; the command may choose others`);

/** By which order the plan is, if it is not a measured one. */
export function planOrder(plan: Plan, choice: Choice): string | null {
  if (plan.guess !== null) return plan.guess;
  return plan.point === null && choice.method.startsWith(RANKING) ? choice.method.replace(RANKING, "") : null;
}

/** The file that a plan is saved as, and that commands name. */
export function planFileName(plan: Plan, choice: Choice): string {
  const by = planOrder(plan, choice);
  return `${fileName(by === null ? `plan-${choice.keep}` : `plan-by-${by}-order-${choice.keep}`)}.json`;
}

/** Whether a measured model loses significantly, and by what: the metric, the loss, or both. Null in reports that do not say. */
export function verdict(curves: Curves, point: Point): { worse: boolean; by: string } | null {
  if (typeof point.is_worse !== "boolean") return null;
  const LEVEL = 0.05;
  const sign = curves.higher_is_better ? 1 : -1;
  const metric = point.p !== null && point.p < LEVEL && sign * point.difference < 0;
  const loss = curves.metric !== "loss" && typeof point.loss_p === "number" && point.loss_p < LEVEL && (point.loss_difference ?? 0) > 0;
  const by = [metric && `by ${curves.metric}`, loss && "by the loss"].filter(Boolean).join(" and ");
  return { worse: point.is_worse, by };
}

export interface Between {
  value: number;
  /** The measured numbers of heads that this lies between; the same twice where it was measured. */
  from: number;
  to: number;
}

/** A number at `keep` heads, straight between the nearest measured ones; null outside them. */
export function between(known: [keep: number, value: Maybe][], keep: number): Between | null {
  const points = known.filter((entry): entry is [number, number] => typeof entry[1] === "number").sort((a, b) => a[0] - b[0]);
  const below = points.findLast((point) => point[0] <= keep);
  const above = points.find((point) => point[0] >= keep);
  if (!below || !above) return null;
  const share = above[0] === below[0] ? 0 : (keep - below[0]) / (above[0] - below[0]);
  return { value: below[1] + share * (above[1] - below[1]), from: below[0], to: above[0] };
}

export type Quantity = "value" | "parameters" | "bytes" | "flops" | "kv_bytes_per_token";

/** A quantity of a method at `keep` heads, mean over seeds, the whole model at the right end. */
export function quantity(run: RunData, method: string, name: Quantity, keep: number): Between | null {
  const { curves } = run;
  if (!curves) return null;
  const byKeep = new Map<number, number[]>();
  for (const point of pointsOf(curves, method)) {
    const value = point[name];
    if (value !== null) byKeep.set(point.keep, [...(byKeep.get(point.keep) ?? []), value]);
  }
  const known = [...byKeep].map(([at, values]): [number, Maybe] => [at, values.reduce((sum, value) => sum + value, 0) / values.length]);
  if (!byKeep.has(run.heads.length)) known.push([run.heads.length, curves.dense[name]]);
  return between(known, keep);
}

/** A quantity that depends on how many heads stay and not on which: read off the measured models of all methods, which must agree where they keep as many. */
export function computed(run: RunData, name: Exclude<Quantity, "value">, keep: number): Between | null {
  const { curves } = run;
  if (!curves) return null;
  const known = new Map<number, number>([[run.heads.length, curves.dense[name] ?? NaN]]);
  for (const point of curves.points) {
    const [value, before] = [point[name], known.get(point.keep)];
    if (value === null) continue;
    if (before !== undefined && Math.abs(value - before) > 0.005 * Math.abs(before)) return null;
    known.set(point.keep, value);
  }
  return between([...known], keep);
}

type Spread = Pick<BenchRow, "seconds" | "low" | "high">;

export interface Timing extends Spread {
  from: number;
  to: number;
  /** The whole model, timed in the same rounds. */
  dense: BenchRow;
}

/** Seconds of one method and shape by heads kept, with the dense model at the right end. */
export function latency(run: RunData, method: string, batch: number, length: number, keep: number): Timing | null {
  const rows = run.bench.filter((row) => row.batch === batch && row.length === length);
  const removed = rows.filter((row) => row.name === "removed" && row.method === method && row.keep !== null);
  const denses = rows.filter((row) => row.name === "dense");
  const near = removed.find((row) => row.keep === keep) ?? removed[0];
  const dense = denses.find((row) => row.of === near?.of) ?? denses[0];
  if (!near || !dense) return null;
  const at = (part: keyof Spread): Between | null => between([...removed.map((row): [number, Maybe] => [row.keep!, row[part]]), [run.heads.length, dense[part]]], keep);
  const [middle, low, high] = [at("seconds"), at("low"), at("high")];
  return middle && low && high ? { seconds: middle.value, low: low.value, high: high.value, from: middle.from, to: middle.to, dense } : null;
}

/** Quartile ranges that share nothing: only then a difference of medians is told as a fact. */
export const isApart = (a: Pick<Spread, "low" | "high">, b: Pick<Spread, "low" | "high">): boolean => a.high < b.low || b.high < a.low;

/** Quartiles farther apart than a third of the median. */
export const isNoisy = (row: Spread): boolean => row.high - row.low > row.seconds / 3;

export const ALIKE = "not distinguishable from the whole model";

/** How fast a model is against the whole one, as far as the quartiles tell. */
export const speedText = (row: Spread, dense: Spread): string => (isApart(row, dense) ? `${num(dense.seconds / row.seconds)} × as fast as the whole model` : ALIKE);

export const shapesOf = (rows: BenchRow[]): [number, number][] =>
  [...new Map(rows.map((row) => [`${row.batch} ${row.length}`, [row.batch, row.length] as [number, number]])).values()].sort((a, b) => a[0] - b[0] || a[1] - b[1]);

/** The size that speed-ups are told for where nobody chose one: batch 8, or the nearest to it, and the longest text. */
export const usualShape = (shapes: [number, number][]): [number, number] =>
  [...shapes].sort((a, b) => Math.abs(a[0] - 8) - Math.abs(b[0] - 8) || b[1] - a[1])[0] ?? [0, 0];

/** `{layer: [heads]}` of what goes; the stack stands before the layer where there are several. */
export function byLayer(heads: Heads, removed: ReadonlySet<HeadIndex>): Record<string, number[]> {
  const result: Record<string, number[]> = {};
  heads.run.blocks.forEach((block) => {
    const going = block.heads.flatMap((head, at) => (removed.has(head) ? [at] : []));
    if (going.length) result[block.stack ? `${block.stack}.${block.layer}` : String(block.layer)] = going;
  });
  return result;
}

export const planFile = (run: RunData, removed: ReadonlySet<HeadIndex>): { schema_version: 1; removed: string[] } => ({
  schema_version: 1,
  removed: [...removed].sort((a, b) => a - b).map((head) => run.heads[head]!),
});

/** A word of a shell, in quotes if it needs them. */
export const quoted = (word: string): string => (/^[\w./:=@%+,-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`);

/** The command that makes the model of a plan; null where there is none: nothing would be removed, or the method has none for a K that was not measured. */
export function commandOf(heads: Heads, plan: Plan, choice: Choice): string | null {
  const { run } = heads;
  if (plan.removed.size === 0) return null;
  if (plan.point?.command) return plan.point.command;
  const points = pointsOf(run.curves, choice.method);
  if (!points.length) return `headcount cut ${quoted(run.model.name)} --plan ${planFileName(plan, choice)} --out pruned`;
  let command = templateOf(run.curves, choice)?.replaceAll("{keep}", String(choice.keep)) ?? null;
  if (command === null) return null;
  const set = (name: string, value: string): void => {
    const given = new RegExp(` ${name} \\S+`);
    command = given.test(command!) ? command!.replace(given, () => ` ${name} ${value}`) : `${command} ${name} ${value}`;
  };
  const seeds = SEEDS.exec(points.find((point) => point.seed === choice.seed)?.command ?? "")?.[0];
  if (seeds) command = command.replace(SEEDS, seeds);
  if (choice.protect.size) {
    const before = / --protect (\S+)/.exec(command)?.[1]?.split(",") ?? [];
    const own = [...choice.protect].sort((a, b) => a - b).map((head) => run.heads[head]!);
    set("--protect", quoted([...new Set([...before, ...own])].join(",")));
  }
  if (choice.onePerBlock && !/ --floor [1-9]/.test(command)) set("--floor", "1");
  if (choice.wholeGroups && / --unit /.test(command)) set("--unit", "kv_group");
  return command;
}

const SEEDS = / --seed \d+( --method-seed \d+)?/;

/** The command of a measured method with `{keep}` for the number of heads; for reports of old it is made from that of a measured model. */
function templateOf(curves: Curves | null, choice: Choice): string | null {
  const commands: Record<string, string> | undefined = curves?.commands;
  if (commands) return commands[choice.method] ?? null;
  const points = pointsOf(curves, choice.method);
  const like = (points.find((point) => point.seed === choice.seed) ?? points[0])?.command ?? "";
  return / --keep \S+/.test(like) && !like.includes(" --kinds ") ? like.replace(/ --keep \S+/, " --keep {keep}") : null;
}

/** The method and K that a report speaks of first: the fewest heads without a significant loss, of equals the one that loses least; without any, the best method where
 * fewest heads stay, and no K. */
export function favourite(curves: Curves | null): { method: string; keep: number | null } | null {
  if (!curves?.points.length) return null;
  const least = (method: string, keep: number): number => Math.min(...pointsOf(curves, method).filter((point) => point.keep === keep).map((point) => point.loss));
  const known = new Set(curves.points.map((point) => point.method));
  const safe = Object.entries(curves.smallest_safe).flatMap(([method, keep]) => (keep !== null && known.has(method) ? [{ method, keep, loss: least(method, keep) }] : []));
  const best = safe.sort((a, b) => a.keep - b.keep || a.loss - b.loss)[0];
  if (best) return { method: best.method, keep: best.keep };
  const chosen = curves.points.filter((point) => !point.is_random);
  const some = chosen.length ? chosen : curves.points;
  const fewest = Math.min(...some.map((point) => point.keep));
  const means = [...new Set(some.filter((point) => point.keep === fewest).map((point) => point.method))].map((method) => {
    const values = pointsOf(curves, method).filter((point) => point.keep === fewest).map((point) => point.value);
    return { method, mean: values.reduce((sum, value) => sum + value, 0) / values.length };
  });
  const sign = curves.higher_is_better ? -1 : 1;
  return { method: means.sort((a, b) => sign * (a.mean - b.mean))[0]!.method, keep: null };
}

/** The seed that a benched model was pruned with, as its name tells it. */
export function seedOfBench(row: BenchRow): number | null {
  const found = /, seed (\d+)$/.exec(row.of);
  return found ? Number(found[1]) : null;
}

/** The measured point of the very model that was timed. */
export function pointOfBench(curves: Curves | null, row: BenchRow): Point | null {
  const same = row.method === null ? [] : pointsOf(curves, row.method).filter((point) => point.keep === row.keep);
  const seed = seedOfBench(row);
  return same.find((point) => point.seed === (seed ?? 0)) ?? (seed === null ? (same[0] ?? null) : null);
}

/** A pruned model as its points are called; the name of the file only where nothing else tells. */
export function benchName(row: BenchRow): string {
  const seed = seedOfBench(row);
  return row.method === null || row.keep === null ? row.of : `${row.method}, ${row.keep} heads${seed === null ? "" : `, seed ${seed}`}`;
}
