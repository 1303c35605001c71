/** What the page shows: shared by all views, kept in the part of the address after #. */
import { batch, computed, effect, signal } from "@preact/signals";
import type { Attention, HeadNumber, Point, Report, RunData } from "./contract";
import { fieldsOf, type Field } from "./fields";
import { headsOf } from "./heads";
import { hasPages, pageAt, safeDecode, type View, VIEWS } from "./pages";
import { chosenOf, methodsOf, planOf, seedsOf, standingOf, type Choice } from "./plan";

const EMPTY_RUN: RunData = {
  name: "", command: "", task: null, created: "", updated: "", seed: 0,
  model: { name: "", class_name: "", model_type: "", n_parameters: 0, weights: "" },
  versions: {}, machine: {}, config: {}, data: {}, summary: [], warnings: [], heads: [], blocks: [], scores: [], verdicts: null,
  roles: null, curves: null, bench: [], profiles: null, attention: null, attention_left_out: false, tables: [], studies: [], papers: [],
};

export const report = signal<Report>({ schema: 1, runs: [EMPTY_RUN], comparison: null, left_out: [], live: null });
export const view = signal<View>("overview");
export const runAt = signal(0);
export const head = signal<HeadNumber>(0);
/** The page of the views of studies and papers, as its address writes it: a study, a paper, or a paper and its item; "" for the list of all. */
export const shownPage = signal("");
export const selected = signal<ReadonlySet<HeadNumber>>(new Set());
export const keep = signal(0);
export const method = signal("");
export const seed = signal(0);
export const protect = signal(false);
export const onePerBlock = signal(false);
export const wholeGroups = signal(false);
export const colour = signal("");
/** Whether maps are coloured by value rather than by quantile. */
export const byValue = signal(false);
export const sorted = signal(false);
export const roleFilter = signal("");
export const layerFilter = signal("");
export const sentence = signal(0);
/** How attention is shown, whichever head it is of; null is as suits the sentence. */
export const level = signal<"word" | "token" | null>(null);
export const hideSpecial = signal<boolean | null>(null);
export const threshold = signal(0);
/** The row that is pinned, and of which text it is. */
export const pinned = signal<{ of: string; row: number } | null>(null);
export const theme = signal<"auto" | "light" | "dark">("auto");
export const systemDark = signal(false);
/** Sentences that were asked of the server, by run. */
export const asked = signal<Record<number, Attention>>({});
/** The head that is pointed at; by itself, so that pointing redraws only the line that tells its numbers. */
export const looked = signal<HeadNumber | null>(null);
/** Read out by screen readers. */
export const said = signal("");
/** What could not be done as asked, in a line above the view until the reader goes on. */
export const notice = signal("");

export const run = computed<RunData>(() => report.value.runs[runAt.value] ?? report.value.runs[0] ?? EMPTY_RUN);
export const heads = computed(() => headsOf(run.value));
export const fields = computed(() => fieldsOf(report.value, run.value));
export const methods = computed(() => methodsOf(run.value));
export const seeds = computed(() => seedsOf(run.value.curves, method.value));
export const dark = computed(() => (theme.value === "auto" ? systemDark.value : theme.value === "dark"));
const NOBODY: ReadonlySet<HeadNumber> = new Set();

export const choice = computed<Choice>(() => ({
  method: method.value,
  seed: seed.value,
  keep: keep.value,
  protect: protect.value ? selected.value : NOBODY,
  onePerBlock: onePerBlock.value,
  wholeGroups: wholeGroups.value,
}));

export const plan = computed(() => planOf(heads.value, choice.value));
export const standing = computed(() => standingOf(heads.value, choice.value, plan.value));

export const field = computed<Field | null>(() => fields.value.find((one) => one.key === colour.value) ?? fields.value[0] ?? null);

export function toggle(index: HeadNumber): void {
  const next = new Set(selected.value);
  if (!next.delete(index)) next.add(index);
  selected.value = next;
}

