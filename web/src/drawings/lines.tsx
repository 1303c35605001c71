/** Lines through their points, with intervals as bands, and horizontal lines for comparison. */
import type { JSX } from "preact";
import { useMemo } from "preact/hooks";
import type { LineFigure, Maybe } from "../contract";
import { axisNumber, describeFigure, lineMarks, span } from "../drawing";
import { Axes, type Frame } from "../parts/axes";
import { useWidth } from "../parts/basics";
import { LineSample, strokeOf, type Stroke } from "../parts/series";
import { markOf, through } from "../parts/shapes";
import { dark } from "../state";
import { frameFor, heightOf, Key, KeyEntry, namedTicks, ticksOf, useMarks } from "./frame";

type Line = LineFigure["lines"][number];

/** Controls are grey and take no colour away from the others. */
function strokes(lines: Line[]): (Stroke & { mark: number })[] {
  const own = lines.filter((line) => !line.is_control);
  return lines.map((line) => ({ ...strokeOf(own.indexOf(line), line.is_control, dark.value), mark: line.is_control ? 0 : own.indexOf(line) }));
}

const REFERENCES = ["6 4", "2 3", "10 3 2 3"];

export function Lines({ figure }: { figure: LineFigure }): JSX.Element {
  const [ref, width] = useWidth(520);
  const marks = useMemo(() => lineMarks(figure), [figure]);
  const drawn = useMarks(marks);
  const looks = strokes(figure.lines);
  const values = [...figure.lines.flatMap((line) => [...line.y, ...line.low, ...line.high]), ...figure.references.map((one) => one.y)];
  const [first, last] = span(figure.lines.flatMap((line) => line.x));
  const margin = (last - first) * 0.02;
  const { frame, xLabel, yLabel } = frameFor(width, heightOf(width), [[first - margin, last + margin], figure.x], [span(values), figure.y]);
  return (
    <>
      <div ref={ref} class="plot">
        <Axes frame={frame} xLabel={xLabel} yLabel={yLabel} xTick={(value) => axisNumber(figure.x, value)} yTick={(value) => axisNumber(figure.y, value)} xCount={ticksOf(frame)} xTicks={namedTicks(figure.x, frame.left, frame.right)} yTicks={figure.y.ticks.length ? figure.y.ticks.map(([value]) => value) : undefined} label={describeFigure(figure)}>
          {figure.references.map((one, at) => <line key={at} class="reference" stroke-dasharray={REFERENCES[at % REFERENCES.length]} x1={frame.left} x2={frame.right} y1={frame.y(one.y)} y2={frame.y(one.y)} />)}
          {figure.lines.map((line, at) => <Path key={at} line={line} look={looks[at]!} frame={frame} />)}
          {marks.map((mark, place) => {
            const line = figure.lines[mark.series]!;
            return <path key={place} {...drawn.of(place)} class="mark" d={markOf(looks[mark.series]!.mark, line.is_control ? 28 : 48)} fill={looks[mark.series]!.stroke} transform={`translate(${frame.x(line.x[mark.at]!)} ${frame.y(line.y[mark.at]!)})`} />;
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

function Path({ line, look, frame }: { line: Line; look: Stroke; frame: Frame }): JSX.Element {
  const along = (part: number[], values: Maybe[]): [number, number][] => part.map((at) => [frame.x(line.x[at]!), frame.y(values[at]!)]);
  const bounded = segments(line.low.map((low, at) => (line.high[at] === null ? null : low)));
  return (
    <g aria-hidden="true">
      {bounded.map((part, at) => (part.length > 1
        ? <path key={at} class="band" fill={look.stroke} d={through([...along(part, line.low), ...along(part, line.high).reverse()], true)} />
        : <line key={at} stroke={look.stroke} stroke-width="1.5" x1={frame.x(line.x[part[0]!]!)} x2={frame.x(line.x[part[0]!]!)} y1={frame.y(line.low[part[0]!]!)} y2={frame.y(line.high[part[0]!]!)} />))}
      {segments(line.y).map((part, at) => <path key={`line ${at}`} fill="none" stroke={look.stroke} stroke-width="1.75" stroke-dasharray={look.dash} d={through(along(part, line.y))} />)}
    </g>
  );
}
