/** The attention of one head over one sentence. */
import type { JSX } from "preact";
import { useId, useMemo, useState } from "preact/hooks";
import { css, ink, weight } from "../colour";
import type { Attention, HeadIndex } from "../contract";
import { argmax, matrixOf, pool, sidesOf, unitsOf, type Matrix, type Sides, type Unit } from "../decode";
import { num, percent, plural } from "../format";
import { kindName, spoken } from "../heads";
import { Check, Choose, direction, Missing, Pick, Token, useWork, visible } from "../parts/basics";
import { Figure } from "../parts/figure";
import { useRoving } from "../parts/roving";
import { asked, dark, go, head, heads, run, runAt, sentence } from "../state";
import { ArcsView, CrossView, goldArcs, headArcs } from "./arcs";
import { AskSentence } from "./live";
import { MatrixView } from "./matrix";

/** Sentences of the file, then those that were asked of the server. */
function sourceOf(at: number): { attention: Attention; at: number } | null {
  const own = run.value.attention;
  const count = own?.sentences.length ?? 0;
  const more = asked.value[runAt.value];
  if (own && at < count) return { attention: own, at };
  if (more?.sentences[at - count]) return { attention: more, at: at - count };
  return own && count ? { attention: own, at: 0 } : null;
}

export function AttentionView(): JSX.Element {
  const found = sourceOf(sentence.value);
  return (
    <>
      {found ? <Viewer key={head.value} {...found} /> : !run.value.attention_left_out && <Missing what="No attention maps are in this run." makes="portraits" />}
      {run.value.attention_left_out && <p class="missing">Attention maps were left out of this file for its size; <code>headcount report --max-mb 10 RUN</code>, or <code>headcount serve RUN</code>, shows them.</p>}
      <AskSentence />
    </>
  );
}

const short = (tokens: string[]): string => {
  const text = tokens.map(visible).join(" ");
  return text.length > 70 ? `${text.slice(0, 69)}…` : text;
};

function sentenceOptions(): { value: string; label: string }[] {
  const all = [...(run.value.attention?.sentences ?? []), ...(asked.value[runAt.value]?.sentences ?? [])];
  return all.map((one, at) => ({ value: String(at), label: `${at + 1}. ${short(one.source.words ?? one.source.tokens)}` }));
}

function Viewer({ attention, at }: { attention: Attention; at: number }): JSX.Element {
  const index = head.value;
  const place = heads.value.places[index];
  const work = useWork(async () => (place ? matrixOf(run.value, attention, at, place.at, place.head) : "This run has no heads."), [attention, at, index]);
  const sides = sidesOf(attention.sentences[at]!, place?.block.kind ?? "");
  return (
    <div class="viewer">
      <div class="controls">
        <Choose label="Sentence" value={String(sentence.value)} options={sentenceOptions()} onPick={(value) => (sentence.value = Number(value))} />
        <Choose label="Head" value={String(index)} options={run.value.heads.map((name, one) => ({ value: String(one), label: name, group: kindName(heads.value.places[one]?.block.kind ?? "") }))} onPick={(value) => go("attention", Number(value))} />
        <button type="button" class="button" onClick={() => step(-1)}>Previous head</button>
        <button type="button" class="button" onClick={() => step(1)}>Next head</button>
      </div>
      {work === null ? <p class="note" role="status">Unpacking …</p> : typeof work === "string" ? <p class="missing">{work}</p> : <Shown full={work} sides={sides} index={index} />}
    </div>
  );
}

function step(by: number): void {
  const total = run.value.heads.length;
  go("attention", (head.value + by + total) % total);
}