export function select(some: Iterable<HeadNumber>): void {
  selected.value = new Set(some);
}

/** Takes a model that was just measured into the curves of the run, before others of its name, and shows it. */
export function learn(at: number, point: Point): void {
  batch(() => {
    const runs = report.value.runs.map((one, place) => (place === at && one.curves ? { ...one, curves: { ...one.curves, points: placed(one.curves.points.filter((old) => old.id !== point.id), point) } } : one));
    report.value = { ...report.value, runs };
    if (runAt.value !== at || !run.value.curves) return;
    [method.value, keep.value, seed.value] = [point.method, point.keep, point.seed];
  });
}

/** With a point before the first of its method, so that series keep their order and colours. */
function placed(points: Point[], point: Point): Point[] {
  const at = points.findIndex((one) => one.method === point.method);
  return at < 0 ? [...points, point] : [...points.slice(0, at), point, ...points.slice(at)];
}

/** Starts from the model that the summary is about, or from all heads where that failed its margin. */
export function adopt(at: number): void {
  batch(() => adoptRun(at));
}

function adoptRun(at: number): void {
  const before = report.value.runs[runAt.value];
  const names = [...selected.value].map((index) => before?.heads[index] ?? "");
  const name = before?.heads[head.value] ?? "";
  runAt.value = at;
  selected.value = new Set(names.flatMap((address) => heads.value.byName.get(address) ?? []));
  head.value = heads.value.byName.get(name) ?? 0;
  const { curves } = run.value;
  const chosen = chosenOf(curves);
  method.value = chosen?.method ?? methods.value[0] ?? "";
  keep.value = chosen && (chosen.verdict ?? "certified") === "certified" ? chosen.keep : run.value.heads.length;
  seed.value = chosen?.seed ?? seeds.value[0] ?? 0;
  wholeGroups.value = (curves?.unit ?? 1) > 1;
  if (!fields.value.some((one) => one.key === colour.value)) colour.value = fields.value[0]?.key ?? "";
}

const FLAGS = { protect, one: onePerBlock, groups: wholeGroups, value: byValue, sort: sorted };

/** The address of a view in the present state; `at` names another head, `of` another page of studies and papers. */
export function address(to: View, at: HeadNumber = head.value, of = shownPage.value): string {
  const words = new URLSearchParams();
  if (runAt.value) words.set("run", String(runAt.value));
  if (selected.value.size) words.set("heads", [...selected.value].sort((a, b) => a - b).map((index) => run.value.heads[index]).join(" "));
  if (colour.value) words.set("colour", colour.value);
  if (method.value) words.set("method", method.value);
  words.set("keep", String(keep.value));
  if (seed.value) words.set("seed", String(seed.value));
  if (sentence.value) words.set("sentence", String(sentence.value));
  for (const [name, flag] of Object.entries(FLAGS)) if (flag.value) words.set(name, "1");
  const part = to === "head" || to === "attention" ? encodeURIComponent(run.value.heads[at] ?? "") : hasPages(to) ? of : "";
  const name = part && `/${part}`;
  return `#/${to}${name}?${words}`;
}

export function go(to: View, at: HeadNumber = head.value, of = ""): void {
  batch(() => {
    head.value = at;
    shownPage.value = of;
    view.value = to;
    notice.value = "";
  });
  globalThis.scrollTo?.(0, 0);
}

/** Where the reader is: what the Back button goes through. */
const placeNow = (): string => address(view.value).split("?")[0]!;
let place = "";

/** Takes over what an address says, as far as it makes sense for this run. */
export function follow(hash: string): void {
  batch(() => {
    read(hash);
    place = placeNow();
  });
}

