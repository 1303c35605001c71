/** Attention maps out of the page's data: unpacked when they are looked at, a block of heads at a time. */
import type { Attention, Block, RunData, Sentence, Side } from "./contract";

export interface Matrix {
  rows: number;
  columns: number;
  /** Weights in [0, 1], by row. */
  weights: Float32Array;
}

/** Bytes hold round(255·√a). */
const WEIGHTS = Float32Array.from({ length: 256 }, (_, byte) => (byte / 255) ** 2);

export async function inflate(packed: string): Promise<Uint8Array> {
  const bytes = Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

export interface Sides {
  query: Side;
  key: Side;
  causal: boolean;
  cross: boolean;
}

/** Whose tokens ask and whose are attended to in a block of this kind. */
export function sidesOf(sentence: Sentence, kind: string): Sides {
  const { source, target } = sentence;
  if (!target) return { query: source, key: source, causal: sentence.causal, cross: false };
  if (kind.includes("cross")) return { query: target, key: source, causal: false, cross: true };
  return kind.startsWith("decoder") ? { query: target, key: target, causal: true, cross: false } : { query: source, key: source, causal: false, cross: false };
}

const cache = new Map<string, Promise<Uint8Array>>();
const names = new WeakMap<Attention, number>();
let next = 0;

function nameOf(attention: Attention): number {
  const name = names.get(attention) ?? (next += 1);
  names.set(attention, name);
  return name;
}

function bytesOf(attention: Attention, sentence: number, block: number, packed: string): Promise<Uint8Array> {
  const key = `${nameOf(attention)} ${sentence} ${block}`;
  const found = cache.get(key) ?? inflate(packed);
  cache.delete(key);
  cache.set(key, found);
  if (cache.size > 24) cache.delete(cache.keys().next().value!);
  return found;
}

/** The attention of one head, or a sentence saying why it is not here. */
export async function matrixOf(run: Pick<RunData, "blocks">, attention: Attention, sentence: number, block: number, head: number): Promise<Matrix | string> {
  const packed = attention.maps[sentence]?.[block];
  if (!packed) return "The map of this layer was left out of the file to keep it small.";
  const included = attention.included[block];
  const at = included ? included.indexOf(head) : head;
  if (at < 0) return "The map of this head was left out of the file to keep it small.";
  const { query, key } = sidesOf(attention.sentences[sentence]!, (run.blocks[block] as Block).kind);
  const [rows, columns] = [query.tokens.length, key.tokens.length];
  const bytes = await bytesOf(attention, sentence, block, packed);
  if (bytes.length < (at + 1) * rows * columns) return "The map of this head is damaged: it is shorter than its sentence.";
  return { rows, columns, weights: Float32Array.from(bytes.subarray(at * rows * columns, (at + 1) * rows * columns), (byte) => WEIGHTS[byte]!) };
}

/** One thing to read: a word, or a token. */
export interface Unit {
  text: string;
  special: boolean;
  tokens: number[];
  /** Number of its word, −1 for none. */
  word: number;
  /** The tokenizer does not know it. */
  unknown: boolean;
  /** Hidden tokens stand between the unit before and this one: where two texts meet. */
  parted: boolean;
}

export function unitsOf(side: Side, byWord: boolean, hideSpecial: boolean): Unit[] {
  const units: Unit[] = [];
  side.tokens.forEach((token, at) => {
    const word = side.word?.[at] ?? -1;
    const unknown = side.unknown?.[at] ?? false;
    const last = units.at(-1);
    if (byWord && word >= 0 && last && last.word === word) {
      last.tokens.push(at);
      last.unknown ||= unknown;
    } else units.push({ text: byWord && word >= 0 ? (side.words?.[word] ?? token) : token, special: side.special[at] ?? false, tokens: [at], word, unknown, parted: false });
  });
  if (!hideSpecial) return units;
  const shown = units.filter((unit) => !unit.special);
  shown.forEach((unit, at) => {
    const before = shown[at - 1]?.tokens.at(-1);
    unit.parted = before !== undefined && side.special.slice(before + 1, unit.tokens[0]).includes(true);
  });
  return shown;
}

/** What units are called where one of them is meant: those that are not known say so, and of those that occur several times each has its place, from 1. */
export interface Named {
  /** The text alone. */
  text: string;
  /** What has to be said with it, with a blank before; empty for most. */
  note: string;
}

const UNKNOWN = " [unknown]";

export function namesOf(units: Unit[], show: (text: string) => string): Named[] {
  const texts = units.map((unit) => show(unit.text));
  const counts = new Map<string, number>();
  texts.forEach((text) => counts.set(text, (counts.get(text) ?? 0) + 1));
  return texts.map((text, at) => ({ text, note: `${units[at]!.unknown ? UNKNOWN : ""}${counts.get(text)! > 1 ? ` (${at + 1})` : ""}` }));
}

export const named = (name: Named | undefined): string => (name ? name.text + name.note : "");
export const quotedName = (name: Named | undefined): string => (name ? `“${name.text}”${name.note}` : "");

/** By row the share of attention that goes to tokens which are not shown. */
export function hiddenShares(full: Matrix, queries: Unit[], keys: Unit[]): number[] {
  const shown = new Set(keys.flatMap((key) => key.tokens));
  return queries.map((query) => {
    let [hidden, all] = [0, 0];
    for (const row of query.tokens) {
      for (let column = 0; column < full.columns; column += 1) {
        const value = full.weights[row * full.columns + column]!;
        all += value;
        if (!shown.has(column)) hidden += value;
      }
    }
    return all > 0 ? hidden / all : 0;
  });
}

/** Attention between units: summed over the tokens of the key, averaged over the tokens of the query. */
export function pool(matrix: Matrix, queries: Unit[], keys: Unit[]): Matrix {
  const weights = new Float32Array(queries.length * keys.length);
  queries.forEach((query, row) =>
    keys.forEach((key, column) => {
      let sum = 0;
      for (const q of query.tokens) for (const k of key.tokens) sum += matrix.weights[q * matrix.columns + k]!;
      weights[row * keys.length + column] = sum / query.tokens.length;
    }),
  );
  return { rows: queries.length, columns: keys.length, weights };
}

/** For every row the column with the most weight; −1 if the row is empty. */
export function argmax(matrix: Matrix): number[] {
  return Array.from({ length: matrix.rows }, (_, row) => {
    let best = -1;
    for (let column = 0; column < matrix.columns; column += 1) {
      const value = matrix.weights[row * matrix.columns + column]!;
      if (value > 0 && (best < 0 || value > matrix.weights[row * matrix.columns + best]!)) best = column;
    }
    return best;
  });
}
