/** What all figures of studies share: room for their texts, marks that keys and pointer reach, and the keys of their series. */
import type { ComponentChildren, JSX } from "preact";
import { useState } from "preact/hooks";
import type { FigureAxis } from "../contract";
import { axisNumber, axisTitle, cut, LETTER, wrap, type Mark } from "../drawing";
import { distinct, EDGE, frameOf, LINE, type Frame } from "../parts/axes";
import type { Scale } from "../parts/scale";
import { useRoving, type Roving } from "../parts/roving";

export const heightOf = (width: number): number => (width < 500 ? 280 : 340);

export interface Texts {
  frame: Frame;
  xLabel: string[];
  yLabel: string[];
}

/** A frame with as much room at its edges as the texts of both axes take; `below` is room for names under the x axis. */
export function frameFor(width: number, height: number, [x, xAxis]: [[number, number], FigureAxis], [y, yAxis]: [[number, number], FigureAxis], below = 0, nice = true): Texts {
  const [xLabel, yLabel] = [wrap(axisTitle(xAxis), (width - 80) / LETTER, 3), wrap(axisTitle(yAxis), (height - 60) / LETTER, 3)];
  const guess = frameOf(width, height, x, y);
  const ticks = distinct(guess.y, 6, (value) => axisNumber(yAxis, value));
  const letters = Math.max(2, ...ticks.map((value) => axisNumber(yAxis, value).length));
  const edge = { ...EDGE, left: Math.min(width / 3, LINE * yLabel.length + 16 + LETTER * letters), bottom: EDGE.bottom + below + LINE * (xLabel.length - 1) };
  return { frame: frameOf(width, height + below + LINE * (xLabel.length - 1), x, y, edge, nice), xLabel, yLabel };
}

/** About how many numbers have room along the x axis. */
export const ticksOf = (frame: Frame): number => Math.max(4, Math.floor((frame.right - frame.left) / 72));

/** Whole numbers along a scale of counts; nothing where an axis has other numbers. */
export function countTicks(axis: FigureAxis, scale: Scale, number: number): number[] | undefined {
  return axis.is_count ? distinct(scale, number, (value) => axisNumber(axis, value)).filter(Number.isInteger) : undefined;
}

/** Those ticks of an axis that bear a name and have room for it; nothing where numbers are drawn as usual. */
export function namedTicks(axis: FigureAxis, from: number, to: number): number[] | undefined {
  if (!axis.ticks.length) return undefined;
  const room = Math.max(1, Math.floor((to - from) / (LETTER * Math.max(...axis.ticks.map(([, name]) => name.length)) + 10)));
  const step = Math.ceil(axis.ticks.length / room);
  return axis.ticks.filter((_, at) => at % step === 0).map(([value]) => value);
}

/** Names of categories along an axis: level where they fit, else slanting, and every so many where even that is too close. */
export interface Names {
  slanting: boolean;
  step: number;
  room: number;
}

const SLANT = 24;

export function namesFor(names: string[], step: number): Names {
  const longest = Math.max(1, ...names.map((name) => name.length));
  if (longest * LETTER + 6 <= step) return { slanting: false, step: 1, room: 0 };
  return { slanting: true, step: Math.ceil(16 / step), room: Math.min(longest, SLANT) * LETTER * 0.72 - 2 };
}

export function NamesBelow({ names, layout, x, y }: { names: string[]; layout: Names; x: (at: number) => number; y: number }): JSX.Element {
  return (
    <g aria-hidden="true">
      {names.map((name, at) => at % layout.step === 0 && (
        <text key={at} x={x(at)} y={y + (layout.slanting ? 12 : 18)} text-anchor={layout.slanting ? "end" : "middle"} transform={layout.slanting ? `rotate(-45 ${x(at) + 4} ${y + 12})` : undefined}>{layout.slanting ? cut(name, SLANT) : name}</text>
      ))}
    </g>
  );
}

export interface Marks {
  /** What the mark in this place needs. */
  of: (place: number) => ReturnType<Roving["of"]> & { role: "img"; "aria-label": string; onPointerEnter: () => void };
  /** The line under the drawing: the mark that is pointed at or focused. */
  readout: JSX.Element;
}

export function useMarks(marks: Mark[]): Marks {
  const [looked, setLooked] = useState("");
  const roving = useRoving(marks.length);
  return {
    of: (place) => {
      const own = roving.of(place);
      const show = (): void => setLooked(marks[place]!.text);
      return { ...own, role: "img", "aria-label": marks[place]!.text, onFocus: () => (own.onFocus(), show()), onPointerEnter: show };
    },
    readout: <p class="readout">{looked ? <bdi dir="auto">{looked}</bdi> : <span class="note">Point at a mark, or move to it with the arrow keys, to read its numbers.</span>}</p>,
  };
}

export function Key({ label, children }: { label: string; children: ComponentChildren }): JSX.Element {
  return <ul class="series-key drawn-key" aria-label={label}>{children}</ul>;
}

export function KeyEntry({ text, children }: { text: string; children: ComponentChildren }): JSX.Element {
  return <li>{children}<bdi dir="auto">{text}</bdi></li>;
}
