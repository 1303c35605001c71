/** What leaves the page: files and the clipboard. */
import { said } from "./state";

export function download(name: string, text: string, type: string): void {
  const url = URL.createObjectURL(new Blob([text], { type }));
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
  said.value = `${name} is being saved`;
}

export type Cell = string | number | boolean | null;

/** A spreadsheet runs what begins with these as a formula; a quote before makes it text again. */
const FORMULA = /^[=+\-@\t\r]/;

export function csv(columns: string[], rows: Cell[][]): string {
  const cell = (value: Cell): string => {
    if (value === null) return "";
    const text = typeof value === "string" && FORMULA.test(value) ? `'${value}` : String(value);
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return [columns, ...rows].map((row) => row.map(cell).join(",")).join("\r\n") + "\r\n";
}

export async function copy(text: string, what: string): Promise<void> {
  try {
    await navigator.clipboard.writeText(text);
    said.value = `${what} copied`;
  } catch {
    said.value = copyByHand(text) ? `${what} copied` : `${what} could not be copied: this browser does not allow it`;
  }
}

/** The way before the clipboard had an interface; still the only one in some frames. */
function copyByHand(text: string): boolean {
  const area = document.createElement("textarea");
  area.value = text;
  area.className = "unseen";
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  return done;
}