function Shown({ full, sides, index }: { full: Matrix; sides: Sides; index: HeadIndex }): JSX.Element {
  const canWord = sides.query.word !== null && sides.key.word !== null;
  const [level, setLevel] = useState<"word" | "token">(canWord && full.rows <= 128 ? "word" : "token");
  const [hide, setHide] = useState(full.rows <= 128 && [...sides.key.special, ...sides.query.special].includes(true));
  const [threshold, setThreshold] = useState(0);
  const [pinned, setPinned] = useState<number | null>(null);
  const slider = useId();
  const byWord = level === "word" && canWord;
  const queries = useMemo(() => unitsOf(sides.query, byWord, hide), [full, byWord, hide]);
  const keys = useMemo(() => unitsOf(sides.key, byWord, hide), [full, byWord, hide]);
  const matrix = useMemo(() => (byWord || hide ? pool(full, queries, keys) : full), [full, queries, keys]);
  const pin = pinned !== null && pinned < matrix.rows ? pinned : null;
  const name = `${run.value.heads[index]} on ${matrix.rows} ${byWord ? "words" : "tokens"}`;
  const controls = (
    <>
      {canWord ? <Pick label="Level" value={level} options={[["word", "Words"], ["token", "Word pieces"]]} onPick={(value) => (setLevel(value), setPinned(null))} /> : <span class="note">Words are not known for this sentence; shown by token.</span>}
      <Check label="Hide special tokens" on={hide} onFlip={(on) => (setHide(on), setPinned(null))} />
      <span class="choose">
        <label for={slider}>Hide weights under {num(threshold, 2)}</label>
        <input id={slider} type="range" min={0} max={1} step={0.01} value={threshold} onInput={(event) => setThreshold(Number(event.currentTarget.value))} />
      </span>
      {pin !== null && <button type="button" class="button" onClick={() => setPinned(null)}>Unpin {visible(queries[pin]?.text ?? "")}</button>}
    </>
  );
  const common = { matrix, queries, keys, threshold, pinned: pin };
  return (
    <>
      <div class="controls">{controls}</div>
      <TextFigure {...common} sides={sides} index={index} name={name} onPin={setPinned} />
      <Figure
        title="Matrix"
        class="wide"
        takeaway={strongest(matrix, queries, keys)}
        caption={`Rows ask, columns are attended to.${sides.causal ? " Grey is masked: a token cannot see what comes later." : ""} Click or Enter pins a row.`}
        table={() => ({ columns: ["from", "to", "weight"].map((column) => ({ name: column })), rows: strongestRows(matrix, queries, keys) })}
      >
        <MatrixView {...common} causal={sides.causal} dark={dark.value} onPin={setPinned} label={`Attention of ${spoken(heads.value, index)}`} />
      </Figure>
    </>
  );
}

function strongest(matrix: Matrix, queries: Unit[], keys: Unit[]): string {
  const best = argmax(matrix);
  const counts = new Map<number, number>();
  best.forEach((column) => column >= 0 && counts.set(column, (counts.get(column) ?? 0) + 1));
  const [column, count] = [...counts].sort((a, b) => b[1] - a[1])[0] ?? [-1, 0];
  if (column < 0) return "No weight is left to show.";
  return `${plural(count, "row")} of ${queries.length} attend most to “${visible(keys[column]!.text)}”.`;
}

/** The strongest weights, at most ten per row: a table of all would not end. */
function strongestRows(matrix: Matrix, queries: Unit[], keys: Unit[]): (string | number)[][] {
  return queries.flatMap((query, row) => {
    const weights = [...matrix.weights.subarray(row * matrix.columns, (row + 1) * matrix.columns)];
    const order = weights.map((_, column) => column).sort((a, b) => weights[b]! - weights[a]!).slice(0, 10);
    return order.filter((column) => weights[column]! > 0).map((column) => [`${row} ${visible(query.text)}`, `${column} ${visible(keys[column]!.text)}`, weights[column]!]);
  });
}

const MOST_UNITS = 100;
const AROUND = 20;

interface TextProps {
  matrix: Matrix;
  queries: Unit[];
  keys: Unit[];
  threshold: number;
  pinned: number | null;
  sides: Sides;
  index: HeadIndex;
  name: string;
  onPin: (row: number | null) => void;
}

