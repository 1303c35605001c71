/** Points in groups, each group with a mark of its own. */
import type { JSX } from "preact";
import { useMemo } from "preact/hooks";
import type { ScatterFigure } from "../contract";
import { axisNumber, describeFigure, pointMarks, span } from "../drawing";
import { Axes } from "../parts/axes";
import { useWidth } from "../parts/basics";
import { strokeOf } from "../parts/series";
import { markOf } from "../parts/shapes";
import { dark } from "../state";
import { frameFor, heightOf, Key, KeyEntry, namedTicks, ticksOf, useMarks } from "./frame";

const pad = ([low, high]: [number, number]): [number, number] => [low - (high - low) * 0.04, high + (high - low) * 0.04];

export function PointCloud({ figure }: { figure: ScatterFigure }): JSX.Element {
  const [ref, width] = useWidth(520);
  const marks = useMemo(() => pointMarks(figure), [figure]);
  const drawn = useMarks(marks);
  const { frame, xLabel, yLabel } = frameFor(width, heightOf(width) + 40, [pad(span(figure.groups.flatMap((group) => group.x))), figure.x], [pad(span(figure.groups.flatMap((group) => group.y))), figure.y]);
  const colour = (at: number): string => strokeOf(at, false, dark.value).stroke;
  return (
    <>
      <div ref={ref} class="plot">
        <Axes frame={frame} xLabel={xLabel} yLabel={yLabel} xTick={(value) => axisNumber(figure.x, value)} yTick={(value) => axisNumber(figure.y, value)} xCount={ticksOf(frame)} xTicks={namedTicks(figure.x, frame.left, frame.right)} label={describeFigure(figure)}>
          {marks.map(({ series, at }, place) => <path key={place} {...drawn.of(place)} class="mark drawn-point" d={markOf(series, 50)} fill={colour(series)} transform={`translate(${frame.x(figure.groups[series]!.x[at]!)} ${frame.y(figure.groups[series]!.y[at]!)})`} />)}
        </Axes>
      </div>
      {figure.groups.length > 1 && <Key label="Groups">{figure.groups.map((group, at) => <KeyEntry key={at} text={group.label}><svg width="16" height="14" aria-hidden="true"><path d={markOf(at, 50)} fill={colour(at)} transform="translate(8 7)" /></svg></KeyEntry>)}</Key>}
      {drawn.readout}
    </>
  );
}
