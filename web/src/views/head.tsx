/** One head: what it does, how much it matters, what it attends to, and which others are like it. */
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { css, ink, weight } from "../colour";
import type { Example, FigureAxis, HeadNumber, LineFigure, Maybe, Roles, RunData } from "../contract";
import { Lines } from "../drawings/lines";
import { interval, num, offset, percent, pValue, whole } from "../format";
import { kindName, ranks, roleNames, spoken } from "../heads";
import { Choose, direction, follow, HeadLink, Missing, Pick, Scroll, Section, Token } from "../parts/basics";
import { Bars } from "../parts/bars";
import { Bias, testText } from "../parts/bias";
import { Figure } from "../parts/figure";
import { atMost, conditions, costText, missing, tolerance } from "../verdicts";
import { goesText } from "./map";
import { address, dark, go, head, heads, plan, run, selected, toggle } from "../state";

export function HeadPage(): JSX.Element {
  const index = head.value;
  const place = heads.value.places[index];
  if (!place) return <p>This run has no heads.</p>;
  const total = run.value.heads.length;
  return (
    <>
      <header class="head-title">
        <div>
          <h2>{run.value.heads[index]}</h2>
          <p class="note">{spoken(heads.value, index)}{heads.value.kinds.length > 1 ? "" : ` · ${kindName(place.block.kind)}`} · <code>{place.block.path}</code>{place.group !== null && ` · KV group ${place.group}`}</p>
          <p>{roleNames(heads.value, index) ? <b>{roleNames(heads.value, index)}</b> : run.value.roles ? "No role holds." : ""} <span class={plan.value.removed.has(index) ? "tag warn" : "tag solid"}>{goesText(index)}</span></p>
        </div>
        <div class="controls">
          <Choose label="Head" value={String(index)} options={run.value.heads.map((name, at) => ({ value: String(at), label: name }))} onPick={(at) => go("head", Number(at))} />
          <button type="button" class="button" onClick={() => go("head", (index + total - 1) % total)}>Previous</button>
          <button type="button" class="button" onClick={() => go("head", (index + 1) % total)}>Next</button>
          <button type="button" class="button" aria-pressed={selected.value.has(index)} onClick={() => toggle(index)}>{selected.value.has(index) ? "Selected" : "Select"}</button>
          <a class="button" href={address("attention", index)} onClick={(event) => follow(event, () => go("attention", index))}>See its attention</a>
        </div>
      </header>
      <div class="pair">
        <div class="stack">
          <Importance index={index} />
          <Similar index={index} />
        </div>
        <RolesOf index={index} />
      </div>
      <AttendsTo index={index} />
      <Examples index={index} />
    </>
  );
}

function Importance({ index }: { index: HeadNumber }): JSX.Element {
  const { scores } = run.value;
  return (
    <Section title="Importance and other scores">
      <Alone index={index} />
      {scores.length === 0 ? <Missing what="This head has no score." makes="scores" /> : (
        <Scroll label="Scores of this head, table">
          <table>
            <thead><tr><th scope="col">score</th><th scope="col">value</th><th scope="col">95 % interval</th><th scope="col">rank</th><th scope="col">among all heads</th></tr></thead>
            <tbody>
              {scores.map((score) => {
                const value = score.values[index] ?? null;
                const rank = ranks(score.values)[index];
                return (
                  <tr key={score.name}>
                    <th scope="row" title={score.about}>{score.name}{score.significant?.[index] && <span class="dot inline" title="significant after correction" />}</th>
                    <td class="number">{num(value)}</td>
                    <td class="number">{interval(score.low?.[index], score.high?.[index])}</td>
                    <td class="number">{typeof rank === "number" ? `${num(rank)} of ${score.values.length}` : "–"}</td>
                    <td><Strip values={score.values} at={index} /></td>
                  </tr>
                );
              })}
            </tbody>
          </table>
        </Scroll>
      )}
    </Section>
  );
}

/** What removing this head alone costs at most. */
function Alone({ index }: { index: HeadNumber }): JSX.Element | null {
  const { verdicts } = run.value;
  const bound = verdicts?.bound[index];
  if (!verdicts || typeof bound !== "number") return null;
  return (
    <p class="alone-line">
      Removed alone, this head costs <b>at most {atMost(verdicts, bound)}</b> on average ({conditions(verdicts)}; observed {costText(verdicts, verdicts.cost[index])}).{" "}
      {verdicts.safe[index] ? <span class="tag solid">safe alone: at most {tolerance(verdicts)}, corrected over heads</span> : <span class="note">{verdicts.reason ? missing(verdicts) : `Not shown to cost at most ${tolerance(verdicts)} (corrected over heads).`}</span>}
      <span class="note"> Of several heads removed together this says nothing.</span>
    </p>
  );
}

