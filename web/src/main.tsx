/** Reads the data of the page and shows it. */
import { effect } from "@preact/signals";
import { render } from "preact";
import { App } from "./app";
import type { Report } from "./contract";
import { adopt, dark, follow, head, keepAddress, report, run, systemDark, theme } from "./state";
import { notable } from "./views/head";
import "./style/app.css";

const KEY = "headcount-colours";

/** Some shells have no storage; the choice of colours then lasts as long as the page. */
function storage<T>(work: (store: Storage) => T): T | null {
  try {
    return work(localStorage);
  } catch {
    return null;
  }
}

function watchColours(): void {
  const system = matchMedia("(prefers-color-scheme: dark)");
  systemDark.value = system.matches;
  system.addEventListener("change", () => (systemDark.value = system.matches));
  const kept = storage((store) => store.getItem(KEY));
  if (kept === "light" || kept === "dark") theme.value = kept;
  effect(() => {
    document.documentElement.dataset["theme"] = dark.value ? "dark" : "light";
  });
  theme.subscribe((value) => void storage((store) => store.setItem(KEY, value)));
}

function start(): void {
  const root = document.getElementById("headcount");
  const source = document.getElementById("headcount-data")?.textContent;
  if (!root || !source) return;
  const found = JSON.parse(source) as Report;
  if (found.schema !== 1 || !found.runs.length) {
    root.textContent = `This page shows schema 1 of headcount's reports with at least one run; its data say schema ${String(found.schema)}.`;
    return;
  }
  report.value = found;
  watchColours();
  adopt(0);
  head.value = notable(run.value);
  follow(location.hash);
  addEventListener("hashchange", () => follow(location.hash));
  keepAddress();
  render(<App />, root);
}

start();
