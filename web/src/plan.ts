/** Which heads go when K stay, by what was measured, and how the numbers lie between two measurements. */
import type { BenchRow, Curves, HeadNumber, Maybe, Point, RunData } from "./contract";
import { speedWords, whole } from "./format";
import type { Heads } from "./heads";
import { fileName } from "./names";

export interface Choice {
  method: string;
  seed: number;
  keep: number;
  /** Heads that stay whatever a method says. */
  protect: ReadonlySet<HeadNumber>;
  onePerBlock: boolean;
  wholeGroups: boolean;
}

export interface Plan {
  removed: Set<HeadNumber>;
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

export interface Ranking {
  name: string;
  /** From the first to go to the last. */
  heads: HeadNumber[];
  /** Heads that go together, from the first to go to the last; null where the scores know of none. */
  groups: HeadNumber[][] | null;
}

/** The order in which an importance lets heads go, and its name: that of the method if it is an importance, else of the first there is. */
export function ranking(run: RunData, method: string): Ranking {
  const name = method.replace(RANKING, "");
  const scores = run.scores.filter((score) => score.kind === "importance");
  const score = scores.find((one) => one.name === name) ?? scores.find((one) => method.startsWith(one.name)) ?? scores[0];
  if (!score?.removal_order) return { name: "head", heads: run.heads.map((_, head) => head), groups: null };
  return { name: score.name, heads: score.removal_order, groups: score.group_removal_order };
}

/** Heads in the order in which a method lets them go when `keep` stay: first what goes at the next larger measured K, then what goes at the next smaller. */
export function goingFirst(run: RunData, choice: Pick<Choice, "method" | "seed" | "keep">): HeadNumber[] {
  const stage = stagesOf(run, choice);
  return [...ranking(run, choice.method).heads].sort((a, b) => stage(a) - stage(b));
}

/** Tells of a head whether it goes at the next larger measured K (0), at the next smaller (1), or at neither (2). */
function stagesOf(run: RunData, choice: Pick<Choice, "method" | "seed" | "keep">): (head: HeadNumber) => number {
  const points = pointsOf(run.curves, choice.method, choice.seed);
  const above = new Set(points.find((point) => point.keep >= choice.keep)?.removed);
  const below = new Set(points.findLast((point) => point.keep < choice.keep)?.removed);
  return (head) => (above.has(head) ? 0 : below.has(head) ? 1 : 2);
}

const meanOf = (group: HeadNumber[], value: (head: HeadNumber) => number): number => group.reduce((sum, head) => sum + value(head), 0) / group.length;

/** What goes together, KV groups or every head by itself, from the first to go to the last. */
function unitsGoingFirst(heads: Heads, choice: Choice): HeadNumber[][] {
  const { run } = heads;
  if (!choice.wholeGroups || !heads.hasGroups) return goingFirst(run, choice).map((head) => [head]);
  const ranked = ranking(run, choice.method);
  const stage = stagesOf(run, choice);
  return [...(ranked.groups ?? groupsOf(heads, ranked.heads))].sort((a, b) => meanOf(a, stage) - meanOf(b, stage));
}

/** The KV groups of the blocks by the mean place of their heads, for orders that know of no groups. */
function groupsOf(heads: Heads, going: HeadNumber[]): HeadNumber[][] {
  const groups = new Map<string, HeadNumber[]>();
  const place = new Map(going.map((head, at) => [head, at]));
  for (const head of going) {
    const { at, group } = heads.places[head]!;
    const key = group === null ? `head ${head}` : `${at} ${group}`;
    groups.set(key, [...(groups.get(key) ?? []), head]);
  }
  const placeOf = (head: HeadNumber): number => place.get(head) ?? 0;
  return [...groups.values()].sort((a, b) => meanOf(a, placeOf) - meanOf(b, placeOf));
}

export function planOf(heads: Heads, choice: Choice): Plan {
  const removed = goingOf(heads, choice);
  const point = measuredAs(heads.run.curves, choice, removed);
  const known = point !== null || removed.size === 0 || choice.method.startsWith(RANKING);
  return { removed, point, guess: known ? null : ranking(heads.run, choice.method).name };
}

/** What goes: all but the best units that fill K exactly, as headcount fills it; where no units make K, the next larger number that some make stays. */
function goingOf(heads: Heads, choice: Choice): Set<HeadNumber> {
  const best = unitsGoingFirst(heads, choice).reverse();
  const stay = new Set(stayingUnits(heads, choice, best));
  const free = best.filter((unit) => !stay.has(unit));
  const sums = reachableSums(free);
  let missing = Math.min(free.flat().length, Math.max(0, choice.keep - [...stay].flat().length));
  while (!includesSum(sums[0]!, missing)) missing += 1;
  const going = free.filter((unit, at) => {
    const stays = unit.length <= missing && includesSum(sums[at + 1]!, missing - unit.length);
    if (stays) missing -= unit.length;
    return !stays;
  });
  return new Set(going.flat());
}

/** Units that stay whatever their rank: those with a protected head, and the best of every block that would be left without one. */
function stayingUnits(heads: Heads, choice: Choice, best: HeadNumber[][]): HeadNumber[][] {
  const staying = best.filter((unit) => unit.some((head) => choice.protect.has(head)));
  if (!choice.onePerBlock) return staying;
  const blocksOf = (unit: HeadNumber[]): number[] => unit.map((head) => heads.places[head]!.at);
  const filled = new Set(staying.flatMap(blocksOf));
  for (const unit of best) {
    if (blocksOf(unit).every((block) => filled.has(block))) continue;
    staying.push(unit);
    blocksOf(unit).forEach((block) => filled.add(block));
  }
  return staying;
}

/** For every place in a list of units, the numbers of heads that some of the units from there on make, as bits. */
function reachableSums(units: HeadNumber[][]): bigint[] {
  const sums = [1n];
  for (const unit of [...units].reverse()) sums.push(sums.at(-1)! | (sums.at(-1)! << BigInt(unit.length)));
  return sums.reverse();
}

const includesSum = (sums: bigint, count: number): boolean => ((sums >> BigInt(count)) & 1n) === 1n;

function measuredAs(curves: Curves | null, choice: Choice, removed: ReadonlySet<HeadNumber>): Plan["point"] {
  const points = pointsOf(curves, choice.method, choice.seed).filter((one) => one.keep === choice.keep);
  return points.find((point) => point.removed.length === removed.size && point.removed.every((head) => removed.has(head))) ?? null;
}

/** What is known of the model that the slider stands at. Everything that speaks of it (the line under the slider, cards, what is read out) asks this. */
export type Standing =
  | "dense" // no head is removed
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
  if (wanted === 0) return "dense";
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
  dense: "the dense model",
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

/** How much worse a measured model is at most, and on how many examples. */
export const bound = (curves: Curves, point: Point): string => `${point.bound_text} (95 %, one-sided, n = ${curves.dense.n_examples})`;

/** The verdict on a measured model against its margin; empty without one. */
export const verdict = (point: Point): string => (point.verdict === null ? "" : `${point.verdict}${point.margin ? `, margin ${point.margin}` : ""}`);

/** How many answers changed; empty where answers are not right or wrong. */
export const flips = (point: Point): string =>
  point.right_to_wrong === null || point.wrong_to_right === null ? "" : `${whole(point.right_to_wrong)} right → wrong, ${whole(point.wrong_to_right)} wrong → right`;

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

/** A quantity of a method at `keep` heads, mean over seeds, the dense model at the right end. */
export function quantity(run: RunData, method: string, name: Quantity, keep: number): Between | null {
  const { curves } = run;
  if (!curves) return null;
  const byKeep = new Map<number, number[]>();
  for (const point of pointsOf(curves, method)) {
    byKeep.set(point.keep, [...(byKeep.get(point.keep) ?? []), point[name]]);
  }
  const known = [...byKeep].map(([at, values]): [number, Maybe] => [at, values.reduce((sum, value) => sum + value, 0) / values.length]);
  if (!byKeep.has(run.heads.length)) known.push([run.heads.length, curves.dense[name]]);
  return between(known, keep);
}

/** A quantity that depends on how many heads stay and not on which: read off the measured models of all methods, which must agree where they keep as many. */
export function computed(run: RunData, name: Exclude<Quantity, "value">, keep: number): Between | null {
  const { curves } = run;
  if (!curves) return null;
  const known = new Map<number, number>([[run.heads.length, curves.dense[name]]]);
  for (const point of curves.points) {
    const [value, before] = [point[name], known.get(point.keep)];
    if (before !== undefined && Math.abs(value - before) > 0.005 * Math.abs(before)) return null;
    known.set(point.keep, value);
  }
  return between([...known], keep);
}

type Spread = Pick<BenchRow, "seconds" | "low" | "high">;

export interface Timing extends Spread {
  from: number;
  to: number;
  /** What was measured; null between two measurements: verdicts are about these alone. */
  row: BenchRow | null;
  isNoisy: boolean;
  /** The dense model, timed in the same rounds. */
  dense: BenchRow;
}

/** Seconds of one method and shape by heads kept, of the same seed where it was timed, with the dense model at the right end. */
export function latency(run: RunData, { method, seed, keep }: Pick<Choice, "method" | "seed" | "keep">, batch: number, length: number): Timing | null {
  const rows = run.bench.filter((row) => row.batch === batch && row.length === length);
  const removed = rows.filter((row) => row.name === "removed" && row.method === method && row.keep !== null);
  const denses = rows.filter((row) => row.name === "dense");
  const here = removed.filter((one) => one.keep === keep);
  const row = here.find((one) => one.seed === seed) ?? here[0] ?? null;
  const dense = denses.find((one) => one.of === (row ?? removed[0])?.of) ?? denses[0];
  if (!removed.length || !dense) return null;
  const known = [...removed, { ...dense, keep: run.heads.length }].sort((a, b) => a.keep! - b.keep!);
  const around = row ? [row] : [known.findLast((one) => one.keep! <= keep), known.find((one) => one.keep! >= keep)].filter((one) => one !== undefined);
  const at = (part: keyof Spread): Between | null => between(around.map((one) => [one.keep!, one[part]]), keep);
  const [middle, low, high] = [at("seconds"), at("low"), at("high")];
  const isNoisy = [...around, dense].some((one) => one.is_noisy);
  return middle && low && high ? { seconds: middle.value, low: low.value, high: high.value, from: middle.from, to: middle.to, row, isNoisy, dense } : null;
}

export const ALIKE = "not distinguishable from the dense model";

/** How fast a model is against the dense one, as far as the quartiles tell. */
export const speedText = (row: BenchRow): string => (row.is_apart ? `${speedWords(row.speedup)} as the dense model` : ALIKE);

export const shapesOf = (rows: BenchRow[]): [number, number][] =>
  [...new Map(rows.map((row) => [`${row.batch} ${row.length}`, [row.batch, row.length] as [number, number]])).values()].sort((a, b) => a[0] - b[0] || a[1] - b[1]);

/** The size that speed-ups are told for where nobody chose one: batch 8, or the nearest to it, and the longest text. */
export const usualShape = (shapes: [number, number][]): [number, number] =>
  [...shapes].sort((a, b) => Math.abs(a[0] - 8) - Math.abs(b[0] - 8) || b[1] - a[1])[0] ?? [0, 0];

/** `{layer: [heads]}` of what goes; the stack stands before the layer where there are several. */
export function byLayer(heads: Heads, removed: ReadonlySet<HeadNumber>): Record<string, number[]> {
  const result: Record<string, number[]> = {};
  heads.run.blocks.forEach((block) => {
    const going = block.heads.flatMap((head, at) => (removed.has(head) ? [at] : []));
    if (going.length) result[block.stack ? `${block.stack}.${block.layer}` : String(block.layer)] = going;
  });
  return result;
}

export const planFile = (run: RunData, removed: ReadonlySet<HeadNumber>): { schema_version: 1; removed: string[] } => ({
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
  const commands = run.curves?.commands ?? {};
  if (!Object.hasOwn(commands, choice.method)) return null;
  let command = commands[choice.method]!.replaceAll("{keep}", String(choice.keep));
  const set = (name: string, value: string): void => {
    const given = new RegExp(` ${name} \\S+`);
    command = given.test(command) ? command.replace(given, () => ` ${name} ${value}`) : `${command} ${name} ${value}`;
  };
  const seeds = SEEDS.exec(points.find((point) => point.seed === choice.seed)?.command ?? "")?.[0];
  if (seeds) command = command.replace(SEEDS, seeds);
  if (choice.protect.size) {
    const before = / --protected (\S+)/.exec(command)?.[1]?.split(",") ?? [];
    const own = [...choice.protect].sort((a, b) => a - b).map((head) => run.heads[head]!);
    set("--protected", quoted([...new Set([...before, ...own])].join(",")));
  }
  if (choice.onePerBlock && !/ --floor [1-9]/.test(command)) set("--floor", "1");
  if (choice.wholeGroups && / --unit /.test(command)) set("--unit", "kv_group");
  return command;
}

const SEEDS = / --seed \d+( --method-seed \d+)?/;

/** The model that a report speaks of first; null where none lost a head. */
export function chosenOf(curves: Curves | null): Point | null {
  const chosen = curves?.chosen;
  return (chosen && curves.points.find((one) => one.id === chosen.point)) ?? null;
}

/** The measured point of the very model that was timed. */
export const pointOfBench = (curves: Curves | null, row: BenchRow): Point | null => curves?.points.find((point) => point.id === row.point) ?? null;

/** A pruned model as its points are called; the name of the file only where nothing else tells. */
export const benchName = (row: BenchRow): string =>
  row.method === null || row.keep === null ? row.of : `${row.method}, ${row.keep} heads${row.seed ? `, seed ${row.seed}` : ""}`;
