/** A histogram: shares by name, with a tick where chance would be. */
import type { JSX } from "preact";
import type { Maybe } from "../contract";
import { percent } from "../format";
import { Figure } from "./figure";

interface Props {
  title: string;
  names: string[];
  values: Maybe[];
  expected?: number[];
  /** Bins in order, as distances are: shown all and side by side. */
  upright?: boolean;
}

const MOST = 12;

export function Bars({ title, names, values, expected, upright }: Props): JSX.Element {
  const all = names.map((name, at) => ({ name, value: values[at] ?? 0, expected: expected?.[at] ?? null }));
  const top = [...all].sort((a, b) => b.value - a.value)[0];
  const shown = upright ? all : [...all].sort((a, b) => b.value - a.value).slice(0, MOST);
  const most = Math.max(0.01, ...shown.map((bar) => Math.max(bar.value, bar.expected ?? 0)));
  const message = top ? `Most goes to ${top.name}: ${percent(top.value)}${top.expected !== null ? `, where the text has ${percent(top.expected)}` : ""}.` : "Nothing was recorded.";
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

type Bar = { name: string; value: number; expected: number | null };

function Level({ bars, most }: { bars: Bar[]; most: number }): JSX.Element {
  return (
    <svg class="chart bars" width="100%" height={bars.length * 22 + 2} role="img" aria-label={bars.map((bar) => `${bar.name} ${percent(bar.value)}`).join(", ")}>
      {bars.map((bar, at) => (
        <g key={at} transform={`translate(0 ${at * 22})`}>
          <text x="0" y="15" class="small">{bar.name.length > 13 ? `${bar.name.slice(0, 12)}…` : bar.name}</text>
          <svg x="92" width="100%" height="22" overflow="visible">
            <g class="stretch"><rect class="bar" x="0" y="4" height="14" width={`${(bar.value / most) * 50}%`} /></g>
            {bar.expected !== null && <line class="chance" x1={`${(bar.expected / most) * 50}%`} x2={`${(bar.expected / most) * 50}%`} y1="2" y2="20" />}
            <text x={`${(Math.max(bar.value, bar.expected ?? 0) / most) * 50}%`} dx="6" y="15" class="small">{percent(bar.value)}</text>
          </svg>
        </g>
      ))}
    </svg>
  );
}

function Upright({ bars, most }: { bars: Bar[]; most: number }): JSX.Element {
  const step = 100 / bars.length;
  return (
    <svg class="chart bars" width="100%" height="180" role="img" aria-label={bars.map((bar) => `${bar.name} ${percent(bar.value)}`).join(", ")}>
      {bars.map((bar, at) => {
        const height = (bar.value / most) * 128;
        return (
          <g key={at}>
            <rect class="bar" x={`${at * step + step * 0.1}%`} width={`${step * 0.8}%`} y={148 - height} height={height} />
            {bar.value / most > 0.08 && <text x={`${(at + 0.5) * step}%`} y={142 - height} text-anchor="middle" class="tiny">{Math.round(bar.value * 100)}</text>}
            {(bar.name.length > 4 ? bar.name.split(" ") : [bar.name]).map((part, line) => <text key={line} x={`${(at + 0.5) * step}%`} y={164 + 11 * line} text-anchor="middle" class="tiny">{part}</text>)}
          </g>
        );
      })}
      <line class="base" x1="0" x2="100%" y1="148.5" y2="148.5" />
    </svg>
  );
}
