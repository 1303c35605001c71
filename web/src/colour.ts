/** Colours from numbers. More is always farther from the background: dark on a light page, light on a dark one. */
import type { Maybe } from "./contract";
import { extent, type Field } from "./fields";
import { ranks } from "./heads";

export type Rgb = [number, number, number];

const hex = (text: string): Rgb => [1, 3, 5].map((at) => parseInt(text.slice(at, at + 2), 16)) as Rgb;
const mix = (a: Rgb, b: Rgb, share: number): Rgb => a.map((value, at) => Math.round(value + (b[at]! - value) * share)) as Rgb;
export const css = ([r, g, b]: Rgb): string => `rgb(${r}, ${g}, ${b})`;

/** Cividis (Nuñez, Anderton and Renslow 2018), which reads the same with and without colour blindness. */
const STOPS: Rgb[] = ["#00204d", "#00306f", "#2a406c", "#48526b", "#5e626e", "#727374", "#878479", "#9e9677", "#b6a971", "#d0be67", "#ead357", "#ffea46"].map(hex);

/** 256 steps, so that a map of attention needs no arithmetic on colours. */
const CIVIDIS: Rgb[] = Array.from({ length: 256 }, (_, at) => {
  const place = (at / 255) * (STOPS.length - 1);
  const stop = Math.min(STOPS.length - 2, Math.floor(place));
  return mix(STOPS[stop]!, STOPS[stop + 1]!, place - stop);
});

const PAPER: Rgb = [255, 253, 242];

/** Share in [0, 1] to colour: cividis, on a light page turned round and its loud yellow end made pale. */
export function sequential(share: number, dark: boolean): Rgb {
  const at = Math.max(0, Math.min(255, Math.round(share * 255)));
  return dark ? CIVIDIS[at]! : mix(CIVIDIS[255 - at]!, PAPER, 0.72 * (1 - at / 255) ** 1.6);
}

/** As `sequential`, but nothing is the colour of the page: for maps that are nearly empty. */
export function weight(share: number, dark: boolean): Rgb {
  const ground: Rgb = dark ? [0, 20, 48] : PAPER;
  const colour = sequential(share, dark);
  return share < 0.12 ? mix(ground, colour, share / 0.12) : colour;
}

const BLUE: Rgb[] = ["#053061", "#2166ac", "#67a9cf"].map(hex);
const ORANGE: Rgb[] = ["#7f3b08", "#c46210", "#f1a340"].map(hex);

/** Share in [−1, 1] to colour: blue below, grey at zero, orange above. */
export function diverging(share: number, dark: boolean): Rgb {
  const middle: Rgb = dark ? [72, 76, 82] : [232, 232, 230];
  const side = share < 0 ? BLUE : ORANGE;
  const steps = dark ? [middle, side[1]!, side[2]!, mix(side[2]!, [255, 255, 255], 0.35)] : [middle, side[2]!, side[1]!, side[0]!];
  const place = Math.min(1, Math.abs(share)) * (steps.length - 1);
  const at = Math.min(steps.length - 2, Math.floor(place));
  return mix(steps[at]!, steps[at + 1]!, place - at);
}

/** Okabe and Ito's set, paler ones darkened or lightened to stand out from the page by 3 : 1. */
const LIGHT: Rgb[] = ["#0072b2", "#d55e00", "#00825f", "#a8568a", "#7a6a00", "#2f7fae", "#8a3b12", "#4f4f9d"].map(hex);
const DARK: Rgb[] = ["#56b4e9", "#e69f00", "#2cc295", "#dd93bf", "#e5d94a", "#9ad1f2", "#f08a5b", "#a9a5ee"].map(hex);

/** Colours after the first eight are the same ones darker, then paler; after 24 they come again. */
export function category(at: number, dark: boolean): Rgb {
  const base = (dark ? DARK : LIGHT)[at % LIGHT.length]!;
  const round = Math.floor(at / LIGHT.length) % 3;
  return round === 0 ? base : mix(base, round === 1 ? [0, 0, 0] : [255, 255, 255], dark ? 0.4 : 0.45);
}

export const CATEGORIES = 3 * LIGHT.length;

function luminance(colour: Rgb): number {
  const [r, g, b] = colour.map((value) => (value <= 10 ? value / 3294.6 : ((value / 255 + 0.055) / 1.055) ** 2.4)) as Rgb;
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

export function contrast(a: Rgb, b: Rgb): number {
  const [low, high] = [luminance(a), luminance(b)].sort((x, y) => x - y) as [number, number];
  return (high + 0.05) / (low + 0.05);
}

/** Black or white, whichever reads better on a colour: never less than 4.5 : 1. */
export const ink = (colour: Rgb): "#000" | "#fff" => (contrast(colour, [0, 0, 0]) >= contrast(colour, [255, 255, 255]) ? "#000" : "#fff");

export interface Paint {
  of: (value: Maybe) => Rgb | null;
  domain: [number, number];
}

/** The colours of a field, by value or by quantile, so that one large value does not make all others look alike. `others` share its scale, as the maps of two runs do. */
export function paint(field: Field, dark: boolean, byQuantile: boolean, others: Maybe[] = []): Paint {
  const missing = (value: Maybe | undefined): value is null | undefined => value === null || value === undefined || !Number.isFinite(value);
  if (field.scale === "category") return { of: (value) => (missing(value) ? null : category(field.shades?.[value] ?? value, dark)), domain: [0, 1] };
  const [low, high] = extent([...field.values, ...others]);
  if (field.scale === "diverging") {
    const limit = Math.max(Math.abs(low), Math.abs(high)) || 1;
    return { of: (value) => (missing(value) ? null : diverging(value / limit, dark)), domain: [-limit, limit] };
  }
  if (byQuantile) {
    const place = ranks(field.values);
    const last = Math.max(1, place.filter((one) => one !== null).length - 1);
    const share = new Map(field.values.map((value, at) => [value, 1 - ((place[at] ?? 1) - 1) / last]));
    return { of: (value) => (missing(value) ? null : sequential(share.get(value) ?? 0, dark)), domain: [low, high] };
  }
  return { of: (value) => (missing(value) ? null : sequential((value - low) / (high - low), dark)), domain: [low, high] };
}
