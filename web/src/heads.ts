/** Where every head is, and what it is called: derived once from a run. */
import type { Block, HeadNumber, Maybe, RunData } from "./contract";
import { interval, num } from "./format";
import { boundText } from "./verdicts";

export interface Place {
  block: Block;
  /** Place of the block in RunData.blocks, and of the head in the block. */
  at: number;
  head: number;
  group: number | null;
}

export interface Heads {
  run: RunData;
  places: Place[];
  kinds: { name: string; blocks: Block[] }[];
  byName: Map<string, HeadNumber>;
  /** Labels of every head; empty lists where roles were not tested. */
  labels: number[][];
  hasGroups: boolean;
  /** A short mark for every role, no two alike but for their case. */
  codes: string[];
  /** A number for the colour of every role: those that are the strongest of some head come first, so that their colours differ. */
  shades: number[];
}

const BACK = "←";

/** The letters of roles, others where two would differ by case alone or not at all. The way back along a dependency has the code of its relation and an arrow. */
export function codesOf(names: string[], letters: string[]): string[] {
  const low = letters.map((letter) => letter.toLowerCase());
  if (new Set(low).size === low.length) return letters;
  const bases = names.map((name) => (name.endsWith("-of") ? names.indexOf(name.slice(0, -3)) : -1));
  const codes: (string | null)[] = names.map(() => null);
  const taken = new Set<string>();
  const take = (at: number, code: string): boolean => {
    const key = code.toLowerCase();
    if (taken.has(key)) return false;
    taken.add(key);
    codes[at] = code;
    return true;
  };
  names.forEach((_, at) => bases[at]! < 0 && take(at, letters[at] ?? ""));
  names.forEach((name, at) => {
    if (bases[at]! >= 0 || codes[at] !== null) return;
    const own = name.split(":").at(-1)!.toLowerCase();
    const pairs = [...own].slice(1).map((letter) => own[0]! + letter).filter((code) => /^\w\w$/.test(code));
    if (!pairs.some((code) => take(at, code))) for (let n = 2; !take(at, `${own[0] ?? ""}${n}`); n += 1);
  });
  names.forEach((_, at) => {
    if (bases[at]! < 0) return;
    const code = (codes[bases[at]!] ?? "") + BACK;
    if (!take(at, code)) for (let n = 2; !take(at, `${code}${n}`); n += 1);
  });
  return codes.map((code) => code ?? "");
}

function shadesOf(names: string[], labels: number[][]): number[] {
  const first = new Set(labels.flatMap((some) => some.slice(0, 1)));
  const order = [...names.keys()].sort((a, b) => Number(first.has(b)) - Number(first.has(a)) || a - b);
  const shades: number[] = [];
  order.forEach((role, at) => (shades[role] = at));
  return shades;
}

export function headsOf(run: RunData): Heads {
  const places: Place[] = [];
  run.blocks.forEach((block, at) =>
    block.heads.forEach((index, head) => {
      places[index] = { block, at, head, group: block.kv_group?.[head] ?? null };
    }),
  );
  const kinds = [...new Set(run.blocks.map((block) => block.kind))];
  return {
    run,
    places,
    kinds: kinds.map((name) => ({ name, blocks: run.blocks.filter((block) => block.kind === name) })),
    byName: new Map(run.heads.map((name, index) => [name, index])),
    labels: run.heads.map((_, index) => run.roles?.labels[index] ?? []),
    hasGroups: run.blocks.some((block) => block.kv_group !== null),
    codes: codesOf(run.roles?.names ?? [], run.roles?.letters ?? []),
    shades: shadesOf(run.roles?.names ?? [], run.roles?.labels ?? []),
  };
}

export const KINDS: Record<string, string> = {
  "encoder-self": "Encoder self-attention",
  "decoder-self": "Decoder self-attention",
  cross: "Cross-attention",
  self: "Self-attention",
};

export const kindName = (kind: string): string => KINDS[kind] ?? kind;

/** "Layer 5 head 3", with the stack where there are several. */
export function spoken(heads: Heads, index: HeadNumber): string {
  const place = heads.places[index];
  if (!place) return heads.run.heads[index] ?? String(index);
  const kind = heads.kinds.length > 1 ? `${kindName(place.block.kind)}, ` : "";
  return `${kind}Layer ${place.block.layer} head ${place.head}`;
}

export function roleNames(heads: Heads, index: HeadNumber): string {
  const labels = heads.labels[index] ?? [];
  return labels.map((label) => heads.run.roles?.names[label] ?? "").join(", ");
}

export interface Said {
  label: string;
  value: Maybe;
  low?: Maybe;
  high?: Maybe;
  removed: boolean;
  /** What goes is a guess. */
  guess?: boolean;
  selected: boolean;
  /** Says nothing about roles: on a map of two runs they would be those of one. */
  roleless?: boolean | undefined;
}

/** What a screen reader says for a cell of a map. */
export function cellLabel(heads: Heads, index: HeadNumber, said: Said): string {
  const parts = [spoken(heads, index), `${said.label} ${said.value === null ? "not measured" : num(said.value)}`];
  if (typeof said.low === "number") parts.push(`interval ${interval(said.low, said.high)}`);
  if (heads.run.roles && !said.roleless) parts.push(`role ${roleNames(heads, index) || "none"}`);
  const group = heads.places[index]?.group;
  if (group !== null && group !== undefined) parts.push(`KV group ${group}`);
  const verdict = said.roleless ? "" : boundText(heads.run.verdicts, index);
  if (verdict) parts.push(verdict);
  parts.push(said.removed ? (said.guess ? "removed by a guess" : "removed") : said.guess ? "kept by a guess" : "kept");
  if (said.selected) parts.push("selected");
  return parts.join(", ");
}

/** Places by falling or rising value; heads without a value last. */
export function order(values: Maybe[], highFirst: boolean): HeadNumber[] {
  const sign = highFirst ? -1 : 1;
  const key = (value: Maybe | undefined): number => (value === null || value === undefined || Number.isNaN(value) ? Infinity : sign * value);
  return values.map((_, index) => index).sort((a, b) => compare(key(values[a]), key(values[b])) || a - b);
}

const compare = (a: number, b: number): number => (a < b ? -1 : a > b ? 1 : 0);

/** Rank of every head, 1 is the largest value (the mean of places where values are equal); null without a value. */
export function ranks(values: Maybe[]): Maybe[] {
  const result: Maybe[] = values.map(() => null);
  const sorted = order(values, true).filter((index) => typeof values[index] === "number");
  let start = 0;
  while (start < sorted.length) {
    let end = start;
    while (end + 1 < sorted.length && values[sorted[end + 1]!] === values[sorted[start]!]) end += 1;
    for (let at = start; at <= end; at += 1) result[sorted[at]!] = (start + end) / 2 + 1;
    start = end + 1;
  }
  return result;
}

/** Spearman's correlation over the heads that have both values. */
export function spearman(a: Maybe[], b: Maybe[]): Maybe {
  const both = a.map((_, index) => index).filter((index) => typeof a[index] === "number" && typeof b[index] === "number");
  if (both.length < 3) return null;
  const [x, y] = [a, b].map((values) => ranks(both.map((index) => values[index] ?? null)) as number[]) as [number[], number[]];
  const mean = (both.length + 1) / 2;
  const product = (p: number[], q: number[]): number => p.reduce((sum, value, at) => sum + (value - mean) * (q[at]! - mean), 0);
  const scale = Math.sqrt(product(x, x) * product(y, y));
  return scale > 0 ? product(x, y) / scale : null;
}
