/** A coloured cell for every row and column. */
import type { JSX } from "preact";
import { useMemo } from "preact/hooks";
import { css, ink, paint } from "../colour";
import type { HeatMapFigure } from "../contract";
import { axisNumber, axisTitle, cellMarks, clamp, describeFigure, LETTER, wrap } from "../drawing";
import type { Field } from "../fields";
import { num } from "../format";
import { LINE } from "../parts/axes";
import { useWidth } from "../parts/basics";
import { ColourBar } from "../parts/legend";
import { dark } from "../state";
import { Key, KeyEntry, NamesBelow, namesFor, useMarks } from "./frame";

const TOP = 4;
/** A cell that is this wide has room for its number. */
const WIDE = 40;

export function HeatMap({ figure }: { figure: HeatMapFigure }): JSX.Element {
  const [ref, width] = useWidth(520);
  const marks = useMemo(() => cellMarks(figure), [figure]);
  const drawn = useMarks(marks);
  const title = axisTitle(figure.value);
  const field: Field = { key: "", group: "", label: title, about: "", values: figure.values.flat().map((value) => (value === null ? null : clamp(figure.value, value))), low: null, high: null, significant: null, scale: figure.is_diverging ? "diverging" : "sequential" };
  const [only, ...others] = new Set(figure.values.flat().filter((value) => value !== null));
  // One value everywhere has the lowest colour, not the middle of a scale around it.
  const colours = paint(field, dark.value, false, figure.value.limits.length ? [...figure.value.limits] : only !== undefined && !others.length ? [only + (Math.abs(only) || 1)] : []);
  const longest = Math.max(1, ...figure.rows.map((name) => name.length));
  const left = Math.min(longest * LETTER + 12, width * 0.38) + LINE;
  const rows = figure.rows.map((name) => wrap(name, (left - LINE - 12) / LETTER, 2));
  const wide = Math.min(90, (width - left - 4) / Math.max(1, figure.columns.length));
  const tall = Math.max(wide >= 28 ? 26 : 20, ...rows.map((lines) => 14 * lines.length + 4));
  const bottom = TOP + tall * figure.rows.length;
  const names = namesFor(figure.columns, wide);
  const xLabel = wrap(axisTitle(figure.x), (width - left) / LETTER, 2);
  const middle = left + (wide * figure.columns.length) / 2;
  const hasEmpty = marks.length < figure.rows.length * figure.columns.length;
  return (
    <>
      <div ref={ref} class="plot">
        <svg class="chart heat" width={width} height={bottom + 26 + names.room + LINE * xLabel.length} role="group" aria-label={describeFigure(figure)}>
          <g aria-hidden="true">
            {rows.map((lines, row) => lines.map((line, number) => <text key={`${row} ${number}`} class="value" x={left - 7} y={TOP + tall * (row + 0.5) + 14 * (number - (lines.length - 1) / 2)} dy="0.32em" text-anchor="end">{line}</text>))}
            <NamesBelow names={figure.columns} layout={names} x={(at) => left + wide * (at + 0.5)} y={bottom} />
            {xLabel.map((line, at) => <text key={at} class="title" x={middle} y={bottom + 24 + names.room + LINE * at + 8} text-anchor="middle">{line}</text>)}
            <text class="title" transform={`translate(11 ${(TOP + bottom) / 2}) rotate(-90)`} text-anchor="middle">{wrap(axisTitle(figure.y), (bottom - TOP + 30) / LETTER, 1)[0]}</text>
            {figure.values.map((values, row) => values.map((value, at) => value === null && <rect key={`${row} ${at}`} class="cell-empty" x={left + wide * at + 1.5} y={TOP + tall * row + 1.5} width={Math.max(1, wide - 3)} height={tall - 3} />))}
          </g>
          {marks.map(({ series: row, at }, place) => {
            const value = figure.values[row]![at]!;
            const colour = colours.of(clamp(figure.value, value))!;
            const [x, y] = [left + wide * at, TOP + tall * row];
            const isMarked = figure.marks[row]?.[at];
            return (
              <g key={place} {...drawn.of(place)} class="heat-cell">
                <rect x={x + 0.5} y={y + 0.5} width={Math.max(1, wide - 1)} height={tall - 1} fill={css(colour)} />
                {wide >= WIDE && <text x={x + wide / 2} y={y + tall / 2} dy="0.34em" text-anchor="middle" style={{ fill: ink(colour) }}>{figure.value.is_share ? axisNumber(figure.value, Number(value.toPrecision(2))) : num(value, 2)}</text>}
                {isMarked && <circle cx={wide >= WIDE ? x + wide - 6 : x + wide / 2} cy={wide >= WIDE ? y + 6 : y + tall / 2} r="2.6" fill={ink(colour)} />}
              </g>
            );
          })}
        </svg>
      </div>
      <div class="legend">
        <span><bdi dir="auto">{title}</bdi></span>
        <ColourBar field={field} paint={colours} dark={dark.value} byQuantile={false} />
        {(figure.marks.length > 0 || hasEmpty) && (
          <Key label="Marks">
            {figure.marks.length > 0 && <KeyEntry text={figure.mark_label}><span class="dot" /></KeyEntry>}
            {hasEmpty && <KeyEntry text={figure.missing_label}><svg width="16" height="14" aria-hidden="true"><rect class="cell-empty" x="1" y="1" width="14" height="12" /></svg></KeyEntry>}
          </Key>
        )}
      </div>
      {drawn.readout}
    </>
  );
}
