/** A table that sorts, filters and saves; long ones come in pages. */
import type { ComponentChildren, JSX } from "preact";
import { useId, useMemo, useState } from "preact/hooks";
import { NONE, num, plain, plural, pValue, whole } from "../format";
import { fileName } from "../names";
import { csv, download, type Cell } from "../page";
import { Scroll } from "./basics";

export interface Column {
  name: string;
  /** Draws a cell; numbers are shortened and texts shown as they are without it. */
  show?: (value: Cell, row: Cell[]) => ComponentChildren;
  about?: string;
  /** Saved with the others, but not shown: the ends of intervals that another column shows. */
  hidden?: boolean;
}

const PAGE = 50;

export function sortRows(rows: Cell[][], column: number, down: boolean): Cell[][] {
  const empty = (value: Cell | undefined): boolean => value === null || value === undefined || (typeof value === "number" && Number.isNaN(value));
  const compare = (a: Cell, b: Cell): number => (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true }));
  return [...rows].sort((a, b) => {
    const [x, y] = [a[column] ?? null, b[column] ?? null];
    if (empty(x) || empty(y)) return Number(empty(x)) - Number(empty(y));
    return down ? compare(y, x) : compare(x, y);
  });
}

export function filterRows(rows: Cell[][], words: string): Cell[][] {
  const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
  if (!wanted.length) return rows;
  return rows.filter((row) => {
    const text = row.map((cell) => (cell === null ? "" : String(cell))).join("\u0001").toLowerCase();
    return wanted.every((word) => text.includes(word));
  });
}

export function shown(value: Cell | undefined): string {
  if (value === null || value === undefined) return NONE;
  if (typeof value === "number") return Number.isInteger(value) ? whole(value) : num(value, 4);
  if (typeof value === "boolean") return value ? "yes" : "no";
  return plain(value);
}

interface Props {
  name: string;
  columns: Column[];
  rows: Cell[][];
  /** Small tables need no tools. */
  bare?: boolean;
  start?: [column: number, down: boolean];
  /** Rows of a page. */
  page?: number;
}

export function Table({ name, columns, rows, bare, start, page: size = PAGE }: Props): JSX.Element {
  const [[by, down], setSort] = useState<[number, boolean]>(start ?? [-1, false]);
  const [words, setWords] = useState("");
  const [page, setPage] = useState(0);
  const id = useId();
  const found = useMemo(() => {
    const some = filterRows(rows, words);
    return by < 0 ? some : sortRows(some, by, down);
  }, [rows, words, by, down]);
  const pages = Math.max(1, Math.ceil(found.length / size));
  const at = Math.min(page, pages - 1);
  const visible = bare ? found : found.slice(at * size, (at + 1) * size);
  const names = columns.map((column) => column.name);
  const save = (kind: "csv" | "json"): void =>
    kind === "csv"
      ? download(`${fileName(name)}.csv`, csv(names, found), "text/csv")
      : download(`${fileName(name)}.json`, JSON.stringify({ columns: names, rows: found }, null, 1), "application/json");
  return (
    <div class="table">
      {!bare && (
        <div class="table-tools">
          <label for={id} class="unseen">Filter rows of {name}</label>
          <input id={id} type="search" placeholder="Filter rows" value={words} onInput={(event) => (setWords(event.currentTarget.value), setPage(0))} />
          <span class="note" role="status">{found.length === rows.length ? plural(rows.length, "row") : `${whole(found.length)} of ${plural(rows.length, "row")}`}</span>
          <span class="grow" />
          <button type="button" class="button" onClick={() => save("csv")}>CSV</button>
          <button type="button" class="button" onClick={() => save("json")}>JSON</button>
        </div>
      )}
      <Scroll label={`${name}, table`}>
        <table>
          <caption class="unseen">{name}</caption>
          <thead>
            <tr>
              {columns.map((column, index) => !column.hidden && (
                <th key={index} scope="col" title={column.about} aria-sort={by === index ? (down ? "descending" : "ascending") : undefined}>
                  {bare ? column.name : (
                    <button type="button" onClick={() => setSort([index, by === index ? !down : typeof rows[0]?.[index] === "number"])}>
                      {column.name}
                      <span aria-hidden="true" class="arrow">{by === index ? (down ? " ▾" : " ▴") : ""}</span>
                    </button>
                  )}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {visible.map((row, place) => (
              <tr key={place}>
                {columns.map((column, index) => !column.hidden && (
                  <td key={index} class={typeof row[index] === "number" && !column.show ? "number" : ""}>
                    {column.show ? column.show(row[index] ?? null, row) : <bdi dir="auto">{["p", "q", "loss p"].includes(column.name) ? pValue(row[index] as number | null) : shown(row[index])}</bdi>}
                  </td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </Scroll>
      {!bare && pages > 1 && (
        <div class="pages" role="group" aria-label={`Pages of ${name}`}>
          <button type="button" class="button" aria-disabled={at === 0} onClick={() => setPage(Math.max(0, at - 1))}>Earlier</button>
          <span class="note" role="status">Rows {whole(at * size + 1)}–{whole(Math.min(found.length, (at + 1) * size))}</span>
          <button type="button" class="button" aria-disabled={at === pages - 1} onClick={() => setPage(Math.min(pages - 1, at + 1))}>Later</button>
        </div>
      )}
    </div>
  );
}
