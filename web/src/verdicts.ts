/** What removing a head alone costs at most, in words. Nothing here speaks of several heads removed together. */
import type { HeadNumber, Maybe, Verdicts } from "./contract";
import { num, plural, whole } from "./format";

/** A cost in the unit of the verdicts: nats of loss, or points of right answers. */
export const costText = (of: Verdicts, value: Maybe | undefined): string => (of.unit === "nats" ? `${num(value, 2)} nats` : `${num(typeof value === "number" ? 100 * value : null, 2)} points`);

/** A bound, rounded up to two digits: it holds as it is written. */
export function atMost(of: Verdicts, bound: Maybe | undefined): string {
  if (typeof bound !== "number") return costText(of, null);
  const step = bound > 0 ? 10 ** (Math.floor(Math.log10(bound)) - 1) : 1e-4;
  return costText(of, Math.ceil(bound / step - 1e-6) * step);
}

export const tolerance = (of: Verdicts): string => costText(of, of.tolerance);

/** What the bounds are of: how many examples, and how much one of them counts. */
export const conditions = (of: Verdicts): string =>
  `${of.method}, ${plural(of.n_examples, "report example")}${of.n_documents === null ? "" : ` from ${plural(of.n_documents, "document")}`}, 95 %, counting up to ${costText(of, of.clip)} per example`;

/** How many examples are missing; empty where none are. */
export function missing(of: Verdicts): string {
  const things = of.n_documents === null ? "examples" : "documents";
  if (of.reason) return `No head is called safe: ${of.reason}.`;
  return of.n_missing > 0 ? `${whole(of.n_missing)} ${things} more would find every head that changes nothing.` : "";
}

/** "removed alone costs at most 0.011 nats", with the mark where it is safe; empty where it was not measured. */
export function boundText(of: Verdicts | null, index: HeadNumber): string {
  const bound = of?.bound[index];
  if (!of || typeof bound !== "number") return "";
  return `removed alone costs at most ${atMost(of, bound)}${of.safe[index] ? ", safe alone" : ""}`;
}

/** The mark as a table has it. */
export const safeText = (of: Verdicts, index: HeadNumber): string => (of.safe[index] === null || of.safe[index] === undefined ? "undecided" : of.safe[index] ? "yes" : "no");
