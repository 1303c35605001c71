/** What can be tried out with the model at hand. A file shows in one line where that is. */
import { signal } from "@preact/signals";
import type { ComponentChildren, JSX } from "preact";
import { useEffect, useId, useRef, useState } from "preact/hooks";
import type { LiveApi, RunData } from "../contract";
import { interval, num, plural, pValue, signed } from "../format";
import { ask, Busy, whyNot } from "../live";
import { Choose } from "../parts/basics";
import { bound, RANKING, verdict } from "../plan";
import { asked, choice, heads, keep, learn, run, runAt, said, selected, sentence } from "../state";

/** Counts actions of this page that have ended: what another was refused for is then over. */
const ended = signal(0);

interface Asked<T> {
  busy: boolean;
  /** Seconds since it was asked. */
  elapsed: number;
  error: string;
  answer: T | null;
  start: (work: () => Promise<T>) => void;
  /** Takes back what was said about the last try. */
  clear: () => void;
  refuse: (why: string) => void;
}

/** Runs one request at a time and keeps what came of it. */
function useAsk<T>(): Asked<T> {
  const [state, setState] = useState<{ busy: boolean; error: string; answer: T | null; refused: boolean }>({ busy: false, error: "", answer: null, refused: false });
  const [elapsed, setElapsed] = useState(0);
  const before = useRef(ended.value);
  const start = (work: () => Promise<T>): void => {
    setState({ busy: true, error: "", answer: null, refused: false });
    said.value = "Working";
    work().then(
      (answer) => (setState({ busy: false, error: "", answer, refused: false }), (said.value = "Done"), (ended.value += 1)),
      (error: unknown) => {
        before.current = ended.value += 1;
        setState({ busy: false, error: error instanceof Error ? error.message : String(error), answer: null, refused: error instanceof Busy });
      },
    );
  };
  useEffect(() => {
    if (!state.busy) return undefined;
    setElapsed(0);
    const from = Date.now();
    const clock = setInterval(() => setElapsed(Math.round((Date.now() - from) / 1000)), 1000);
    return () => clearInterval(clock);
  }, [state.busy]);
  const over = ended.value;
  useEffect(() => {
    if (state.refused && before.current !== over) setState({ ...state, error: "", refused: false });
    before.current = over;
  }, [over, state.refused]);
  const clear = (): void => {
    if (state.error) setState({ ...state, error: "", refused: false });
  };
  const refuse = (error: string): void => setState({ busy: false, error, answer: null, refused: false });
  return { ...state, elapsed, start, clear, refuse };
}

/** What a button says while its action is under way. */
const working = (elapsed: number): string => (elapsed < 2 ? "Working …" : `Working … ${elapsed < 120 ? `${elapsed} s` : `${Math.floor(elapsed / 60)} min ${elapsed % 60} s`}`);

function Offered({ what, children }: { what: string; children: ComponentChildren }): JSX.Element {
  const why = whyNot();
  if (why === "file") return <p class="live-line note">{what}: open this run with <code>headcount serve RUN</code> to use live actions.</p>;
  if (why !== null) return <p class="live-line note">{what}: not here, because {why}.</p>;
  return <div class="live">{children}</div>;
}

export function AskSentence(): JSX.Element {
  const [text, setText] = useState("");
  const [pair, setPair] = useState("");
  const { busy, elapsed, error, answer, start, clear, refuse } = useAsk<LiveApi["attend"]["answer"]>();
  const [one, two] = [useId(), useId()];
  useEffect(() => {
    const shown = answer && document.getElementById("shown-sentence");
    shown?.focus({ preventScroll: true });
    shown?.scrollIntoView({ block: "start" });
  }, [answer]);
  const submit = (event: SubmitEvent): void => {
    event.preventDefault();
    if (busy) return;
    if (!text.trim()) {
      refuse("Write a sentence first.");
      document.getElementById(one)?.focus();
      return;
    }
    start(async () => {
      const answer = await ask("attend", { text, pair: pair.trim() ? pair : null });
      asked.value = { ...asked.value, [runAt.value]: answer.attention };
      sentence.value = run.value.attention?.sentences.length ?? 0;
      return answer;
    });
  };
  return (
    <Offered what="A new sentence">
      <form onSubmit={submit}>
        <label for={one}>New sentence</label>
        <input id={one} type="text" dir="auto" value={text} onInput={(event) => (setText(event.currentTarget.value), clear())} />
        <label for={two}>Second text, if the model takes two</label>
        <input id={two} type="text" dir="auto" value={pair} onInput={(event) => (setPair(event.currentTarget.value), clear())} />
        <button type="submit" class="button">{busy ? working(elapsed) : "Show attention"}</button>
        {answer?.note && <p role="status">{answer.note}</p>}
        {error && <p class="error" role="alert">{error}</p>}
      </form>
    </Offered>
  );
}

