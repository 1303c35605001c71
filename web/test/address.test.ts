import assert from "node:assert/strict";
import { mock, test } from "node:test";
import { follow, keep, keepAddress, method } from "../src/state";

test("a slider writes its own step of the address, and none that the reader has gone on to", () => {
  const written: string[] = [];
  const place = { hash: "" };
  const write = (_state: unknown, _title: string, to: string): void => {
    written.push(to);
    place.hash = to;
  };
  Object.assign(globalThis, { location: place, history: { pushState: write, replaceState: write } });
  mock.timers.enable({ apis: ["setTimeout", "Date"], now: 10_000 });
  follow("");
  keepAddress();
  method.value = "one";
  mock.timers.tick(1000);
  const own = place.hash;
  assert.match(own, /method=one/);
  keep.value = 3;
  keep.value = 4;
  mock.timers.tick(1000);
  assert.match(place.hash, /keep=4/);
  const before = written.length;
  keep.value = 5;
  keep.value = 6;
  place.hash = "#/pruning?keep=9"; // Back, whose event has not come yet
  mock.timers.tick(1000);
  assert.equal(place.hash, "#/pruning?keep=9");
  assert.ok(written.slice(before).every((to) => !to.includes("keep=6")));
  mock.timers.reset();
});