function read(hash: string): void {
  const [path = "", query = ""] = hash.replace(/^#\/?/, "").split("?");
  const [name = "", ...parts] = path.split("/");
  const words = new URLSearchParams(query);
  const wanted = Number(words.get("run") ?? 0);
  if (wanted !== runAt.value && report.value.runs[wanted]) adopt(wanted);
  const { byName } = heads.value;
  view.value = (VIEWS as readonly string[]).includes(name) ? (name as View) : "overview";
  const page = hasPages(view.value) ? parts.filter(Boolean).join("/") : "";
  shownPage.value = pageAt(run.value, view.value, page) ? page : "";
  const address_ = hasPages(view.value) ? undefined : parts[0];
  const asked_ = address_ ? byName.get(safeDecode(address_)) : head.value;
  head.value = asked_ ?? head.value;
  const names = (words.get("heads") ?? "").split(" ").filter(Boolean);
  const elsewhere = page === shownPage.value ? "" : `This run has no ${view.value === "studies" ? "study" : "item of a paper"} “${safeDecode(page) || page}”; all are listed instead.`;
  const instead = asked_ === undefined ? `This run has no head “${safeDecode(address_ ?? "") || address_}”; ${run.value.heads[head.value] ?? "none"} is shown instead.` : "";
  notice.value = [elsewhere, instead, unselected(names.filter((one) => !byName.has(one)))].filter(Boolean).join(" ");
  if (notice.value) said.value = notice.value;
  if (query) select(names.flatMap((one) => byName.get(one) ?? []));
  if (methods.value.includes(words.get("method") ?? "")) method.value = words.get("method")!;
  if (words.has("keep")) keep.value = clamp(Number(words.get("keep")), 1, run.value.heads.length);
  if (query) seed.value = Number(words.get("seed")) || 0;
  if (!seeds.value.includes(seed.value)) seed.value = seeds.value[0] ?? 0;
  if (fields.value.some((one) => one.key === words.get("colour"))) colour.value = words.get("colour")!;
  if (query) sentence.value = Math.max(0, Math.trunc(Number(words.get("sentence")) || 0));
  if (query) for (const [flag, value] of Object.entries(FLAGS)) value.value = words.get(flag) === "1";
}

const NAMED = 4;

/** Says which heads of an address the run does not have; empty if it has them all. */
export function unselected(unknown: string[]): string {
  if (!unknown.length) return "";
  const named = unknown.slice(0, NAMED).map((one) => `“${one}”`).join(", ");
  const more = unknown.length > NAMED ? ` and ${unknown.length - NAMED} more` : "";
  return `This run has no ${unknown.length === 1 ? "head" : "heads"} ${named}${more}, so ${unknown.length === 1 ? "it is" : "they are"} not selected.`;
}

export const clamp = (value: number, low: number, high: number): number => (Number.isFinite(value) ? Math.max(low, Math.min(high, Math.round(value))) : high);

const PAUSE = 200;

/** Keeps the address in step with the state: a slider at most every PAUSE milliseconds, as browsers ignore what comes faster for long. Another view or head is a step
 * that the Back button takes back; everything else changes the step that it is in. */
export function keepAddress(): void {
  let last = 0;
  let waiting: (() => void) | null = null;
  let later: ReturnType<typeof setTimeout> | undefined;
  effect(() => {
    const wanted = address(view.value);
    const now = placeNow();
    const before = waiting;
    clearTimeout(later);
    waiting = null;
    if (now !== place) {
      before?.();
      place = now;
      write(wanted, true);
      return;
    }
    const from = globalThis.location.hash;
    const act = (): void => {
      [last, waiting] = [Date.now(), null];
      if (globalThis.location.hash === from) write(wanted, false); // else the reader went on, and that step is not ours to change
    };
    const wait = last + PAUSE - Date.now();
    if (wait <= 0) act();
    else [waiting, later] = [act, setTimeout(act, wait)];
  });
}

/** Some shells (a notebook's frame) forbid it, which loses only the address. */
function write(wanted: string, step: boolean): void {
  if (globalThis.location.hash === wanted) return;
  try {
    if (step) history.pushState(null, "", wanted);
    else history.replaceState(null, "", wanted);
  } catch {
    // Nothing else depends on the address.
  }
}
