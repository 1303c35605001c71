/** The map of heads with its choices, and a scatter of any two numbers beside it. */
import type { JSX } from "preact";
import { useMemo, useState } from "preact/hooks";
import { COMMANDS } from "../commands";
import { paint } from "../colour";
import type { HeadNumber } from "../contract";
import { opening, type Field } from "../fields";
import { interval, num, plural, whole } from "../format";
import { kindName, order, ranks, roleNames, spoken } from "../heads";
import { Check, Choose, HeadLink, Missing } from "../parts/basics";
import { Figure } from "../parts/figure";
import { Grid } from "../parts/grid";
import { ColourBar, Marks, RoleKey } from "../parts/legend";
import { Scatter, scatterTakeaway } from "../parts/scatter";
import { guessText } from "../plan";
import { boundText, conditions, missing, safeText } from "../verdicts";
import { byValue, colour, dark, field, fields, heads, layerFilter, looked, plan, roleFilter, run, select, selected, sorted } from "../state";

export const optionsOf = (some: Field[]): { value: string; label: string; group: string }[] => some.map(({ key, label, group }) => ({ value: key, label, group }));

function shownHead(index: HeadNumber): boolean {
  const role = run.value.roles?.names.indexOf(roleFilter.value) ?? -1;
  if (roleFilter.value && !heads.value.labels[index]?.includes(role)) return false;
  return !layerFilter.value || String(heads.value.places[index]?.block.layer) === layerFilter.value;
}

export function Workbench(): JSX.Element {
  if (!field.value) {
    return <Missing what="No head has a score yet, so the map has no colours." makes="scores" />;
  }
  return (
    <div class={`workbench ${shape()}`}>
      <MapFigure field={field.value} />
      <ScatterFigure />
    </div>
  );
}

/** Wide maps, and several of them, take the whole width; the scatter goes below. */
function shape(): string {
  if (heads.value.kinds.length > 1) return "broad several";
  return Math.max(...run.value.blocks.map((block) => block.heads.length)) > 16 ? "broad" : "";
}

const onLook = (head: HeadNumber | null): void => {
  looked.value = head;
};

function takeaway(of: Field): string {
  if (of.scale === "category") {
    const labelled = of.values.filter((value) => value !== null).length;
    return `${whole(labelled)} of ${plural(of.values.length, "head")} have a role.`;
  }
  const [best] = order(of.values, true);
  const last = order(of.values, false)[0];
  const some = of.significant?.filter(Boolean).length;
  const significant = some === undefined ? "" : ` ${whole(some)} of ${whole(of.values.length)} are significant after correction.`;
  if (best === undefined || last === undefined) return "No head has a value.";
  const { heads: names } = run.value;
  return `${opening(of)} is highest in ${names[best]} (${num(of.values[best])}) and lowest in ${names[last]} (${num(of.values[last])}).${significant}`;
}

function MapFigure({ field: of }: { field: Field }): JSX.Element {
  const painted = useMemo(() => paint(of, dark.value, !byValue.value), [of, dark.value, byValue.value]);
  const { roles } = run.value;
  const removed = plan.value.removed;
  const layers = [...new Set(run.value.blocks.map((block) => block.layer))].sort((a, b) => a - b);
  return (
    <Figure
      title="Head map"
      class="map"
      takeaway={takeaway(of)}
      controls={
        <>
          <Choose label="Colour by" value={of.key} options={optionsOf(fields.value)} onPick={(key) => (colour.value = key)} />
          <Choose label="Layer" value={layerFilter.value} options={[{ value: "", label: "all" }, ...layers.map((layer) => ({ value: String(layer), label: String(layer) }))]} onPick={(layer) => (layerFilter.value = layer)} />
          {of.scale !== "category" && <Check label="Sort heads in a layer" on={sorted.value} onFlip={(on) => (sorted.value = on)} />}
          {of.scale === "sequential" && <Check label="Colour by value" on={byValue.value} onFlip={(on) => (byValue.value = on)} />}
        </>
      }
      caption={<><bdi dir="auto">{of.about}</bdi> Arrows move, Enter opens a head, Space selects it; so does a click with Ctrl or Shift.</>}
      table={() => headTable([of])}
    >
      <div class="grids">
        {heads.value.kinds.map((kind) => (
          <div key={kind.name} class="one-grid">
            {heads.value.kinds.length > 1 && <h3>{kindName(kind.name)}</h3>}
            <Grid heads={heads.value} blocks={kind.blocks} name={`${kindName(kind.name)}: ${of.label} by layer and head`} field={of} paint={painted} removed={removed} guess={plan.value.guess !== null} selected={selected.value} sorted={sorted.value && of.scale !== "category"} shown={shownHead} onLook={onLook} />
          </div>
        ))}
      </div>
      <Readout of={of} />
      <div class="legend">
        {of.scale !== "category" && <ColourBar field={of} paint={painted} dark={dark.value} byQuantile={!byValue.value} />}
        <Marks heads={heads.value} significant={of.significant !== null} removed={removed.size > 0} guess={guessText(plan.value)} empty={of.values.some((value) => value === null) ? (of.scale === "category" ? "no role" : "no value") : ""} />
      </div>
      {roles ? (
        <RoleKey heads={heads.value} dark={dark.value} coloured={of.scale === "category"} picked={roleFilter.value} onPick={(role) => (roleFilter.value = role)} />
      ) : (
        <p class="note">Roles were not tested; <code>{COMMANDS.roles(run.value)}</code> does it.</p>
      )}
      {run.value.verdicts && <p class="note">✓ and bounds of single heads: {conditions(run.value.verdicts)}; of several heads removed together they say nothing. {missing(run.value.verdicts)}</p>}
      <SelectionLine />
    </Figure>
  );
}

