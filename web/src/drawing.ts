/** What the figures of studies say: ranges, texts of axes and marks, and lines of text that fit. */
import type { BarFigure, FigureAxis, HeatMapFigure, HistogramFigure, LineFigure, Maybe, ScatterFigure, StudyColumn, StudyFigure } from "./contract";
import { NONE, num, percent, plural, signed, whole } from "./format";

/** Pixels of a letter of a chart, about. */
export const LETTER = 7.2;

export const axisTitle = (axis: FigureAxis): string => (axis.unit ? `${axis.label} (${axis.unit})` : axis.label);

/** A number of an axis: its name if it bears one, a percentage if it is a share. */
export function axisNumber(axis: FigureAxis, value: Maybe | undefined): string {
  if (value === null || value === undefined) return NONE;
  const name = axis.ticks.find(([tick]) => tick === value)?.[1];
  return name ?? (axis.is_share ? `${num(Number((100 * value).toPrecision(4)), 4)} %` : num(value, 4));
}

/** A number in the format of its column. */
export function columnNumber(column: StudyColumn, value: number): string {
  const [, sign = "", digits, kind = ""] = /^(\+?)(?:\.(\d+))?([dfg%]?)$/.exec(column.format) ?? [];
  const show: Record<string, () => string> = {
    "%": () => percent(value, Number(digits ?? 6)).replace(" ", "\u00a0"),
    f: () => value.toFixed(Number(digits ?? 6)).replace("-", "−"),
    g: () => (sign ? signed : num)(value, Number(digits ?? 6) || 1),
    d: () => whole(value),
    "": () => (Number.isInteger(value) ? whole(value) : num(value, 4)),
  };
  const text = (show[kind] ?? show[""]!)();
  return sign && value > 0 && !text.startsWith("+") ? `+${text}` : text;
}

/** A value, or the limit of its axis that it goes beyond. */
export const clamp = ({ limits: [low, high] }: FigureAxis, value: number): number => (low === undefined || high === undefined ? value : Math.min(high, Math.max(low, value)));

/** A text in lines of at most so many letters, at most `most` of them; a word that is longer than a line is broken, after a semicolon if it has one. */
export function wrap(text: string, letters: number, most = 4): string[] {
  const [size, lines] = [Math.max(4, Math.floor(letters)), [""]];
  for (const word of text.slice(0, size * most + 1).split(/\s+/).filter(Boolean)) {
    const last = lines.at(-1)!;
    if (last && last.length + 1 + word.length <= size) lines[lines.length - 1] = `${last} ${word}`;
    else {
      const parts = word.match(new RegExp(`.{0,${size - 1}};|.{1,${size}}`, "gsu")) ?? [];
      lines.splice(last ? lines.length : lines.length - 1, last ? 0 : 1, ...parts);
    }
  }
  return lines.length > most ? [...lines.slice(0, most - 1), cut(lines.slice(most - 1).join(" "), size)] : lines;
}

export const cut = (text: string, letters: number): string => (text.length > letters ? `${text.slice(0, Math.max(1, Math.floor(letters) - 1))}…` : text);

const known = (values: (Maybe | undefined)[]): number[] => values.filter((value): value is number => typeof value === "number" && Number.isFinite(value));

/** From the least to the most of the values; a little around it where all are one. */
export function span(values: (Maybe | undefined)[], withZero = false): [number, number] {
  const all = [...known(values), ...(withZero ? [0] : [])];
  const [low, high] = [Math.min(...all), Math.max(...all)];
  if (!all.length) return [0, 1];
  return low < high ? [low, high] : [low - (Math.abs(low) / 10 || 0.5), high + (Math.abs(high) / 10 || 0.5)];
}

/** One thing that is drawn: where its series and its place in the series are, and what it is in words. */
export interface Mark {
  series: number;
  at: number;
  text: string;
}

const interval = (axis: FigureAxis, low: Maybe | undefined, high: Maybe | undefined): string =>
  typeof low === "number" && typeof high === "number" ? ` (${axisNumber(axis, low)} … ${axisNumber(axis, high)})` : "";