/** Where a value stands among those of all heads. */
function Strip({ values, at }: { values: Maybe[]; at: HeadNumber }): JSX.Element {
  const known = values.filter((value): value is number => value !== null && Number.isFinite(value));
  const [low, high] = [Math.min(...known), Math.max(...known)];
  const x = (value: number): number => 3 + (high > low ? (value - low) / (high - low) : 0.5) * 134;
  const own = values[at];
  return (
    <svg class="strip" width="140" height="16" aria-hidden="true">
      {known.map((value, place) => <line key={place} x1={x(value)} x2={x(value)} y1="4" y2="12" />)}
      {typeof own === "number" && <circle cx={x(own)} cy="8" r="4.5" />}
    </svg>
  );
}

interface RoleRow {
  role: number;
  at: number;
  bias: number;
}

/** Roles that looking a fixed number of tokens away fulfils by definition: a baseline of fixed offsets would be the role itself. */
export const isOffset = (name: string): boolean => name.startsWith("offset:") || name === "local";

function RolesOf({ index }: { index: HeadNumber }): JSX.Element {
  const { roles } = run.value;
  const [all, setAll] = useState(false);
  if (!roles) return <Section title="Roles"><Missing what="The roles of this head were not tested." makes="roles" /></Section>;
  const { rows } = roles;
  const own = rows.head.flatMap((of, at): RoleRow[] => (of === index ? [{ at, role: rows.role[at]!, bias: rows.bias[at] ?? -Infinity }] : []));
  const sorted = own.sort((a, b) => Number(rows.has_role[b.at]) - Number(rows.has_role[a.at]) || b.bias - a.bias);
  const shown = all ? sorted : sorted.slice(0, 8);
  const twins = rows.excess?.some((value) => value !== null) ?? false;
  const most = Math.max(2, 1.2 * (roles.tau ?? 0), ...own.map((row) => rows.high[row.at] ?? row.bias).filter(Number.isFinite));
  return (
    <Section title="Roles" note={`Bias is how much more attention goes there than chance would give: 1 is chance, the dashed line.${testText(roles)}`}>
      <Scroll label="Roles of this head, table">
        <table class="tight">
          <thead><tr><th scope="col">role</th><th scope="col" class="number">bias</th><th scope="col" class="drawn"><span class="unseen">drawn</span></th>{twins && <th scope="col" class="number">excess mass</th>}<th scope="col">q</th><th scope="col">arg-max hits</th><th scope="col">best baseline</th></tr></thead>
          <tbody>
            {shown.map(({ role, at }) => (
              <tr key={role} class={rows.has_role[at] ? "holds" : ""}>
                <th scope="row" title={roles.about[role]}><span class="letter">{heads.value.codes[role]}</span> {roles.names[role]}{rows.has_role[at] && <span class="tag solid">holds</span>}{roles.best?.filter((one) => one.role === role && one.head === index).map((one) => <span key={one.role} class="tag" title={`the most accurate head on one half of the sentences: ${percent(one.accuracy)} on the other half`}>best head</span>)}</th>
                <td class="number">{num(rows.bias[at])}<br /><small>{interval(rows.low[at], rows.high[at])}</small></td>
                <td class="drawn"><Bias value={rows.bias[at] ?? null} low={rows.low[at] ?? null} high={rows.high[at] ?? null} most={most} tau={roles.tau} /></td>
                {twins && <TwinCell roles={roles} at={at} />}
                <td class="number">{pValue(rows.q[at])}</td>
                <td class="number">{typeof rows.accuracy[at] === "number" ? <>{percent(rows.accuracy[at])}<br /><small>{interval(rows.accuracy_low[at], rows.accuracy_high[at], percent)}</small></> : "–"}</td>
                <td class="number">{isOffset(roles.names[role] ?? "") ? <span title="This role is a fixed offset itself">itself</span> : typeof rows.baseline[at] === "number" ? <>{percent(rows.baseline[at])}<br /><small>{offset(rows.baseline_offset[at])}</small></> : "–"}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </Scroll>
      {sorted.length > 8 && <button type="button" class="quiet" aria-expanded={all} onClick={() => setAll(!all)}>{all ? "Show the strongest 8" : `Show all ${sorted.length}`}</button>}
      <DistanceFigure roles={roles} index={index} />
    </Section>
  );
}

function TwinCell({ roles, at }: { roles: Roles; at: number }): JSX.Element {
  const { rows } = roles;
  const [twin, share, excess] = [rows.twin_bias?.[at], rows.explained?.[at], rows.excess?.[at]];
  if (typeof excess !== "number") return <td class="number">–</td>;
  return (
    <td class="number">
      {num(excess, 2)} <small>{interval(rows.excess_low?.[at] ?? null, rows.excess_high?.[at] ?? null)}</small>
      <br /><small>twin's bias {num(twin)}{typeof share === "number" && `, ${percent(share)} by distance`}</small>
    </td>
  );
}

const AXIS: FigureAxis = { label: "", unit: "", is_share: false, ticks: [], is_count: false, limits: [] };

/** The head's mean attention by offset to the sieve that it exceeds its twin on most, beside the twin's. */
function DistanceFigure({ roles, index }: { roles: Roles; index: HeadNumber }): JSX.Element | null {
  const curve = roles.curves?.find((one) => one.head === index);
  if (!curve?.offsets.length) return null;
  const name = roles.names[curve.role] ?? "";
  const line = (label: string, y: number[], is_control: boolean): LineFigure["lines"][number] => ({ label, x: curve.offsets, y, low: [], high: [], is_control, start: [] });
  const figure: LineFigure = {
    kind: "lines", name: "distance", title: `Attention by distance, ${name}`, table: "", n: null, n_unit: "", note: "", references: [],
    x: { ...AXIS, label: "key − query, in tokens", is_count: true }, y: { ...AXIS, label: "mean attention", is_share: true },
    lines: [line("this head", curve.attention, false), line("its distance twin", curve.twin, true)],
  };
  return (
    <Figure
      level={3}
      title={figure.title}
      caption={`Mean attention to the keys that ${name} is about, by their distance. The twin attends by distance alone, as this head does to all other keys; where the head lies above it, more than distance is at work.`}
      table={() => ({ columns: [{ name: "key − query" }, { name: "this head" }, { name: "its twin" }], rows: curve.offsets.map((one, at) => [one, curve.attention[at] ?? null, curve.twin[at] ?? null]) })}
    >
      <Lines figure={figure} />
    </Figure>
  );
}

function AttendsTo({ index }: { index: HeadNumber }): JSX.Element {
  const { profiles } = run.value;
  if (!profiles) return <Section title="What it attends to"><Missing what="What heads attend to was not recorded in this run." makes="profiles" /></Section>;
  const { pos, relation, distances, distance } = profiles;
  const kind = heads.value.places[index]?.block.kind ?? "";
  const chance = (of: NonNullable<typeof pos>): Maybe[] | undefined => of.expected_by_kind[kind];
  const apart = kind === "cross" ? "Dependencies join words of one text; cross-attention joins two texts." : undefined;
  return (
    <Section title="What it attends to" note={`Over ${whole(profiles.n_sentences)} sentences. Entropy ${num(profiles.entropy[index])} nats, largest weight ${num(profiles.confidence[index])} on average.`}>
      <div class="triple">
        <Bars title="Distance in words" names={distances} values={distance[index] ?? []} upright />
        {pos ? <Bars title="Part of speech of the key" names={pos.names} values={pos.share[index] ?? []} expected={chance(pos)} /> : <Missing what="Parts of speech are not known for this text." makes="annotated" />}
        {relation ? <Bars title="Other word of a dependency" names={relation.names} values={relation.share[index] ?? []} expected={chance(relation)} without={apart} /> : <Missing what="Dependencies are not known for this text." makes="annotated" />}
      </div>
    </Section>
  );
}

function Examples({ index }: { index: HeadNumber }): JSX.Element | null {
  const [which, setWhich] = useState<"top" | "middle" | "random">("top");
  const examples = run.value.profiles?.examples[index];
  if (!examples) return null;
  return (
    <Section title="Examples" note="The boxed token asks; the stronger the colour of a token, the more of its attention it gets. The number is the largest weight.">
      <Pick label="Which examples" value={which} options={[["top", "Most confident"], ["middle", "Middle"], ["random", "At random"]]} onPick={setWhich} />
      {examples[which].length === 0 && <p class="note">There are none of this kind.</p>}
      <ol class="examples">{examples[which].map((example, at) => <li key={at}><ExampleLine example={example} /></li>)}</ol>
    </Section>
  );
}

function ExampleLine({ example }: { example: Example }): JSX.Element {
  const weights = new Map(example.keys);
  const queries = example.query_tokens;
  return (
    <>
      <span class="example-weight">{num(example.weight, 2)}</span>
      <span class="example-text">
        {queries && <span class="tokens" dir={direction(queries)}>{queries.map((token, at) => <Token key={at} text={token} class={at === example.query ? "token query" : "token"} />)}</span>}
        <span class="tokens" dir={direction(example.tokens)}>
          {example.tokens.map((token, at) => {
            const share = weights.get(at) ?? 0;
            const colour = weight(share, dark.value);
            return <span key={at} class={`token ${!queries && at === example.query ? "query" : ""}`} style={share > 0.02 ? { background: css(colour), color: ink(colour) } : {}} title={share ? num(share, 2) : undefined}><Token text={token} /></span>;
          })}
        </span>
      </span>
    </>
  );
}

function Similar({ index }: { index: HeadNumber }): JSX.Element {
  const similar = run.value.profiles?.similar[index];
  return (
    <Section title="Similar heads" note="Mean Jensen–Shannon distance of attention: 0 is the same, 1 has nothing in common.">
      {similar?.length ? (
        <ul class="similar">
          {similar.map(([other, distance]) => (
            <li key={other}><HeadLink head={other} /> <b>{num(distance, 2)}</b> <span class="note">{roleNames(heads.value, other) || "no role"}{plan.value.removed.has(other) ? (plan.value.guess === null ? ", goes" : ", may go") : ""}</span></li>
          ))}
        </ul>
      ) : <Missing what="Distances between heads were not recorded in this run." makes="profiles" />}
    </Section>
  );
}

/** The head that a link without one leads to: the most important. */
export function notable(of: RunData): HeadNumber {
  return of.scores.find((one) => one.kind === "importance")?.removal_order?.at(-1) ?? 0;
}
