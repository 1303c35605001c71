/** Lines through their points, with intervals as bands, and horizontal lines for comparison. */
import type { JSX } from "preact";
import { useMemo } from "preact/hooks";
import type { FigureAxis, LineFigure, Maybe } from "../contract";
import { axisNumber, clamp, describeFigure, lineMarks, span } from "../drawing";
import { Axes, type Frame } from "../parts/axes";
import { useWidth } from "../parts/basics";
import { LineSample, strokeOf, type Stroke } from "../parts/series";
import { markOf, through } from "../parts/shapes";
import { dark } from "../state";
import { countTicks, frameFor, heightOf, Key, KeyEntry, namedTicks, ticksOf, useMarks } from "./frame";

type Line = LineFigure["lines"][number];

/** Controls are grey and take no colour away from the others. */
function strokes(lines: Line[]): (Stroke & { mark: number })[] {
  const own = lines.filter((line) => !line.is_control);
  return lines.map((line) => ({ ...strokeOf(own.indexOf(line), line.is_control, dark.value), mark: line.is_control ? 0 : own.indexOf(line) }));
}

/** Intervals of more lines are whiskers, because bands would cover each other, and so is a single one. */
const MOST_BANDS = 2;

/** The line with its start as a point of its own, which has no interval. */
export function joinStart(line: Line): Line {
  const [x, y] = line.start;
  if (x === undefined || y === undefined) return line;
  const first = line.x.findIndex((one) => one > x);
  const place = first < 0 ? line.x.length : first;
  const put = <T,>(values: T[], value: T): T[] => (values.length ? [...values.slice(0, place), value, ...values.slice(place)] : values);
  return { ...line, x: put(line.x, x), y: put(line.y, y), low: put(line.low, null), high: put(line.high, null), start: [] };
}

/** The x of all points that are drawn. */
const positions = (figure: LineFigure): number[] => [...new Set(figure.lines.map(joinStart).flatMap((line) => line.x.filter((_, at) => line.y[at] !== null)))].sort((a, b) => a - b);

const gapsOf = (values: number[]): number[] => values.slice(1).map((value, at) => value - values[at]!);

export function hasWhiskers(figure: LineFigure): boolean {
  const numbers = figure.lines.filter((line) => line.low.length).map((line) => line.low.filter((low) => low !== null).length);
  return numbers.length > MOST_BANDS || numbers.includes(1);
}

/** How many pixels each line stands beside its x, so that whiskers and points that coincide can be told apart. */
export function shiftsOf(figure: LineFigure, frame: Frame): number[] {
  const xs = positions(figure);
  const room = xs.length > 1 ? Math.min(...gapsOf(xs.map((x) => frame.x(x)))) / 2 : (frame.right - frame.left) / 2;
  const step = hasWhiskers(figure) ? Math.min(10, room / figure.lines.length) : 0;
  return figure.lines.map((_, at) => step * (at - (figure.lines.length - 1) / 2));
}

/** The x of all points where these are few and far enough apart to bear a tick each. */
export function ticksAtPoints(figure: LineFigure): number[] | undefined {
  const xs = positions(figure);
  const wide = gapsOf(xs).every((gap) => gap >= 0.13 * (xs.at(-1)! - xs[0]!));
  return xs.length && xs.length <= 6 && wide && !figure.x.ticks.length ? xs : undefined;
}

const REFERENCES = ["6 4", "2 3", "10 3 2 3"];

