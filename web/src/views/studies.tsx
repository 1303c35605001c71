/** The studies of a run, and the papers whose experiments it holds: a list of them, and a page for each. */
import type { ComponentChildren, JSX } from "preact";
import { useEffect, useId, useRef } from "preact/hooks";
import type { PaperItem, PaperPage, StudyPage, StudyResultData, StudyTable } from "../contract";
import { captionOf, columnNumber } from "../drawing";
import { Drawing } from "../drawings/drawing";
import { capital, plural, pValue } from "../format";
import type { Cell } from "../page";
import { paperAt, paperPath, studyAt, studyPath } from "../pages";
import { CopyButton, follow, HeadLink, Missing, Section } from "../parts/basics";
import { Figure } from "../parts/figure";
import { shown, Table, type Column } from "../parts/table";
import { address, go, head, heads, run, shownPage } from "../state";

type Pages = "studies" | "papers";

function PageLink({ to, path, children }: { to: Pages; path: string; children: ComponentChildren }): JSX.Element {
  return <a href={address(to, head.value, path)} aria-current={path && shownPage.value === path ? "page" : undefined} onClick={(event) => follow(event, () => go(to, head.value, path))}>{children}</a>;
}

export function StudiesView(): JSX.Element {
  const { studies } = run.value;
  const study = studyAt(run.value, shownPage.value);
  if (!studies.length) return <Missing what="No study is in this run; headcount ls studies lists them." makes="studies" />;
  const list = <ul>{studies.map((one) => <li key={one.name}><PageLink to="studies" path={studyPath(one)}><bdi dir="auto">{one.name}</bdi></PageLink></li>)}</ul>;
  return <Pages title="Studies" to="studies" list={list}>{study ? <Study key={study.name} study={study} /> : <StudyList studies={studies} />}</Pages>;
}

export function PapersView(): JSX.Element {
  const { papers } = run.value;
  const found = paperAt(run.value, shownPage.value);
  if (!papers.length) return <Missing what="No experiment of a paper is in this run; headcount ls papers lists the papers." makes="papers" />;
  const list = papers.map((paper, at) => (
    <div key={at}>
      <p><PageLink to="papers" path={paperPath(paper)}><bdi dir="auto">{paper.name}</bdi></PageLink></p>
      {(!found || found.paper === paper) && <ul>{paper.items.map((item, number) => <li key={number} class={item.result ? "" : "absent"}><PageLink to="papers" path={paperPath(paper, item)}><b>{item.id}</b> <bdi dir="auto">{item.title}</bdi>{!item.result && <span class="unseen"> (no result)</span>}</PageLink></li>)}</ul>}
    </div>
  ));
  return (
    <Pages title="Papers" to="papers" list={list}>
      {found?.item ? <Item key={shownPage.value} paper={found.paper} item={found.item} /> : (found ? [found.paper] : papers).map((paper, at) => <Paper key={at} paper={paper} />)}
    </Pages>
  );
}

/** The list of all pages beside the one that is shown; on narrow screens a link leads to it. */
function Pages({ title, to, list, children }: { title: string; to: Pages; list: ComponentChildren; children: ComponentChildren }): JSX.Element {
  const ref = useRef<HTMLElement>(null);
  useEffect(() => {
    const [box, entry] = [ref.current, ref.current?.querySelector<HTMLElement>("[aria-current]")];
    if (box && entry) box.scrollTop = entry.offsetTop - box.clientHeight / 2;
  }, [shownPage.value]);
  return (
    <div class="pages-view">
      <nav ref={ref} class="page-list" aria-label={`${title} of this run`}>{list}</nav>
      <div class="stack">
        {shownPage.value && <p class="page-back"><PageLink to={to} path="">All {title.toLowerCase()} of this run</PageLink></p>}
        {children}
      </div>
    </div>
  );
}

function StudyList({ studies }: { studies: StudyPage[] }): JSX.Element {
  return (
    <Section title="Studies" note={`${plural(studies.length, "study").replace("studys", "studies")} in this run, with the verdict of each.`}>
      <dl class="verdicts">
        {studies.map((study, at) => (
          <div key={at}>
            <dt><PageLink to="studies" path={studyPath(study)}><bdi dir="auto">{study.name}</bdi></PageLink></dt>
            <dd><bdi dir="auto">{study.result.sentence || study.about}</bdi></dd>
          </div>
        ))}
      </dl>
    </Section>
  );
}

function Paper({ paper }: { paper: PaperPage }): JSX.Element {
  const done = paper.items.filter((item) => item.result).length;
  return (
    <Section title={paper.title} note={`${paper.name}: ${done} of ${plural(paper.items.length, "item")} measured. ${paper.conditions.join(" ")}`}>
      <Repeat command={paper.command} />
      <dl class="verdicts">
        {paper.items.map((item, at) => (
          <div key={at}>
            <dt><PageLink to="papers" path={paperPath(paper, item)}><b>{item.id}</b> <bdi dir="auto">{item.title}</bdi></PageLink> <small><bdi dir="auto">{item.part}</bdi></small></dt>
            <dd>{item.result ? <bdi dir="auto">{item.result.sentence}</bdi> : <span class="honest"><bdi dir="auto">{item.reason}</bdi></span>}</dd>
          </div>
        ))}
      </dl>
      {paper.bibtex && <details><summary>BibTeX</summary><div class="command"><pre tabIndex={0} aria-label="BibTeX"><code>{paper.bibtex}</code></pre><CopyButton text={paper.bibtex} what="BibTeX" /></div></details>}
    </Section>
  );
}

