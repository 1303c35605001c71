/** Shares as bars, each with a tick where chance would be. */
import type { JSX } from "preact";
import type { Maybe } from "../contract";
import { percent } from "../format";
import { useWidth } from "./basics";
import { Figure } from "./figure";

interface Props {
  title: string;
  names: string[];
  values: Maybe[];
  expected?: Maybe[];
  /** Bins in order, as distances are: shown all and side by side. */
  upright?: boolean;
  /** Why there is nothing to show, if there is nothing. */
  without?: string;
}

type Bar = { name: string; value: number; expected: number | null };

const MOST = 12;

/** The bars that were measured. */
export function barsOf(names: string[], values: Maybe[], expected?: Maybe[]): Bar[] {
  return names.flatMap((name, at) => {
    const value = values[at];
    return typeof value === "number" && Number.isFinite(value) ? [{ name, value, expected: expected?.[at] ?? null }] : [];
  });
}

export function Bars({ title, names, values, expected, upright, without = "Not measured for this head." }: Props): JSX.Element {
  const all = barsOf(names, values, expected);
  const sorted = [...all].sort((a, b) => b.value - a.value);
  const [top] = sorted;
  if (!top) return <section class="figure" aria-label={title}><h3>{title}</h3><p class="note">{without}</p></section>;
  const shown = upright ? all : sorted.slice(0, MOST);
  const most = Math.max(0.01, ...shown.map((bar) => Math.max(bar.value, bar.expected ?? 0)));
  const message = `Most goes to ${top.name}: ${percent(top.value)}${top.expected !== null ? `, where chance gives ${percent(top.expected)}` : ""}.`;
  return (
    <Figure
      level={3}
      title={title}
      takeaway={message}
      caption={expected ? `Share of attention; the tick is what chance gives.${all.length > MOST ? ` The ${MOST} largest of ${all.length}.` : ""}` : "Share of attention by key − query."}
      table={() => ({ columns: [{ name: title }, { name: "share" }, ...(expected ? [{ name: "chance" }] : [])], rows: all.map((bar) => [bar.name, bar.value, ...(expected ? [bar.expected] : [])]) })}
    >
      {upright ? <Upright bars={shown} most={most} /> : <Level bars={shown} most={most} />}
    </Figure>
  );
}

const [LEFT, RIGHT] = [92, 56];

/** Values stand in a column of their own: beside a tick they would read as the tick's. */
function Level({ bars, most }: { bars: Bar[]; most: number }): JSX.Element {
  const [ref, width] = useWidth(300);
  const x = (value: number): number => LEFT + (value / most) * Math.max(10, width - LEFT - RIGHT);
  return (
    <div ref={ref} class="plot">
      <svg class="chart bars" width={width} height={bars.length * 22 + 2} role="img" aria-label={bars.map((bar) => `${bar.name} ${percent(bar.value)}${bar.expected === null ? "" : `, chance ${percent(bar.expected)}`}`).join("; ")}>
        {bars.map((bar, at) => (
          <g key={at} transform={`translate(0 ${at * 22})`}>
            <text x="0" y="15" class="small">{bar.name.length > 13 ? `${bar.name.slice(0, 12)}…` : bar.name}</text>
            <rect class="bar" x={LEFT} y="4" height="14" width={x(bar.value) - LEFT} />
            {bar.expected !== null && <line class="chance" data-name={bar.name} data-chance={bar.expected} x1={x(bar.expected)} x2={x(bar.expected)} y1="2" y2="20" />}
            <text x={width} y="15" text-anchor="end" class="small value">{percent(bar.value)}</text>
          </g>
        ))}
      </svg>
    </div>
  );
}

function Upright({ bars, most }: { bars: Bar[]; most: number }): JSX.Element {
  const [ref, width] = useWidth(300);
  const step = width / bars.length;
  const parts = (name: string): string[] => (name.length > 4 || step < 30 ? name.split(" ") : [name]);
  return (
    <div ref={ref} class="plot">
      <svg class="chart bars" width={width} height="180" role="img" aria-label={bars.map((bar) => `${bar.name} ${percent(bar.value)}`).join(", ")}>
        {bars.map((bar, at) => {
          const height = (bar.value / most) * 128;
          return (
            <g key={at}>
              <rect class="bar" x={(at + 0.1) * step} width={step * 0.8} y={148 - height} height={height} />
              {bar.value / most > 0.08 && <text x={(at + 0.5) * step} y={142 - height} text-anchor="middle" class="tiny">{Math.round(bar.value * 100)}</text>}
              {parts(bar.name).map((part, line) => <text key={line} x={(at + 0.5) * step} y={161 + 11 * line} text-anchor="middle" class={step < 24 ? "tiniest" : "tiny"}>{part}</text>)}
            </g>
          );
        })}
        <line class="base" x1="0" x2={width} y1="148.5" y2="148.5" />
      </svg>
    </div>
  );
}