/** One example has no spread, so nothing could be tested. */
const FEWEST = 2;

export function AblateForm(): JSX.Element {
  const [limit, setLimit] = useState("200");
  const { busy, elapsed, error, answer, start, clear } = useAsk<LiveApi["ablate"]["answer"]>();
  const id = useId();
  const some = [...selected.value];
  const submit = (event: SubmitEvent): void => {
    event.preventDefault();
    if (!busy && some.length) start(() => ask("ablate", { heads: some, limit: Math.max(FEWEST, Math.trunc(Number(limit)) || FEWEST) }));
  };
  return (
    <Offered what="Ablate the selected heads">
      <form onSubmit={submit}>
        <label for={id}>Examples</label>
        <input id={id} type="number" min={FEWEST} value={limit} onInput={(event) => (setLimit(event.currentTarget.value), clear())} />
        <button type="submit" class="button">{busy ? working(elapsed) : `Switch off the ${plural(some.length, "selected head")}`}</button>
        {some.length === 0 && <span class="note">Select heads on the map first.</span>}
        {error && <p class="error" role="alert">{error}</p>}
        {answer && (
          <p role="status">
            {answer.metric} <b>{num(answer.value)}</b> instead of {num(answer.dense)}: {signed(answer.difference)} ({interval(answer.low, answer.high, signed)}), {answer.test} p {pValue(answer.p)}, n {answer.n}.
          </p>
        )}
      </form>
    </Offered>
  );
}

type Repair = "measured" | "with" | "without";
const REPAIRS: Record<Repair, [label: string, asked: boolean | null]> = { measured: ["as measured", null], with: ["with repair", true], without: ["without repair", false] };

export function PruneForm(): JSX.Element {
  const [repair, setRepair] = useState<Repair>("measured");
  const { busy, elapsed, error, answer, start } = useAsk<LiveApi["prune"]["answer"]>();
  const submit = (event: SubmitEvent): void => {
    event.preventDefault();
    if (busy || isWhole) return;
    const { method, seed, protect, onePerBlock, wholeGroups } = choice.value;
    const unit = wholeGroups || !heads.value.hasGroups ? "kv_group" : "even";
    const request: LiveApi["prune"]["ask"] = { method: method.replace(RANKING, ""), keep: keep.value, protect: [...protect], repair: REPAIRS[repair][1], seed, floor: onePerBlock ? 1 : 0, unit };
    const at = runAt.value;
    start(async () => {
      const pruned = await ask("prune", request);
      learn(at, pruned.point);
      return pruned;
    });
  };
  const isWhole = keep.value >= run.value.heads.length;
  return (
    <>
      <Offered what={isWhole ? "Prune to fewer heads and export the model" : `Prune to ${plural(keep.value, "head")} and export the model`}>
        <form onSubmit={submit}>
          <Choose label="Output projections" value={repair} options={(Object.keys(REPAIRS) as Repair[]).map((value) => ({ value, label: REPAIRS[value][0] }))} onPick={setRepair} />
          {isWhole && !busy ? <span class="note">All heads stay at this K: move the slider to prune.</span> : <button type="submit" class="button">{busy ? working(elapsed) : `Prune to ${keep.value} of ${heads.value.run.heads.length} heads and export`}</button>}
          {error && <p class="error" role="alert">{error}</p>}
          {answer && <Pruned answer={answer} of={run.value} />}
        </form>
      </Offered>
      <AblateForm />
    </>
  );
}

function Pruned({ answer: { folder, point }, of }: { answer: LiveApi["prune"]["answer"]; of: RunData }): JSX.Element {
  return (
    <p role="status">
      Written to <code>{folder}</code>: {point.method}, {plural(point.keep, "head")}, seed {point.seed}: {of.curves?.metric ?? "metric"} <b>{num(point.value)}</b>, {signed(point.difference)} against the dense model{of.curves && `, ${bound(of.curves, point)}`}{point.verdict && `, ${verdict(point)}`}. {plural(point.removed.length, "head")} went{of.curves ? "; the map and the curves show it now" : ""}.
    </p>
  );
}
