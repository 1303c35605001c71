/** How many heads stay: the slider, what it costs, and the plan to take away. */
import type { JSX } from "preact";
import { useId, useState } from "preact/hooks";
import { COMMANDS } from "../commands";
import type { BenchRow, Curves, Point } from "../contract";
import { num, capital, interval, passOver, plural, seconds, secondsRange, short, signed, whole } from "../format";
import { kindName } from "../heads";
import { Check, Choose, CopyButton, HeadLink, Missing, Scroll } from "../parts/basics";
import { download } from "../page";
import { benchName, bound, byLayer, commandOf, computed, flips, guessText, latency, planFile, planFileName, planOrder, pointsOf, quantity, RANKING, shapesOf, speedText, standingText, usualShape, verdict, type Between, type Quantity } from "../plan";
import { choice, clamp, heads, keep, method, methods, onePerBlock, plan, protect, run, seed, seeds, selected, standing, wholeGroups } from "../state";
import { atMost, conditions, costText, missing, safeText } from "../verdicts";
import { PruneForm } from "./live";

export function KeepPanel(): JSX.Element {
  if (!methods.value.length) {
    return (
      <section class="keep" aria-label="Keep K heads">
        <h2>Keep K heads</h2>
        <Missing what="Without an importance nothing says which heads would go first." makes="scores" />
      </section>
    );
  }
  return (
    <section class="keep" aria-label="Keep K heads">
      <Slider />
      <Choices />
      <Cards />
      <LayersLeft />
      <AloneBounds />
      <TakeAway />
      <PruneForm />
    </section>
  );
}

function Slider(): JSX.Element {
  const id = useId();
  const total = run.value.heads.length;
  const measured = [...new Set(pointsOf(run.value.curves, method.value).map((point) => point.keep))];
  const { removed } = plan.value;
  const spoken = `${total - removed.size} of ${plural(total, "head")} stay, ${removed.size === 1 ? "1 goes" : `${removed.size} go`}, ${standingText(standing.value)}`;
  return (
    <div class="slider">
      <h2><label for={id}>Keep {whole(keep.value)} of {plural(total, "head")}</label></h2>
      <input id={id} type="range" min={1} max={total} step={1} value={keep.value} list={`${id}-measured`} aria-valuetext={spoken} onInput={(event) => (keep.value = clamp(Number(event.currentTarget.value), 1, total))} />
      <svg class="measured-marks" width="100%" height="8" aria-hidden="true">
        {measured.map((at) => <circle key={at} cx={`${((at - 1) / Math.max(1, total - 1)) * 100}%`} cy="4" r="3" class={at === keep.value ? "here" : ""} />)}
      </svg>
      <p class="slider-line">
        <button type="button" class="button" onClick={() => step(measured, -1)}>Fewer, measured</button>
        <button type="button" class="button" onClick={() => step(measured, 1)}>More, measured</button>
        <Status total={total} />
      </p>
    </div>
  );
}

function step(measured: number[], by: 1 | -1): void {
  const sorted = [...measured, run.value.heads.length].sort((a, b) => a - b);
  keep.value = (by > 0 ? sorted.find((at) => at > keep.value) : sorted.findLast((at) => at < keep.value)) ?? keep.value;
}

function Status({ total }: { total: number }): JSX.Element {
  const isKnown = standing.value === "measured" || standing.value === "dense";
  const only = standing.value === "short" ? `: only ${whole(plan.value.removed.size)} of ${whole(total - keep.value)}` : "";
  return <span class={`tag ${isKnown ? "solid" : standing.value === "short" ? "warn" : ""}`}>{standingText(standing.value)}{only}</span>;
}

