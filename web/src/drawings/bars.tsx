/** Bars by category, standing or lying, side by side or stacked; and histograms, whose bars lie between numbers. */
import type { JSX } from "preact";
import { useId, useMemo } from "preact/hooks";
import type { BarFigure, HistogramFigure } from "../contract";
import { axisNumber, axisTitle, barMarks, binMarks, describeFigure, LETTER, span, wrap, type Mark } from "../drawing";
import { Axes, distinct, LINE } from "../parts/axes";
import { useWidth } from "../parts/basics";
import { linearScale } from "../parts/scale";
import { Hatches, hatchOf } from "../parts/series";
import { dark } from "../state";
import { countTicks, frameFor, heightOf, Key, KeyEntry, NamesBelow, namesFor, ticksOf, useMarks } from "./frame";

/** Where a bar begins and ends on the axis of its values, and how far its interval goes. */
interface Extent {
  from: number;
  to: number;
  low: number | null;
  high: number | null;
}

export function extentOf(figure: BarFigure, { series, at }: Mark): Extent {
  const { values, low, high } = figure.bars[series]!;
  const sign = Math.sign(values[at]!);
  const before = figure.bars.slice(0, series).map((one) => one.values[at] ?? 0);
  const from = figure.is_stacked ? before.filter((value) => Math.sign(value) === sign).reduce((sum, value) => sum + value, 0) : 0;
  return { from, to: from + values[at]!, low: low[at] ?? null, high: high[at] ?? null };
}

const seriesId = (id: string): string => `hatch${id.replace(/[^\w-]/g, "")}`;

function SeriesKey({ id, labels }: { id: string; labels: string[] }): JSX.Element | null {
  if (labels.length < 2) return null;
  return (
    <Key label="Series">
      {labels.map((label, at) => <KeyEntry key={at} text={label}><svg width="22" height="14" aria-hidden="true"><rect width="22" height="14" rx="2" fill={hatchOf(id, at)} /></svg></KeyEntry>)}
    </Key>
  );
}

export function BarChart({ figure }: { figure: BarFigure }): JSX.Element {
  const id = seriesId(useId());
  return (
    <>
      {figure.is_horizontal ? <Lying figure={figure} id={id} /> : <Standing figure={figure} id={id} />}
    </>
  );
}

function Standing({ figure, id }: { figure: BarFigure; id: string }): JSX.Element {
  const [ref, width] = useWidth(520);
  const marks = useMemo(() => barMarks(figure), [figure]);
  const extents = useMemo(() => marks.map((mark) => extentOf(figure, mark)), [figure]);
  const drawn = useMarks(marks);
  const beside = figure.is_stacked ? 1 : figure.bars.length;
  const names = namesFor(figure.categories, (width - 90) / Math.max(1, figure.categories.length));
  const { frame, xLabel, yLabel } = frameFor(width, heightOf(width), [[0, figure.categories.length], figure.x], [span(extents.flatMap((one) => [one.from, one.to, one.low, one.high]), true), figure.y], names.room);
  const step = frame.x(1) - frame.x(0);
  const thick = (step * 0.8) / beside;
  return (
    <>
      <div ref={ref} class="plot">
        <Axes frame={frame} xLabel={xLabel} yLabel={yLabel} yTick={(value) => axisNumber(figure.y, value)} yTicks={countTicks(figure.y, frame.y, 6)} xTicks={[]} label={describeFigure(figure)}>
          <Hatches id={id} count={figure.bars.length} dark={dark.value} />
          {marks.map((mark, place) => {
            const { from, to, low, high } = extents[place]!;
            const x = frame.x(mark.at) + step * 0.1 + (figure.is_stacked ? 0 : thick * mark.series);
            return (
              <g key={place} {...drawn.of(place)} class="drawn-bar">
                <rect x={x} width={Math.max(1, thick - (beside > 1 ? 1 : 0))} y={Math.min(frame.y(from), frame.y(to))} height={Math.max(1, Math.abs(frame.y(from) - frame.y(to)))} fill={hatchOf(id, mark.series)} />
                {low !== null && high !== null && <line class="error" x1={x + thick / 2} x2={x + thick / 2} y1={frame.y(low)} y2={frame.y(high)} />}
              </g>
            );
          })}
          <line class="zero" x1={frame.left} x2={frame.right} y1={frame.y(0)} y2={frame.y(0)} />
          <NamesBelow names={figure.categories} layout={names} x={(at) => frame.x(at + 0.5)} y={frame.bottom} />
        </Axes>
      </div>
      <SeriesKey id={id} labels={figure.bars.map((series) => series.label)} />
      {drawn.readout}
    </>
  );
}