/** Whether a head goes at the K of the slider, as far as that is known. */
export function goesText(index: HeadNumber): string {
  const { removed, guess } = plan.value;
  return guess === null ? (removed.has(index) ? "goes at this K" : "kept at this K") : `${removed.has(index) ? "may go" : "may stay"} at this K (a guess by ${guess} order)`;
}

function Readout({ of }: { of: Field }): JSX.Element {
  const index = looked.value;
  if (index === null) return <p class="readout note">Point at a head, or move to it with the arrow keys, to read its numbers.</p>;
  const rank = of.scale === "category" ? null : ranks(of.values)[index];
  return (
    <p class="readout">
      <strong><HeadLink head={index} /></strong>
      {of.scale !== "category" && <span>{of.label} <b>{num(of.values[index])}</b>{typeof of.low?.[index] === "number" && <> ({interval(of.low[index], of.high?.[index])})</>}</span>}
      {typeof rank === "number" && <span>rank {num(rank)} of {of.values.length}</span>}
      {run.value.roles && <span>{roleNames(heads.value, index) || "no role"}</span>}
      {boundText(run.value.verdicts, index) && <span>{boundText(run.value.verdicts, index)}</span>}
      <span>{goesText(index)}</span>
      <span class="unseen">{spoken(heads.value, index)}</span>
    </p>
  );
}

export function SelectionLine(): JSX.Element {
  const some = [...selected.value].sort((a, b) => a - b);
  const filtered = run.value.heads.map((_, index) => index).filter(shownHead);
  const canFilter = Boolean(roleFilter.value || layerFilter.value);
  return (
    <div class="selection">
      {some.length === 0 ? <span class="note">No head is selected.</span> : (
        <>
          <span>{plural(some.length, "head")} selected: {some.slice(0, 12).map((index) => <HeadLink key={index} head={index} />)}{some.length > 12 && ` and ${some.length - 12} more`}</span>
          <button type="button" class="button" onClick={() => select([])}>Clear selection</button>
        </>
      )}
      {canFilter && <button type="button" class="button" onClick={() => select(filtered)}>Select the {filtered.length} shown</button>}
      {canFilter && <button type="button" class="button" onClick={() => ((roleFilter.value = ""), (layerFilter.value = ""))}>Show all heads</button>}
    </div>
  );
}

export function headTable(of: Field[]): { columns: { name: string }[]; rows: (string | number | boolean | null)[][] } {
  const { verdicts } = run.value;
  const columns = ["head", "layer", ...of.flatMap((one) => [one.label, ...(one.low ? ["low", "high"] : []), ...(one.significant ? ["significant"] : [])]), ...(verdicts ? [`costs at most, alone (${verdicts.unit})`, "safe alone"] : []), "roles", "at this K"];
  const value = (one: Field, index: HeadNumber): string | number | null => {
    const number = one.values[index] ?? null;
    return one.scale === "category" ? (number === null ? null : (run.value.roles?.names[number] ?? null)) : number;
  };
  const rows = run.value.heads.map((name, index) => [
    name,
    heads.value.places[index]?.block.layer ?? null,
    ...of.flatMap((one) => [value(one, index), ...(one.low ? [one.low[index] ?? null, one.high?.[index] ?? null] : []), ...(one.significant ? [one.significant[index] ?? null] : [])]),
    ...(verdicts ? [verdicts.bound[index] === null || verdicts.bound[index] === undefined ? null : verdicts.bound[index] * (verdicts.unit === "nats" ? 1 : 100), safeText(verdicts, index)] : []),
    roleNames(heads.value, index),
    `${plan.value.removed.has(index) ? "goes" : "kept"}${plan.value.guess === null ? "" : ", a guess"}`,
  ]);
  return { columns: columns.map((name) => ({ name })), rows };
}

function ScatterFigure(): JSX.Element {
  const numeric = fields.value.filter((one) => one.scale !== "category");
  const [xKey, setX] = useState("");
  const [yKey, setY] = useState("");
  const x = numeric.find((one) => one.key === xKey) ?? numeric[0];
  const y = numeric.find((one) => one.key === yKey) ?? numeric[1] ?? numeric[0];
  if (!x || !y) return <Missing what="A scatter needs two scores." makes="scores" />;
  return (
    <Figure
      title="Two scores"
      takeaway={scatterTakeaway(x, y)}
      controls={
        <>
          <Choose label="Across" value={x.key} options={optionsOf(numeric)} onPick={setX} />
          <Choose label="Up" value={y.key} options={optionsOf(numeric)} onPick={setY} />
        </>
      }
      caption={`Every point is a head; open points ${plan.value.guess === null ? "go" : "may go (a guess)"} at this K. Draw a rectangle to select, or use arrows, Enter and Space.`}
      table={() => headTable([x, y])}
    >
      <Scatter heads={heads.value} x={x} y={y} removed={plan.value.removed} shown={shownHead} onLook={onLook} />
      <ScatterReadout x={x} y={y} />
    </Figure>
  );
}

function ScatterReadout({ x, y }: { x: Field; y: Field }): JSX.Element {
  const index = looked.value;
  if (index === null) return <p class="readout note">No point is under the pointer.</p>;
  return (
    <p class="readout">
      <strong><HeadLink head={index} /></strong>
      <span>{x.label} <b>{num(x.values[index])}</b></span>
      <span>{y.label} <b>{num(y.values[index])}</b></span>
    </p>
  );
}
