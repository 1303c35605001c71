/** The attention of one head over one sentence. */
import { Fragment, type JSX } from "preact";
import { useId, useMemo } from "preact/hooks";
import { css, ink, weight } from "../colour";
import type { Attention, HeadNumber } from "../contract";
import { argmax, hiddenShares, matrixOf, named, namesOf, pool, quotedName, sidesOf, unitsOf, type Matrix, type Named, type Sides, type Unit } from "../decode";
import { num, percent, plural, weightNumber } from "../format";
import { kindName, spoken } from "../heads";
import { Check, Choose, direction, Missing, Pick, Token, useWork, visible } from "../parts/basics";
import { Figure } from "../parts/figure";
import { useRoving } from "../parts/roving";
import { asked, dark, go, head, heads, hideSpecial, level, pinned, run, runAt, sentence, threshold } from "../state";
import { ArcsView, CrossView, goldArcs, headArcs, LEAST, type Arc } from "./arcs";
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
      {found ? <Viewer {...found} /> : !run.value.attention_left_out && <Missing what="No attention maps are in this run." makes="profiles" />}
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
    <div class="viewer" id="shown-sentence" tabIndex={-1} role="group" aria-label="Attention over the sentence">
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

function Shown({ full, sides, index }: { full: Matrix; sides: Sides; index: HeadNumber }): JSX.Element {
  const canWord = sides.query.word !== null && sides.key.word !== null;
  const byWord = canWord && (level.value ?? (full.rows <= 128 ? "word" : "token")) === "word";
  const hide = hideSpecial.value ?? (full.rows <= 128 && [...sides.key.special, ...sides.query.special].includes(true));
  const slider = useId();
  const queries = useMemo(() => unitsOf(sides.query, byWord, hide), [full, byWord, hide]);
  const keys = useMemo(() => unitsOf(sides.key, byWord, hide), [full, byWord, hide]);
  const matrix = useMemo(() => (byWord || hide ? pool(full, queries, keys) : full), [full, queries, keys]);
  const names = useMemo(() => [namesOf(queries, visible), namesOf(keys, visible)] as const, [queries, keys]);
  const hidden = useMemo(() => (keys.reduce((sum, key) => sum + key.tokens.length, 0) < full.columns ? hiddenShares(full, queries, keys) : null), [full, queries, keys]);
  const text = `${sentence.value} ${sides.query === sides.key ? "self" : "cross"} ${sides.query.tokens.length} ${byWord} ${hide}`;
  const pin = pinned.value?.of === text && pinned.value.row < matrix.rows ? pinned.value.row : null;
  const onPin = (row: number | null): void => {
    pinned.value = row === null ? null : { of: text, row };
  };
  const name = `${run.value.heads[index]} on ${matrix.rows} ${byWord ? "words" : "tokens"}`;
  const unknown = new Set([sides.query, sides.key].flatMap((side) => side.tokens.filter((_, at) => side.unknown?.[at]))).size;
  const controls = (
    <>
      {canWord ? <Pick label="Level" value={byWord ? "word" : "token"} options={[["word", "Words"], ["token", "Word pieces"]]} onPick={(value) => (level.value = value)} /> : <span class="note">Words are not known for this sentence; shown by token.</span>}
      <Check label="Hide special tokens" on={hide} onFlip={(on) => (hideSpecial.value = on)} />
      <span class="choose">
        <label for={slider}>Hide weights under {num(threshold.value, 2)}</label>
        <input id={slider} type="range" min={0} max={1} step={0.01} value={threshold.value} onInput={(event) => (threshold.value = Number(event.currentTarget.value))} />
      </span>
      {pin !== null && <button type="button" class="button" onClick={() => onPin(null)}>Unpin {named(names[0][pin])}</button>}
    </>
  );
  const common = { matrix, queries, keys, names, hidden, threshold: threshold.value, pinned: pin };
  return (
    <>
      <div class="controls">{controls}</div>
      {unknown > 0 && <p class="note">{unknown === 1 ? "1 token is [unknown]" : `${unknown} different tokens are [unknown]`} to the tokenizer: the model reads {unknown === 1 ? "it as it reads anything that it does not know" : "all of them as one and the same"}.</p>}
      <TextFigure {...common} sides={sides} index={index} name={name} byWord={byWord} onPin={onPin} />
      <Figure
        title="Matrix"
        class="wide"
        takeaway={strongest(matrix, names[1])}
        caption={`Rows ask, columns are attended to.${sides.causal ? " Grey is masked: a token cannot see what comes later." : ""}${hiddenText(hidden)} Click or Enter pins a row.`}
        table={() => ({ columns: ["from", "to", "weight"].map((column) => ({ name: column })), rows: strongestRows(matrix, names) })}
      >
        <MatrixView {...common} causal={sides.causal} dark={dark.value} onPin={onPin} label={`Attention of ${spoken(heads.value, index)}`} />
      </Figure>
    </>
  );
}

