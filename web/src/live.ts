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

const STOPPED = "The server has stopped; start headcount serve again.";

/** What a server says that takes one action at a time. */
export class Busy extends Error {}

export async function ask<A extends Action>(action: A, body: LiveApi[A]["ask"]): Promise<LiveApi[A]["answer"]> {
  const { live } = report.value;
  const id = live?.runs[runAt.value]?.id;
  if (!live || id === undefined) throw new Error("Open this run with `headcount serve RUN` to use live actions.");
  const request = { method: "POST", headers: { "Content-Type": "application/json", "X-Headcount-Token": live.token }, body: JSON.stringify(body) };
  const response = await fetch(`/api/${encodeURIComponent(id)}/${action}`, request).catch(() => {
    throw new Error(STOPPED);
  });
  const text = await response.text().catch(() => {
    throw new Error(STOPPED);
  });
  const answer = parsed(text);
  if (response.ok && answer !== undefined) return answer as LiveApi[A]["answer"];
  const message = errorOf(answer) ?? (response.status >= 500 ? `The server failed (${response.status}) without saying why; look at its output, or start headcount serve again.` : `The server answered ${response.status} without saying why.`);
  throw response.status === 409 ? new Busy(message) : new Error(message);
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text) as unknown;
  } catch {
    return undefined;
  }
}

const errorOf = (answer: unknown): string | null =>
  typeof answer === "object" && answer !== null && "error" in answer ? String(answer.error) : null;
