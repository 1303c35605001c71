/** The first page: what was found in three sentences, the map of heads, and what the numbers are from. */
import type { JSX } from "preact";
import { Missing, CopyButton, Section } from "../parts/basics";
import { plain, short, whole } from "../format";
import { chosenOf } from "../plan";
import { report, run } from "../state";
import { KeepPanel } from "./keep";
import { Workbench } from "./map";

export function Overview(): JSX.Element {
  return (
    <>
      <Summary />
      <Workbench />
      <KeepPanel />
      <Facts />
    </>
  );
}

function Summary(): JSX.Element {
  const { summary, warnings, heads } = run.value;
  const sentences = summary.length ? summary : [`${whole(heads.length)} heads.`];
  const notes = [...warnings, ...report.value.left_out];
  return (
    <section class="summary" aria-label="Summary">
      <div class="lead">
        <Badge />
        {sentences.map((sentence, at) => (
          <p key={at}><Numbers text={sentence} /></p>
        ))}
      </div>
      {notes.length > 0 && (
        <details class="warnings" open={notes.length <= 4}>
          <summary>{notes.length === 1 ? "1 warning" : `${notes.length} warnings`}</summary>
          <ul>{notes.map((note, at) => <li key={at}><bdi dir="auto">{note}</bdi></li>)}</ul>
        </details>
      )}
    </section>
  );
}

/** The badge of a certified model; the second sentence says which and by what bound. */
function Badge(): JSX.Element | null {
  const chosen = chosenOf(run.value.curves);
  return chosen?.verdict === "certified" ? <span class="tag solid certified">certified within {chosen.margin}</span> : null;
}

/** Numbers stand out of their sentence. */
function Numbers({ text }: { text: string }): JSX.Element {
  const parts = text.split(/((?<![\p{L}\p{N}_./-])[-−+]?\d+(?:[.,]\d+)*(?:e[-−+]?\d+)?(?:\s?(?:%|×|x\b|ms\b|s\b))?(?![\p{L}\p{N}_]))/u);
  return <bdi dir="auto">{parts.map((part, at) => (at % 2 ? <strong key={at}>{part}</strong> : part))}</bdi>;
}

function List({ entries }: { entries: [string, string][] }): JSX.Element {
  return (
    <dl class="facts">
      {entries.map(([name, value], at) => (
        <div key={at}>
          <dt>{name}</dt>
          <dd><bdi dir="auto">{value}</bdi></dd>
        </div>
      ))}
    </dl>
  );
}

const entriesOf = (record: Record<string, unknown>): [string, string][] => Object.entries(record).map(([name, value]) => [name, plain(value)]);

function Facts(): JSX.Element {
  const { model, data, versions, machine, config, command, task, seed, created, updated, curves, name } = run.value;
  const seeds = [...new Set(curves?.points.map((point) => point.seed) ?? [])];
  const what: [string, string][] = [
    ["run", name],
    ["model", model.name],
    ["class", `${model.class_name} (${model.model_type})`],
    ["parameters", short(model.n_parameters)],
    ["weights", model.weights],
    ["task", task ?? "none"],
    ["seed", String(seed) + (seeds.length > 1 ? `; curves over seeds ${seeds.join(", ")}` : "")],
    ["made", created === updated ? created : `${created}, last changed ${updated}`],
  ];
  return (
    <Section title="What this is from">
      <div class="columns">
        <div class="card"><h3>Model and run</h3><List entries={what} /></div>
        <div class="card">
          <h3>Data</h3>
          {Object.keys(data).length ? <List entries={entriesOf(data)} /> : <Missing what="This run used no data." makes="scores" />}
        </div>
        <div class="card"><h3>Versions and machine</h3><List entries={[...entriesOf(versions), ...entriesOf(machine)]} /></div>
      </div>
      {command && (
        <div class="command">
          <pre tabIndex={0} aria-label="The exact command"><code>{command}</code></pre>
          <CopyButton text={command} what="command" />
        </div>
      )}
      {Object.keys(config).length > 0 && (
        <details>
          <summary>Configuration ({Object.keys(config).length} entries)</summary>
          <List entries={entriesOf(config)} />
        </details>
      )}
    </Section>
  );
}
