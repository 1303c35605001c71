/** Roles and dependency relations: what was found, and honestly what was not. */
import type { JSX } from "preact";
import type { Roles } from "../contract";
import { interval, num, offset, percent, plural, pValue, signed, whole } from "../format";
import type { Cell } from "../page";
import { Bias, falseText, testText } from "../parts/bias";
import { HeadLink, Missing, Section } from "../parts/basics";
import { Table, type Column } from "../parts/table";
import { colour, go, heads, roleFilter, run } from "../state";

export function RolesView(): JSX.Element {
  const { roles } = run.value;
  if (!roles) return <Missing what="The roles of heads were not tested in this run." makes="roles" />;
  return (
    <>
      <RoleTable roles={roles} />
      <Relations roles={roles} />
      {roles.skipped.length > 0 && (
        <details>
          <summary>{plural(roles.skipped.length, "sentence")} could not be used</summary>
          <ul>{roles.skipped.map((why, at) => <li key={at}><bdi dir="auto">{why}</bdi></li>)}</ul>
        </details>
      )}
    </>
  );
}

interface Strongest {
  head: number;
  at: number;
}

/** The head with the most bias towards a role, of those that have it if any has. */
function strongestOf(roles: Roles, role: number): Strongest | null {
  let best: Strongest | null = null;
  const any = roles.labels.some((labels) => labels.includes(role));
  roles.rows.role.forEach((of, at) => {
    const bias = roles.rows.bias[at];
    if (of !== role || (any && !roles.labels[roles.rows.head[at]!]?.includes(role))) return;
    if (typeof bias === "number" && (best === null || bias > roles.rows.bias[best.at]!)) best = { head: roles.rows.head[at]!, at };
  });
  return best;
}

function show(role: string): void {
  roleFilter.value = role;
  colour.value = `role:${role}`;
  go("overview");
}

/** The column of a role's number. */
const ROLE = 12;
const BEST = "the most accurate head on one half of the sentences, with its accuracy on the other half";

function RoleTable({ roles }: { roles: Roles }): JSX.Element {
  const labelled = heads.value.labels.filter((labels) => labels.length > 0).length;
  const rows = roles.names.map((name, role): Cell[] => {
    const strongest = strongestOf(roles, role);
    const best = roles.best?.find((one) => one.role === role);
    const { rows: all } = roles;
    const count = heads.value.labels.filter((labels) => labels.includes(role)).length;
    const of = (values: (number | null)[]): number | null => (strongest ? (values[strongest.at] ?? null) : null);
    const twin = (values: (number | null)[] | undefined): number | null => (values ? of(values) : null);
    const twins: Cell[] = [twin(all.twin_bias), twin(all.explained), twin(all.excess), twin(all.excess_low), twin(all.excess_high)];
    return [name, count, strongest?.head ?? null, of(all.bias), of(all.low), of(all.high), ...twins, of(all.q), role, best?.head ?? null, best?.accuracy ?? null, best?.accuracy_low ?? null, best?.accuracy_high ?? null];
  });
  const columns: Column[] = [
    { name: "role", show: (value, row) => <span title={roles.about[Number(row[ROLE])]}><span class="letter">{heads.value.codes[Number(row[ROLE])]}</span> <b>{value}</b></span> },
    { name: "heads", show: (value, row) => (value ? <button type="button" class="quiet" onClick={() => show(String(row[0]))}>{value} on the map</button> : <span class="note">none</span>) },
    { name: "strongest head", about: "the head of the largest bias, over all sentences", show: (value) => (typeof value === "number" ? <HeadLink head={value} /> : "–") },
    { name: "bias", about: roles.tau === undefined ? "1 is chance" : `1 is chance, ${roles.tau} is what the test asks for`, show: (value, row) => <span class="share"><Bias value={value as number | null} low={row[4] as number | null} high={row[5] as number | null} most={most} tau={roles.tau} /><span class="number">{num(value as number | null)}</span></span> },
    { name: "low", show: (value) => <span class="number">{num(value as number | null)}</span> },
    { name: "high", show: (value) => <span class="number">{num(value as number | null)}</span> },
    { name: "twin's bias", about: "the bias of the strongest head's distance twin, which attends by distance alone", show: (value) => <span class="number">{num(value as number | null)}</span> },
    { name: "by distance", about: "the share of the bias above chance that the twin has too", show: (value) => <span class="number">{percent(value as number | null)}</span> },
    { name: "excess mass", about: "how much more of its attention the head has there than its twin", show: (value) => <span class="number">{num(value as number | null, 3)}</span> },
    { name: "excess from", show: (value) => <span class="number">{num(value as number | null, 3)}</span> },
    { name: "excess to", show: (value) => <span class="number">{num(value as number | null, 3)}</span> },
    { name: "q", show: (value) => <span class="number">{pValue(value as number | null)}</span> },
    { name: "heads with it", show: (value) => <Holders role={Number(value)} /> },
    { name: "best head", about: BEST, show: (value) => (typeof value === "number" ? <HeadLink head={value} /> : "–") },
    { name: "its accuracy", about: BEST, show: (value, row) => (typeof value === "number" ? <span class="number">{percent(value)} <small>{interval(row[ROLE + 3] as number | null, row[ROLE + 4] as number | null, percent)}</small></span> : "–") },
  ];
  const most = Math.max(2, 1.2 * (roles.tau ?? 0), ...rows.map((row) => Number(row[5] ?? 0)));
  return (
    <Section title="Roles" note={`${whole(labelled)} of ${plural(run.value.heads.length, "head")} have a role, over ${roles.n_sentences === null ? "an unknown number of" : whole(roles.n_sentences)} sentences and ${plural(roles.names.length, "role")} tested. Bias is attention against chance, which is 1, the dashed line.${testText(roles)} q is corrected over heads and roles.${falseText(roles)} The best head is ${roles.best ? BEST : "not known: this run was made before it was chosen on half of the sentences; measure the roles again"}.`}>
      <Table name="Roles" columns={columns} rows={rows} start={[1, true]} />
    </Section>
  );
}