function Lying({ figure, id }: { figure: BarFigure; id: string }): JSX.Element {
  const [ref, width] = useWidth(520);
  const marks = useMemo(() => barMarks(figure), [figure]);
  const extents = useMemo(() => marks.map((mark) => extentOf(figure, mark)), [figure]);
  const drawn = useMarks(marks);
  const beside = figure.is_stacked ? 1 : figure.bars.length;
  const longest = Math.max(1, ...figure.categories.map((name) => name.length));
  const left = Math.min(longest * LETTER + 14, width * 0.4);
  const names = figure.categories.map((name) => wrap(name, (left - 14) / LETTER, 3));
  const tall = Math.max(24, beside * 12 + 8, ...names.map((lines) => LINE * lines.length + 6));
  const bottom = 8 + tall * figure.categories.length;
  const label = wrap(axisTitle(figure.y), (width - 20) / LETTER, 3);
  const x = linearScale(span(extents.flatMap((one) => [one.from, one.to, one.low, one.high]), true), [left, width - 16], true);
  const thick = (tall * 0.8) / beside;
  const many = Math.floor((width - left) / 70);
  const ticks = countTicks(figure.y, x, many) ?? distinct(x, many, (value) => axisNumber(figure.y, value));
  return (
    <>
      <div ref={ref} class="plot">
        <svg class="chart" width={width} height={bottom + 28 + LINE * label.length} role="group" aria-label={describeFigure(figure)}>
          <Hatches id={id} count={figure.bars.length} dark={dark.value} />
          <g aria-hidden="true">
            {ticks.map((value) => (
              <g key={value}>
                <line class="rule" x1={x(value)} x2={x(value)} y1={4} y2={bottom} />
                <text x={x(value)} y={bottom + 16} text-anchor="middle">{axisNumber(figure.y, value)}</text>
              </g>
            ))}
            {names.map((lines, at) => lines.map((line, number) => <text key={`${at} ${number}`} class="value" x={left - 8} y={8 + tall * (at + 0.5) + LINE * (number - (lines.length - 1) / 2)} dy="0.32em" text-anchor="end">{line}</text>))}
            {label.map((line, at) => <text key={at} class="title" x={(left + width) / 2} y={bottom + 20 + LINE * (at + 1)} text-anchor="middle">{line}</text>)}
          </g>
          {marks.map((mark, place) => {
            const { from, to, low, high } = extents[place]!;
            const y = 8 + tall * (mark.at + 0.1) + (figure.is_stacked ? 0 : thick * mark.series);
            return (
              <g key={place} {...drawn.of(place)} class="drawn-bar">
                <rect x={Math.min(x(from), x(to))} width={Math.max(1, Math.abs(x(to) - x(from)))} y={y} height={Math.max(1, thick - (beside > 1 ? 1 : 0))} fill={hatchOf(id, mark.series)} />
                {low !== null && high !== null && <line class="error" x1={x(low)} x2={x(high)} y1={y + thick / 2} y2={y + thick / 2} />}
              </g>
            );
          })}
          <line class="zero" x1={x(0)} x2={x(0)} y1={4} y2={bottom} />
        </svg>
      </div>
      <SeriesKey id={id} labels={figure.bars.map((series) => series.label)} />
      {drawn.readout}
    </>
  );
}

export function HistogramChart({ figure }: { figure: HistogramFigure }): JSX.Element {
  const id = seriesId(useId());
  const [ref, width] = useWidth(520);
  const marks = useMemo(() => binMarks(figure), [figure]);
  const drawn = useMarks(marks);
  const below = (series: number, at: number): number => figure.groups.slice(0, series).reduce((sum, group) => sum + group.counts[at]!, 0);
  const tops = figure.edges.slice(1).map((_, at) => below(figure.groups.length, at));
  const { frame, xLabel, yLabel } = frameFor(width, heightOf(width), [span(figure.edges), figure.x], [span(tops, true), figure.y]);
  return (
    <>
      <div ref={ref} class="plot">
        <Axes frame={frame} xLabel={xLabel} yLabel={yLabel} xCount={ticksOf(frame)} xTick={(value) => axisNumber(figure.x, value)} yTick={(value) => axisNumber(figure.y, value)} yTicks={countTicks(figure.y, frame.y, 6)} label={describeFigure(figure)}>
          <Hatches id={id} count={figure.groups.length} dark={dark.value} />
          {marks.map((mark, place) => {
            const from = below(mark.series, mark.at);
            const [left, right] = [frame.x(figure.edges[mark.at]!), frame.x(figure.edges[mark.at + 1]!)];
            const top = frame.y(from + figure.groups[mark.series]!.counts[mark.at]!);
            return <g key={place} {...drawn.of(place)} class="drawn-bar"><rect x={left + 0.5} width={Math.max(1, right - left - 1)} y={top} height={frame.y(from) - top} fill={hatchOf(id, mark.series)} /></g>;
          })}
          {frame.x.domain()[0]! < 0 && frame.x.domain()[1]! > 0 && <line class="guide" x1={frame.x(0)} x2={frame.x(0)} y1={frame.top} y2={frame.bottom} />}
        </Axes>
      </div>
      <SeriesKey id={id} labels={figure.groups.map((group) => group.label)} />
      {drawn.readout}
    </>
  );
}