/** How much is not in the picture where tokens are hidden. */
function hiddenText(hidden: number[] | null): string {
  if (!hidden?.length) return "";
  return ` Among the tokens shown; ${percent(hidden.reduce((sum, share) => sum + share, 0) / hidden.length, 0)} of the attention goes to hidden ones (mean over rows).`;
}

function strongest(matrix: Matrix, keys: readonly Named[]): string {
  const best = argmax(matrix);
  const counts = new Map<number, number>();
  best.forEach((column) => column >= 0 && counts.set(column, (counts.get(column) ?? 0) + 1));
  const [column, count] = [...counts].sort((a, b) => b[1] - a[1])[0] ?? [-1, 0];
  if (column < 0) return "No weight is left to show.";
  return `The strongest attention of a row goes most often to ${quotedName(keys[column])}: in ${count} of ${plural(matrix.rows, "row")}.`;
}

type Names = readonly [queries: Named[], keys: Named[]];

/** The strongest weights, at most ten per row: a table of all would not end. */
function strongestRows(matrix: Matrix, names: Names): (string | number)[][] {
  return names[0].flatMap((query, row) => {
    const weights = [...matrix.weights.subarray(row * matrix.columns, (row + 1) * matrix.columns)];
    const order = weights.map((_, column) => column).sort((a, b) => weights[b]! - weights[a]!).slice(0, 10);
    return order.filter((column) => weights[column]! > 0).map((column) => [named(query), named(names[1][column]), weightNumber(weights[column]!)]);
  });
}

const MOST_UNITS = 100;
const AROUND = 20;

interface TextProps {
  matrix: Matrix;
  queries: Unit[];
  keys: Unit[];
  names: Names;
  hidden: number[] | null;
  threshold: number;
  pinned: number | null;
  sides: Sides;
  index: HeadNumber;
  name: string;
  byWord: boolean;
  onPin: (row: number | null) => void;
}

function TextFigure({ matrix, queries, keys, names, hidden, threshold: least, pinned: pin, sides, index, name, byWord, onPin }: TextProps): JSX.Element {
  const best = useMemo(() => argmax(matrix), [matrix]);
  const gold = useMemo(() => (sides.cross ? [] : goldArcs(sides.query.arcs, queries)), [queries, sides]);
  const arcs = useMemo(() => (sides.cross ? [] : headArcs(best, matrix, gold, least)), [best, gold, least]);
  const agreeing = arcs.filter((arc) => arc.agrees).length;
  const long = Math.max(queries.length, keys.length) > MOST_UNITS;
  const first = long ? Math.max(0, Math.min(queries.length - 2 * AROUND, (pin ?? 0) - AROUND)) : 0;
  const part = useMemo(() => (long ? queries.slice(first, first + 2 * AROUND) : queries), [queries, first, long]);
  const unit = byWord ? "word" : "token";
  const message = sides.cross
    ? `${spoken(heads.value, index)} reads the source text from ${plural(queries.length, `target ${unit}`)}.`
    : gold.length ? `${agreeing} of ${plural(arcs.length, "strongest arc")} join the two ends of a dependency (${percent(arcs.length ? agreeing / arcs.length : 0, 0)}).` : `${plural(arcs.length, "arc")}, each from a ${unit} to what it attends to most; gold dependencies are not known for this sentence.`;
  const crossed = long ? "Lines are not drawn for so long a text; the matrix below shows all." : `The text that asks is above, the text that is attended to below; thicker lines have more weight, and weights under ${num(Math.max(LEAST, least), 2)} have none.`;
  const arched = `${gold.length ? "Above: gold dependencies. " : ""}Below: from every ${unit} to what it attends to most, if that is not itself.${gold.length ? " Arcs that agree are solid, others dashed." : ""}`;
  const columns = ["from", "to", "weight", ...(gold.length ? ["agrees"] : [])].map((column) => ({ name: column }));
  return (
    <Figure
      title={name}
      class="wide"
      takeaway={`${message}${long && !sides.cross ? ` ${windowText(arcs, first, part.length, queries.length, unit, pin !== null)}` : ""}`}
      caption={`${sides.cross ? crossed : arched}${hiddenText(hidden)}`}
      table={() => ({ columns, rows: best.map((to, from) => [named(names[0][from]), to < 0 ? null : named(names[1][to]), to < 0 ? null : weightNumber(matrix.weights[from * matrix.columns + to]!), ...(gold.length ? [arcs.some((arc) => arc.from === from && arc.agrees)] : [])]) })}
    >
      {sides.cross && !long && <CrossView {...{ matrix, queries, keys, names, threshold: least, pinned: pin }} label={`Cross-attention of ${name}`} />}
      {!sides.cross && <ArcsView units={part} names={names[0]} gold={gold} arcs={arcs} pinned={pin} first={first} label={`Arcs of ${name}`} />}
      <TokenRow {...{ matrix, queries, keys, names, hidden, pinned: pin, onPin, threshold: least }} lang={sides.query.lang} cross={sides.cross} />
    </Figure>
  );
}

