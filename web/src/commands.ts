/** The commands that make what a run does not have. */
import type { RunData } from "./contract";
import { quoted } from "./plan";

const model = (run: RunData): string => (run.model.name ? quoted(run.model.name) : "MODEL");
const task = (run: RunData): string => (run.task ? quoted(run.task) : "TASK");

export const COMMANDS = {
  scores: (run: RunData) => `headcount score ${model(run)} --task ${task(run)} --out RUN`,
  roles: (run: RunData) => `headcount roles ${model(run)} --text FILE --out RUN`,
  trees: (run: RunData) => `headcount roles ${model(run)} --text FILE.conllu --out RUN`,
  curves: (run: RunData) => `headcount compare ${model(run)} --task ${task(run)} --out RUN`,
  bench: (run: RunData) => `headcount prune ${model(run)} --task ${task(run)} --keep 50% --out RUN`,
  profiles: (run: RunData) => `headcount analyze ${model(run)} --task ${task(run)} --text FILE --out RUN`,
  annotated: (run: RunData) => `headcount analyze ${model(run)} --task ${task(run)} --text FILE.conllu --out RUN`,
  studies: (run: RunData) => `headcount study NAME ${model(run)} --task ${task(run)} --out RUN`,
  papers: (run: RunData) => `headcount paper NAME ${model(run)} --task ${task(run)} --out RUN`,
  comparison: () => "headcount report RUN RUN_B --out report.html",
} as const;

export type Makes = keyof typeof COMMANDS;
