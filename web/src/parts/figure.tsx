/** Every chart: its message in words, the drawing, what it shows, and the same as a table. */
import type { ComponentChildren, JSX } from "preact";
import { useId, useState } from "preact/hooks";
import type { Cell } from "../page";
import { Table, type Column } from "./table";

interface Props {
  title: string;
  takeaway?: string;
  caption: ComponentChildren;
  controls?: ComponentChildren;
  children?: ComponentChildren;
  /** Made only when it is asked for; without it, `tools` say where the numbers are. */
  table?: () => { columns: Column[]; rows: Cell[][] };
  tools?: ComponentChildren;
  class?: string;
  level?: 2 | 3;
}

export function Figure({ title, takeaway, caption, controls, children, table, tools, class: name = "", level = 2 }: Props): JSX.Element {
  const [open, setOpen] = useState(false);
  const [heading, region] = [useId(), useId()];
  const Heading = level === 2 ? "h2" : "h3";
  return (
    <figure class={`figure ${name}`} aria-labelledby={heading}>
      <div class="figure-head">
        <Heading id={heading}>{title}</Heading>
        {tools}
        {table && (
          <button type="button" class="quiet" aria-expanded={open} aria-controls={region} onClick={() => setOpen(!open)}>
            {open ? "Hide table" : "Show as table"}
          </button>
        )}
      </div>
      {takeaway && <p class="takeaway">{takeaway}</p>}
      {controls && <div class="controls">{controls}</div>}
      {children}
      <figcaption>{caption}</figcaption>
      {table && <div id={region}>{open && <Table name={title} {...table()} />}</div>}
    </figure>
  );
}
