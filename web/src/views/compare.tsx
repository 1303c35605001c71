/** Two runs over the same heads: maps, ranks, roles, outcomes, and what differs in how they were made. */
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { paint } from "../colour";
import type { RunComparison, Maybe } from "../contract";
import { fieldsOf, type Field } from "../fields";
import { capital, interval, num, percent, plural, pValue, signed, whole } from "../format";
import { headsOf, kindName, order, ranks } from "../heads";
import { Check, Choose, HeadLink, Missing, Scroll, Section } from "../parts/basics";
import { Figure } from "../parts/figure";
import { Grid } from "../parts/grid";
import { ColourBar } from "../parts/legend";
import { Scatter } from "../parts/scatter";
import { Table } from "../parts/table";
import { dark, heads, report, run, selected, sorted } from "../state";

export function Compare(): JSX.Element {
  const { runs, comparison } = report.value;
  if (runs.length < 2) return <Missing what="This report has one run; a comparison needs two." makes="comparison" />;
  if (!comparison) return <p class="missing">The two runs do not have the same heads, so they cannot be compared head by head. Choose a run at the top to see each.</p>;
  const isFact = (text: string): boolean => text.startsWith("Both runs are of the same weights");
  const [facts, warnings] = [comparison.warnings.filter(isFact), comparison.warnings.filter((text) => !isFact(text))];
  return (
    <>
      <Section title={runs[0]!.name === runs[1]!.name ? `B against A, both ${runs[0]!.name}` : comparison.title}>
        <p>A is <b><bdi dir="auto">{runs[0]!.name}</bdi></b>, B is <b><bdi dir="auto">{runs[1]!.name}</bdi></b>{runs[0]!.name === runs[1]!.name ? ": two runs of one name" : ""}.</p>
        {facts.map((fact) => <p key={fact} class="note"><bdi dir="auto">{fact}</bdi></p>)}
        {warnings.length > 0 && <ul class="warnings">{warnings.map((warning, at) => <li key={at}><bdi dir="auto">{warning}</bdi></li>)}</ul>}
      </Section>
      {comparison.scores.length ? <Maps comparison={comparison} /> : (
        <>
          <Missing what="The runs share no score." makes="scores" />
          <Details comparison={comparison} />
        </>
      )}
      <ChangedRoles roles={comparison.roles} only={comparison.roles_only} />
    </>
  );
}

function Details({ comparison }: { comparison: RunComparison }): JSX.Element {
  return (
    <div class="stack">
      <Outcomes outcomes={comparison.outcomes} />
      <Differences config={comparison.config} />
    </div>
  );
}

const asField = (label: string, values: Maybe[], base: Field, scale: Field["scale"]): Field => ({ ...base, key: label, label, values, low: null, high: null, significant: null, scale });

function Maps({ comparison }: { comparison: RunComparison }): JSX.Element {
  const { runs } = report.value;
  const [name, setName] = useState("");
  const score = comparison.scores.find((one) => one.name === name) ?? comparison.scores[0]!;
  const [a, b] = runs.map((one) => fieldsOf({ ...report.value, comparison: null }, one).find((field) => field.key === `score:${score.name}`));
  const base = a ?? b;
  const bothHeads = runs.map(headsOf);
  if (!a || !b || !base) return <><p class="missing">The numbers of {score.name} are not in this file for both runs.</p><Details comparison={comparison} /></>;
  const difference = { ...asField(`${score.name}, B − A`, score.difference, base, "diverging"), significant: score.significant };
  const shared = paint(a, dark.value, false, b.values);
  const spread = paint(difference, dark.value, false);
  const top = order(score.difference.map((value) => (value === null ? null : Math.abs(value))), true)[0];
  const some = score.significant?.filter(Boolean).length;
  const cards: [string, Field, typeof shared, number][] = [[`A: ${runs[0]!.name}`, a, shared, 0], [`B: ${runs[1]!.name}`, b, shared, 1], ["B − A", difference, spread, 0]];
  const none: ReadonlySet<number> = new Set();
  return (
    <>
      <Figure
        title={`${capital(score.name)} in both runs`}
        class="wide"
        takeaway={`${top === undefined || typeof score.difference[top] !== "number" ? "No head has both values." : score.difference[top] === 0 ? "No head differs." : `${run.value.heads[top]} changes most (${signed(score.difference[top])}).`} Rank correlation ${num(score.spearman, 2)}${score.low !== null ? ` (${interval(score.low, score.high)})` : ""}.${some === undefined ? "" : ` ${whole(some)} of ${plural(score.difference.length, "head")} differ significantly.`}`}
        controls={<><Choose label="Score" value={score.name} options={comparison.scores.map((one) => ({ value: one.name, label: one.name }))} onPick={setName} /><Check label="Sort heads in a layer" on={sorted.value} onFlip={(on) => (sorted.value = on)} /></>}
        caption="A and B have one scale; B − A has a scale around 0, which is grey. A dot marks a significant difference. Letters are the roles of heads in A and in B; B − A has none."
        table={() => ({ columns: ["head", "A", "B", "B − A", "significant"].map((column) => ({ name: column })), rows: runs[0]!.heads.map((head, at) => [head, a.values[at] ?? null, b.values[at] ?? null, score.difference[at] ?? null, score.significant?.[at] ?? null]) })}
      >
        <div class="grids three">
          {cards.map(([title, field, painted, of]) => (
            <div key={title} class="one-grid">
              <h3><bdi dir="auto">{title}</bdi></h3>
              {bothHeads[of]!.kinds.map((kind) => (
                <Grid key={kind.name} heads={bothHeads[of]!} blocks={kind.blocks} name={`${title}, ${kindName(kind.name)}`} field={field} paint={painted} removed={none} roleless={field === difference} selected={selected.value} sorted={sorted.value} shown={() => true} />
              ))}
              <ColourBar field={field} paint={painted} dark={dark.value} byQuantile={false} />
            </div>
          ))}
        </div>
      </Figure>
      <div class="pair">
        <RankFigure a={a} b={b} name={score.name} rho={score.spearman} />
        <Details comparison={comparison} />
      </div>
    </>
  );
}

