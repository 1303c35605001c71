/** One stop for the Tab key in a set of points; arrows go between them. */
import { useRef, useState } from "preact/hooks";

export interface Roving {
  at: number;
  /** What a point needs: where it stands in the order of the keys. */
  of: (place: number) => { tabIndex: number; onFocus: () => void; onKeyDown: (event: KeyboardEvent) => void; ref: (element: Element | null) => void };
}

const STEPS: Record<string, (at: number, count: number) => number> = {
  ArrowRight: (at) => at + 1,
  ArrowDown: (at) => at + 1,
  ArrowLeft: (at) => at - 1,
  ArrowUp: (at) => at - 1,
  Home: () => 0,
  End: (_, count) => count - 1,
  PageDown: (at) => at + 10,
  PageUp: (at) => at - 10,
};

export function useRoving(count: number, act?: (place: number, key: "Enter" | " ") => void): Roving {
  const [wanted, setAt] = useState(0);
  const elements = useRef<(HTMLElement | SVGElement | null)[]>([]);
  const at = Math.min(wanted, Math.max(0, count - 1));
  const onKeyDown = (place: number, event: KeyboardEvent): void => {
    if (event.key === "Enter" || event.key === " ") {
      if (act) event.preventDefault();
      act?.(place, event.key);
      return;
    }
    const step = STEPS[event.key];
    if (!step || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    const next = Math.max(0, Math.min(count - 1, step(place, count)));
    setAt(next);
    elements.current[next]?.focus();
  };
  return {
    at,
    of: (place) => ({
      tabIndex: place === at ? 0 : -1,
      onFocus: () => setAt(place),
      onKeyDown: (event) => onKeyDown(place, event),
      ref: (element) => {
        elements.current[place] = element as HTMLElement | SVGElement | null;
      },
    }),
  };
}
