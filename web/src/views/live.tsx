/** What can be tried out with the model at hand. A file shows in one line where that is. */
import type { ComponentChildren, JSX } from "preact";
import { useId, useState } from "preact/hooks";
import type { LiveApi, RunData } from "../contract";
import { interval, num, plural, pValue, signed } from "../format";
import { ask, whyNot } from "../live";
import { Choose } from "../parts/basics";
import { RANKING } from "../plan";
import { asked, choice, heads, keep, learn, run, runAt, said, selected, sentence } from "../state";

/** Runs one request at a time and keeps what came of it. */
function useAsk<T>(): { busy: boolean; error: string; answer: T | null; start: (work: () => Promise<T>) => void } {
  const [state, setState] = useState<{ busy: boolean; error: string; answer: T | null }>({ busy: false, error: "", answer: null });
  const start = (work: () => Promise<T>): void => {
    setState({ busy: true, error: "", answer: null });
    said.value = "Working";
    work().then(
      (answer) => (setState({ busy: false, error: "", answer }), (said.value = "Done")),
      (error: unknown) => setState({ busy: false, error: error instanceof Error ? error.message : String(error), answer: null }),
    );
  };
  return { ...state, start };
}

function Offered({ what, children }: { what: string; children: ComponentChildren }): JSX.Element {
  const why = whyNot();
  if (why === "file") return <p class="live-line note">{what}: <code>headcount serve {run.value.name || "RUN"}</code> offers it; this page is a file.</p>;
  if (why !== null) return <p class="live-line note">{what}: not here, because {why}.</p>;
  return <div class="live">{children}</div>;
}

export function AskSentence(): JSX.Element {
  const [text, setText] = useState("");
  const [pair, setPair] = useState("");
  const { busy, error, answer, start } = useAsk<LiveApi["attend"]["answer"]>();
  const [one, two] = [useId(), useId()];
  const submit = (event: SubmitEvent): void => {
    event.preventDefault();
    if (busy || !text.trim()) return;
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
        <input id={one} type="text" dir="auto" value={text} onInput={(event) => setText(event.currentTarget.value)} />
        <label for={two}>Second text, if the model takes two</label>
        <input id={two} type="text" dir="auto" value={pair} onInput={(event) => setPair(event.currentTarget.value)} />
        <button type="submit" class="button">{busy ? "Working …" : "Show attention"}</button>
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
  const { busy, error, answer, start } = useAsk<LiveApi["ablate"]["answer"]>();
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
        <input id={id} type="number" min={FEWEST} value={limit} onInput={(event) => setLimit(event.currentTarget.value)} />
        <button type="submit" class="button">{busy ? "Working …" : `Switch off the ${plural(some.length, "selected head")}`}</button>
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
  const { busy, error, answer, start } = useAsk<LiveApi["prune"]["answer"]>();
  const submit = (event: SubmitEvent): void => {
    event.preventDefault();
    if (busy) return;
    const { method, seed, protect, onePerBlock, wholeGroups } = choice.value;
    const unit = wholeGroups || !heads.value.hasGroups ? "kv_group" : "even";
    const wish: LiveApi["prune"]["ask"] = { method: method.replace(RANKING, ""), keep: keep.value, protect: [...protect], repair: REPAIRS[repair][1], seed, floor: onePerBlock ? 1 : 0, unit };
    const at = runAt.value;
    start(async () => {
      const made = await ask("prune", wish);
      learn(at, made.point);
      return made;
    });
  };
  return (
    <>
      <Offered what={`Prune to ${plural(keep.value, "head")} and export the model`}>
        <form onSubmit={submit}>
          <Choose label="Output projections" value={repair} options={(Object.keys(REPAIRS) as Repair[]).map((value) => ({ value, label: REPAIRS[value][0] }))} onPick={setRepair} />
          <button type="submit" class="button">{busy ? "Working …" : `Prune to ${keep.value} of ${heads.value.run.heads.length} heads and export`}</button>
          {error && <p class="error" role="alert">{error}</p>}
          {answer && <Pruned answer={answer} of={run.value} />}
        </form>
      </Offered>
      <AblateForm />
    </>
  );
}

function Pruned({ answer: { folder, point }, of }: { answer: LiveApi["prune"]["answer"]; of: RunData }): JSX.Element {
  const test = point.p === null ? "" : `; ${point.test} p ${pValue(point.p)}`;
  return (
    <p role="status">
      Written to <code>{folder}</code>: {point.method}, {plural(point.keep, "head")}, seed {point.seed}: {of.curves?.metric ?? "metric"} <b>{num(point.value)}</b>, {signed(point.difference)} against the whole model (95 % interval {interval(point.low, point.high, signed)}{test}). {plural(point.removed.length, "head")} went{of.curves ? "; the map and the curves show it now" : ""}.
    </p>
  );
}
