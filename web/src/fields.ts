/** Everything that a map can be coloured by, and a scatter drawn of: one number (or role) per head. */
import type { Maybe, Report, Roles, RunData, Score } from "./contract";
import { capital } from "./format";
import { headsOf, ranks } from "./heads";
import { conditions } from "./verdicts";

export interface Field {
  key: string;
  group: string;
  label: string;
  about: string;
  values: Maybe[];
  low: Maybe[] | null;
  high: Maybe[] | null;
  significant: boolean[] | null;
  scale: "sequential" | "diverging" | "category";
  /** Of a category: the number of the colour of every value. */
  shades?: number[];
}

/** The name of a field at the beginning of a sentence; roles keep their spelling. */
export const opening = (field: Field): string => (field.key.startsWith("role:") ? field.label : capital(field.label));

function plainField(key: string, group: string, label: string, about: string, values: Maybe[]): Field {
  return { key, group, label, about, values, low: null, high: null, significant: null, scale: "sequential" };
}

function scoreFields(run: RunData): Field[] {
  return run.scores.map((score) => ({
    ...plainField(`score:${score.name}`, score.kind === "importance" ? "Importance" : "Description", score.name, aboutOf(score), score.values),
    // A change is read from 0; an importance that is a little under 0 is noise around the lowest.
    scale: score.kind === "description" && score.values.some((value) => value !== null && value < 0) ? ("diverging" as const) : ("sequential" as const),
    low: score.low,
    high: score.high,
    significant: score.significant,
  }));
}

const aboutOf = (score: Score): string => (score.higher_is_keep ? score.about : `${score.about} The lower, the more the head is needed.`);

/** How much more attention than chance every head gives to what a role is about. */
function roleField(roles: Roles, role: number, size: number): Field {
  const blank = (): Maybe[] => Array.from({ length: size }, () => null);
  const [values, low, high] = [blank(), blank(), blank()];
  const significant = Array.from({ length: size }, () => false);
  const { rows } = roles;
  rows.role.forEach((of, at) => {
    if (of !== role) return;
    const head = rows.head[at]!;
    [values[head], low[head], high[head]] = [rows.bias[at] ?? null, rows.low[at] ?? null, rows.high[at] ?? null];
    significant[head] = rows.has_role[at] ?? false;
  });
  const name = roles.names[role] ?? "";
  return { ...plainField(`role:${name}`, "Role score (1 is chance)", name, roles.about[role] ?? "", values), low, high, significant };
}

/** Importances that have something to say: not the control. */
const methodsOf = (run: RunData): Score[] => run.scores.filter((score) => score.kind === "importance" && score.name !== "random");

/** The spread of a head's ranks over the importances: 0 where all agree. Random numbers agree with nothing and are left out. */
export function disagreement(run: RunData): Maybe[] {
  const scores = methodsOf(run);
  const all = scores.map((score) => ranks(score.higher_is_keep ? score.values : score.values.map((value) => (value === null ? null : -value))));
  return run.heads.map((_, head) => {
    const places = all.map((of) => of[head]).filter((rank): rank is number => typeof rank === "number");
    if (places.length < 2) return null;
    const mean = places.reduce((sum, rank) => sum + rank, 0) / places.length;
    return Math.sqrt(places.reduce((sum, rank) => sum + (rank - mean) ** 2, 0) / places.length);
  });
}

/** The most that removing each head alone costs. */
function verdictFields(run: RunData): Field[] {
  const { verdicts } = run;
  if (!verdicts) return [];
  const about = `The most that removing a head alone costs on average: ${conditions(verdicts)}. It says nothing about several heads removed together.`;
  const values = verdicts.unit === "nats" ? verdicts.bound : verdicts.bound.map((value) => (value === null ? null : 100 * value));
  return [plainField("verdict:bound", "Importance", `bound of the cost alone (${verdicts.unit})`, about, values)];
}

function profileFields(run: RunData): Field[] {
  if (!run.profiles) return [];
  const { entropy, confidence } = run.profiles;
  return [
    plainField("profile:entropy", "Attention", "entropy", "Mean entropy of the attention of a head, in nats: 0 is one token, more is spread wider.", entropy),
    plainField("profile:confidence", "Attention", "largest weight", "Mean of the largest attention weight: 1 is always one token.", confidence),
  ];
}

function roleFields(run: RunData): Field[] {
  const { roles } = run;
  if (!roles) return [];
  const labels = run.heads.map((_, head) => roles.labels[head]?.[0] ?? null);
  const label: Field = { ...plainField("label", "Roles", "role label", "The strongest role of every head that has one.", labels), scale: "category", shades: headsOf(run).shades };
  return [label, ...roles.names.map((_, role) => roleField(roles, role, run.heads.length))];
}

function differenceFields(report: Report): Field[] {
  return (report.comparison?.scores ?? []).map((score) => ({
    ...plainField(`diff:${score.name}`, "Difference of the runs", `${score.name}, B − A`, `How much ${score.name} is higher in B than in A.`, score.difference),
    significant: score.significant,
    scale: "diverging" as const,
  }));
}

export function fieldsOf(report: Report, run: RunData): Field[] {
  const scores = scoreFields(run);
  const several = methodsOf(run).length > 1;
  const agreement = plainField("agreement", "Importance", "disagreement of methods", `Standard deviation of a head's ranks over ${methodsOf(run).map((score) => score.name).join(", ")}: 0 where all agree. Random numbers, the control, do not count.`, several ? disagreement(run) : []);
  const [importance, description] = ["Importance", "Description"].map((group) => scores.filter((field) => field.group === group));
  return [...importance!, ...(several ? [agreement] : []), ...verdictFields(run), ...description!, ...profileFields(run), ...roleFields(run), ...differenceFields(report)];
}

/** The smallest and largest value; [0, 1] if there is none. */
export function extent(values: Maybe[]): [number, number] {
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) {
    if (value === null || !Number.isFinite(value)) continue;
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  return low > high ? [0, 1] : low === high ? [low - (Math.abs(low) || 1) * 0.01, high + (Math.abs(high) || 1) * 0.01] : [low, high];
}
