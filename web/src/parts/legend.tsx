/** What the colours and marks of a map mean. */
import type { JSX } from "preact";
import { CATEGORIES, category, css, diverging, ink, sequential, type Paint } from "../colour";
import type { Maybe } from "../contract";
import type { Field } from "../fields";
import { num, signed } from "../format";
import type { Heads } from "../heads";
import { tolerance } from "../verdicts";

const STEPS = 32;

/** The value that half of the heads are below. */
function median(values: Maybe[]): Maybe {
  const known = values.filter((value): value is number => value !== null && Number.isFinite(value)).sort((a, b) => a - b);
  return known.length ? (known[(known.length - 1) >> 1]! + known[known.length >> 1]!) / 2 : null;
}

export function ColourBar({ field, paint, dark, byQuantile }: { field: Field; paint: Paint; dark: boolean; byQuantile: boolean }): JSX.Element {
  const [low, high] = paint.domain;
  const middle = field.scale === "diverging";
  const ends = [middle ? signed(low) : num(low), middle ? signed(high) : num(high)];
  const scale = byQuantile && !middle ? `by quantile: half of the heads are below ${num(median(field.values))}` : "";
  return (
    <div class="colour-bar" role="img" aria-label={`Colours of ${field.label} from ${ends[0]} to ${ends[1]}${middle ? ", grey is 0" : ""}${scale && `, ${scale}`}`}>
      <span>{ends[0]}</span>
      <svg width="160" height="12" viewBox={`0 0 ${STEPS} 1`} preserveAspectRatio="none" aria-hidden="true">
        {Array.from({ length: STEPS }, (_, at) => {
          const share = at / (STEPS - 1);
          const colour = middle ? diverging(2 * share - 1, dark) : sequential(share, dark);
          return <rect key={at} x={at} y={0} width={1.05} height={1} fill={css(colour)} />;
        })}
      </svg>
      <span>{ends[1]}</span>
      {scale && <span>{scale}</span>}
    </div>
  );
}

/** Letters of the roles that heads of this run have, with how many have each. */
export function RoleKey({ heads, dark, coloured, onPick, picked }: {
  heads: Heads;
  dark: boolean;
  coloured: boolean;
  onPick?: (role: string) => void;
  picked?: string;
}): JSX.Element | null {
  const { roles } = heads.run;
  if (!roles) return null;
  const counts = roles.names.map((_, role) => heads.labels.filter((labels) => labels.includes(role)).length);
  const found = roles.names.map((name, role) => ({ name, role, count: counts[role]! })).filter(({ count }) => count > 0);
  return (
    <>
      {found.length > 0 && <p class="note role-note">A letter on the map is the strongest role of its head; pointing at a head tells the others. Numbers count all heads that have a role.{coloured && found.length > CATEGORIES ? " There are more roles than colours: letters tell them apart." : ""}</p>}
      <ul class="role-key" aria-label="Roles found, with how many heads have each">
        {found.map(({ name, role, count }) => {
          const colour = category(heads.shades[role]!, dark);
          const inside = (
            <>
              <span class="letter" style={coloured ? { background: css(colour), color: ink(colour) } : {}}>{heads.codes[role]}</span>
              <span>{name}</span> <span class="note">{count}</span>
            </>
          );
          return (
            <li key={role}>
              {onPick ? <button type="button" aria-pressed={picked === name} onClick={() => onPick(picked === name ? "" : name)}>{inside}</button> : inside}
            </li>
          );
        })}
      </ul>
    </>
  );
}

export function Marks({ heads, significant, removed, guess, empty }: { heads: Heads; significant: boolean; removed: boolean; guess: string; empty: string }): JSX.Element {
  return (
    <ul class="marks" aria-label="Marks">
      {significant && <li><span class="sample"><span class="dot" /></span>significant after correction</li>}
      {removed && <li><span class={`sample removed ${guess ? "guess" : ""}`} /><span>{guess ? <>may go at this K: {guess}</> : "goes at this K"}</span></li>}
      {heads.run.verdicts?.safe.includes(true) && <li><span class="sample"><span class="alone" data-mark="✓" /></span>removed alone, costs at most {tolerance(heads.run.verdicts)} on average (95 %, corrected over heads)</li>}
      <li><span class="sample selected" />selected</li>
      {heads.run.roles && <li><span class="sample"><span class="letter">a</span></span>role</li>}
      {empty && <li><span class="sample unknown" />{empty}</li>}
      {heads.hasGroups && <li><span class="sample kv kv-start kv-end" />KV group</li>}
    </ul>
  );
}