function Study({ study }: { study: StudyPage }): JSX.Element {
  return (
    <>
      <Opening title={study.name} about={study.about} result={study.result} conditions={study.conditions} command={study.command} />
      <Contents name={study.name} result={study.result} />
    </>
  );
}

function Item({ paper, item }: { paper: PaperPage; item: PaperItem }): JSX.Element {
  const at = paper.items.indexOf(item);
  const beside: [string, PaperItem | undefined][] = [["Before", paper.items[at - 1]], ["Next", paper.items[at + 1]]];
  return (
    <>
      <Opening title={`${item.id}: ${item.title}`} about={[paper.name, item.part].filter(Boolean).join(", ")} result={item.result} reason={item.reason} conditions={paper.conditions} command={item.command} />
      {item.result ? <Contents name={`${paper.name} ${item.id}`} result={item.result} published={item.published} /> : item.published && <Published table={item.published} />}
      <nav class="beside" aria-label="Items before and after">
        {beside.map(([word, other]) => other && <PageLink key={word} to="papers" path={paperPath(paper, other)}>{word}: {other.id}</PageLink>)}
      </nav>
    </>
  );
}

function Opening({ title, about, result, reason, conditions, command }: { title: string; about: string; result: StudyResultData | null; reason?: string; conditions: string[]; command: string }): JSX.Element {
  return (
    <Section title={title} note={about}>
      {result ? <p class="sentence"><bdi dir="auto">{result.sentence || "This study gives no verdict."}</bdi></p> : <p class="missing">Not measured: <bdi dir="auto">{reason}</bdi>.</p>}
      {result && result.notes.length > 0 && <ul class="notes">{result.notes.map((note, at) => <li key={at}><bdi dir="auto">{note}</bdi></li>)}</ul>}
      <p class="note"><bdi dir="auto">{[...(result ? [`Study: ${result.study}.`] : []), ...conditions].join(" ")}</bdi></p>
      <Repeat command={command} />
    </Section>
  );
}

function Repeat({ command }: { command: string }): JSX.Element | null {
  if (!command) return null;
  return (
    <div class="command">
      <pre tabIndex={0} aria-label="The command that measures it"><code>{command}</code></pre>
      <CopyButton text={command} what="command" />
    </div>
  );
}

function Contents({ name, result, published = null }: { name: string; result: StudyResultData; published?: StudyTable | null }): JSX.Element {
  const id = useId();
  const show = (table: string): void => {
    const place = result.tables.findIndex((one) => one.name === table);
    const element = document.getElementById(`${id}-${place}`);
    element?.querySelector("details")?.setAttribute("open", "");
    element?.scrollIntoView();
    element?.focus({ preventScroll: true });
  };
  const sheets = result.tables.map((table, at) => <Sheet key={at} id={`${id}-${at}`} name={name} table={table} />);
  return (
    <>
      {result.figures.length > 0 && (
        <div class={result.figures.length > 1 ? "pair drawn" : "drawn"}>
          {result.figures.map((figure, at) => (
            <Figure
              key={at}
              title={capital(figure.title)}
              takeaway={figure.kind === "scatter" ? figure.note : ""}
              caption={captionOf(figure)}
              tools={<button type="button" class="quiet" onClick={() => show(figure.table)}>Its table</button>}
            >
              <Drawing figure={figure} />
            </Figure>
          ))}
        </div>
      )}
      {published ? <div class="compared">{sheets[0]}<Published table={published} /></div> : sheets[0]}
      {sheets.slice(1)}
    </>
  );
}

function Published({ table }: { table: StudyTable }): JSX.Element {
  return <Section title="As published" note={table.title}><Table name={`As published: ${table.title || table.name}`} columns={columnsOf(table)} rows={table.rows} bare /></Section>;
}

function Sheet({ id, name, table }: { id: string; name: string; table: StudyTable }): JSX.Element {
  const title = capital(table.title || table.name);
  const inside = <Table name={`${name} ${table.name}`} columns={columnsOf(table)} rows={table.rows} />;
  return (
    <section class="section" id={id} tabIndex={-1} aria-label={`Table: ${title}`}>
      <h2><bdi dir="auto">{title}</bdi></h2>
      {table.is_printed ? inside : <details><summary>{plural(table.rows.length, "row")}</summary>{inside}</details>}
    </section>
  );
}

const P_VALUES = ["p", "q"];

/** Columns whose numbers have the format of the study, intervals behind their numbers, and heads that lead to their pages. */
function columnsOf(table: StudyTable): Column[] {
  const place = new Map(table.columns.map((column, at) => [column.name, at]));
  const ends = new Set(table.columns.flatMap((column) => column.interval ?? []));
  return table.columns.map((column, at) => {
    const isEmpty = table.rows.every((row) => row[at] === null || row[at] === "");
    const text = (value: Cell | undefined): string => (typeof value === "number" ? (P_VALUES.includes(column.name) ? pValue(value) : columnNumber(column, value)) : shown(value));
    const show = (value: Cell, row: Cell[]): ComponentChildren => {
      const index = typeof value === "string" ? heads.value.byName.get(value) : undefined;
      if (index !== undefined) return <HeadLink head={index} />;
      const [low, high] = (column.interval ?? []).map((end) => row[place.get(end)!]);
      const around = typeof low === "number" && typeof high === "number" ? <small> ({text(low)} … {text(high)})</small> : null;
      return typeof value === "number" ? <span class="number">{text(value)}{around}</span> : <bdi dir="auto">{text(value)}</bdi>;
    };
    return { name: column.unit ? `${column.name} (${column.unit})` : column.name, hidden: ends.has(column.name) || isEmpty, show };
  });
}