const HOLDERS = 10;

function Holders({ role }: { role: number }): JSX.Element {
  const all = heads.value.labels.flatMap((labels, head) => (labels.includes(role) ? [head] : []));
  if (!all.length) return <>–</>;
  return <>{all.slice(0, HOLDERS).map((head) => <HeadLink key={head} head={head} />)}{all.length > HOLDERS && <span class="note">and {all.length - HOLDERS} more</span>}</>;
}

function Relations({ roles }: { roles: Roles }): JSX.Element {
  const { relations } = roles;
  if (roles.best === null && roles.names.some((name) => name.startsWith("syntax:"))) {
    return <Section title="Dependency relations"><Missing what="Best heads of this run were chosen and measured on the same sentences, which flatters them, so they are not shown." makes="roles" /></Section>;
  }
  if (!relations.length) {
    return <Section title="Dependency relations"><Missing what="No dependency relation was tested: the text has no dependencies." makes="trees" /></Section>;
  }
  const hold = relations.filter((relation) => relation.holds).length;
  const rows = relations.map((relation): Cell[] => [
    roles.names[relation.role] ?? "", relation.holds ? relation.head : null, relation.accuracy, relation.baseline, relation.baseline_offset, relation.difference, relation.low, relation.high, relation.q, relation.n, relation.holds,
  ]);
  const number = (value: Cell): JSX.Element => <span class="number">{num(value as number | null)}</span>;
  const columns: Column[] = [
    { name: "relation", show: (value) => <b>{value}</b> },
    { name: "best head", show: (value, row) => (typeof value === "number" ? <HeadLink head={value} /> : <span class="honest">no head beats {offset(row[4] as number | null)} for {row[0]}</span>) },
    { name: "accuracy", show: (value) => <span class="number">{percent(value as number | null)}</span> },
    { name: "best fixed offset", show: (value, row) => <span class="number">{percent(value as number | null)} <small>{offset(row[4] as number | null)}</small></span> },
    { name: "offset", show: (value) => <span class="number">{signed(value as number | null)}</span> },
    { name: "difference", show: (value, row) => <Difference value={value as number | null} low={row[6] as number | null} high={row[7] as number | null} /> },
    { name: "low", show: number },
    { name: "high", show: number },
    { name: "q", show: (value) => <span class="number">{pValue(value as number | null)}</span> },
    { name: "n" },
  ];
  return (
    <Section title="Dependency relations" note={`For ${hold} of ${plural(relations.length, "relation")} a head finds the other word better than always looking a fixed number of words away. Head and offset are chosen on one half of the sentences; the numbers are those of the other half.`}>
      <Table name="Relations" columns={columns} rows={rows} />
    </Section>
  );
}

/** A difference with its interval around zero, in points. */
function Difference({ value, low, high }: { value: number | null; low: number | null; high: number | null }): JSX.Element {
  const x = (one: number): number => 45 + Math.max(-0.6, Math.min(0.6, one)) * 70;
  return (
    <span class="share">
      <svg width="90" height="14" class="bias" aria-hidden="true">
        <line class="chance" x1={x(0)} x2={x(0)} y1="0" y2="14" />
        {low !== null && high !== null && <line class="whisker" x1={x(low)} x2={x(high)} y1="7" y2="7" />}
        {value !== null && <circle cx={x(value)} cy="7" r="3.5" />}
      </svg>
      <span class="number" title={interval(low, high, signed)}>{signed(value)}</span>
    </span>
  );
}
