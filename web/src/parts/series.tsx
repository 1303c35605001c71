/** How series are told apart: by colour, and by dashes, marks and hatches for those who do not see colours. */
import type { JSX } from "preact";
import { category, css } from "../colour";
import { markOf } from "./shapes";

const DASHES = ["", "7 3", "2 3", "9 3 2 3", "4 2", "12 4", "1 3"];

export interface Stroke {
  stroke: string;
  dash: string;
}

export const strokeOf = (at: number, isControl: boolean, dark: boolean): Stroke =>
  isControl ? { stroke: "var(--muted)", dash: "3 4" } : { stroke: css(category(at, dark)), dash: DASHES[at % DASHES.length]! };

/** A piece of a line as it is drawn, with its mark if it has one. */
export function LineSample({ stroke, dash, mark }: Stroke & { mark?: number | undefined }): JSX.Element {
  return (
    <svg width="34" height="14" aria-hidden="true">
      <line x1="1" x2="33" y1="7" y2="7" stroke={stroke} stroke-width="2" stroke-dasharray={dash} />
      {mark !== undefined && <path d={markOf(mark, 44)} transform="translate(17 7)" fill={stroke} />}
    </svg>
  );
}

/** Lines over the colour of a series: none for the first, then others for every series. */
const HATCHES = ["", "M0 8L8 0M-2 2L2 -2M6 10L10 6", "M4 0V8", "M0 0L8 8M-2 6L2 10M6 -2L10 2", "M0 4H8", "M4 0V8M0 4H8"];

export const hatchOf = (id: string, at: number): string => `url(#${id}-${at})`;

/** The fills of so many series, under names that begin with `id`. */
export function Hatches({ id, count, dark }: { id: string; count: number; dark: boolean }): JSX.Element {
  return (
    <defs>
      {Array.from({ length: count }, (_, at) => (
        <pattern key={at} id={`${id}-${at}`} width="8" height="8" patternUnits="userSpaceOnUse">
          <rect width="8" height="8" fill={css(category(at, dark))} />
          <path d={HATCHES[at % HATCHES.length]} stroke="var(--panel)" stroke-width="1.6" fill="none" />
        </pattern>
      ))}
    </defs>
  );
}
