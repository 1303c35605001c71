/** A linear map from numbers to pixels. */
import { nice, ticks } from "d3-array";

export interface Scale {
  (value: number): number;
  domain(): [number, number];
  /** About so many round numbers within the domain. */
  ticks(count: number): number[];
}

/** The scale of a domain; ends that are made round widen it. */
export function linearScale(domain: [number, number], [first, last]: [number, number], roundEnds = false): Scale {
  const [low, high] = roundEnds ? nice(...domain, 10) : domain;
  const scale = (value: number): number => (high === low ? (first + last) / 2 : first + ((value - low) / (high - low)) * (last - first));
  return Object.assign(scale, { domain: (): [number, number] => [low, high], ticks: (count: number) => ticks(low, high, count) });
}