export const lineMarks = (figure: LineFigure): Mark[] =>
  figure.lines.flatMap((line, series) =>
    line.y.flatMap((y, at) => (y === null ? [] : [{ series, at, text: `${line.label}: ${figure.x.label} ${axisNumber(figure.x, line.x[at])}, ${figure.y.label} ${axisNumber(figure.y, y)}${interval(figure.y, line.low[at], line.high[at])}` }])),
  );

export const barMarks = (figure: BarFigure): Mark[] =>
  figure.categories.flatMap((category, at) =>
    figure.bars.flatMap(({ label, values, low, high }, series) => {
      const value = values[at];
      if (value === null || value === undefined) return [];
      return [{ series, at, text: `${figure.bars.length > 1 ? `${category}, ${label}` : category}: ${figure.y.label} ${axisNumber(figure.y, value)}${interval(figure.y, low[at], high[at])}` }];
    }),
  );

/** Here the series are rows. */
export const cellMarks = (figure: HeatMapFigure): Mark[] =>
  figure.values.flatMap((values, series) =>
    values.flatMap((value, at) => (value === null ? [] : [{ series, at, text: `${figure.rows[series]}, ${figure.columns[at]}: ${figure.value.label} ${axisNumber(figure.value, value)}${figure.marks[series]?.[at] ? `, ${figure.mark_label}` : ""}` }])),
  );

export const pointMarks = (figure: ScatterFigure): Mark[] =>
  figure.groups.flatMap((group, series) =>
    group.x.map((x, at) => ({ series, at, text: `${[group.names[at], figure.groups.length > 1 ? group.label : ""].filter(Boolean).join(", ") || group.label}: ${figure.x.label} ${axisNumber(figure.x, x)}, ${figure.y.label} ${axisNumber(figure.y, group.y[at])}` })),
  );

export const binMarks = (figure: HistogramFigure): Mark[] =>
  figure.groups.flatMap((group, series) =>
    group.counts.map((count, at) => ({ series, at, text: `${figure.groups.length > 1 ? `${group.label}: ` : ""}${axisNumber(figure.x, figure.edges[at])} to ${axisNumber(figure.x, figure.edges[at + 1])}: ${figure.y.label} ${axisNumber(figure.y, count)}` })),
  );

/** What a figure is, for those who do not see it. */
export function describeFigure(figure: StudyFigure): string {
  const axes = `${axisTitle(figure.y)} by ${axisTitle(figure.x)}`;
  const range = (axis: FigureAxis, values: Maybe[]): string => (known(values).length ? ` from ${axisNumber(axis, Math.min(...known(values)))} to ${axisNumber(axis, Math.max(...known(values)))}` : "");
  if (figure.kind === "lines") return `${plural(figure.lines.length, "line")}: ${axes},${range(figure.y, figure.lines.flatMap((line) => line.y))}`;
  if (figure.kind === "bars") return `${plural(barMarks(figure).length, "bar")}: ${axes},${range(figure.y, figure.bars.flatMap((series) => series.values))}`;
  if (figure.kind === "heat map") return `Heat map of ${plural(figure.rows.length, "row")} and ${plural(figure.columns.length, "column")}: ${axisTitle(figure.value)},${range(figure.value, figure.values.flat())}`;
  if (figure.kind === "scatter") return `${plural(pointMarks(figure).length, "point")}: ${axes}`;
  return `Histogram of ${plural(figure.edges.length - 1, "bin")}: ${axes}`;
}

/** What the numbers rest on and what is drawn around them. */
export function captionOf(figure: StudyFigure): string {
  const series: { low: Maybe[] }[] = figure.kind === "lines" ? figure.lines : figure.kind === "bars" ? figure.bars : [];
  const hasIntervals = known(series.flatMap((one) => one.low)).length > 0;
  const around = figure.kind === "lines" ? "Bands and whiskers are intervals." : "Whiskers are intervals.";
  return [figure.n === null ? "" : `n = ${whole(figure.n)} ${figure.n_unit}.`, figure.kind === "scatter" ? "" : figure.note, hasIntervals ? around : "", figure.kind === "lines" && figure.lines.some((line) => line.is_control) ? "Grey is a control." : ""].filter(Boolean).join(" ");
}
