/** What pruned models cost: time, size, memory, and what that buys. */
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { category, css } from "../colour";
import type { BenchRow, Curves } from "../contract";
import { capital, num, plural, seconds, short, whole } from "../format";
import { Axes, frameOf } from "../parts/axes";
import { Choose, Missing, Pick, useWidth } from "../parts/basics";
import { Figure } from "../parts/figure";
import { useRoving } from "../parts/roving";
import { benchName, pointOfBench, shapesOf, usualShape } from "../plan";
import { dark, keep, method, run } from "../state";
import { markOf, seriesOf } from "./pruning";

export function Cost(): JSX.Element {
  const { bench, curves } = run.value;
  return (
    <>
      {bench.length ? <Latency rows={bench} /> : <Missing what="No latency was measured in this run." makes="bench" />}
      {curves?.points.length ? (
        <div class="pair">
          <Pareto curves={curves} />
          <Sizes curves={curves} />
        </div>
      ) : (
        <Missing what="No pruned model of this run was measured, so there is nothing to weigh against its cost." makes="curves" />
      )}
    </>
  );
}

/** Hardware, threads and number format, which every time depends on. */
export function machineLine(): string {
  const parts = Object.entries(run.value.machine).filter(([, value]) => value !== null).map(([name, value]) => `${name} ${value}`);
  return parts.length ? parts.join(" · ") : "The machine was not recorded.";
}

const NAMES = ["dense", "masked", "removed"] as const;
const EXPLAIN = { dense: "whole model", masked: "heads masked", removed: "heads removed" };

function Latency({ rows }: { rows: BenchRow[] }): JSX.Element {
  const models = [...new Set(rows.map((row) => row.of))];
  const [picked, setPicked] = useState("");
  const here = rows.find((row) => row.method === method.value && row.keep === keep.value)?.of;
  const of = models.includes(picked) ? picked : (here ?? models[0]!);
  const some = rows.filter((row) => row.of === of);
  const shapes = shapesOf(some);
  const [usual, long] = usualShape(shapesOf(some.filter((row) => row.name === "removed")));
  const best = some.find((row) => row.name === "removed" && row.batch === usual && row.length === long);
  const called = some[0] ? benchName(some[0]) : of;
  const masked = best && some.find((row) => row.name === "masked" && row.batch === best.batch && row.length === best.length);
  const message = best
    ? `Removing the heads of ${called} makes a pass ${num(best.speedup)} times as fast at batch ${best.batch}, length ${best.length}${masked ? `; masking them alone, ${num(masked.speedup)} times` : ""}.`
    : `No model of ${called} with heads removed was measured.`;
  return (
    <Figure
      title="Latency"
      class="wide"
      takeaway={message}
      controls={models.length > 1 && <Choose label="Pruned model" value={of} options={models.map((value) => ({ value, label: benchName(rows.find((row) => row.of === value)!) }))} onPick={setPicked} />}
      caption={`Median of one pass with quartiles, ${plural(some[0]?.rounds ?? 0, "round")}, interleaved. Each batch and length has its own scale from 0.`}
      table={() => benchTable(rows)}
    >
      <LatencyChart rows={some} shapes={shapes} />
      <p class="machine">{machineLine()}</p>
    </Figure>
  );
}

