/** A map of heads: layers × heads of one kind of attention, moved through by keys. */
import type { JSX } from "preact";
import { useRef, useState } from "preact/hooks";
import { css, ink, type Paint } from "../colour";
import type { Block, HeadNumber } from "../contract";
import type { Field } from "../fields";
import { cellLabel, order, roleNames, type Heads } from "../heads";
import { go, toggle } from "../state";
import { Scroll } from "./basics";

export interface GridProps {
  heads: Heads;
  blocks: Block[];
  name: string;
  field: Field;
  paint: Paint;
  removed: ReadonlySet<HeadNumber>;
  /** What goes is a guess. */
  guess?: boolean;
  /** Without marks of roles and verdicts: those of two runs differ. */
  roleless?: boolean;
  selected: ReadonlySet<HeadNumber>;
  sorted: boolean;
  /** Heads that the filters leave; the others are faded. */
  shown: (head: HeadNumber) => boolean;
  onLook?: (head: HeadNumber | null) => void;
}

/** The heads of a row from left to right. */
export function rowOrder(block: Block, field: Field, sorted: boolean): HeadNumber[] {
  if (!sorted) return block.heads;
  const values = block.heads.map((head) => field.values[head] ?? null);
  return order(values, true).map((at) => block.heads[at]!);
}

type Move = (row: number, column: number, last: { row: number; column: number }) => [number, number];

const MOVES: Record<string, Move> = {
  ArrowRight: (row, column) => [row, column + 1],
  ArrowLeft: (row, column) => [row, column - 1],
  ArrowDown: (row, column) => [row + 1, column],
  ArrowUp: (row, column) => [row - 1, column],
  Home: (row) => [row, 0],
  End: (row, _, last) => [row, last.column],
  PageUp: (_, column) => [0, column],
  PageDown: (_, column, last) => [last.row, column],
};

/** Where the line of a KV group begins and ends in a row. */
function groupEdge(heads: Heads, row: HeadNumber[], at: number): string {
  const group = (place: number): number | null | undefined => (row[place] === undefined ? undefined : heads.places[row[place]]?.group);
  if (group(at) === null || group(at) === undefined) return "";
  return ` kv${group(at - 1) === group(at) ? "" : " kv-start"}${group(at + 1) === group(at) ? "" : " kv-end"}`;
}

export function Grid(props: GridProps): JSX.Element {
  const { heads, blocks, field, name } = props;
  const rows = blocks.map((block) => rowOrder(block, field, props.sorted));
  const widest = Math.max(0, ...rows.map((row) => row.length));
  const [[wantedRow, wantedColumn], setAt] = useState<[number, number]>([0, 0]);
  const box = useRef<HTMLDivElement>(null);
  const row = Math.min(wantedRow, rows.length - 1);
  const column = Math.min(wantedColumn, (rows[row]?.length ?? 1) - 1);

  const onKeyDown = (event: KeyboardEvent): void => {
    const index = rows[row]?.[column];
    if (index === undefined || event.altKey || event.metaKey) return;
    if (event.key === "Enter") go("head", index);
    else if (event.key === " ") toggle(index);
    else if (MOVES[event.key]) {
      const last = { row: rows.length - 1, column: (rows[row]?.length ?? 1) - 1 };
      const whole = event.ctrlKey && (event.key === "Home" || event.key === "End");
      const [toRow, toColumn] = whole ? (event.key === "Home" ? [0, 0] : [last.row, Infinity]) : MOVES[event.key]!(row, column, last);
      const nextRow = Math.max(0, Math.min(last.row, toRow));
      const nextColumn = Math.max(0, Math.min((rows[nextRow]?.length ?? 1) - 1, toColumn));
      setAt([nextRow, nextColumn]);
      box.current?.querySelector<HTMLElement>(`[data-at="${nextRow} ${nextColumn}"]`)?.focus();
    } else return;
    event.preventDefault();
  };

  const size = widest > 24 ? "small" : widest > 16 ? "middle" : widest <= 8 ? "large" : "";
  return (
    <Scroll class="grid-scroll">
      <div class={`grid ${size}`} role="grid" aria-label={name} aria-multiselectable="true" aria-colcount={widest + 1} aria-rowcount={rows.length + 1} ref={box} onKeyDown={onKeyDown} onPointerLeave={() => props.onLook?.(null)}>
        <div role="row" class="grid-row grid-top">
          <span role="columnheader" class="grid-side">layer</span>
          {Array.from({ length: widest }, (_, at) => (
            <span key={at} role="columnheader" class="grid-number">{props.sorted ? `#${at + 1}` : at}</span>
          ))}
        </div>
        {rows.map((cells, y) => (
          <div key={y} role="row" class="grid-row">
            <span role="rowheader" class="grid-side">{blocks[y]!.layer}</span>
            {cells.map((index, x) => (
              <Cell key={index} props={props} index={index} at={[y, x]} stop={y === row && x === column} edge={groupEdge(heads, cells, x)} onStop={() => setAt([y, x])} />
            ))}
          </div>
        ))}
      </div>
    </Scroll>
  );
}

interface CellProps {
  props: GridProps;
  index: HeadNumber;
  at: [number, number];
  stop: boolean;
  edge: string;
  onStop: () => void;
}

function Cell({ props, index, at, stop, edge, onStop }: CellProps): JSX.Element {
  const { heads, field, paint } = props;
  const value = field.values[index] ?? null;
  const colour = paint.of(value);
  const [removed, selected] = [props.removed.has(index), props.selected.has(index)];
  const label = props.roleless ? undefined : heads.labels[index]?.[0];
  const guess = props.guess ?? false;
  const spokenValue = field.scale === "category" ? null : value;
  const said = field.scale === "category"
    ? cellLabel(heads, index, { label: "role label", value: null, removed, guess, selected }).replace("role label not measured, ", "")
    : cellLabel(heads, index, { label: field.label, value: spokenValue, low: field.low?.[index], high: field.high?.[index], removed, guess, selected, roleless: props.roleless });
  const marks = [removed && (guess ? "removed guess" : "removed"), props.sorted && "numbered", selected && "selected", !props.shown(index) && "faded", colour === null && "unknown"].filter(Boolean).join(" ");
  return (
    <div
      role="gridcell"
      class={`cell ${marks}${edge}`}
      tabIndex={stop ? 0 : -1}
      data-at={`${at[0]} ${at[1]}`}
      data-head={heads.run.heads[index]}
      aria-label={said}
      aria-selected={selected}
      style={colour ? { background: css(colour), color: ink(colour) } : { background: "", color: "" }}
      onFocus={() => (onStop(), props.onLook?.(index))}
      onPointerEnter={() => props.onLook?.(index)}
      onClick={(event) => (event.ctrlKey || event.metaKey || event.shiftKey ? toggle(index) : go("head", index))}
    >
      {field.significant?.[index] && <span class="dot" />}
      {!props.roleless && heads.run.verdicts?.safe[index] && <span class="alone" data-mark="✓" />}
      {props.sorted && <span class="cell-number" data-mark={heads.places[index]?.head} />}
      {label !== undefined && <span class="letter" title={roleNames(heads, index)} data-mark={heads.codes[label]} />}
    </div>
  );
}
