/** What pruned models cost: time, size, memory, and what that buys. */
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { category, css } from "../colour";
import type { BenchRow, Curves, Maybe } from "../contract";
import { capital, interval, num, passOver, plural, seconds, secondsRange, short, speedRange, speedWords, whole } from "../format";
import { Axes, frameOf } from "../parts/axes";
import { Choose, Missing, Pick, Scroll, useWidth } from "../parts/basics";
import { Figure } from "../parts/figure";
import { useRoving } from "../parts/roving";
import { markOf } from "../parts/shapes";
import { ALIKE, benchName, pointOfBench, shapesOf, usualShape } from "../plan";
import { dark, keep, method, plan, run } from "../state";
import { seriesOf } from "./pruning";

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
const EXPLAIN = { dense: "dense model", masked: "heads masked", removed: "heads removed" };

function Latency({ rows }: { rows: BenchRow[] }): JSX.Element {
  const models = [...new Set(rows.map((row) => row.of))];
  const [picked, setPicked] = useState("");
  const here = (rows.find((row) => row.point === plan.value.point?.id) ?? rows.find((row) => row.method === method.value && row.keep === keep.value))?.of;
  const of = models.includes(picked) ? picked : (here ?? models[0]!);
  const some = rows.filter((row) => row.of === of);
  const shapes = shapesOf(some);
  const called = some[0] ? benchName(some[0]) : of;
  const warnings = noiseOf(some, shapes);
  return (
    <Figure
      title="Latency"
      class="wide"
      takeaway={speedsOf(some, shapes, called)}
      controls={models.length > 1 && <Choose label="Pruned model" value={of} options={models.map((value) => ({ value, label: benchName(rows.find((row) => row.of === value)!) }))} onPick={setPicked} />}
      caption={`Median of one pass with quartiles, ${plural(some[0]?.rounds ?? 0, "round")}, interleaved. Each batch and length has its own scale from 0. A difference is stated where the 95 % interval of the speed-up, by the log-ratios of the rounds, does not include 1.`}
      table={() => benchTable(rows)}
    >
      {warnings.length > 0 && <ul class="warnings">{warnings.map((warning) => <li key={warning}>{warning}</li>)}</ul>}
      <LatencyChart rows={some} shapes={shapes} />
      <p class="machine">{machineLine()}</p>
    </Figure>
  );
}

const sizeName = ([batch, length]: [number, number]): string => `batch ${batch}, length ${length}`;

const rowOf = (rows: BenchRow[], name: BenchRow["name"], [batch, length]: [number, number]): BenchRow | undefined => rows.find((row) => row.name === name && row.batch === batch && row.length === length);

/** What removal brings over all sizes that were timed; a speed-up whose interval includes 1 is no difference. */
export function speedsOf(rows: BenchRow[], shapes: [number, number][], called: string): string {
  const pairs = shapes.flatMap((shape) => {
    const removed = rowOf(rows, "removed", shape);
    return removed ? [{ shape, speed: removed.speedup, apart: removed.is_apart }] : [];
  });
  if (!pairs.length) return `No model of ${called} with heads removed was measured.`;
  const [apart, alike] = [pairs.filter((pair) => pair.apart), pairs.filter((pair) => !pair.apart)];
  const where = (some: typeof pairs): string => (some.length === 1 ? sizeName(some[0]!.shape) : `${some.length} of ${pairs.length} sizes`);
  if (!apart.length) return `With its heads removed, ${called} is ${ALIKE} at ${pairs.length === 1 ? where(pairs) : `any of ${pairs.length} sizes`}: the 95 % intervals of the speed-ups include 1, or fewer than 15 rounds give none (${speedRange(pairs.map((pair) => pair.speed))}).`;
  const fast = `Removing the heads of ${called} makes a pass ${speedRange(apart.map((pair) => pair.speed))}`;
  if (!alike.length) return `${fast} ${pairs.length === 1 ? `at ${where(pairs)}` : `over ${pairs.length} sizes of batch and length`}.`;
  return `${fast} at ${where(apart)}; at ${where(alike)} it is ${ALIKE}.`;
}

