/** Metric against heads kept, by method. */
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import type { Curves, Point } from "../contract";
import { capital, num, plural, signed, whole } from "../format";
import { Axes, frameOf, type Frame } from "../parts/axes";
import { Check, Missing, useWidth } from "../parts/basics";
import { Figure } from "../parts/figure";
import { useRoving } from "../parts/roving";
import { LineSample, strokeOf, type Stroke } from "../parts/series";
import { markOf, through } from "../parts/shapes";
import { bound, chosenOf, quantity, verdict } from "../plan";
import { dark, keep, method, run, seed, standing } from "../state";
import { KeepPanel } from "./keep";

export function Pruning(): JSX.Element {
  const { curves } = run.value;
  return (
    <>
      {curves?.points.length ? <CurveFigure curves={curves} /> : <Missing what="No pruned model of this run was measured, so there is no curve." makes="curves" />}
      <KeepPanel />
    </>
  );
}

export interface Series {
  method: string;
  at: number;
  isRandom: boolean;
  isTrained: boolean;
  /** By heads kept: the points of all seeds. */
  steps: { keep: number; points: Point[]; mean: number; low: number; high: number }[];
}

export function seriesOf(points: Point[]): Series[] {
  const names = [...new Set(points.map((point) => point.method))];
  return names.map((name, at) => {
    const own = points.filter((point) => point.method === name);
    const keeps = [...new Set(own.map((point) => point.keep))].sort((a, b) => a - b);
    const steps = keeps.map((kept) => {
      const some = own.filter((point) => point.keep === kept).sort((a, b) => a.seed - b.seed);
      const values = some.map((point) => point.value);
      return { keep: kept, points: some, mean: values.reduce((sum, value) => sum + value, 0) / values.length, low: Math.min(...values), high: Math.max(...values) };
    });
    return { method: name, at, isRandom: own.some((point) => point.is_random), isTrained: own.some((point) => point.is_trained), steps };
  });
}

/** Ordinal colours skip random, which is grey. */
const styleOf = (series: Series): Stroke => strokeOf(series.at, series.isRandom, dark.value);

function takeaway(curves: Curves, total: number): string {
  const chosen = chosenOf(curves);
  const denseText = `The dense model has ${curves.metric} ${num(curves.dense.value)}.`;
  if (!chosen) return `${denseText} No model was chosen.`;
  const which = chosen.verdict === "certified" ? "certified" : curves.sizes.length ? "no size is certified; the largest tested" : "the best on the selection split";
  return `${denseText} With ${chosen.method}, ${whole(chosen.keep)} of ${plural(total, "head")} (${which}${chosen.margin ? `, margin ${chosen.margin}` : ""}) it is ${bound(curves, chosen)}.`;
}

function CurveFigure({ curves }: { curves: Curves }): JSX.Element {
  const [trained, setTrained] = useState(true);
  const [untrained, setUntrained] = useState(true);
  const [hidden, setHidden] = useState<ReadonlySet<string>>(new Set());
  const all = seriesOf(curves.points);
  const both = all.some((series) => series.isTrained) && all.some((series) => !series.isTrained);
  const open = all.filter((series) => (series.isTrained ? trained : untrained));
  const shown = open.filter((series) => !hidden.has(series.method));
  const flip = (name: string): void => setHidden(new Set(hidden.has(name) ? [...hidden].filter((one) => one !== name) : [...hidden, name]));
  return (
    <Figure
      title={`${capital(curves.metric)} against heads kept`}
      class="wide"
      takeaway={takeaway(curves, run.value.heads.length)}
      controls={both && <><Check label="Methods that train weights" on={trained} onFlip={setTrained} /><Check label="Methods without training" on={untrained} onFlip={setUntrained} /></>}
      caption={`Points were measured, lines between them are interpolated. Bands are the range over seeds${all.some((series) => series.isRandom) ? "; grey is random removal" : ""}. The dashed level is the dense model with its interval, on ${plural(curves.dense.n_examples, "example")}. A ring marks the model of each size that the selection split chose, a full one a certified model. ${curves.higher_is_better ? "Higher" : "Lower"} is better.`}
      table={() => pointTable(curves)}
    >
      <Chart curves={curves} shown={shown} />
      <ul class="series-key" aria-label="Methods">
        {open.map((series) => {
          const { stroke, dash } = styleOf(series);
          return (
            <li key={series.method}>
              <button type="button" aria-pressed={!hidden.has(series.method)} onClick={() => flip(series.method)}>
                <LineSample stroke={stroke} dash={dash} mark={series.at} />
                <span>{series.method}</span>
              </button>
            </li>
          );
        })}
      </ul>
    </Figure>
  );
}