function Choices(): JSX.Element {
  const { hasGroups } = heads.value;
  const options = methods.value.map((value) => ({ value, label: value.replace(RANKING, ""), group: value.startsWith(RANKING) ? "By importance alone, not measured" : "Measured" }));
  return (
    <div class="controls">
      <Choose label="Method" value={method.value} options={options} onPick={(value) => ((method.value = value), (seed.value = seeds.value[0] ?? 0))} />
      {seeds.value.length > 1 && <Choose label="Plan of seed" value={String(seed.value)} options={seeds.value.map((one) => ({ value: String(one), label: String(one) }))} onPick={(value) => (seed.value = Number(value))} />}
      <Check label={`Protect the selected heads (${selected.value.size})`} on={protect.value} onFlip={(on) => (protect.value = on)} />
      <Check label="At least 1 per layer" on={onePerBlock.value} onFlip={(on) => (onePerBlock.value = on)} />
      {hasGroups && <Check label="Whole KV groups only" on={wholeGroups.value} onFlip={(on) => (wholeGroups.value = on)} />}
    </div>
  );
}

/** Where a number that was not measured comes from: a word that stands out, and the rest. */
type Origin = [how: string, rest: string] | null;

const origin = (at: Between | null): Origin => (at && at.from !== at.to ? ["interpolated", `between ${whole(at.from)} and ${whole(at.to)}`] : null);

function Card({ name, value, detail, from = null }: { name: string; value: string; detail: string | string[]; from?: Origin }): JSX.Element {
  return (
    <div class={`stat ${from ? "between" : ""}`}>
      <span class="stat-name">{name}</span>
      <span class="stat-value">{value}</span>
      {[detail].flat().filter(Boolean).map((line) => <span key={line} class="stat-detail">{line}</span>)}
      {from && <span class="stat-detail"><i>{from[0]}</i> {from[1]}</span>}
    </div>
  );
}

/** How a measured model compares with the dense one: the bound, the verdict if there is a margin, and the answers that changed. */
function comparison(curves: Curves, point: Point): string[] {
  const loss = curves.metric !== "loss" && typeof point.loss_difference === "number" ? `, loss ${signed(point.loss_difference)}` : "";
  return [bound(curves, point), verdict(point), `${signed(point.difference)} against the dense model${loss}`, flips(point)];
}

function MetricCard(): JSX.Element {
  const { curves } = run.value;
  if (!curves) return <Card name="metric" value="not measured" detail={`${COMMANDS.curves(run.value)} measures it`} />;
  const { point } = plan.value;
  if (point) {
    const same = pointsOf(curves, method.value).filter((one) => one.keep === point.keep).map((one) => one.value);
    const spread = same.length > 1 ? `${same.length} seeds ${num(Math.min(...same))} to ${num(Math.max(...same))}` : "";
    return <Card name={curves.metric} value={num(point.value)} detail={[...comparison(curves, point), spread]} />;
  }
  const at = quantity(run.value, method.value, "value", keep.value);
  const against = at && `${signed(at.value - curves.dense.value)} against the dense model`;
  if (standing.value === "dense") return <Card name={curves.metric} value={num(curves.dense.value)} detail={`the dense model, ${interval(curves.dense.low, curves.dense.high)}`} />;
  if (standing.value === "seeds" && at) return <Card name={curves.metric} value={num(at.value)} detail={[against ?? "", "measured with other seeds; the mean of them"]} />;
  if (standing.value === "between" && at) return <Card name={curves.metric} value={num(at.value)} detail={against ?? ""} from={origin(at)} />;
  return <Card name={curves.metric} value="not measured" detail={unmeasured()} />;
}

/** Why there is no number of this model. */
function unmeasured(): string {
  if (standing.value === "ranking") return `no model of ${method.value.replace(RANKING, "")} alone was measured`;
  return standingText(standing.value).replace("not measured: ", "");
}

const SIZES: [Exclude<Quantity, "value">, string, (value: number) => string][] = [
  ["parameters", "parameters", (value) => short(value)],
  ["bytes", "size", (value) => short(value, "B")],
  ["flops", "FLOPs", (value) => short(value)],
  ["kv_bytes_per_token", "KV cache per token", (value) => short(value, "B")],
];

/** Sizes of a model that was not measured hold for any heads, if only their number counts. */
function sizeOf(name: Exclude<Quantity, "value">): [Between | null, Origin] {
  const isOther = ["changed", "ranking", "short", "outside"].includes(standing.value);
  const at = isOther ? computed(run.value, name, run.value.heads.length - plan.value.removed.size) : quantity(run.value, method.value, name, keep.value);
  return [at, isOther ? (at && ["computed", "from the number of heads"]) : origin(at)];
}