/** What should make a reader doubt the times. */
export function noiseOf(rows: BenchRow[], shapes: [number, number][]): string[] {
  const noisy = shapes.filter((shape) => NAMES.some((name) => rowOf(rows, name, shape)?.is_noisy));
  const odd = shapes.filter((shape) => rowOf(rows, "masked", shape)?.is_odd);
  return [
    ...(noisy.length ? [`Noisy measurement at ${noisy.map(sizeName).join("; ")}: quartiles lie farther apart than a third of the median.`] : []),
    ...(odd.length ? [`Masked heads seem faster than the dense model at ${odd.map(sizeName).join("; ")}. Masking saves no work, so something else slowed the dense model down: time it again on a quiet machine.`] : []),
  ];
}

function barText(one: BenchRow, narrow: boolean): string {
  const against = one.name === "dense" ? "" : one.is_apart ? `, ${speedWords(one.speedup).replace(" times", " ×")}` : narrow ? ", unclear" : ", no clear difference";
  return `${seconds(one.seconds)} (${secondsRange(one.low, one.high)})${against}`;
}

function LatencyChart({ rows, shapes }: { rows: BenchRow[]; shapes: [number, number][] }): JSX.Element {
  const [ref, width] = useWidth(900);
  const narrow = width < 640;
  const [left, right, step] = narrow ? [0, 2, 34] : [240, 296, 20];
  const high = step * 3 + (narrow ? 32 : 14);
  const roving = useRoving(rows.length);
  const places = shapes.flatMap((shape) => NAMES.flatMap((name) => rowOf(rows, name, shape) ?? []));
  return (
    <div ref={ref} class="plot">
      <svg class="chart" width={width} height={shapes.length * high + 4} role="group" aria-label="Seconds of one pass by batch and length">
        {shapes.map((shape, at) => {
          const own = rows.filter((row) => row.batch === shape[0] && row.length === shape[1]);
          const most = Math.max(...own.map((row) => row.high));
          const x = (value: number): number => left + (value / most) * (width - left - right);
          return (
            <g key={at} transform={`translate(0 ${at * high + (narrow ? 18 : 0)})`}>
              <text x={0} y={narrow ? -3 : 14} class="strong">{sizeName(shape)}</text>
              {NAMES.map((name, row) => {
                const one = rowOf(own, name, shape);
                if (!one) return null;
                const y = row * step + 3;
                const bar = narrow ? y + 15 : y;
                const text = barText(one, narrow);
                return (
                  <g key={name} {...roving.of(places.indexOf(one))} role="img" aria-label={`${capital(sizeName(shape))}, ${EXPLAIN[name]}: ${seconds(one.seconds)}, quartiles ${secondsRange(one.low, one.high)}${name === "dense" ? "" : `, ${one.is_apart ? `${speedWords(one.speedup)} as dense` : ALIKE}`}`}>
                    {narrow ? <text x={0} y={y + 11} class="small">{`${name} ${text}`}</text> : <text x={left - 8} y={y + 11} text-anchor="end" class="small">{EXPLAIN[name]}</text>}
                    <rect class={`bar ${name}`} x={left} y={bar} width={Math.max(1, x(one.seconds) - left)} height={narrow ? 10 : step - 6} />
                    <line class="whisker" x1={x(one.low)} x2={x(one.high)} y1={bar + (narrow ? 5 : 7)} y2={bar + (narrow ? 5 : 7)} />
                    {!narrow && <text x={x(one.high) + 6} y={y + 11} class="small">{text}</text>}
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
  /** How far a repetition may lie off: quartiles of a time, the interval of the difference from the dense model. Null where it is not known. */
  xRange: Range | null;
  yRange: Range | null;
}

type Range = [low: number, high: number];

const rangeOf = (low: Maybe, high: Maybe, from = 0): Range | null => (low === null || high === null ? null : [from + low, from + high]);

/** The mean of intervals: of the models of several seeds. */
function meanRange(ranges: (Range | null)[]): Range | null {
  const known = ranges.filter((one) => one !== null);
  const mean = (at: 0 | 1): number => known.reduce((sum, one) => sum + one[at], 0) / known.length;
  return known.length ? [mean(0), mean(1)] : null;
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
    return point ? [{ method: point.method, at: methods.indexOf(point.method), keep: point.keep, x: row.seconds, y: point.value, xRange: [row.low, row.high], yRange: rangeOf(point.low, point.high, curves.dense.value) }] : [];
  });
}

function sizedSpots(curves: Curves, by: "flops" | "parameters"): Spot[] {
  return seriesOf(curves.points).flatMap((series) =>
    series.steps.flatMap((step): Spot[] => {
      const [first] = step.points;
      return !first ? [] : [{ method: series.method, at: series.at, keep: step.keep, x: first[by], y: step.mean, xRange: null, yRange: meanRange(step.points.map((point) => rangeOf(point.low, point.high, curves.dense.value))) }];
    }),
  );
}

function weighed(spots: Spot[], best: Spot[], names: string[], metric: string, show: (value: number) => string): string {
  const [one] = spots;
  if (!one) return "No pruned model has both numbers.";
  if (spots.length === 1) return `One pruned model has both numbers: ${one.method} with ${plural(one.keep, "head")}, ${metric} ${num(one.y)} at ${show(one.x)}.`;
  return `By these numbers ${best.length} of ${plural(spots.length, "model")} cannot be beaten in both at once: ${names.slice(0, 4).join(", ")}${names.length > 4 ? " and others" : ""}.`;
}

function Pareto({ curves }: { curves: Curves }): JSX.Element {
  const shapes = shapesOf(run.value.bench);
  const [by, setBy] = useState<"latency" | "flops" | "parameters">(shapes.length ? "latency" : "flops");
  const [shape, setShape] = useState("");
  const [batch, length] = shapes.find((one) => one.join(" ") === shape) ?? usualShape(shapes);
  const spots = by === "latency" ? timedSpots(curves, run.value.bench.filter((row) => row.batch === batch && row.length === length)) : sizedSpots(curves, by);
  const slow = by === "latency" ? rowOf(run.value.bench, "dense", [batch, length]) : undefined;
  const dense = by === "latency" ? slow?.seconds : curves.dense[by];
  const denseText = typeof dense === "number" ? { x: dense, y: curves.dense.value, xRange: slow ? ([slow.low, slow.high] as Range) : null, yRange: rangeOf(curves.dense.low, curves.dense.high) } : null;
  const show = (value: number): string => (by === "latency" ? seconds(value) : short(value));
  const best = frontier(spots, curves.higher_is_better);
  const options = [...(shapes.length ? [["latency", "Latency"] as const] : []), ["flops", "FLOPs"] as const, ["parameters", "Parameters"] as const].map((one): [typeof by, string] => [one[0], one[1]]);
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
      caption={`${by === "latency" ? "Every point is a model that was timed, with its own value" : "Means over seeds, measured points only"}${spots.length > 1 ? "; the line joins those that no other beats" : ""}. Whiskers up and down are 95 % intervals of the difference from the dense model${by === "latency" ? ", across quartiles of the time" : ""}: points within them may change places if measured again.${by === "latency" ? ` ${machineLine()}.` : ""}`}
      table={() => ({ columns: ["method", "K", by, curves.metric, "low", "high", "not beaten"].map((name) => ({ name })), rows: spots.map((spot) => [spot.method, spot.keep, spot.x, spot.y, spot.yRange?.[0] ?? null, spot.yRange?.[1] ?? null, best.includes(spot)]) })}
    >
      <ParetoChart spots={spots} best={best} dense={denseText} metric={curves.metric} cost={by} axis={by === "flops" ? `FLOPs of ${passOver(curves.dense.tokens)}` : by} show={show} />
    </Figure>
  );
}

type Marked = Pick<Spot, "x" | "y" | "xRange" | "yRange">;

function ParetoChart({ spots, best, dense, metric, cost, axis, show }: { spots: Spot[]; best: Spot[]; dense: Marked | null; metric: string; cost: string; axis: string; show: (value: number) => string }): JSX.Element {
  const [ref, width] = useWidth(520);
  const [looked, setLooked] = useState<Spot | null>(null);
  const roving = useRoving(spots.length);
  const all: Marked[] = dense ? [...spots, dense] : spots;
  const span = (values: number[]): [number, number] => {
    const [low, high] = values.length ? [Math.min(...values), Math.max(...values)] : [0, 1];
    const room = (high - low || Math.abs(high) || 1) * 0.06;
    return [low - room, high + room];
  };
  const frame = frameOf(width, 320, span(all.flatMap((spot) => [spot.x, ...(spot.xRange ?? [])])), span(all.flatMap((spot) => [spot.y, ...(spot.yRange ?? [])])));
  return (
    <>
      <div ref={ref} class="plot">
        <Axes frame={frame} xLabel={axis} yLabel={metric} xTick={show} yTick={(value) => num(value)} xCount={Math.floor(width / 130)} label={`${metric} by ${cost}, ${plural(spots.length, "pruned model")}`}>
          <polyline class="frontier" points={best.map((spot) => `${frame.x(spot.x)},${frame.y(spot.y)}`).join(" ")} />
          {all.map((spot, at) => (
            <g key={at} class="off" aria-hidden="true">
              {spot.yRange && <line x1={frame.x(spot.x)} x2={frame.x(spot.x)} y1={frame.y(spot.yRange[0])} y2={frame.y(spot.yRange[1])} />}
              {spot.xRange && <line x1={frame.x(spot.xRange[0])} x2={frame.x(spot.xRange[1])} y1={frame.y(spot.y)} y2={frame.y(spot.y)} />}
            </g>
          ))}
          {dense && <g transform={`translate(${frame.x(dense.x)} ${frame.y(dense.y)})`} aria-hidden="true"><path class="dense-mark" d="M-6 0H6M0 -6V6" /><text x={-8} y={-8} text-anchor="end">dense model</text></g>}
          {spots.map((spot, at) => (
            <path key={at} {...roving.of(at)} onFocus={() => (roving.of(at).onFocus(), setLooked(spot))} onPointerEnter={() => setLooked(spot)} role="img" aria-label={`${spot.method}, ${spot.keep} heads, ${cost} ${show(spot.x)}, ${metric} ${num(spot.y)}${spot.yRange ? `, interval ${interval(...spot.yRange)}` : ""}`} class={`mark ${best.includes(spot) ? "" : "beaten"}`} transform={`translate(${frame.x(spot.x)} ${frame.y(spot.y)})`} d={markOf(spot.at)} fill={css(category(spot.at, dark.value))} />
          ))}
        </Axes>
      </div>
      <p class="readout">{looked ? <><strong>{looked.method}, K {looked.keep}</strong><span>{cost} <b>{show(looked.x)}</b>{looked.xRange && ` (${interval(...looked.xRange, (value) => show(value!))})`}</span><span>{metric} <b>{num(looked.y)}</b>{looked.yRange && ` (${interval(...looked.yRange)})`}</span></> : <span class="note">Point at a model to read its numbers.</span>}</p>
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
    { name: `FLOPs, ${plural(dense.tokens, "token")}`, show: (value: unknown) => <Share of={dense.flops} value={value as number} text={short(value as number)} /> },
    ...(dense.kv_bytes_per_token ? [{ name: "KV bytes per token", show: (value: unknown) => <Share of={dense.kv_bytes_per_token} value={value as number} text={short(value as number, "B")} /> }] : []),
  ];
  return (
    <section class="figure" aria-label="Size">
      <h2>Size</h2>
      <p class="takeaway">With {steps.method}, {whole(last[0])} heads leave {num((100 * last[1]!) / dense.parameters)} % of the parameters.{dense.kv_bytes_per_token ? "" : " The model keeps no cache of keys and values."}</p>
      <Scroll label="Size by heads kept, table">
        <table>
          <thead><tr>{columns.map((column) => <th key={column.name} scope="col">{column.name}</th>)}</tr></thead>
          <tbody>{rows.map((row, at) => <tr key={at}>{columns.map((column, place) => <td key={place}>{column.show(row[place])}</td>)}</tr>)}</tbody>
        </table>
      </Scroll>
    </section>
  );
}

function Share({ of, value, text }: { of: number; value: number; text: string }): JSX.Element {
  const share = of ? Math.max(0, Math.min(1, value / of)) : null;
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
