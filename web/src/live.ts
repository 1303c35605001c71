/** Requests to `headcount serve`, which is where live actions are. */
import type { LiveApi } from "./contract";
import { report, runAt } from "./state";

export type Action = keyof LiveApi;

/** Why a live action is not to be had here; null if it is. */
export function whyNot(): string | null {
  const { live } = report.value;
  if (!live) return "file";
  const of = live.runs[runAt.value];
  return of?.can_run ? null : of?.why_not || "the server has no model for this run";
}

export async function ask<A extends Action>(action: A, body: LiveApi[A]["ask"]): Promise<LiveApi[A]["answer"]> {
  const { live } = report.value;
  const id = live?.runs[runAt.value]?.id;
  if (!live || id === undefined) throw new Error("This page is a file; headcount serve RUN takes requests.");
  const response = await fetch(`/api/${encodeURIComponent(id)}/${action}`, {
    method: "POST",
    headers: { "Content-Type": "application/json", "X-Headcount-Token": live.token },
    body: JSON.stringify(body),
  });
  const answer: unknown = await response.json().catch(() => ({ error: `the server answered ${response.status} without JSON` }));
  if (!response.ok) throw new Error(errorOf(answer) ?? `the server answered ${response.status}`);
  return answer as LiveApi[A]["answer"];
}

const errorOf = (answer: unknown): string | null =>
  typeof answer === "object" && answer !== null && "error" in answer ? String(answer.error) : null;
