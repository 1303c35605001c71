/** The views, and the pages of studies and papers within theirs: found by what stands after the view in the address. */
import type { PaperItem, PaperPage, RunData, StudyPage } from "./contract";

export const VIEWS = ["overview", "pruning", "cost", "head", "attention", "roles", "studies", "papers", "compare", "data"] as const;
export type View = (typeof VIEWS)[number];

export const hasPages = (view: View): boolean => view === "studies" || view === "papers";

export function safeDecode(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return "";
  }
}

/** A name as a part of an address; half a character, which no address can hold, is replaced. */
const part = (name: string): string => encodeURIComponent(name.replace(/\p{Cs}/gu, "\ufffd"));

export const studyPath = (study: StudyPage): string => part(study.name);
export const paperPath = (paper: PaperPage, item?: PaperItem): string => (item ? `${part(paper.name)}/${part(item.id)}` : part(paper.name));

export const studyAt = (run: RunData, path: string): StudyPage | undefined => run.studies.find((study) => studyPath(study) === path);

/** The paper of a path, and its item if the path names one. */
export function paperAt(run: RunData, path: string): { paper: PaperPage; item: PaperItem | undefined } | undefined {
  for (const paper of run.papers) {
    const item = paper.items.find((one) => paperPath(paper, one) === path);
    if (item || paperPath(paper) === path) return { paper, item };
  }
  return undefined;
}

export const pageAt = (run: RunData, view: View, path: string): boolean => !path || Boolean(view === "studies" ? studyAt(run, path) : paperAt(run, path));

/** What the title of the window calls a page; "" for a list of pages. */
export function pageTitle(run: RunData, view: View, path: string): string {
  if (view === "studies") return studyAt(run, path)?.name ?? "";
  const found = view === "papers" ? paperAt(run, path) : undefined;
  return found ? [found.item?.id, found.paper.name].filter(Boolean).join(", ") : "";
}
