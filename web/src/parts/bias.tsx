/** A bias with its interval on a line from 0, chance marked at 1 and the level that the test asks about at tau. */
import type { JSX } from "preact";
import type { Maybe, Roles } from "../contract";
import { num, percent } from "../format";

export function Bias({ value, low, high, most, tau }: { value: Maybe; low: Maybe; high: Maybe; most: number; tau: number | undefined }): JSX.Element {
  const x = (one: number): number => 2 + (Math.max(0, Math.min(most, one)) / most) * 106;
  return (
    <svg width="110" height="16" class="bias" aria-hidden="true">
      <line class="chance" x1={x(1)} x2={x(1)} y1="0" y2="16" />
      {tau !== undefined && <line class="tau" x1={x(tau)} x2={x(tau)} y1="0" y2="16" />}
      {low !== null && high !== null && <line class="whisker" x1={x(low)} x2={x(high)} y1="8" y2="8" />}
      {value !== null && <circle cx={x(value)} cy="8" r="4" />}
    </svg>
  );
}

/** What the test of roles asks; for reports that say it. */
const tauText = (tau: number | undefined, alpha: number | undefined): string =>
  tau === undefined ? "" : ` q tests whether the bias is above ${tau}, the solid line${alpha === undefined ? "" : `; a role holds below ${alpha}`}.`;

/** What q tests: by definitions that know distance twins, the excess mass of roles of content. */
export const testText = (roles: Roles): string =>
  roles.definition?.startsWith("beyond-distance")
    ? ` The twin attends by distance alone, as the head does outside the role; the excess mass is how much more of its attention the head has there. q of roles with a twin tests the excess mass, of others whether the bias is above ${roles.tau}, the solid line; a role holds below ${roles.alpha}.`
    : tauText(roles.tau, roles.alpha);

/** The estimate of false labels by swapped annotations. */
export function falseText({ swapped }: Roles): string {
  if (!swapped) return "";
  const estimate = swapped.ratio === null ? "no estimate of false ones, which needs 20" : `about ${percent(swapped.ratio)} of such labels are false`;
  return ` Roles of content: ${swapped.labels} labels on ${swapped.n_sentences} sentences by their own annotations, ${num(swapped.swapped_labels, 2)} by those of other sentences of equal length: ${estimate}.`;
}