export function Lines({ figure }: { figure: LineFigure }): JSX.Element {
  const [ref, width] = useWidth(520);
  const marks = useMemo(() => lineMarks(figure), [figure]);
  const drawn = useMarks(marks);
  const looks = strokes(figure.lines);
  const values = [...figure.lines.flatMap((line) => [...line.y, ...line.low, ...line.high, line.start[1]]), ...figure.references.map((one) => one.y)];
  const [first, last] = span(figure.lines.flatMap((line) => [...line.x, line.start[0]]));
  const margin = positions(figure).length === 1 ? 0 : (last - first) * 0.02;
  const { frame, xLabel, yLabel } = frameFor(width, heightOf(width), [[first - margin, last + margin], figure.x], [figure.y.limits.length ? span(figure.y.limits) : span(values), figure.y], 0, !figure.y.limits.length);
  const shifts = shiftsOf(figure, frame);
  const shiftAt = (line: Line, series: number, at: number): number => (typeof line.low[at] === "number" ? shifts[series]! : 0);
  return (
    <>
      <div ref={ref} class="plot">
        <Axes frame={frame} xLabel={xLabel} yLabel={yLabel} xTick={(value) => axisNumber(figure.x, value)} yTick={(value) => axisNumber(figure.y, value)} xCount={ticksOf(frame)} xTicks={namedTicks(figure.x, frame.left, frame.right) ?? ticksAtPoints(figure) ?? countTicks(figure.x, frame.x, ticksOf(frame))} yTicks={figure.y.ticks.length ? figure.y.ticks.map(([value]) => value) : countTicks(figure.y, frame.y, 6)} label={describeFigure(figure)}>
          {figure.references.map((one, at) => <line key={at} class="reference" stroke-dasharray={REFERENCES[at % REFERENCES.length]} x1={frame.left} x2={frame.right} y1={frame.y(one.y)} y2={frame.y(one.y)} />)}
          {figure.lines.map((line, at) => <Path key={at} line={joinStart(line)} look={looks[at]!} frame={frame} axis={figure.y} shift={shifts[at]!} whiskers={hasWhiskers(figure)} />)}
          {marks.map((mark, place) => {
            const line = figure.lines[mark.series]!;
            return <path key={place} {...drawn.of(place)} class="mark" d={markOf(looks[mark.series]!.mark, line.is_control ? 28 : 48)} fill={looks[mark.series]!.stroke} transform={`translate(${frame.x(line.x[mark.at]!) + shiftAt(line, mark.series, mark.at)} ${frame.y(clamp(figure.y, line.y[mark.at]!))})`} />;
          })}
        </Axes>
      </div>
      {(figure.lines.length > 1 || figure.references.length > 0) && (
        <Key label="Lines">
          {figure.lines.map((line, at) => <KeyEntry key={at} text={line.label}><LineSample {...looks[at]!} /></KeyEntry>)}
          {figure.references.map((one, at) => <KeyEntry key={`reference ${at}`} text={`${one.label}, ${axisNumber(figure.y, one.y)}`}><LineSample stroke="var(--ink)" dash={REFERENCES[at % REFERENCES.length]!} /></KeyEntry>)}
        </Key>
      )}
      {drawn.readout}
    </>
  );
}

/** The numbers of the points in a row that are defined: a line breaks where one is not. */
export function segments(values: Maybe[]): number[][] {
  const parts: number[][] = [[]];
  values.forEach((value, at) => (value === null ? parts.push([]) : parts.at(-1)!.push(at)));
  return parts.filter((part) => part.length);
}

function Path({ line, look, frame, axis, shift, whiskers }: { line: Line; look: Stroke; frame: Frame; axis: FigureAxis; shift: number; whiskers: boolean }): JSX.Element {
  const x = (at: number): number => frame.x(line.x[at]!) + (typeof line.low[at] === "number" ? shift : 0);
  const y = (value: Maybe | undefined): number => frame.y(clamp(axis, value!));
  const along = (part: number[], values: Maybe[]): [number, number][] => part.map((at) => [x(at), y(values[at])]);
  const bounded = segments(line.low.map((low, at) => (line.high[at] === null ? null : low)));
  return (
    <g aria-hidden="true">
      {bounded.map((part) => (part.length > 1 && !whiskers
        ? <path key={part[0]} class="band" fill={look.stroke} d={through([...along(part, line.low), ...along(part, line.high).reverse()], true)} />
        : part.map((at) => <line key={at} stroke={look.stroke} stroke-width="1.5" x1={x(at)} x2={x(at)} y1={y(line.low[at])} y2={y(line.high[at])} />)))}
      {segments(line.y).map((part, at) => <path key={`line ${at}`} fill="none" stroke={look.stroke} stroke-width="1.75" stroke-dasharray={look.dash} d={through(along(part, line.y))} />)}
    </g>
  );
}
