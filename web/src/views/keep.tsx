/** How many heads stay: the slider, what it costs, and the plan to take away. */
import type { JSX } from "preact";
import { useId, useState } from "preact/hooks";
import { COMMANDS } from "../commands";
import type { BenchRow } from "../contract";
import { num, interval, plural, pValue, seconds, short, signed, whole } from "../format";
import { kindName } from "../heads";
import { Check, Choose, CopyButton, Missing } from "../parts/basics";
import { download, fileName } from "../page";
import { benchName, byLayer, commandOf, latency, planFile, pointsOf, quantity, RANKING, shapesOf, usualShape, type Between, type Quantity } from "../plan";
import { choice, clamp, heads, keep, method, methods, onePerBlock, plan, protect, run, seed, seeds, selected, wholeGroups } from "../state";
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
      <TakeAway />
      <PruneForm />
    </section>
  );
}

function Slider(): JSX.Element {
  const id = useId();
  const total = run.value.heads.length;
  const measured = [...new Set(pointsOf(run.value.curves, method.value).map((point) => point.keep))];
  const { removed, point } = plan.value;
  return (
    <div class="slider">
      <h2><label for={id}>Keep {whole(keep.value)} of {plural(total, "head")}</label></h2>
      <input id={id} type="range" min={1} max={total} step={1} value={keep.value} list={`${id}-measured`} aria-valuetext={`${keep.value} of ${total} heads stay, ${removed.size} go, ${point ? "measured" : "interpolated"}`} onInput={(event) => (keep.value = clamp(Number(event.currentTarget.value), 1, total))} />
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
  const { removed, point } = plan.value;
  const wanted = total - keep.value;
  if (removed.size < wanted) return <span class="tag warn">Only {whole(removed.size)} of {whole(wanted)} can go under these choices</span>;
  if (point) return <span class="tag solid">measured</span>;
  if (keep.value === total) return <span class="tag solid">the whole model, measured</span>;
  const known = run.value.curves?.points.some((one) => one.method === method.value && one.keep === keep.value && one.seed === seed.value);
  if (method.value.startsWith(RANKING)) return <span class="tag">a ranking, not measured</span>;
  return <span class="tag">{known ? "interpolated: your choices change the measured plan" : "interpolated"}</span>;
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

/** Says where a number that was not measured comes from; empty for a measured one. */
const origin = (at: Between | null): string => (at && at.from !== at.to ? `between ${whole(at.from)} and ${whole(at.to)}` : "");

function Card({ name, value, detail, from = "" }: { name: string; value: string; detail: string; from?: string }): JSX.Element {
  return (
    <div class={`stat ${from ? "between" : ""}`}>
      <span class="stat-name">{name}</span>
      <span class="stat-value">{value}</span>
      <span class="stat-detail">{detail}</span>
      {from && <span class="stat-detail"><i>interpolated</i> {from}</span>}
    </div>
  );
}

function MetricCard(): JSX.Element {
  const { curves } = run.value;
  if (!curves) return <Card name="metric" value="not measured" detail={`${COMMANDS.curves(run.value)} measures it`} />;
  const at = quantity(run.value, method.value, "value", keep.value);
  if (!at) return <Card name={curves.metric} value="not measured" detail={`no pruned model of ${method.value.replace(RANKING, "")} was measured around this K`} />;
  const { point } = plan.value;
  if (!point) {
    const changed = at.from === at.to && keep.value !== run.value.heads.length ? "from the measured plan, which is another" : "";
    return <Card name={curves.metric} value={num(at.value)} detail={`${signed(at.value - curves.dense.value)} against the whole model`} from={changed || origin(at)} />;
  }
  const same = pointsOf(curves, method.value).filter((one) => one.keep === point.keep).map((one) => one.value);
  const spread = same.length > 1 ? `; ${same.length} seeds ${num(Math.min(...same))} to ${num(Math.max(...same))}` : "";
  return <Card name={curves.metric} value={num(point.value)} detail={`${signed(point.difference)} (${interval(point.low, point.high, signed)}), ${point.test} p ${pValue(point.p)}${spread}`} />;
}

const SIZES: [Quantity, string, (value: number) => string][] = [
  ["parameters", "parameters", (value) => short(value)],
  ["bytes", "size", (value) => short(value, "B")],
  ["flops", "FLOPs of the probe pass", (value) => short(value)],
  ["kv_bytes_per_token", "KV cache per token", (value) => short(value, "B")],
];

/** Which models were timed, with the speed-up where it is one. */
function timed(bench: BenchRow[], batch: number, length: number): string {
  const rows = bench.filter((row) => row.name === "removed" && row.batch === batch && row.length === length);
  const [one] = rows;
  if (!one) return `Measured for ${[...new Set(bench.map(benchName))].slice(0, 3).join("; ")}`;
  if (rows.length === 1) return `Measured for ${benchName(one)}: ${num(one.speedup)} × as fast at batch ${batch}, length ${length}`;
  return `Measured for ${[...new Set(rows.map(benchName))].slice(0, 3).join("; ")}${rows.length > 3 ? " and others" : ""}`;
}

function Cards(): JSX.Element {
  const { curves, bench } = run.value;
  const shapes = shapesOf(bench);
  const [shape, setShape] = useState("");
  const [batch, length] = shapes.find((one) => one.join(" ") === shape) ?? usualShape(shapes);
  const time = latency(run.value, method.value, batch, length, keep.value);
  const dense = bench.find((row) => row.name === "dense" && row.batch === batch && row.length === length);
  const { removed } = plan.value;
  return (
    <>
      <div class="stats" role="group" aria-label={`What keeping ${keep.value} heads costs`}>
        <Card name="heads that go" value={whole(removed.size)} detail={`${whole(run.value.heads.length - removed.size)} stay`} />
        <MetricCard />
        {curves && SIZES.map(([name, label, show]) => {
          const at = quantity(run.value, method.value, name, keep.value);
          const whole_ = curves.dense[name];
          if (!whole_) return null; // an encoder keeps no cache, and FLOPs are not known of every model
          return <Card key={name} name={label} value={at ? show(at.value) : "not measured"} detail={at && whole_ ? `${num((100 * at.value) / whole_)} % of ${show(whole_)}` : ""} from={origin(at)} />;
        })}
        {time && dense
          ? <Card name={`latency, batch ${batch}, length ${length}`} value={seconds(time.value)} detail={`${num(dense.seconds / time.value)} × as fast as the whole model`} from={origin(time)} />
          : <Card name="latency" value="not measured" detail={bench.length ? `for ${method.value.replace(RANKING, "")}. ${timed(bench, batch, length)}` : `${COMMANDS.bench(run.value)} measures it`} />}
      </div>
      {shapes.length > 1 && time && (
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

function TakeAway(): JSX.Element {
  const { removed } = plan.value;
  const command = commandOf(heads.value, plan.value, choice.value);
  const file = JSON.stringify(planFile(run.value, removed), null, 1);
  return (
    <div class="take">
      {command === null && <p class="note">{removed.size === 0 ? "Nothing would be removed." : "This method has no command for a K that was not measured."}</p>}
      <CopyButton text={JSON.stringify(byLayer(heads.value, removed))} what="plan" label="Copy plan {layer: [heads]}" />
      {command !== null && <CopyButton text={command} what="command" />}
      <button type="button" class="button" onClick={() => download(`${fileName(`plan-${keep.value}`)}.json`, file, "application/json")}>Download plan JSON</button>
      {command !== null && <pre class="line" tabIndex={0} aria-label="Command for this plan"><code>{command}</code></pre>}
    </div>
  );
}
