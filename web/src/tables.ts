/** Every number of a run as tables of plain cells. */
import type { RunData, StudyTable } from "./contract";
import type { Cell } from "./page";
import { benchName } from "./plan";
import { conditions, safeText, tolerance } from "./verdicts";

export interface Sheet {
  name: string;
  about: string;
  columns: string[];
  rows: Cell[][];
}

const FROM: [string, (run: RunData) => Sheet | null][] = [
  ["heads", headSheet],
  ["scores", scoreSheet],
  ["verdicts", verdictSheet],
  ["roles", roleSheet],
  ["relations", relationSheet],
  ["curves", curveSheet],
  ["bench", benchSheet],
  ["attention", profileSheet],
];

export function sheetsOf(run: RunData): Sheet[] {
  const own = FROM.flatMap(([, make]) => make(run) ?? []);
  const studies = run.studies.flatMap((study) => studySheets(study.name, study.result.tables));
  const items = run.papers.flatMap((paper) => paper.items.flatMap((item) => studySheets(`${paper.name} ${item.id}`, item.result?.tables ?? [])));
  return [...own, ...run.tables.map((table) => ({ ...table, rows: table.rows })), ...studies, ...items];
}

const studySheets = (name: string, tables: StudyTable[]): Sheet[] =>
  tables.map((table) => ({ name: `${name}: ${table.name}`, about: table.title, columns: table.columns.map((column) => column.name), rows: table.rows }));

function places(run: RunData): Map<number, [string, number, number, number | null]> {
  return new Map(run.blocks.flatMap((block) => block.heads.map((index, head) => [index, [block.kind, block.layer, head, block.kv_group?.[head] ?? null]] as const)));
}

function headSheet(run: RunData): Sheet {
  const place = places(run);
  const { roles, profiles, scores } = run;
  const grouped = run.blocks.some((block) => block.kv_group !== null);
  const columns = ["head", "kind", "layer", "place", ...(grouped ? ["KV group"] : []), ...scores.map((score) => score.name), ...(profiles ? ["entropy", "largest weight"] : []), ...(roles ? ["roles"] : [])];
  const rows = run.heads.map((name, index): Cell[] => [
    name,
    ...(place.get(index) ?? [null, null, null, null]).slice(0, grouped ? 4 : 3),
    ...scores.map((score) => score.values[index] ?? null),
    ...(profiles ? [profiles.entropy[index] ?? null, profiles.confidence[index] ?? null] : []),
    ...(roles ? [(roles.labels[index] ?? []).map((label) => roles.names[label] ?? "").join(", ")] : []),
  ]);
  return { name: "Heads", about: "Every head with every score.", columns, rows };
}

function scoreSheet(run: RunData): Sheet | null {
  if (!run.scores.length) return null;
  const rows = run.scores.flatMap((score) =>
    run.heads.map((name, index): Cell[] => [name, score.name, score.kind, score.values[index] ?? null, score.stderr?.[index] ?? null, score.low?.[index] ?? null, score.high?.[index] ?? null, score.significant?.[index] ?? null, score.n_examples]),
  );
  return { name: "Scores", about: "One row per head and score, with its standard error and its 95 % interval.", columns: ["head", "score", "kind", "value", "standard error", "low", "high", "significant", "examples"], rows };
}

function verdictSheet(run: RunData): Sheet | null {
  const { verdicts } = run;
  if (!verdicts) return null;
  const unit = verdicts.unit === "nats" ? "nats" : "share of answers";
  return {
    name: "Single heads",
    about: `What removing each head alone costs on average: ${conditions(verdicts)}. Safe: at most ${tolerance(verdicts)}, corrected over heads; of several heads removed together this says nothing.`,
    columns: ["head", `observed (${unit})`, `at most (${unit})`, "q", "safe alone"],
    rows: run.heads.map((name, index): Cell[] => [name, verdicts.cost[index] ?? null, verdicts.bound[index] ?? null, verdicts.q[index] ?? null, safeText(verdicts, index)]),
  };
}

