/** Heads as points of two numbers each; a rectangle drawn with the pointer selects. */
import type { JSX } from "preact";
import { useMemo, useRef, useState } from "preact/hooks";
import type { HeadNumber } from "../contract";
import { extent, opening, type Field } from "../fields";
import { num } from "../format";
import { spearman, type Heads } from "../heads";
import { go, select, selected, toggle } from "../state";
import { Axes, EDGE, frameOf } from "./axes";
import type { Scale } from "./scale";
import { useWidth } from "./basics";
import { useRoving } from "./roving";

interface Props {
  heads: Heads;
  x: Field;
  y: Field;
  removed: ReadonlySet<HeadNumber>;
  shown?: (head: HeadNumber) => boolean;
  onLook?: (head: HeadNumber | null) => void;
  /** Draws the line of equal values: for two of the same kind. */
  diagonal?: boolean;
  height?: number;
  /** Where both axes begin; a little under the smallest value without it. */
  from?: number;
}

const pad = ([low, high]: [number, number]): [number, number] => [low - (high - low) * 0.04, high + (high - low) * 0.04];

/** Room for half a mark before the first value. */
const begin = ([low, high]: [number, number], from?: number): [number, number] => (from === undefined ? [low, high] : [from - (high - from) * 0.02, high]);

export function scatterTakeaway(x: Field, y: Field): string {
  const r = spearman(x.values, y.values);
  if (r === null) return `${opening(x)} and ${y.label} share too few heads to be compared.`;
  const size = Math.abs(r) > 0.7 ? "mostly agree" : Math.abs(r) > 0.3 ? "partly agree" : "hardly agree";
  return `${opening(x)} and ${y.label} ${r < -0.3 ? "run against each other" : size} in the order of heads: rank correlation ${num(r, 2)}.`;
}

const rankTicks = (scale: Scale, from: number): number[] => [from, ...scale.ticks(5).filter((value) => value > from + 1 && Number.isInteger(value))];

export function Scatter({ heads, x, y, removed, shown = () => true, onLook, diagonal, height = 460, from }: Props): JSX.Element {
  const [ref, width] = useWidth(420);
  const frame = frameOf(width, Math.min(height, Math.max(260, width * 0.82)), begin(pad(extent(x.values)), from), begin(pad(extent(y.values)), from), EDGE, from === undefined);
  const points = useMemo(
    () =>
      heads.run.heads
        .map((_, head) => ({ head, x: x.values[head], y: y.values[head] }))
        .filter((point): point is { head: number; x: number; y: number } => typeof point.x === "number" && typeof point.y === "number")
        .sort((a, b) => a.x - b.x),
    [heads, x, y],
  );
  const roving = useRoving(points.length, (place, key) => (key === "Enter" ? go("head", points[place]!.head) : toggle(points[place]!.head)));
  const start = useRef<[number, number] | null>(null);
  const [box, setBox] = useState<[number, number, number, number] | null>(null);

  const place = (event: PointerEvent): [number, number] => {
    const edge = (event.currentTarget as Element).getBoundingClientRect();
    return [event.clientX - edge.left, event.clientY - edge.top];
  };
  const finish = (): void => {
    if (box && (box[2] - box[0] > 4 || box[3] - box[1] > 4)) {
      const inside = points.filter((point) => frame.x(point.x) >= box[0] && frame.x(point.x) <= box[2] && frame.y(point.y) >= box[1] && frame.y(point.y) <= box[3]);
      select(inside.map((point) => point.head));
    }
    start.current = null;
    setBox(null);
  };
  const pointer = {
    onPointerDown: (event: PointerEvent) => {
      if (event.pointerType === "mouse" && event.button === 0) start.current = place(event);
    },
    onPointerMove: (event: PointerEvent) => {
      if (!start.current) return;
      const [[x0, y0], [x1, y1]] = [start.current, place(event)];
      setBox([Math.min(x0, x1), Math.min(y0, y1), Math.max(x0, x1), Math.max(y0, y1)]);
    },
    onPointerUp: finish,
    onPointerLeave: finish,
  };
  const ends = diagonal ? [Math.max(frame.x.domain()[0]!, frame.y.domain()[0]!), Math.min(frame.x.domain()[1]!, frame.y.domain()[1]!)] : null;
  return (
    <div ref={ref} class="plot">
      <Axes frame={frame} xLabel={x.label} yLabel={y.label} xTick={num} yTick={num} xTicks={from === undefined ? undefined : rankTicks(frame.x, from)} yTicks={from === undefined ? undefined : rankTicks(frame.y, from)} label={`${points.length} heads by ${x.label} and ${y.label}`} pointer={pointer} class="scatter">
        {ends && <line class="guide" x1={frame.x(ends[0]!)} y1={frame.y(ends[0]!)} x2={frame.x(ends[1]!)} y2={frame.y(ends[1]!)} />}
        {points.map((point, at) => {
          const chosen = selected.value.has(point.head);
          return (
            <circle
              key={point.head}
              {...roving.of(at)}
              onFocus={() => (roving.of(at).onFocus(), onLook?.(point.head))}
              onPointerEnter={() => onLook?.(point.head)}
              role="button"
              aria-pressed={chosen}
              aria-label={`${heads.run.heads[point.head]}, ${x.label} ${num(point.x)}, ${y.label} ${num(point.y)}${removed.has(point.head) ? ", removed" : ""}`}
              class={`point ${removed.has(point.head) ? "removed" : ""} ${chosen ? "selected" : ""} ${shown(point.head) ? "" : "faded"}`}
              cx={frame.x(point.x)}
              cy={frame.y(point.y)}
              r={chosen ? 6 : 4.5}
              onClick={(event) => (event.ctrlKey || event.metaKey || event.shiftKey ? toggle(point.head) : go("head", point.head))}
            />
          );
        })}
        {box && <rect class="lasso" x={box[0]} y={box[1]} width={box[2] - box[0]} height={box[3] - box[1]} />}
      </Axes>
    </div>
  );
}
