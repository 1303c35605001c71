/** Small things that every view is made of. */
import type { ComponentChildren, JSX, RefObject } from "preact";
import { useEffect, useId, useLayoutEffect, useRef, useState } from "preact/hooks";
import { COMMANDS, type Makes } from "../commands";
import type { HeadNumber } from "../contract";
import { copy } from "../page";
import { address, go, run, said } from "../state";

type Children = { children?: ComponentChildren };

export function Section({ title, note, children, id }: Children & { title: string; note?: string; id?: string }): JSX.Element {
  const name = useId();
  return (
    <section class="section" aria-labelledby={name} id={id}>
      <h2 id={name}>{title}</h2>
      {note && <p class="note">{note}</p>}
      {children}
    </section>
  );
}

/** A view without data says so, and which command makes it. */
export function Missing({ what, makes }: { what: string; makes: Makes }): JSX.Element {
  return (
    <div class="missing">
      <p>{what}</p>
      <p>
        This makes it: <code>{COMMANDS[makes](run.value)}</code>
      </p>
    </div>
  );
}

export function Choose<T extends string>({ label, value, options, onPick, hide }: {
  label: string;
  value: T;
  options: { value: T; label: string; group?: string }[];
  onPick: (value: T) => void;
  hide?: boolean;
}): JSX.Element {
  const id = useId();
  const groups = [...new Set(options.map((option) => option.group ?? ""))];
  const entry = (option: { value: T; label: string }): JSX.Element => (
    <option key={option.value} value={option.value} selected={option.value === value}>
      {option.label}
    </option>
  );
  return (
    <span class="choose">
      <label for={id} class={hide ? "unseen" : ""}>{label}</label>
      <select id={id} value={value} onChange={(event) => onPick(event.currentTarget.value as T)}>
        {groups.map((group) => {
          const inside = options.filter((option) => (option.group ?? "") === group).map(entry);
          return group ? <optgroup key={group} label={group}>{inside}</optgroup> : inside;
        })}
      </select>
    </span>
  );
}

export function Check({ label, on, onFlip }: { label: string; on: boolean; onFlip: (on: boolean) => void }): JSX.Element {
  return (
    <label class="check">
      <input type="checkbox" checked={on} onChange={(event) => onFlip(event.currentTarget.checked)} />
      <span>{label}</span>
    </label>
  );
}

/** One of a few: buttons in a row, of which one is pressed. */
export function Pick<T extends string>({ label, value, options, onPick }: { label: string; value: T; options: [T, string][]; onPick: (value: T) => void }): JSX.Element {
  return (
    <div class="pick" role="group" aria-label={label}>
      {options.map(([key, text]) => (
        <button key={key} type="button" aria-pressed={key === value} onClick={() => onPick(key)}>
          {text}
        </button>
      ))}
    </div>
  );
}

export function CopyButton({ text, what, label }: { text: string; what: string; label?: string }): JSX.Element {
  return (
    <button type="button" class="button" onClick={() => void copy(text, what)}>
      {label ?? `Copy ${what}`}
    </button>
  );
}

/** A head by its address, leading to its page. */
export function HeadLink({ head: at, children }: Children & { head: HeadNumber }): JSX.Element {
  return (
    <a class="head-link" href={address("head", at)} onClick={(event) => follow(event, () => go("head", at))}>
      {children ?? run.value.heads[at] ?? String(at)}
    </a>
  );
}

/** Plain clicks act at once; others (a new tab) are the browser's. */
export function follow(event: MouseEvent, act: () => void): void {
  if (event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
  event.preventDefault();
  act();
}

/** Text of a model or a data set: its direction is its own. */
export function Token({ text, lang, class: name }: { text: string; lang?: string | null; class?: string }): JSX.Element {
  const known = typeof lang === "string" && /^[A-Za-z]{2,8}(-[A-Za-z0-9]{1,8})*$/.test(lang) ? lang : undefined;
  return <bdi dir="auto" lang={known} class={name}>{visible(text)}</bdi>;
}

/** Blanks at the edges of a token belong to it, but cannot be seen. */
export const visible = (text: string): string => text.replace(/^[Ġ▁ ]+/, "").replaceAll("\n", "⏎").replaceAll("Ċ", "⏎") || "␣";

const RTL = /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]/;

/** Which way a row of tokens runs: each token is isolated, so the browser cannot tell by itself. */
export const direction = (texts: string[]): "rtl" | "ltr" => (texts.filter((text) => RTL.test(text)).length * 2 > texts.length ? "rtl" : "ltr");

/** The width that a part of the page has, in whole pixels. */
export function useWidth(first = 640): [RefObject<HTMLDivElement | null>, number] {
  const ref = useRef<HTMLDivElement>(null);
  const [width, setWidth] = useState(first);
  useLayoutEffect(() => {
    const element = ref.current;
    if (!element) return undefined;
    const read = (): void => setWidth(Math.floor(element.clientWidth) || first);
    read();
    const watch = new ResizeObserver(read);
    watch.observe(element);
    return () => watch.disconnect();
  }, []);
  return [ref, width];
}

/** The result of some work that takes a while, null until it is there; only that of the newest inputs counts. */
export function useWork<T>(work: () => Promise<T>, inputs: unknown[]): T | null {
  const [done, setDone] = useState<{ of: unknown[]; result: T } | null>(null);
  useEffect(() => {
    let current = true;
    work().then(
      (result) => current && setDone({ of: inputs, result }),
      (error: unknown) => current && (said.value = String(error)),
    );
    return () => {
      current = false;
    };
  }, inputs);
  return done?.of.every((input, at) => input === inputs[at]) ? done.result : null;
}

/** A part that scrolls by itself where it is too wide; a shadow at an edge says that there is more. */
export function Scroll({ label, class: name = "", children }: Children & { label?: string; class?: string }): JSX.Element {
  const ref = useRef<HTMLDivElement>(null);
  const [[before, after], setMore] = useState<[boolean, boolean]>([false, false]);
  const read = (): void => {
    const box = ref.current;
    if (!box) return;
    const [at, most] = [Math.abs(box.scrollLeft), box.scrollWidth - box.clientWidth];
    setMore((old) => (old[0] === at > 2 && old[1] === at < most - 2 ? old : [at > 2, at < most - 2]));
  };
  useLayoutEffect(() => {
    const watch = new ResizeObserver(read);
    watch.observe(ref.current!);
    for (const child of ref.current!.children) watch.observe(child);
    return () => watch.disconnect();
  }, []);
  return (
    <div class={`scroll-frame ${before ? "more-before" : ""} ${after ? "more-after" : ""}`}>
      <div ref={ref} class={`scroll ${name}`} onScroll={read} {...(label ? { tabIndex: 0, role: "region", "aria-label": label } : {})}>{children}</div>
    </div>
  );
}