function roleSheet(run: RunData): Sheet | null {
  const { roles } = run;
  if (!roles) return null;
  const { rows } = roles;
  const columns = ["bias", "low", "high", "q", "effect", "normalised", "accuracy", "accuracy_low", "accuracy_high", "baseline", "baseline_offset", "compared_bias", "twin_bias", "explained", "excess", "excess_low", "excess_high", "has_role", "by_argmax", "n"] as const;
  return {
    name: "Role scores",
    about: "One row per head and role that was tested.",
    columns: ["head", "role", ...columns.map((column) => column.replaceAll("_", " "))],
    rows: rows.head.map((index, at) => [run.heads[index] ?? null, roles.names[rows.role[at]!] ?? null, ...columns.map((column) => rows[column]?.[at] ?? null)]),
  };
}

function relationSheet(run: RunData): Sheet | null {
  const { roles } = run;
  if (!roles?.relations.length) return null;
  return {
    name: "Relations",
    about: "The best head of every dependency relation against the best fixed offset, both chosen on one half of the sentences and measured on the other.",
    columns: ["relation", "best head", "accuracy", "baseline", "offset", "difference", "low", "high", "q", "n", "holds"],
    rows: roles.relations.map((one) => [roles.names[one.role] ?? null, run.heads[one.head] ?? null, one.accuracy, one.baseline, one.baseline_offset, one.difference, one.low, one.high, one.q, one.n, one.holds]),
  };
}

function curveSheet(run: RunData): Sheet | null {
  const { curves } = run;
  if (!curves) return null;
  return {
    name: "Pruned models",
    about: "Every pruned model that was measured, in pairs with the dense model on the same examples; each bound holds for its row alone, 95 %, one-sided.",
    columns: ["method", "K", "seed", curves.metric, "loss", "difference", "low", "high", "worse by at most", "procedure", "margin", "verdict", "right to wrong", "wrong to right", "loss difference", "random", "trained", "repaired", "parameters", "bytes", "FLOPs", "KV bytes per token", "removed", "command"],
    rows: curves.points.map((one) => [
      one.method, one.keep, one.seed, one.value, one.loss, one.difference, one.low, one.high, one.bound, one.procedure, one.margin, one.verdict, one.right_to_wrong, one.wrong_to_right, one.loss_difference, one.is_random, one.is_trained, one.is_repaired, one.parameters, one.bytes, one.flops, one.kv_bytes_per_token,
      one.removed.map((index) => run.heads[index]).join(" "), one.command,
    ]),
  };
}

function benchSheet(run: RunData): Sheet | null {
  if (!run.bench.length) return null;
  return {
    name: "Latency",
    about: "Seconds of one pass: median and quartiles.",
    columns: ["pruned model", "method", "K", "seed", "kind", "batch", "length", "seconds", "low", "high", "speed-up", "speed-up low", "speed-up high", "rounds", "noisy", "apart from dense"],
    rows: run.bench.map((row) => [benchName(row), row.method, row.keep, row.seed, row.name, row.batch, row.length, row.seconds, row.low, row.high, row.speedup, row.speedup_low, row.speedup_high, row.rounds, row.is_noisy, row.is_apart]),
  };
}

function profileSheet(run: RunData): Sheet | null {
  const { profiles } = run;
  if (!profiles) return null;
  const { distances, distance, pos, relation } = profiles;
  const columns = [...distances.map((name) => `distance ${name}`), ...(pos?.names ?? []).map((name) => `key ${name}`), ...(relation?.names ?? []).map((name) => `relation ${name}`)];
  const rows = run.heads.map((name, index): Cell[] => [
    name,
    ...distances.map((_, at) => distance[index]?.[at] ?? null),
    ...(pos?.names ?? []).map((_, at) => pos?.share[index]?.[at] ?? null),
    ...(relation?.names ?? []).map((_, at) => relation?.share[index]?.[at] ?? null),
  ]);
  return { name: "Attention", about: "Share of attention of every head by distance, part of speech and dependency.", columns: ["head", ...columns], rows };
}
