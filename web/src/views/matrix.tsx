/** Attention as a matrix on a canvas: zoom, a small map of the whole, and a cursor for keys. */
import type { JSX } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { css, weight, type Rgb } from "../colour";
import { named, quotedName, type Matrix, type Named, type Unit } from "../decode";
import { percent, weightText } from "../format";
import { useWidth, visible } from "../parts/basics";
import { clamp } from "../state";

export interface MatrixProps {
  matrix: Matrix;
  queries: Unit[];
  keys: Unit[];
  names: readonly [queries: Named[], keys: Named[]];
  /** By row the share of attention on tokens that are not shown; null where all are. */
  hidden: number[] | null;
  causal: boolean;
  threshold: number;
  dark: boolean;
  pinned: number | null;
  onPin: (row: number | null) => void;
  label: string;
}

/** The part that is seen: first row and column, and how many. */
interface Window {
  row: number;
  column: number;
  rows: number;
  columns: number;
}

const MARGIN = 96;
const SMALL = 104;

/** At most so many cells a side, each the largest of those it stands for: a thin line of strong weights stays. */
export function shrink(matrix: Matrix, most: number): Matrix {
  const step = Math.ceil(Math.max(matrix.rows, matrix.columns) / most);
  if (step <= 1) return matrix;
  const [rows, columns] = [Math.ceil(matrix.rows / step), Math.ceil(matrix.columns / step)];
  const weights = new Float32Array(rows * columns);
  matrix.weights.forEach((value, at) => {
    const place = Math.floor(Math.floor(at / matrix.columns) / step) * columns + Math.floor((at % matrix.columns) / step);
    if (value > weights[place]!) weights[place] = value;
  });
  return { rows, columns, weights };
}

/** Colours go by the square root of the weight, so that the many small ones can be told apart. */
function picture({ matrix, threshold, dark, causal }: Pick<MatrixProps, "matrix" | "threshold" | "dark" | "causal">): HTMLCanvasElement {
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [matrix.columns, matrix.rows];
  const context = canvas.getContext("2d")!;
  const image = context.createImageData(matrix.columns || 1, matrix.rows || 1);
  const palette: Rgb[] = Array.from({ length: 256 }, (_, at) => weight(at / 255, dark));
  const masked: Rgb = dark ? [44, 50, 58] : [222, 225, 229];
  for (let row = 0; row < matrix.rows; row += 1) {
    for (let column = 0; column < matrix.columns; column += 1) {
      const value = matrix.weights[row * matrix.columns + column]!;
      const colour = causal && column > row ? masked : palette[value < threshold ? 0 : Math.round(Math.sqrt(Math.min(1, value)) * 255)]!;
      image.data.set([...colour, 255], 4 * (row * matrix.columns + column));
    }
  }
  context.putImageData(image, 0, 0);
  return canvas;
}

/** A window of another size around a cell, inside the matrix. */
export function zoomed(matrix: { rows: number; columns: number }, from: Window, factor: number, row: number, column: number): Window {
  const rows = clamp(from.rows * factor, Math.min(8, matrix.rows), matrix.rows);
  const columns = clamp(from.columns * factor, Math.min(8, matrix.columns), matrix.columns);
  return { rows, columns, row: clamp(row - rows / 2, 0, matrix.rows - rows), column: clamp(column - columns / 2, 0, matrix.columns - columns) };
}

function within(matrix: Matrix, seen: Window, row: number, column: number): Window {
  const inside = row >= seen.row && row < seen.row + seen.rows && column >= seen.column && column < seen.column + seen.columns;
  return inside ? seen : zoomed(matrix, seen, 1, row, column);
}