function LatencyChart({ rows, shapes }: { rows: BenchRow[]; shapes: [number, number][] }): JSX.Element {
  const [ref, width] = useWidth(900);
  const narrow = width < 520;
  const [left, right, step] = [narrow ? 84 : 250, narrow ? 104 : 150, 20];
  const high = step * 3 + (narrow ? 32 : 14);
  const roving = useRoving(rows.length);
  const places = shapes.flatMap(([batch, length]) => NAMES.flatMap((name) => rows.find((row) => row.name === name && row.batch === batch && row.length === length) ?? []));
  return (
    <div ref={ref} class="plot">
      <svg class="chart" width={width} height={shapes.length * high + 4} role="group" aria-label="Seconds of one pass by batch and length">
        {shapes.map(([batch, length], at) => {
          const own = rows.filter((row) => row.batch === batch && row.length === length);
          const most = Math.max(...own.map((row) => row.high));
          const x = (value: number): number => left + (value / most) * (width - left - right);
          const top = at * high + (narrow ? 18 : 0);
          return (
            <g key={at} transform={`translate(0 ${top})`}>
              <text x={0} y={narrow ? -3 : 14} class="strong">{`batch ${batch}, length ${length}`}</text>
              {NAMES.map((name, row) => {
                const one = own.find((entry) => entry.name === name);
                if (!one) return null;
                const y = row * step + 3;
                return (
                  <g key={name} {...roving.of(places.indexOf(one))} role="img" aria-label={`Batch ${batch}, length ${length}, ${EXPLAIN[name]}: ${seconds(one.seconds)}, quartiles ${seconds(one.low)} to ${seconds(one.high)}, ${num(one.speedup)} times as fast as dense`}>
                    <text x={left - 8} y={y + 11} text-anchor="end" class="small">{narrow ? name : EXPLAIN[name]}</text>
                    <rect class={`bar ${name}`} x={left} y={y} width={Math.max(1, x(one.seconds) - left)} height={step - 6} />
                    <line class="whisker" x1={x(one.low)} x2={x(one.high)} y1={y + 7} y2={y + 7} />
                    <text x={x(one.high) + 6} y={y + 11} class="small">{seconds(one.seconds)}{name === "dense" ? "" : `, ${num(one.speedup)} ×`}</text>
                  </g>
                );
              })}
            </g>
          );
        })}
      </svg>
    </div>
  );
}

interface Spot {
  method: string;
  at: number;
  keep: number;
  x: number;
  y: number;
}

/** Points that no other beats in both: cheaper, and at least as good. */
export function frontier(spots: Spot[], higherIsBetter: boolean): Spot[] {
  const better = (a: number, b: number): boolean => (higherIsBetter ? a > b : a < b);
  return spots
    .filter((one) => !spots.some((other) => other !== one && other.x <= one.x && !better(one.y, other.y) && (other.x < one.x || better(other.y, one.y))))
    .sort((a, b) => a.x - b.x);
}

/** The models that were timed, each with the value of itself: another seed is another model. */
export function timedSpots(curves: Curves, rows: BenchRow[]): Spot[] {
  const methods = seriesOf(curves.points).map((series) => series.method);
  return rows.flatMap((row): Spot[] => {
    const point = row.name === "removed" ? pointOfBench(curves, row) : null;
    return point ? [{ method: point.method, at: methods.indexOf(point.method), keep: point.keep, x: row.seconds, y: point.value }] : [];
  });
}

function sizedSpots(curves: Curves, by: "flops" | "parameters"): Spot[] {
  return seriesOf(curves.points).flatMap((series) =>
    series.steps.flatMap((step): Spot[] => {
      const x = step.points[0]?.[by] ?? null;
      return x === null ? [] : [{ method: series.method, at: series.at, keep: step.keep, x, y: step.mean }];
    }),
  );
}

function weighed(spots: Spot[], best: Spot[], names: string[], metric: string, show: (value: number) => string): string {
  const [one] = spots;
  if (!one) return "No pruned model has both numbers.";
  if (spots.length === 1) return `One pruned model has both numbers: ${one.method} with ${plural(one.keep, "head")}, ${metric} ${num(one.y)} at ${show(one.x)}.`;
  return `${best.length} of ${plural(spots.length, "model")} cannot be beaten in both at once: ${names.slice(0, 4).join(", ")}${names.length > 4 ? " and others" : ""}.`;
}

