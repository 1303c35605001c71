/** Straight lines, and marks that can be told apart without colour. */
type Place = [x: number, y: number];

/** A line through places; closed, it is an area. */
export const through = (places: Place[], closed = false): string => (places.length ? `M${places.map(([x, y]) => `${round(x)} ${round(y)}`).join("L")}${closed ? "Z" : ""}` : "");

const round = (value: number): number => Math.round(value * 100) / 100;

/** Corners on a circle from the top, at radii that take turns. */
const corners = (count: number, turn: number, ...radii: number[]): Place[] =>
  Array.from({ length: count }, (_, at): Place => {
    const angle = (2 * Math.PI * at) / count + turn;
    const radius = radii[at % radii.length]!;
    return [radius * Math.sin(angle), -radius * Math.cos(angle)];
  });

const PLUS: Place[] = [[-1.35, -0.45], [-0.45, -0.45], [-0.45, -1.35], [0.45, -1.35], [0.45, -0.45], [1.35, -0.45], [1.35, 0.45], [0.45, 0.45], [0.45, 1.35], [-0.45, 1.35], [-0.45, 0.45], [-1.35, 0.45]];

/** Of about the same area each: circle, square, triangle, diamond, star, triangle upside down, cross. */
const MARKS: Place[][] = [corners(24, 0, 1), corners(4, Math.PI / 4, 1.25), corners(3, 0, 1.55), corners(4, 0, 1.6, 0.95), corners(10, 0, 1.7, 0.68), corners(3, Math.PI, 1.55), PLUS];

/** The mark of a series, around 0; `size` is its area. */
export function markOf(at: number, size = 56): string {
  const scale = Math.sqrt(size / Math.PI);
  return through(MARKS[at % MARKS.length]!.map(([x, y]): Place => [x * scale, y * scale]), true);
}