/** Which models were timed, with the speed-up where it is one. */
function timed(bench: BenchRow[], batch: number, length: number): string {
  const rows = bench.filter((row) => row.name === "removed" && row.batch === batch && row.length === length);
  const [one] = rows;
  if (!one) return `Measured for ${[...new Set(bench.map(benchName))].slice(0, 3).join("; ")}`;
  if (rows.length === 1) return `Measured for ${benchName(one)}: ${speedText(one)} at batch ${batch}, length ${length}`;
  return `Measured for ${[...new Set(rows.map(benchName))].slice(0, 3).join("; ")}${rows.length > 3 ? " and others" : ""}`;
}

const spread = (row: Pick<BenchRow, "low" | "high">): string => `quartiles ${secondsRange(row.low, row.high)}`;

function LatencyCard({ batch, length }: { batch: number; length: number }): JSX.Element {
  const { bench } = run.value;
  const name = `latency, batch ${batch}, length ${length}`;
  if (standing.value === "dense") {
    const dense = bench.find((row) => row.name === "dense" && row.batch === batch && row.length === length);
    return dense ? <Card name={name} value={seconds(dense.seconds)} detail={[spread(dense), dense.is_noisy ? "noisy measurement" : ""]} /> : <Card name="latency" value="not measured" detail={`${COMMANDS.bench(run.value)} measures it`} />;
  }
  const time = ["measured", "between", "seeds"].includes(standing.value) ? latency(run.value, choice.value, batch, length) : null;
  if (time) {
    return <Card name={name} value={seconds(time.seconds)} detail={[spread(time), `${time.row ? speedText(time.row) : "the dense model"} (${seconds(time.dense.seconds)}, ${spread(time.dense)})`, time.row && time.row.seed !== seed.value ? `timed with seed ${time.row.seed}` : "", time.isNoisy ? "noisy measurement" : ""]} from={origin({ ...time, value: 0 })} />;
  }
  if (!bench.length) return <Card name="latency" value="not measured" detail={`${COMMANDS.bench(run.value)} measures it`} />;
  return <Card name="latency" value="not measured" detail={`for ${standing.value === "changed" || standing.value === "short" ? "these heads" : method.value.replace(RANKING, "")}. ${timed(bench, batch, length)}`} />;
}

function Cards(): JSX.Element {
  const { curves, bench } = run.value;
  const shapes = shapesOf(bench);
  const [shape, setShape] = useState("");
  const [batch, length] = shapes.find((one) => one.join(" ") === shape) ?? usualShape(shapes);
  const { removed } = plan.value;
  const guess = guessText(plan.value);
  return (
    <>
      <div class="stats" role="group" aria-label={`What keeping ${plural(keep.value, "head")} costs`}>
        <Card name="heads that go" value={whole(removed.size)} detail={`${whole(run.value.heads.length - removed.size)} stay`} from={guess ? ["which ones:", guess] : null} />
        <MetricCard />
        {curves && SIZES.map(([name, label, show]) => {
          const [at, from] = sizeOf(name);
          const denseText = curves.dense[name];
          if (!denseText) return null; // an encoder keeps no cache, and FLOPs are not known of every model
          return <Card key={name} name={name === "flops" ? `FLOPs of ${passOver(curves.dense.tokens)}` : label} value={at ? show(at.value) : "not measured"} detail={at ? `${num((100 * at.value) / denseText)} % of ${show(denseText)}` : ""} from={from} />;
        })}
        <LatencyCard batch={batch} length={length} />
      </div>
      {shapes.length > 1 && (
        <div class="controls">
          <Choose label="Latency at" value={`${batch} ${length}`} options={shapes.map((one) => ({ value: one.join(" "), label: `batch ${one[0]}, length ${one[1]}` }))} onPick={setShape} />
        </div>
      )}
    </>
  );
}