function Pareto({ curves }: { curves: Curves }): JSX.Element {
  const shapes = shapesOf(run.value.bench);
  const canFlops = curves.points.some((point) => point.flops !== null);
  const [by, setBy] = useState<"latency" | "flops" | "parameters">(shapes.length ? "latency" : canFlops ? "flops" : "parameters");
  const [shape, setShape] = useState("");
  const [batch, length] = shapes.find((one) => one.join(" ") === shape) ?? usualShape(shapes);
  const spots = by === "latency" ? timedSpots(curves, run.value.bench.filter((row) => row.batch === batch && row.length === length)) : sizedSpots(curves, by);
  const dense = by === "latency" ? run.value.bench.find((row) => row.name === "dense" && row.batch === batch && row.length === length)?.seconds : curves.dense[by];
  const show = (value: number): string => (by === "latency" ? seconds(value) : short(value));
  const best = frontier(spots, curves.higher_is_better);
  const options = [...(shapes.length ? [["latency", "Latency"] as const] : []), ...(canFlops ? [["flops", "FLOPs"] as const] : []), ["parameters", "Parameters"] as const].map((one): [typeof by, string] => [one[0], one[1]]);
  const names = [...new Set(best.map((spot) => spot.method))];
  return (
    <Figure
      title={`${capital(curves.metric)} against cost`}
      takeaway={weighed(spots, best, names, curves.metric, show)}
      controls={
        <>
          <Pick label="Cost" value={by} options={options} onPick={setBy} />
          {by === "latency" && shapes.length > 1 && <Choose label="At" value={`${batch} ${length}`} options={shapes.map((one) => ({ value: one.join(" "), label: `batch ${one[0]}, length ${one[1]}` }))} onPick={setShape} />}
        </>
      }
      caption={`${by === "latency" ? "Every point is a model that was timed, with its own value" : "Means over seeds, measured points only"}${spots.length > 1 ? "; the line joins those that no other beats" : ""}.${by === "latency" ? ` ${machineLine()}.` : ""}`}
      table={() => ({ columns: ["method", "K", by, curves.metric, "not beaten"].map((name) => ({ name })), rows: spots.map((spot) => [spot.method, spot.keep, spot.x, spot.y, best.includes(spot)]) })}
    >
      <ParetoChart spots={spots} best={best} dense={typeof dense === "number" ? { x: dense, y: curves.dense.value } : null} metric={curves.metric} cost={by} show={show} />
    </Figure>
  );
}

function ParetoChart({ spots, best, dense, metric, cost, show }: { spots: Spot[]; best: Spot[]; dense: { x: number; y: number } | null; metric: string; cost: string; show: (value: number) => string }): JSX.Element {
  const [ref, width] = useWidth(520);
  const [looked, setLooked] = useState<Spot | null>(null);
  const roving = useRoving(spots.length);
  const all = dense ? [...spots, dense] : spots;
  const span = (values: number[]): [number, number] => {
    const [low, high] = values.length ? [Math.min(...values), Math.max(...values)] : [0, 1];
    const room = (high - low || Math.abs(high) || 1) * 0.06;
    return [low - room, high + room];
  };
  const frame = frameOf(width, 320, span(all.map((spot) => spot.x)), span(all.map((spot) => spot.y)));
  return (
    <>
      <div ref={ref} class="plot">
        <Axes frame={frame} xLabel={cost === "flops" ? "FLOPs of the probe pass" : cost} yLabel={metric} xTick={show} yTick={(value) => num(value)} xTicks={frame.x.ticks(Math.max(2, Math.floor(width / 130)))} label={`${metric} by ${cost}, ${plural(spots.length, "pruned model")}`}>
          <polyline class="frontier" points={best.map((spot) => `${frame.x(spot.x)},${frame.y(spot.y)}`).join(" ")} />
          {dense && <g transform={`translate(${frame.x(dense.x)} ${frame.y(dense.y)})`} aria-hidden="true"><path class="dense-mark" d="M-6 0H6M0 -6V6" /><text x={-8} y={-8} text-anchor="end">whole model</text></g>}
          {spots.map((spot, at) => (
            <path key={at} {...roving.of(at)} onFocus={() => (roving.of(at).onFocus(), setLooked(spot))} onPointerEnter={() => setLooked(spot)} role="img" aria-label={`${spot.method}, ${spot.keep} heads, ${cost} ${show(spot.x)}, ${metric} ${num(spot.y)}`} class={`mark ${best.includes(spot) ? "" : "beaten"}`} transform={`translate(${frame.x(spot.x)} ${frame.y(spot.y)})`} d={markOf(spot.at)} fill={css(category(spot.at, dark.value))} />
          ))}
        </Axes>
      </div>
      <p class="readout">{looked ? <><strong>{looked.method}, K {looked.keep}</strong><span>{cost} <b>{show(looked.x)}</b></span><span>{metric} <b>{num(looked.y)}</b></span></> : <span class="note">Point at a model to read its numbers.</span>}</p>
    </>
  );
}