function RankFigure({ a, b, name, rho }: { a: Field; b: Field; name: string; rho: Maybe }): JSX.Element {
  const x = asField("rank in A", ranks(a.values), a, "sequential");
  const y = asField("rank in B", ranks(b.values), b, "sequential");
  const moved = order(x.values.map((rank, at) => (rank === null || y.values[at] === null ? null : Math.abs(rank - y.values[at]!))), true)[0];
  const message = moved === undefined || typeof x.values[moved] !== "number" || typeof y.values[moved] !== "number" ? "No head has both ranks." : x.values[moved] === y.values[moved] ? "No head has another rank in B than in A." : `${run.value.heads[moved]} moves most: rank ${num(x.values[moved])} in A, ${num(y.values[moved])} in B. Rank correlation ${num(rho, 2)}.`;
  return (
    <Figure title={`Ranks by ${name}`} takeaway={message} caption="Rank 1 is the highest value. On the line a head has the same rank in both." table={() => ({ columns: ["head", "rank in A", "rank in B"].map((column) => ({ name: column })), rows: run.value.heads.map((head, at) => [head, x.values[at] ?? null, y.values[at] ?? null]) })}>
      <Scatter heads={headsOf(report.value.runs[0]!)} x={x} y={y} removed={new Set()} diagonal from={1} height={420} />
    </Figure>
  );
}

function Outcomes({ outcomes }: { outcomes: RunComparison["outcomes"] }): JSX.Element {
  if (!outcomes) return <Section title="Paired outcomes"><p class="missing">The runs were not evaluated on the same examples, so outcomes cannot be paired.</p></Section>;
  const { both, only_a, only_b, neither } = outcomes;
  const total = both + only_a + only_b + neither;
  const cell = (count: number): JSX.Element => <td class="number"><b>{whole(count)}</b> <small>{percent(total ? count / total : 0)}</small></td>;
  return (
    <Section title="Paired outcomes" note={`${outcomes.metric}: A ${num(outcomes.a)}, B ${num(outcomes.b)}. ${outcomes.test}, p ${pValue(outcomes.p)}, n ${whole(total)}.`}>
      <Scroll label="Paired outcomes, table">
        <table class="outcomes">
          <thead><tr><td /><th scope="col">B right</th><th scope="col">B wrong</th></tr></thead>
          <tbody>
            <tr><th scope="row">A right</th>{cell(both)}{cell(only_a)}</tr>
            <tr><th scope="row">A wrong</th>{cell(only_b)}{cell(neither)}</tr>
          </tbody>
        </table>
      </Scroll>
    </Section>
  );
}

function ChangedRoles({ roles, only }: { roles: RunComparison["roles"]; only?: RunComparison["roles_only"] }): JSX.Element {
  const [a, b] = report.value.runs.map((one) => one.roles?.names ?? []);
  const names = (all: string[], places: number[]): string => places.map((place) => all[place] ?? "").join(", ") || "none";
  return (
    <Section title="Heads that changed role" note={roles === null ? "" : "Among the roles that were tested in both runs."}>
      {(["a", "b"] as const).map((side) => (only?.[side].length ? <p key={side} class="note"><bdi dir="auto">Tested in {side.toUpperCase()} only: {only[side].join(", ")}.</bdi></p> : null))}
      {roles === null ? <Missing what="Roles were not tested in both runs." makes="roles" /> : roles.length === 0 ? <p>No head changed its role{only && only.a.length + only.b.length > 0 ? " among them" : ""}.</p> : (
        <Table
          name="Heads that changed role"
          columns={[{ name: "head", show: (value) => <HeadLink head={heads.value.byName.get(String(value)) ?? 0} /> }, { name: "in A" }, { name: "in B" }]}
          rows={roles.map((row) => [run.value.heads[row.head] ?? "", names(a!, row.a), names(b!, row.b)])}
          page={12}
        />
      )}
    </Section>
  );
}

function Differences({ config }: { config: RunComparison["config"] }): JSX.Element {
  return (
    <Section title="What differs in how they were made">
      {config.length === 0 ? <p>Nothing: configuration, model and data are the same.</p> : (
        <Scroll label="Differences in configuration, table">
          <table class="wraps">
            <thead><tr><th scope="col">entry</th><th scope="col">A</th><th scope="col">B</th></tr></thead>
            <tbody>{config.map((row, at) => <tr key={at}><th scope="row"><code>{row.key}</code></th><td><bdi dir="auto">{row.a}</bdi></td><td><bdi dir="auto">{row.b}</bdi></td></tr>)}</tbody>
          </table>
        </Scroll>
      )}
    </Section>
  );
}
