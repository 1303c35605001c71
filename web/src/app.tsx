/** The frame of the page: title, views, choice of run and of colours. */
import type { FunctionComponent, JSX } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { pageTitle, type View } from "./pages";
import { Choose, follow } from "./parts/basics";
import { address, adopt, go, head, notice, report, run, runAt, said, shownPage, theme, view } from "./state";
import { AttentionView } from "./views/attention";
import { Compare } from "./views/compare";
import { Cost } from "./views/cost";
import { Data } from "./views/data";
import { HeadPage } from "./views/head";
import { Overview } from "./views/overview";
import { Pruning } from "./views/pruning";
import { RolesView } from "./views/roles";
import { PapersView, StudiesView } from "./views/studies";

const PAGES: Record<View, [string, FunctionComponent]> = {
  overview: ["Overview", Overview],
  pruning: ["Pruning", Pruning],
  cost: ["Cost", Cost],
  head: ["Head", HeadPage],
  attention: ["Attention", AttentionView],
  roles: ["Roles", RolesView],
  studies: ["Studies", StudiesView],
  papers: ["Papers", PapersView],
  compare: ["Compare", Compare],
  data: ["Data", Data],
};

const THEMES: { value: typeof theme.value; label: string }[] = [
  { value: "auto", label: "as the system" },
  { value: "light", label: "light" },
  { value: "dark", label: "dark" },
];

export function App(): JSX.Element {
  const [title, Page] = PAGES[view.value];
  const moved = useRef(false);
  useEffect(() => {
    const named = title === "Head" ? run.value.heads[head.value] : pageTitle(run.value, view.value, shownPage.value) || title;
    document.title = `${named} – ${run.value.name || "headcount"}`;
  }, [title, run.value, head.value, shownPage.value]);
  useEffect(() => {
    if (document.activeElement === document.body && globalThis.scrollY === 0 && moved.current) document.getElementById("view")?.focus();
    moved.current = true;
  }, [view.value, head.value, shownPage.value]);
  return (
    <>
      <a class="skip" href={address(view.value)} onClick={(event) => follow(event, () => document.getElementById("view")?.focus())}>Skip to the view</a>
      <header class="top">
        <div class="brand">
          <h1><span class="wordmark">headcount</span> <span class="run-name"><bdi dir="auto">{run.value.name}</bdi></span></h1>
          <p class="note"><bdi dir="auto">{run.value.model.name}</bdi> · {run.value.heads.length} heads{run.value.task && run.value.task !== run.value.model.name ? ` · ${run.value.task}` : ""}</p>
        </div>
        <div class="top-tools">
          {report.value.runs.length > 1 && <Choose label="Run" value={String(runAt.value)} options={report.value.runs.map((one, at) => ({ value: String(at), label: `${"AB"[at] ?? at + 1}: ${one.name}` }))} onPick={(at) => adopt(Number(at))} />}
          <Choose label="Colours" value={theme.value} options={THEMES} onPick={(value) => (theme.value = value)} />
        </div>
        <nav aria-label="Views">
          {(Object.entries(PAGES) as [View, [string, FunctionComponent]][]).map(([name, [label]]) => (
            <a key={name} href={address(name, head.value, "")} aria-current={view.value === name ? "page" : undefined} onClick={(event) => follow(event, () => go(name))}>{label}</a>
          ))}
        </nav>
      </header>
      <main id="view" tabIndex={-1} aria-label={title}>
        <p class="notice" role="status">{notice.value}</p>
        <Page />
      </main>
      <p class="unseen" role="status" aria-live="polite" id="said">{said.value}</p>
      <p class="toast" aria-hidden="true" key={said.value}>{said.value}</p>
    </>
  );
}