function LayersLeft(): JSX.Element {
  const { removed } = plan.value;
  return (
    <div class="layers-left">
      <h3>Heads left per layer</h3>
      {plan.value.guess !== null && <p class="note">{capital(guessText(plan.value))}.</p>}
      {heads.value.kinds.map((kind) => (
        <ul key={kind.name} aria-label={`Heads left, ${kindName(kind.name)}`}>
          {heads.value.kinds.length > 1 && <li class="kind">{kindName(kind.name)}</li>}
          {kind.blocks.map((block) => {
            const left = block.heads.filter((head) => !removed.has(head)).length;
            return (
              <li key={block.path} class={left === 0 ? "none" : ""}>
                <span class="note">{block.layer}</span>
                <svg width="22" height="26" aria-hidden="true">
                  <rect class="all" x="3" y="1" width="16" height="24" />
                  <rect class="left" x="3" y={1 + 24 * (1 - left / block.heads.length)} width="16" height={(24 * left) / block.heads.length} />
                </svg>
                <span><span class="unseen">layer {block.layer}: </span>{left}<span class="unseen"> of {block.heads.length}</span></span>
              </li>
            );
          })}
        </ul>
      ))}
    </div>
  );
}

/** What each of the heads that go costs when it is removed alone, which does not tell what they cost together. */
function AloneBounds(): JSX.Element | null {
  const { verdicts } = run.value;
  const going = [...plan.value.removed].sort((a, b) => a - b);
  if (!verdicts || going.length === 0) return null;
  return (
    <details class="alone-bounds">
      <summary>What each of the heads that go costs at most when it is removed alone</summary>
      <p class="note">{capital(conditions(verdicts))}. Bounds of single heads do not add up: what these heads cost together only a measured model shows. {missing(verdicts)}</p>
      <Scroll label="Bounds of the heads that go, table">
        <table>
          <thead><tr><th scope="col">head</th><th scope="col">costs at most</th><th scope="col">observed</th><th scope="col">safe alone</th></tr></thead>
          <tbody>
            {going.map((index) => (
              <tr key={index}>
                <th scope="row"><HeadLink head={index} /></th>
                <td class="number">{atMost(verdicts, verdicts.bound[index])}</td>
                <td class="number">{costText(verdicts, verdicts.cost[index])}</td>
                <td>{safeText(verdicts, index)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </Scroll>
    </details>
  );
}

/** Why the plan is not the whole of the model that was measured; empty if it is. */
function beyondPlan(): string {
  const { point } = plan.value;
  const like = point ? [point] : pointsOf(run.value.curves, method.value);
  const what = [like.some((one) => one.is_repaired) && "output projections were changed", like.some((one) => one.is_trained) && "weights were trained"].filter(Boolean).join(" and ");
  if (!what) return "";
  return point ? `${capital(what)}: the plan alone does not give this model; use the command.` : `In the measured models of ${method.value} ${what}: a plan alone does not give such a model.`;
}

function TakeAway(): JSX.Element {
  const { removed, guess } = plan.value;
  const command = commandOf(heads.value, plan.value, choice.value);
  const file = JSON.stringify(planFile(run.value, removed), null, 1);
  const by = planOrder(plan.value, choice.value);
  const called = by === null ? "plan" : `plan by ${by} order`;
  const more = beyondPlan();
  return (
    <div class="take">
      <div class="take-notes">
        {command === null && <p class="note">{removed.size === 0 ? "Nothing would be removed." : "This method has no command for a K that was not measured."}</p>}
        {guess !== null && <p class="note">The plan is {guessText(plan.value)}. It is not a plan of {method.value}.</p>}
        {more && <p class="note">{more}</p>}
      </div>
      {removed.size > 0 && <CopyButton text={JSON.stringify(byLayer(heads.value, removed))} what={called} label={`Copy ${called} {layer: [heads]}`} />}
      {command !== null && <CopyButton text={command} what="command" />}
      {removed.size > 0 && <button type="button" class="button" onClick={() => download(planFileName(plan.value, choice.value), file, "application/json")}>Download {called} JSON</button>}
      {command !== null && <pre class="line" tabIndex={0} aria-label="Command for this K"><code>{command}</code></pre>}
    </div>
  );
}
