/** Numbers as people read them. */
import type { Maybe } from "./contract";

const MINUS = "−";
export const NONE = "–";

export function num(value: Maybe | undefined, digits = 3): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return NONE;
  if (value === 0) return "0";
  const size = Math.abs(value);
  const text = size >= 1e6 || size < 1e-4 ? size.toExponential(digits - 1) : size >= 10 ** digits ? String(Math.round(size)) : String(Number(size.toPrecision(digits)));
  return (value < 0 ? MINUS : "") + text;
}

export function signed(value: Maybe | undefined, digits = 3): string {
  const text = num(value, digits);
  return typeof value === "number" && value > 0 && Number.isFinite(value) ? `+${text}` : text;
}

export const whole = (value: Maybe | undefined): string =>
  value === null || value === undefined || !Number.isFinite(value) ? NONE : Math.round(value).toLocaleString("en-US").replace("-", MINUS);

export const percent = (value: Maybe | undefined, digits = 1): string =>
  value === null || value === undefined || !Number.isFinite(value) ? NONE : `${(100 * value).toFixed(digits).replace("-", MINUS)} %`;

const UNITS: [number, string][] = [[1e9, "G"], [1e6, "M"], [1e3, "k"]];

/** 110000000 -> "110 M". */
export function short(value: Maybe | undefined, unit = ""): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return NONE;
  const [size, letter] = UNITS.find(([limit]) => Math.abs(value) >= limit) ?? [1, ""];
  return `${num(value / size)} ${letter}${unit}`.trim();
}

export const seconds = (value: Maybe | undefined): string =>
  value === null || value === undefined || !Number.isFinite(value) ? NONE : value >= 1 ? `${num(value)} s` : value >= 1e-3 ? `${num(value * 1e3)} ms` : `${num(value * 1e6)} µs`;

/** Two times, with one unit where they share it. */
export function secondsRange(low: number, high: number): string {
  const [a, b] = [seconds(low), seconds(high)];
  const [, unit = ""] = b.split(" ");
  return a.endsWith(` ${unit}`) ? `${a.slice(0, -unit.length - 1)} to ${b}` : `${a} to ${b}`;
}

export const interval = (low: Maybe | undefined, high: Maybe | undefined, show: (value: Maybe | undefined) => string = num): string =>
  low === null || low === undefined || high === null || high === undefined ? NONE : `${show(low)} to ${show(high)}`;

export const pValue = (value: Maybe | undefined): string =>
  value === null || value === undefined ? NONE : value < 0.001 ? "< 0.001" : num(value, 2);

/** A weight of attention: stored in steps, so more digits would say nothing. */
export const weightText = (value: number): string => (value === 0 ? "0" : value < 0.01 ? "< 0.01" : value.toFixed(2));

/** A weight of attention as a number, to the digits that its steps allow. */
export const weightNumber = (value: number): number => Number(value.toFixed(value < 0.1 ? 3 : 2));

export const plural = (count: number, word: string): string => `${whole(count)} ${word}${count === 1 ? "" : "s"}`;

/** How fast something is against something else: 1.27 times as fast, or, below 1, 1.27 times as slow. */
export const speedWords = (ratio: number): string => (num(ratio) === "1" ? "as fast" : ratio > 1 ? `${num(ratio)} times as fast` : `${num(1 / ratio)} times as slow`);

/** The same from the slowest to the fastest of several. */
export function speedRange(ratios: number[]): string {
  const [least, most] = [Math.min(...ratios), Math.max(...ratios)];
  if (least < 1 !== most < 1 || num(least) === num(most)) return [...new Set([speedWords(least), speedWords(most)])].join(" to ");
  return most < 1 ? `${num(1 / most)} to ${num(1 / least)} times as slow` : `${num(least)} to ${num(most)} times as fast`;
}

/** What FLOPs are counted for. */
export const passOver = (tokens: Maybe | undefined): string => (typeof tokens === "number" ? `a pass over ${plural(tokens, "token")}` : "the probe pass");

export const capital = (text: string): string => text.charAt(0).toUpperCase() + text.slice(1);

/** "offset −1" of a fixed-offset baseline. */
export const offset = (value: Maybe | undefined): string => (value === null || value === undefined ? "no offset" : `offset ${signed(value)}`);

/** Whatever a configuration holds, on one line. */
export function plain(value: unknown): string {
  if (value === null || value === undefined) return NONE;
  if (typeof value === "string") return value;
  if (typeof value === "number" || typeof value === "boolean") return String(value);
  return JSON.stringify(value);
}