function Chart({ curves, shown }: { curves: Curves; shown: Series[] }): JSX.Element {
  const [ref, width] = useWidth(900);
  const [looked, setLooked] = useState<{ series: Series; at: number } | null>(null);
  const total = run.value.heads.length;
  const values = shown.flatMap((series) => series.steps.flatMap((step) => [step.low, step.high]));
  const ends = [...values, curves.dense.value, curves.dense.low ?? curves.dense.value, curves.dense.high ?? curves.dense.value];
  const frame = frameOf(width, width < 500 ? 280 : 380, [0, total], [Math.min(...ends), Math.max(...ends)]);
  const places = shown.flatMap((series) => series.steps.map((_, at) => ({ series, at })));
  const choose = (place: number): void => {
    const { series, at } = places[place]!;
    method.value = series.method;
    keep.value = series.steps[at]!.keep;
    seed.value = series.steps[at]!.points[0]!.seed;
  };
  const roving = useRoving(places.length, choose);
  return (
    <>
      <div ref={ref} class="plot">
        <Axes frame={frame} xLabel="heads kept" yLabel={curves.metric} xTick={whole} yTick={(value) => num(value)} label={`${curves.metric} by heads kept for ${plural(shown.length, "method")}`}>
          <Dense curves={curves} frame={frame} />
          {shown.map((series) => <Band key={series.method} series={series} frame={frame} />)}
          <Here frame={frame} />
          {places.map(({ series, at }, place) => {
            const step = series.steps[at]!;
            const chosen = step.points.find((point) => curves.by_size.includes(point.id));
            const isCertified = chosen?.verdict === "certified" && (!curves.sizes.length || curves.sizes.some((size) => size.point === chosen.id));
            const { stroke } = styleOf(series);
            return (
              <g key={`${series.method} ${step.keep}`} transform={`translate(${frame.x(step.keep)} ${frame.y(step.mean)})`}>
                {chosen && <circle class={isCertified ? "chosen certified" : "chosen"} r="9" stroke={stroke} />}
                <path
                  {...roving.of(place)}
                  onFocus={() => (roving.of(place).onFocus(), setLooked({ series, at }))}
                  onPointerEnter={() => setLooked({ series, at })}
                  onClick={() => choose(place)}
                  role="button"
                  aria-label={`${series.method}, ${step.keep} heads kept, ${curves.metric} ${num(step.mean)}, ${plural(step.points.length, "seed")}${isCertified ? ", certified" : chosen ? ", chosen on the selection split" : ""}`}
                  class="mark"
                  d={markOf(series.at)}
                  fill={stroke}
                />
              </g>
            );
          })}
        </Axes>
      </div>
      <Seeds looked={looked} curves={curves} />
    </>
  );
}

function Dense({ curves, frame }: { curves: Curves; frame: Frame }): JSX.Element {
  const { value, low, high } = curves.dense;
  return (
    <g aria-hidden="true">
      {low !== null && high !== null && <rect class="dense-band" x={frame.left} width={frame.right - frame.left} y={frame.y(high)} height={Math.max(0, frame.y(low) - frame.y(high))} />}
      <line class="dense" x1={frame.left} x2={frame.right} y1={frame.y(value)} y2={frame.y(value)} />
      <text class="dense-label" x={frame.left + 6} y={frame.y(value) - 6}>dense model {num(value)}</text>
    </g>
  );
}

function Band({ series, frame }: { series: Series; frame: Frame }): JSX.Element {
  const { stroke, dash } = styleOf(series);
  const along = (some: { keep: number; at: number }[]): [number, number][] => some.map((step) => [frame.x(step.keep), frame.y(step.at)]);
  const { length: total } = run.value.heads;
  // The dense model is where every method starts from, and was measured too.
  const ends = run.value.curves && !series.steps.some((step) => step.keep === total) ? [{ keep: total, at: run.value.curves.dense.value }] : [];
  const edge = (part: "low" | "high" | "mean"): { keep: number; at: number }[] => series.steps.map((step) => ({ keep: step.keep, at: step[part] }));
  return (
    <g aria-hidden="true">
      <path d={through(along([...edge("low"), ...edge("high").reverse()]), true)} fill={stroke} class={series.isRandom ? "band random" : "band"} />
      <path d={through(along([...edge("mean"), ...ends]))} fill="none" stroke={stroke} stroke-width={series.method === method.value ? 3 : 1.75} stroke-dasharray={dash} />
    </g>
  );
}

/** Where the slider is on the curve of its method. */
function Here({ frame }: { frame: Frame }): JSX.Element {
  const isOn = ["measured", "between", "seeds", "dense"].includes(standing.value);
  const at = isOn ? quantity(run.value, method.value, "value", keep.value) : null;
  const x = frame.x(keep.value);
  const left = x > (frame.left + frame.right) / 2;
  return (
    <g aria-hidden="true" class="here">
      <line x1={x} x2={x} y1={frame.top} y2={frame.bottom} />
      {at && <circle cx={x} cy={frame.y(at.value)} r="6" class={at.from === at.to ? "solid" : "open"} />}
      <text x={x + (left ? -6 : 6)} y={frame.bottom - 8} text-anchor={left ? "end" : "start"}>K {keep.value}{isOn ? (at && at.from !== at.to ? ", interpolated" : "") : ", not measured"}</text>
    </g>
  );
}

function Seeds({ looked, curves }: { looked: { series: Series; at: number } | null; curves: Curves }): JSX.Element {
  const step = looked?.series.steps[looked.at];
  if (!looked || !step) return <p class="readout note">Point at a measured point, or move to it with the arrow keys, to read the value of every seed; Enter takes its K.</p>;
  return (
    <div class="readout">
      <strong>{looked.series.method}, K {step.keep}</strong>
      <span>{curves.metric} mean <b>{num(step.mean)}</b></span>
      {step.points.map((point) => (
        <span key={point.seed}>seed {point.seed}: <b>{num(point.value)}</b> ({signed(point.difference)}, {bound(curves, point)}{point.verdict && `, ${verdict(point)}`})</span>
      ))}
    </div>
  );
}

function pointTable(curves: Curves): { columns: { name: string }[]; rows: (string | number | boolean | null)[][] } {
  const columns = ["method", "K", "seed", curves.metric, "difference", "worse by at most", "verdict", "right to wrong", "wrong to right", "procedure", "loss difference", "trained", "repaired", "parameters", "bytes"].map((name) => ({ name }));
  const rows = curves.points.map((point) => [point.method, point.keep, point.seed, point.value, point.difference, point.bound_text, point.verdict, point.right_to_wrong, point.wrong_to_right, point.procedure, point.loss_difference, point.is_trained, point.is_repaired, point.parameters, point.bytes]);
  return { columns, rows };
}
