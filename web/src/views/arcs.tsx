/** Attention as arcs over the text: gold dependencies above, what the head attends to most below. */
import type { JSX } from "preact";
import { useMemo } from "preact/hooks";
import { named, quotedName, type Matrix, type Named, type Unit } from "../decode";
import { weightText } from "../format";
import { direction, Scroll, visible } from "../parts/basics";

export interface Arc {
  from: number;
  to: number;
  label: string;
  agrees: boolean;
}

/** Arcs between units from dependencies between words; those of words that are not shown are left out. */
export function goldArcs(arcs: [number, number, string][] | null, units: Unit[]): Omit<Arc, "agrees">[] {
  const place = new Map<number, number>();
  units.forEach((unit, at) => unit.word >= 0 && !place.has(unit.word) && place.set(unit.word, at));
  return (arcs ?? []).flatMap(([dependent, head, label]) => {
    const [from, to] = [place.get(dependent), place.get(head)];
    return from === undefined || to === undefined || from === to ? [] : [{ from, to, label }];
  });
}

/** The strongest arc of every unit, marked where it joins the ends of a dependency, whichever way round. */
export function headArcs(best: number[], matrix: Matrix, gold: Omit<Arc, "agrees">[], threshold: number): Arc[] {
  const pairs = new Set(gold.map((arc) => `${Math.min(arc.from, arc.to)} ${Math.max(arc.from, arc.to)}`));
  return best.flatMap((to, from) => {
    const value = to < 0 ? 0 : matrix.weights[from * matrix.columns + to]!;
    if (to < 0 || to === from || value < threshold) return [];
    return [{ from, to, label: weightText(value), agrees: pairs.has(`${Math.min(from, to)} ${Math.max(from, to)}`) }];
  });
}

const FONT = "14px system-ui, sans-serif";

export interface Laid {
  x: number[];
  /** Where each begins. */
  from: number[];
  width: number;
}

/** What is written for a unit: its text, and in words if the tokenizer does not know it. */
const written = (unit: Unit): string => `${visible(unit.text)}${unit.unknown ? " [unknown]" : ""}`;

/** Where the words stand: beside each other, from the right for text that runs so. */
function lay(units: Unit[]): Laid {
  const context = document.createElement("canvas").getContext("2d");
  if (context) context.font = FONT;
  const widths = units.map((unit) => Math.max(18, (context?.measureText(written(unit)).width ?? 40) + 2) + 16);
  const width = widths.reduce((sum, one) => sum + one, 20);
  let at = 10;
  const from = widths.map((one) => (at += one) - one);
  const x = widths.map((one, place) => from[place]! + one / 2);
  const backwards = direction(units.map((unit) => unit.text)) === "rtl";
  const turned = (places: number[]): number[] => (backwards ? places.map((place) => width - place) : places);
  return { x: turned(x), from: turned(from), width };
}

function bow(x0: number, x1: number, y: number, up: boolean): { path: string; top: number } {
  const height = Math.min(130, 16 + Math.abs(x1 - x0) * 0.28);
  const top = up ? y - height : y + height;
  return { path: `M${x0} ${y}C${x0} ${top} ${x1} ${top} ${x1} ${y}`, top: y + (top - y) * 0.75 };
}

const LINE = 12;

/** How far the labels of arcs are moved from their peaks so that no two lie on each other: in lines, away from the words. */
export function staggered(labels: { x: number; y: number; text: string }[]): number[] {
  const placed: { x: number; y: number; half: number }[] = [];
  const moved = labels.map(() => 0);
  // Low arcs first: their labels stay, and those of arcs that are above anyway go up.
  for (const at of labels.map((_, place) => place).sort((a, b) => labels[b]!.y - labels[a]!.y)) {
    const { x, y, text } = labels[at]!;
    const half = (text.length * 6.2) / 2 + 4;
    let lines = 0;
    while (lines < 8 && placed.some((other) => Math.abs(other.x - x) < other.half + half && Math.abs(other.y - (y - lines * LINE)) < LINE - 1)) lines += 1;
    placed.push({ x, y: y - lines * LINE, half });
    moved[at] = lines;
  }
  return moved;
}

interface ArcsProps {
  /** The part of the text that is drawn; it begins at `first`. */
  units: Unit[];
  /** Of the whole text. */
  names: Named[];
  gold: Omit<Arc, "agrees">[];
  arcs: Arc[];
  pinned: number | null;
  first: number;
  label: string;
}

/** Half the way to a target that is not drawn. */
const STUB = { across: 20, down: 20 };