export function MatrixView(props: MatrixProps): JSX.Element {
  const { matrix, pinned, onPin } = props;
  const [queries, keys] = props.names;
  const [hint, setHint] = useState("");
  const [ref, width] = useWidth(560);
  const whole = { row: 0, column: 0, rows: matrix.rows, columns: matrix.columns };
  const [wanted, setSeen] = useState<Window>(whole);
  const seen = wanted.row + wanted.rows <= matrix.rows && wanted.column + wanted.columns <= matrix.columns ? wanted : whole;
  const [cursor, setCursor] = useState<[number, number]>([0, 0]);
  const [row, column] = [Math.min(cursor[0], matrix.rows - 1), Math.min(cursor[1], matrix.columns - 1)];
  const canvas = useRef<HTMLCanvasElement>(null);
  const drag = useRef<{ x: number; y: number; from: Window; moved: boolean } | null>(null);
  const source = useMemo(() => picture(props), [matrix, props.threshold, props.dark, props.causal]);
  const small = useMemo(() => picture({ ...props, matrix: shrink(matrix, SMALL) }), [matrix, props.threshold, props.dark, props.causal]);
  const side = Math.min(width, 640);
  const labels = Math.max(seen.rows, seen.columns) <= (side - MARGIN) / 9;
  const edge = labels ? Math.min(MARGIN, side * 0.28) : 8;
  const cell = (side - edge) / Math.max(seen.rows, seen.columns);

  useEffect(() => {
    if (canvas.current) draw(canvas.current, source, { ...props, seen, edge, cell, side, row, column, labels });
  });
  useEffect(() => setSeen(whole), [matrix.rows, matrix.columns]);

  const move = (toRow: number, toColumn: number): void => {
    const next: [number, number] = [clamp(toRow, 0, matrix.rows - 1), clamp(toColumn, 0, matrix.columns - 1)];
    setCursor(next);
    setSeen(within(matrix, seen, ...next));
  };
  const zoom = (factor: number): void => setSeen(zoomed(matrix, seen, factor, row, column));
  const keysDown: Record<string, () => void> = {
    ArrowUp: () => move(row - 1, column),
    ArrowDown: () => move(row + 1, column),
    ArrowLeft: () => move(row, column - 1),
    ArrowRight: () => move(row, column + 1),
    Home: () => move(row, 0),
    End: () => move(row, matrix.columns - 1),
    PageUp: () => move(row - 10, column),
    PageDown: () => move(row + 10, column),
    "+": () => zoom(0.5),
    "=": () => zoom(0.5),
    "-": () => zoom(2),
    Enter: () => onPin(pinned === row ? null : row),
    " ": () => onPin(pinned === row ? null : row),
  };
  const at = (event: PointerEvent): [number, number] => {
    const box = (event.currentTarget as Element).getBoundingClientRect();
    return [seen.row + Math.floor((event.clientY - box.top - edge) / cell), seen.column + Math.floor((event.clientX - box.left - edge) / cell)];
  };
  const onMove = (event: PointerEvent): void => {
    const start = drag.current;
    if (!start) {
      const [r, c] = at(event);
      setHint(c < seen.column ? named(queries[r]) : r < seen.row ? named(keys[c]) : "");
      if (r >= 0 && c >= 0 && r < matrix.rows && c < matrix.columns && r >= seen.row && c >= seen.column) setCursor([r, c]);
      return;
    }
    const [dx, dy] = [Math.round((start.x - event.clientX) / cell), Math.round((start.y - event.clientY) / cell)];
    if (dx || dy) start.moved = true;
    setSeen({ ...start.from, row: clamp(start.from.row + dy, 0, matrix.rows - seen.rows), column: clamp(start.from.column + dx, 0, matrix.columns - seen.columns) });
  };
  const isWhole = seen.rows === matrix.rows && seen.columns === matrix.columns;
  const [from, to] = [quotedName(queries[row]), quotedName(keys[column])];
  const rest = props.hidden ? `; ${percent(props.hidden[row], 0)} of the attention of ${from} goes to hidden tokens` : "";
  const said = `${from} attends to ${to}: ${props.causal && column > row ? "masked, it comes later" : weightText(matrix.weights[row * matrix.columns + column] ?? 0)}${rest}`;
  return (
    <div ref={ref} class="matrix">
      <div class="controls">
        <button type="button" class="button" onClick={() => zoom(0.5)}>Zoom in</button>
        <button type="button" class="button" onClick={() => zoom(2)}>Zoom out</button>
        {!isWhole && <button type="button" class="button" onClick={() => setSeen(whole)}>Whole matrix</button>}
        <span class="note">{isWhole ? `${matrix.rows} × ${matrix.columns}` : `rows ${seen.row + 1}–${seen.row + seen.rows}, columns ${seen.column + 1}–${seen.column + seen.columns}`}</span>
      </div>
      <div class="matrix-body">
        <canvas
          ref={canvas}
          title={hint || undefined}
          tabIndex={0}
          role="application"
          aria-roledescription="attention matrix"
          aria-label={`${props.label}. Arrows move, Enter pins a row, plus and minus zoom.`}
          onKeyDown={(event) => {
            const act = keysDown[event.key];
            if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
            event.preventDefault();
            act();
          }}
          onPointerDown={(event) => {
            drag.current = { x: event.clientX, y: event.clientY, from: seen, moved: false };
          }}
          onPointerMove={onMove}
          onPointerUp={(event) => {
            const [r] = at(event);
            if (!drag.current?.moved && r >= 0 && r < matrix.rows) onPin(pinned === r ? null : r);
            drag.current = null;
          }}
          onPointerLeave={() => {
            drag.current = null;
          }}
        />
        <div class="matrix-side">
          <Strongest title={`${quotedName(queries[pinned ?? row])} attends to`} units={keys} weight={(at) => matrix.weights[(pinned ?? row) * matrix.columns + at]!} />
          <Strongest title={`${to} is attended to by`} units={queries} weight={(at) => matrix.weights[at * matrix.columns + column]!} />
        </div>
        {(!isWhole || Math.max(matrix.rows, matrix.columns) > 100) && <Minimap source={small} matrix={matrix} seen={seen} onGo={(r, c) => setSeen(zoomed(matrix, isWhole ? { ...seen, rows: seen.rows / 8, columns: seen.columns / 8 } : seen, 1, r, c))} />}
      </div>
      <p class="readout" aria-live="polite">{said}</p>
      <WeightBar dark={props.dark} causal={props.causal} />
    </div>
  );
}

