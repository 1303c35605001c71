/** The frame of a chart with numbers on both sides. */
import type { ComponentChildren, JSX } from "preact";
import { linearScale, type Scale } from "./scale";

export interface Frame {
  width: number;
  height: number;
  x: Scale;
  y: Scale;
  left: number;
  right: number;
  top: number;
  bottom: number;
}

/** Pixels from a line of text to the next. */
export const LINE = 15;
export const EDGE = { left: 56, right: 16, top: 14, bottom: 44 };

export function frameOf(width: number, height: number, x: [number, number], y: [number, number], edge = EDGE, nice = true): Frame {
  return {
    width,
    height,
    left: edge.left,
    right: width - edge.right,
    top: edge.top,
    bottom: height - edge.bottom,
    x: linearScale(x, [edge.left, width - edge.right]),
    y: linearScale(y, [height - edge.bottom, edge.top], nice),
  };
}

/** Round numbers along a scale whose labels are all different: fewer of them, if they would not be. */
export function distinct(scale: Scale, count: number, show: (value: number) => string): number[] {
  for (let wanted = Math.max(2, count); wanted > 1; wanted -= 1) {
    const ticks = scale.ticks(wanted);
    if (new Set(ticks.map((value) => show(value))).size === ticks.length) return ticks;
  }
  const seen = new Set<string>();
  return scale.ticks(2).filter((value) => !seen.has(show(value)) && seen.add(show(value)));
}

interface Props {
  frame: Frame;
  /** In one line, or in several. */
  xLabel: string | string[];
  yLabel: string | string[];
  xTick?: (value: number) => string;
  yTick?: (value: number) => string;
  /** About how many numbers stand along the x axis. */
  xCount?: number;
  xTicks?: number[] | undefined;
  yTicks?: number[] | undefined;
  label: string;
  children?: ComponentChildren;
  class?: string;
  pointer?: Partial<Record<"onPointerDown" | "onPointerMove" | "onPointerUp" | "onPointerLeave", (event: PointerEvent) => void>>;
}

export function Axes({ frame, xLabel, yLabel, xTick = String, yTick = String, xCount, xTicks, yTicks, label, children, class: name = "", pointer = {} }: Props): JSX.Element {
  const { width, height, left, right, top, bottom, x, y } = frame;
  const xs = xTicks ?? distinct(x, xCount ?? Math.floor((right - left) / 80), xTick);
  const ys = yTicks ?? distinct(y, Math.floor((bottom - top) / 48), yTick);
  return (
    <svg class={`chart ${name}`} width={width} height={height} viewBox={`0 0 ${width} ${height}`} role="group" aria-label={label} {...pointer}>
      <g class="axis" aria-hidden="true">
        {ys.map((value) => (
          <g key={value}>
            <line class="rule" x1={left} x2={right} y1={y(value)} y2={y(value)} />
            <text x={left - 8} y={y(value)} dy="0.32em" text-anchor="end">{yTick(value)}</text>
          </g>
        ))}
        {xs.map((value) => (
          <g key={value}>
            <line class="tick" x1={x(value)} x2={x(value)} y1={bottom} y2={bottom + 5} />
            <text x={x(value)} y={bottom + 18} text-anchor="middle">{xTick(value)}</text>
          </g>
        ))}
        <line class="base" x1={left} x2={right} y1={bottom} y2={bottom} />
        {[xLabel].flat().reverse().map((line, at) => <text key={at} class="title" x={(left + right) / 2} y={height - 6 - LINE * at} text-anchor="middle">{line}</text>)}
        {[yLabel].flat().map((line, at) => <text key={at} class="title" transform={`translate(${9 + LINE * at} ${(top + bottom) / 2}) rotate(-90)`} text-anchor="middle">{line}</text>)}
      </g>
      {children}
    </svg>
  );
}