function TextFigure({ matrix, queries, keys, threshold, pinned, sides, index, name, onPin }: TextProps): JSX.Element {
  const best = useMemo(() => argmax(matrix), [matrix]);
  const gold = useMemo(() => (sides.cross ? [] : goldArcs(sides.query.arcs, queries)), [queries, sides]);
  const arcs = useMemo(() => (sides.cross ? [] : headArcs(best, matrix, gold, threshold)), [best, gold, threshold]);
  const agreeing = arcs.filter((arc) => arc.agrees).length;
  const long = Math.max(queries.length, keys.length) > MOST_UNITS;
  const first = long ? Math.max(0, Math.min(queries.length - 2 * AROUND, (pinned ?? 0) - AROUND)) : 0;
  const part = useMemo(() => (long ? queries.slice(first, first + 2 * AROUND) : queries), [queries, first, long]);
  const message = sides.cross
    ? `${spoken(heads.value, index)} reads the source text from ${plural(queries.length, "target token")}.`
    : gold.length ? `${agreeing} of ${plural(arcs.length, "strongest arc")} join the two ends of a dependency (${percent(arcs.length ? agreeing / arcs.length : 0, 0)}).` : `${plural(arcs.length, "arc")}, each from a token to what it attends to most; gold dependencies are not known for this sentence.`;
  return (
    <Figure
      title={name}
      class="wide"
      takeaway={message}
      caption={sides.cross ? "The text that asks is above, the text that is attended to below; thicker lines have more weight." : `${gold.length ? "Above: gold dependencies. " : ""}Below: from every ${sides.query.word ? "word" : "token"} to what it attends to most.${gold.length ? " Arcs that agree are solid, others dashed." : ""}${long ? ` Arcs show ${2 * AROUND} tokens around the pinned one; the matrix below shows all.` : ""}`}
      table={() => ({ columns: ["from", "to", "weight", "agrees"].map((column) => ({ name: column })), rows: best.map((to, from) => [visible(queries[from]!.text), to < 0 ? null : visible(keys[to]!.text), to < 0 ? null : matrix.weights[from * matrix.columns + to]!, arcs.some((arc) => arc.from === from && arc.agrees)]) })}
    >
      {sides.cross && !long && <CrossView {...{ matrix, queries, keys, threshold, pinned }} label={`Cross-attention of ${name}`} />}
      {!sides.cross && <ArcsView units={part} gold={gold} arcs={arcs} pinned={pinned} first={first} label={`Arcs of ${name}`} />}
      <TokenRow {...{ matrix, queries, keys, pinned, onPin, threshold }} lang={sides.query.lang} cross={sides.cross} />
    </Figure>
  );
}

type RowProps = Pick_<TextProps, "matrix" | "queries" | "keys" | "pinned" | "onPin" | "threshold"> & { cross: boolean; lang?: string | null };
type Pick_<T, K extends keyof T> = { [P in K]: T[P] };

/** The text itself; a token that is pressed is pinned, and the text shows where its attention goes. */
function TokenRow({ matrix, queries, keys, pinned, onPin, threshold, cross, lang }: RowProps): JSX.Element {
  const roving = useRoving(queries.length);
  const share = (column: number): number => (pinned === null ? 0 : matrix.weights[pinned * matrix.columns + column]!);
  const tint = (column: number): { background: string; color: string } | Record<string, never> => {
    const value = share(column);
    const colour = weight(value, dark.value);
    return value > 0.02 && value >= threshold ? { background: css(colour), color: ink(colour) } : {};
  };
  return (
    <div class="token-rows">
      <p class="note">{pinned === null ? "Press a token to pin its row and see where its attention goes." : `Where the attention of “${visible(queries[pinned]!.text)}” goes.`}</p>
      <div class="tokens" role="group" aria-label="Tokens that ask" dir={direction(queries.map((unit) => unit.text))}>
        {queries.map((unit, at) => (
          <button key={at} type="button" {...roving.of(at)} class={`token ${pinned === at ? "query" : ""} ${unit.special ? "special" : ""}`} aria-pressed={pinned === at} style={cross ? {} : tint(at)} onClick={() => onPin(pinned === at ? null : at)}>
            <Token text={unit.text} lang={lang} />
          </button>
        ))}
      </div>
      {cross && <div class="tokens" dir={direction(keys.map((unit) => unit.text))}>{keys.map((unit, at) => <span key={at} class="token" style={tint(at)}><Token text={unit.text} /></span>)}</div>}
    </div>
  );
}