function Sizes({ curves }: { curves: Curves }): JSX.Element {
  const { dense } = curves;
  const steps = seriesOf(curves.points).filter((series) => series.method === method.value)[0] ?? seriesOf(curves.points)[0]!;
  const rows = [...steps.steps].reverse().map((step) => {
    const point = step.points[0]!;
    return [step.keep, point.parameters, point.bytes, point.flops, point.kv_bytes_per_token];
  });
  rows.unshift([run.value.heads.length, dense.parameters, dense.bytes, dense.flops, dense.kv_bytes_per_token]);
  const last = rows.at(-1)!;
  const columns = [
    { name: "K", show: (value: unknown) => <b>{whole(value as number)}</b> },
    { name: "parameters", show: (value: unknown) => <Share of={dense.parameters} value={value as number} text={short(value as number)} /> },
    { name: "size", show: (value: unknown) => <Share of={dense.bytes} value={value as number} text={short(value as number, "B")} /> },
    { name: "FLOPs", show: (value: unknown) => <Share of={dense.flops} value={value as number | null} text={short(value as number)} /> },
    ...(dense.kv_bytes_per_token ? [{ name: "KV bytes per token", show: (value: unknown) => <Share of={dense.kv_bytes_per_token} value={value as number | null} text={short(value as number, "B")} /> }] : []),
  ];
  return (
    <section class="figure" aria-label="Size">
      <h2>Size</h2>
      <p class="takeaway">With {steps.method}, {whole(last[0])} heads leave {num((100 * (last[1] ?? 0)) / dense.parameters)} % of the parameters.{dense.kv_bytes_per_token ? "" : " The model keeps no cache of keys and values."}</p>
      <div class="scroll" tabIndex={0} role="region" aria-label="Size by heads kept, table">
        <table>
          <thead><tr>{columns.map((column) => <th key={column.name} scope="col">{column.name}</th>)}</tr></thead>
          <tbody>{rows.map((row, at) => <tr key={at}>{columns.map((column, place) => <td key={place}>{column.show(row[place])}</td>)}</tr>)}</tbody>
        </table>
      </div>
    </section>
  );
}

function Share({ of, value, text }: { of: number | null; value: number | null; text: string }): JSX.Element {
  const share = of && value !== null ? Math.max(0, Math.min(1, value / of)) : null;
  return (
    <span class="share">
      {share !== null && <svg width="48" height="8" aria-hidden="true"><rect class="all" width="48" height="8" /><rect class="left" width={48 * share} height="8" /></svg>}
      {text}
    </span>
  );
}

function benchTable(rows: BenchRow[]): { columns: { name: string }[]; rows: (string | number | null)[][] } {
  const columns = ["pruned model", "kind", "batch", "length", "seconds", "low", "high", "speed-up", "rounds"].map((name) => ({ name }));
  return { columns, rows: rows.map((row) => [benchName(row), row.name, row.batch, row.length, row.seconds, row.low, row.high, row.speedup, row.rounds]) };
}
