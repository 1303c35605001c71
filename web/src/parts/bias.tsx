/** A bias with its interval on a line from 0, chance marked at 1 and the level that the test asks about at tau. */
import type { JSX } from "preact";
import type { Maybe } from "../contract";

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
export const tauText = (tau: number | undefined, alpha: number | undefined): string =>
  tau === undefined ? "" : ` q tests whether the bias is above ${tau}, the solid line${alpha === undefined ? "" : `; a role holds below ${alpha}`}.`;