const STEPS = 40;
const TICKS = [0, 0.05, 0.25, 0.5, 1];

function WeightBar({ dark, causal }: { dark: boolean; causal: boolean }): JSX.Element {
  return (
    <div class="weight-bar">
      <svg width="240" height="30" role="img" aria-label="Colours of weights from 0 to 1, by the square root">
        {Array.from({ length: STEPS }, (_, at) => <rect key={at} x={10 + (at * 220) / STEPS} width={220 / STEPS + 0.6} height="12" fill={css(weight(at / (STEPS - 1), dark))} />)}
        <rect class="frame" x="10" y="0.5" width="220" height="12" />
        {TICKS.map((tick) => <text key={tick} x={10 + 220 * Math.sqrt(tick)} y="26" text-anchor="middle">{tick}</text>)}
      </svg>
      {causal && <span class="masked-sample">masked</span>}
    </div>
  );
}

/** The largest weights of a row or a column, as bars. */
function Strongest({ title, units, weight: of }: { title: string; units: Named[]; weight: (at: number) => number }): JSX.Element {
  const top = units.map((_, at) => at).sort((a, b) => of(b) - of(a)).slice(0, 7);
  return (
    <div class="strongest">
      <h3><bdi dir="auto">{title}</bdi></h3>
      <ol>
        {top.map((at) => (
          <li key={at}>
            <span class="what" title={named(units[at])}><bdi dir="auto">{units[at]!.text}</bdi>{units[at]!.note}</span>
            <svg width="100%" height="10" aria-hidden="true"><rect class="all" width="100%" height="10" /><rect class="left" width={`${100 * Math.min(1, of(at))}%`} height="10" /></svg>
            <span class="number">{weightText(of(at))}</span>
          </li>
        ))}
      </ol>
    </div>
  );
}

interface Drawn extends MatrixProps {
  seen: Window;
  edge: number;
  cell: number;
  side: number;
  row: number;
  column: number;
  labels: boolean;
}

