/** Everything as tables, and what the words mean. */
import type { JSX } from "preact";
import { useMemo, useState } from "preact/hooks";
import { glossary } from "../glossary";
import { fileName } from "../names";
import { download } from "../page";
import { Choose, HeadLink, Section } from "../parts/basics";
import { shown, Table } from "../parts/table";
import { heads, report, run } from "../state";
import { sheetsOf } from "../tables";

export function Data(): JSX.Element {
  const sheets = useMemo(() => sheetsOf(run.value), [run.value]);
  const [name, setName] = useState("");
  const at = Math.max(0, sheets.findIndex((one) => one.name === name));
  const sheet = sheets[at]!;
  const isHead = (value: unknown): number | undefined => (typeof value === "string" ? heads.value.byName.get(value) : undefined);
  const columns = sheet.columns.map((column) => ({
    name: column,
    show: column === "head" || column === "best head"
      ? (value: string | number | boolean | null) => {
          const index = isHead(value);
          return index === undefined ? <bdi dir="auto">{shown(value)}</bdi> : <HeadLink head={index} />;
        }
      : undefined,
  }));
  return (
    <>
      <Section title="Data" note={sheet.about}>
        <div class="controls">
          <Choose label="Table" value={sheet.name} options={sheets.map((one) => ({ value: one.name, label: `${one.name} (${one.rows.length})` }))} onPick={setName} />
          <button type="button" class="button" onClick={() => download(`${fileName(run.value.name)}.json`, JSON.stringify({ ...run.value, attention: null }, null, 1), "application/json")}>Download the whole run as JSON</button>
        </div>
        <Table key={`${run.value.name} ${sheet.name}`} name={sheet.name} columns={columns} rows={sheet.rows} />
      </Section>
      <Methods />
      <Section title="Glossary">
        <dl class="glossary">{glossary(run.value.roles?.tau).map(([term, text]) => <div key={term}><dt>{term}</dt><dd>{text}</dd></div>)}</dl>
      </Section>
      <Section title="Limits and licences">
        <ul>
          {report.value.left_out.map((line, at) => <li key={at}><bdi dir="auto">{line}</bdi></li>)}
          <li>Attention is not an explanation by itself: a head that attends somewhere need not use what it finds there. Importance and ablation say whether it does.</li>
          <li>Weights of attention are stored in 256 steps of their square root; the largest rounding error is 0.004.</li>
          <li>This page contains Preact and @preact/signals (MIT licence) and d3 modules (ISC licence); their texts stand at the end of its script.</li>
        </ul>
      </Section>
    </>
  );
}

function Methods(): JSX.Element {
  const { scores, roles } = run.value;
  if (!scores.length && !roles) return <></>;
  return (
    <Section title="Methods">
      <dl class="glossary">
        {scores.map((score) => <div key={score.name}><dt>{score.name}</dt><dd><bdi dir="auto">{score.about}</bdi> {score.kind === "importance" ? (score.higher_is_keep ? "Higher means keep." : "Lower means keep.") : "It describes, and says nothing about importance."}{score.n_examples !== null && ` From ${score.n_examples} examples.`}</dd></div>)}
        {roles?.names.map((name, at) => <div key={`role ${name}`}><dt>{name} <span class="letter">{heads.value.codes[at]}</span></dt><dd><bdi dir="auto">{roles.about[at]}</bdi></dd></div>)}
      </dl>
    </Section>
  );
}