export function ArcsView({ units, names, gold, arcs, pinned, first, label }: ArcsProps): JSX.Element {
  const laid = useMemo(() => lay(units), [units]);
  const inside = (arc: { from: number; to: number }): boolean => [arc.from, arc.to].every((at) => at >= first && at < first + units.length);
  const reach = (some: { from: number; to: number }[]): number => Math.max(0, ...some.filter(inside).map((arc) => Math.min(130, 16 + Math.abs(laid.x[arc.to - first]! - laid.x[arc.from - first]!) * 0.28)));
  const shownGold = gold.filter(inside);
  const peaks = shownGold.map((arc) => {
    const [from, to] = [laid.x[arc.from - first]!, laid.x[arc.to - first]!];
    return { x: (from + to) / 2, y: bow(from, to, 0, true).top - 4, text: arc.label };
  });
  const moved = staggered(peaks);
  const highest = Math.max(0, ...peaks.map((peak, at) => LINE * moved[at]! - peak.y));
  const leaving = arcs.filter((arc) => !inside(arc) && arc.from >= first && arc.from < first + units.length);
  const [above, below] = [gold.length ? highest + 16 : 8, Math.max(reach(arcs) * 0.75, leaving.length ? STUB.down + 14 : 0) + 26];
  const forth = (laid.x[1] ?? 1) < (laid.x[0] ?? 0) ? -1 : 1;
  const descriptions = [...arcs.filter(inside), ...leaving].slice(0, 60).map((arc) => `${named(names[arc.from])} to ${named(names[arc.to])} ${arc.label}${inside(arc) ? "" : ", outside"}`);
  const [top, bottom] = [above, above + 26];
  const agreed = new Set(arcs.filter((arc) => arc.agrees).map((arc) => `${Math.min(arc.from, arc.to)} ${Math.max(arc.from, arc.to)}`));
  return (
    <Scroll label={label}>
      <svg class="chart arcs" width={laid.width} height={bottom + below} role="img" aria-label={`${label}: ${descriptions.join("; ")}`}>
        <defs>
          <marker id="arrow" viewBox="0 0 8 8" refX="6" refY="4" markerWidth="9" markerHeight="9" markerUnits="userSpaceOnUse" orient="auto-start-reverse"><path d="M0 0L8 4L0 8z" fill="context-stroke" /></marker>
        </defs>
        {shownGold.map((arc, at) => {
          const { path } = bow(laid.x[arc.from - first]!, laid.x[arc.to - first]!, top, true);
          const solid = agreed.has(`${Math.min(arc.from, arc.to)} ${Math.max(arc.from, arc.to)}`);
          return (
            <g key={at} class={`gold ${solid ? "agrees" : ""}`}>
              <path d={path} marker-end="url(#arrow)" />
              <text x={peaks[at]!.x} y={top + peaks[at]!.y - LINE * moved[at]!} text-anchor="middle">{arc.label}</text>
            </g>
          );
        })}
        {units.map((unit, at) => at > 0 && unit.parted && <line key={at} class="boundary-line" x1={laid.from[at]} x2={laid.from[at]} y1={top} y2={bottom} />)}
        {units.map((unit, at) => (
          <text key={at} class={`word ${pinned === at + first ? "pinned" : ""} ${unit.special ? "special" : ""} ${unit.unknown ? "unknown-token" : ""}`} x={laid.x[at]} y={top + 18} text-anchor="middle">{written(unit)}</text>
        ))}
        {leaving.map((arc) => {
          const x = laid.x[arc.from - first]!;
          const side = (arc.to > arc.from ? 1 : -1) * forth;
          const faded = pinned !== null && pinned !== arc.from;
          return (
            <g key={arc.from} class={`own stub ${arc.agrees ? "agrees" : gold.length ? "" : "plain"} ${faded ? "faded" : ""}`}>
              <path d={`M${x} ${bottom}q0 ${STUB.down} ${side * STUB.across} ${STUB.down}`} marker-end="url(#arrow)" />
              <text x={x + side * STUB.across} y={bottom + STUB.down + 14} text-anchor="middle">{pinned === arc.from ? `${quotedName(names[arc.to])} ${arc.label}` : arc.to + 1}</text>
            </g>
          );
        })}
        {arcs.filter(inside).map((arc, at) => {
          const { path, top: peak } = bow(laid.x[arc.from - first]!, laid.x[arc.to - first]!, bottom, false);
          const faded = pinned !== null && pinned !== arc.from;
          return (
            <g key={at} class={`own ${arc.agrees ? "agrees" : gold.length ? "" : "plain"} ${faded ? "faded" : ""}`}>
              <path d={path} marker-end="url(#arrow)" />
              {pinned === arc.from && <text x={(laid.x[arc.from - first]! + laid.x[arc.to - first]!) / 2} y={peak + 12} text-anchor="middle">{arc.label}</text>}
            </g>
          );
        })}
      </svg>
    </Scroll>
  );
}

const LINES = 300;
/** Weights under this have no line. */
export const LEAST = 0.05;

/** Cross-attention: the text that asks above, the text that is attended to below. */
export function CrossView({ matrix, queries, keys, names, threshold, pinned, label }: { matrix: Matrix; queries: Unit[]; keys: Unit[]; names: readonly [Named[], Named[]]; threshold: number; pinned: number | null; label: string }): JSX.Element {
  const [above, below] = useMemo(() => [lay(queries), lay(keys)], [queries, keys]);
  const lines = useMemo(() => {
    const all: [number, number, number][] = [];
    matrix.weights.forEach((value, at) => value >= Math.max(LEAST, threshold) && all.push([Math.floor(at / matrix.columns), at % matrix.columns, value]));
    return all.sort((a, b) => b[2] - a[2]).slice(0, LINES);
  }, [matrix, threshold]);
  const width = Math.max(above.width, below.width);
  return (
    <Scroll label={label}>
      <svg class="chart arcs" width={width} height="190" role="img" aria-label={`${label}: ${lines.slice(0, 40).map(([q, k, value]) => `${named(names[0][q])} to ${named(names[1][k])} ${weightText(value)}`).join("; ")}`}>
        {lines.map(([q, k, value], at) => (
          <line key={at} class={`cross ${pinned !== null && pinned !== q ? "faded" : ""}`} x1={above.x[q]} y1="34" x2={below.x[k]} y2="156" stroke-width={0.75 + 4 * value} stroke-opacity={0.35 + 0.65 * value} />
        ))}
        {queries.map((unit, at) => <text key={at} class={`word ${pinned === at ? "pinned" : ""} ${unit.special ? "special" : ""}`} x={above.x[at]} y="24" text-anchor="middle">{written(unit)}</text>)}
        {keys.map((unit, at) => <text key={at} class={`word ${unit.special ? "special" : ""}`} x={below.x[at]} y="176" text-anchor="middle">{written(unit)}</text>)}
      </svg>
    </Scroll>
  );
}