function draw(canvas: HTMLCanvasElement, source: HTMLCanvasElement, at: Drawn): void {
  const { seen, edge, cell } = at;
  const [width, height] = [edge + cell * seen.columns + 2, edge + cell * seen.rows + 2];
  const scale = globalThis.devicePixelRatio || 1;
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  Object.assign(canvas.style, { width: `${width}px`, height: `${height}px` });
  const context = canvas.getContext("2d")!;
  context.scale(scale, scale);
  context.imageSmoothingEnabled = false;
  if (source.width && source.height) context.drawImage(source, seen.column, seen.row, seen.columns, seen.rows, edge, edge, cell * seen.columns, cell * seen.rows);
  const style = getComputedStyle(canvas);
  const [text, accent] = [style.color, style.getPropertyValue("--accent")];
  context.strokeStyle = style.getPropertyValue("--edge");
  context.strokeRect(edge - 0.5, edge - 0.5, cell * seen.columns + 1, cell * seen.rows + 1);
  drawBoundaries(context, at, text);
  if (at.labels) drawLabels(context, at, text);
  context.strokeStyle = accent;
  context.lineWidth = 2;
  if (at.pinned !== null) context.strokeRect(edge, edge + (at.pinned - seen.row) * cell, cell * seen.columns, cell);
  context.strokeStyle = text;
  context.strokeRect(edge + (at.column - seen.column) * cell, edge + (at.row - seen.row) * cell, cell, cell);
}

/** Lines where hidden tokens part two texts. */
function drawBoundaries(context: CanvasRenderingContext2D, { seen, edge, cell, queries, keys }: Drawn, colour: string): void {
  context.save();
  context.strokeStyle = colour;
  context.setLineDash([4, 3]);
  context.beginPath();
  for (let row = 1; row < seen.rows; row += 1) {
    if (!queries[seen.row + row]?.parted) continue;
    context.moveTo(edge, edge + row * cell);
    context.lineTo(edge + seen.columns * cell, edge + row * cell);
  }
  for (let column = 1; column < seen.columns; column += 1) {
    if (!keys[seen.column + column]?.parted) continue;
    context.moveTo(edge + column * cell, edge);
    context.lineTo(edge + column * cell, edge + seen.rows * cell);
  }
  context.stroke();
  context.restore();
}

/** As much of a text as there is room for. */
function cut(context: CanvasRenderingContext2D, text: string, room: number): string {
  if (context.measureText(text).width <= room) return text;
  const letters = [...text];
  while (letters.length > 1 && context.measureText(`${letters.join("")}…`).width > room) letters.pop();
  return `${letters.join("")}…`;
}

function drawLabels(context: CanvasRenderingContext2D, at: Drawn, text: string): void {
  const { seen, edge, cell, queries, keys } = at;
  const label = (unit: Unit | undefined): string => (unit ? cut(context, `${visible(unit.text).slice(0, 40)}${unit.unknown ? " [unknown]" : ""}`, edge - 7) : "");
  context.font = `${Math.max(9, Math.min(13, cell - 2))}px system-ui, sans-serif`;
  context.fillStyle = text;
  context.textBaseline = "middle";
  for (let row = 0; row < seen.rows; row += 1) {
    context.textAlign = "right";
    context.fillText(label(queries[seen.row + row]), edge - 5, edge + (row + 0.5) * cell);
  }
  for (let column = 0; column < seen.columns; column += 1) {
    context.save();
    context.translate(edge + (column + 0.5) * cell, edge - 5);
    context.rotate(-Math.PI / 2);
    context.textAlign = "left";
    context.fillText(label(keys[seen.column + column]), 0, 0);
    context.restore();
  }
}

function Minimap({ source, matrix, seen, onGo }: { source: HTMLCanvasElement; matrix: Matrix; seen: Window; onGo: (row: number, column: number) => void }): JSX.Element {
  const ref = useRef<HTMLCanvasElement>(null);
  const scale = SMALL / Math.max(matrix.rows, matrix.columns);
  const [width, height] = [Math.max(8, matrix.columns * scale), Math.max(8, matrix.rows * scale)];
  useEffect(() => {
    const context = ref.current!.getContext("2d")!;
    context.clearRect(0, 0, width, height);
    context.drawImage(source, 0, 0, width, height);
    context.strokeStyle = getComputedStyle(ref.current!).getPropertyValue("--accent");
    context.lineWidth = 2;
    context.strokeRect(seen.column * scale, seen.row * scale, seen.columns * scale, seen.rows * scale);
  });
  const jump = (event: PointerEvent): void => {
    const box = ref.current!.getBoundingClientRect();
    onGo((event.clientY - box.top) / scale, (event.clientX - box.left) / scale);
  };
  return (
    <div class="minimap">
      <canvas ref={ref} width={Math.round(width)} height={Math.round(height)} style={{ border: `1px solid ${css([128, 128, 128])}` }} role="img" aria-label="The whole matrix; the frame is what is shown" onPointerDown={jump} />
    </div>
  );
}