/** Which part of a long text is drawn, and what is not. */
function windowText(arcs: Arc[], first: number, count: number, total: number, unit: string, isPinned: boolean): string {
  const inside = (at: number): boolean => at >= first && at < first + count;
  const own = arcs.filter((arc) => inside(arc.from));
  const out = own.filter((arc) => !inside(arc.to)).length;
  return `Drawn are ${plural(own.length, "arc")} from ${unit}s ${first + 1} to ${first + count} of ${total}${isPinned ? ", around the pinned one" : "; pinning one moves there"}. Of them ${out} ${out === 1 ? "leads" : "lead"} outside of this window and end${out === 1 ? "s" : ""} as a stub with the place of the target. The matrix below shows all.`;
}

type RowProps = Pick_<TextProps, "matrix" | "queries" | "keys" | "names" | "hidden" | "pinned" | "onPin" | "threshold"> & { cross: boolean; lang?: string | null };
type Pick_<T, K extends keyof T> = { [P in K]: T[P] };

const Boundary = (): JSX.Element => <span class="boundary" title="A hidden separator: here the next text begins">‖<span class="unseen">hidden separator</span></span>;

const Unknown = ({ unit }: { unit: Unit }): JSX.Element => <>{unit.unknown && <small> [unknown]</small>}</>;

/** The text itself; a token that is pressed is pinned, and the text shows where its attention goes. */
function TokenRow({ matrix, queries, keys, names, hidden, pinned: pin, onPin, threshold: least, cross, lang }: RowProps): JSX.Element {
  const roving = useRoving(queries.length);
  const share = (column: number): number => (pin === null ? 0 : matrix.weights[pin * matrix.columns + column]!);
  const tint = (column: number): { background: string; color: string } | Record<string, never> => {
    const value = share(column);
    const colour = weight(value, dark.value);
    return value > 0.02 && value >= least ? { background: css(colour), color: ink(colour) } : {};
  };
  const look = (unit: Unit): string => `token ${unit.special ? "special" : ""} ${unit.unknown ? "unknown-token" : ""}`;
  return (
    <div class="token-rows">
      <p class="note">{pin === null ? "Press a token to pin its row and see where its attention goes." : `Where the attention of ${quotedName(names[0][pin])} goes${hidden ? `; ${percent(hidden[pin], 0)} of it to hidden tokens` : ""}.`}</p>
      <div class="tokens" role="group" aria-label="Tokens that ask" dir={direction(queries.map((unit) => unit.text))}>
        {queries.map((unit, at) => (
          <Fragment key={at}>
            {unit.parted && <Boundary />}
            <button type="button" {...roving.of(at)} class={`${look(unit)} ${pin === at ? "query" : ""}`} aria-pressed={pin === at} style={cross ? {} : tint(at)} onClick={() => onPin(pin === at ? null : at)}>
              <Token text={unit.text} lang={lang} /><Unknown unit={unit} />
            </button>
          </Fragment>
        ))}
      </div>
      {cross && <div class="tokens" dir={direction(keys.map((unit) => unit.text))}>{keys.map((unit, at) => <Fragment key={at}>{unit.parted && <Boundary />}<span class={look(unit)} style={tint(at)}><Token text={unit.text} /><Unknown unit={unit} /></span></Fragment>)}</div>}
    </div>
  );
}
