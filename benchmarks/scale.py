"""How time and memory grow with layers, heads, length, examples and processes; what 70 billion parameters on 64 accelerators would need.

    python benchmarks/scale.py --out FILE.json [--rounds 4]      # measures what FILE.json does not hold yet, then writes tables and plot
    python benchmarks/scale.py tables --out FILE.json            # tables and plot of what was measured before
    python benchmarks/scale.py large                             # the arithmetic alone
    python benchmarks/scale.py --tiny --rounds 1 --out FILE.json --document FILE.md --figure FILE.svg      # a trial: half a minute

One axis varies, the others stay at a base; a BERT shape with random weights, one thread. A round visits all points in a new random order:
CPU time in this process, wall time under torchrun where processes vary (the total work stays the same). Memory is the peak beyond model and
data, which Linux alone tells. A run that is stopped goes on with the same command. Tables go to docs/scale.md, the plot to docs/figures.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import torch
import transformers
from peers.sidebyside import put, table
from scale_large import LLAMA_70B, Job, Machine, Shape, assumptions, table_rows
from scale_stages import SHARED, Point, measured, warm_up
from scale_tables import EXPECTED, LABELS, Curve, draw, gains, growth, rates

from headcount.core.files import read_json, write_atomic, write_json

DOCS = Path(__file__).parents[1] / "docs"
SCRIPT = Path(__file__).with_name("scale_stages.py")
CPU, WALL = "CPU", "wall"


@dataclass(frozen=True, slots=True)
class Grid:
    """The base, the sizes along every axis, and the examples that processes share: blocks of 128, so that each process needs that many."""

    base: Point
    sizes: Mapping[str, Sequence[int]]
    shared: int

    def along(self, axis: str) -> list[Point]:
        start = replace(self.base, examples=self.shared) if axis == "processes" else self.base
        return [replace(start, **{axis: size}) for size in self.sizes[axis]]

    def jobs(self) -> list[tuple[str, Point]]:
        """Every stage at every point of the axes that it depends on, once."""
        return sorted({(stage, point) for stage, axes in EXPECTED.items() for axis in axes for point in self.along(axis)})


FULL = Grid(
    Point(layers=4, heads=8, length=32, examples=32, processes=1, width=256, batch=16),
    {
        "layers": (2, 4, 8, 16),
        "heads": (4, 8, 16, 32),
        "length": (16, 32, 64, 128, 256),
        "examples": (32, 64, 128, 256),
        "processes": (1, 2),
    },
    shared=256,
)
TINY = Grid(
    Point(layers=1, heads=2, length=8, examples=20, processes=1, width=32, batch=4),
    {"layers": (1, 2, 4), "heads": (2, 4, 8), "length": (8, 16, 32), "examples": (20, 40, 80), "processes": (1, 2)},
    shared=256,
)


def name_of(stage: str, point: Point, clock: str) -> str:
    return f"{stage}, {clock}: {point}"


class Store:
    """What was measured, by stage and point, one entry for each round, in a file that is whole at any time."""

    def __init__(self, path: Path, grid: Grid) -> None:
        self.path, self.grid = path, grid
        self.settings: dict[str, Any] = {
            "base": asdict(grid.base),
            "sizes": {axis: list(sizes) for axis, sizes in grid.sizes.items()},
            "shared": grid.shared,
            "torch": torch.__version__.partition("+")[0],
            "transformers": transformers.__version__,
            "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        }
        self.found: dict[str, dict[str, dict[str, float]]] = {}
        if path.exists():
            self._take_up(read_json(path))

    def _take_up(self, content: dict[str, Any]) -> None:
        for name, wanted in self.settings.items():
            if content["settings"].get(name) != wanted:
                was = content["settings"].get(name)
                raise SystemExit(f"{self.path} was measured with {name} {was}, this is {wanted}; name another file by --out")
        self.found = content["found"]

    def has(self, name: str, turn: int) -> bool:
        return str(turn) in self.found.get(name, {})

    def keep(self, name: str, turn: int, found: dict[str, float]) -> None:
        self.found.setdefault(name, {})[str(turn)] = found
        write_json(self.path, {"settings": self.settings, "found": self.found})
        print(f"round {turn}, {name}:", *(f"{key} {value:.3g}" for key, value in found.items()), file=sys.stderr, flush=True)

    def curve(self, what: str, stage: str, axis: str) -> Curve:
        """Sizes along an axis with the median over rounds, where there is any."""
        found: Curve = []
        for point in self.grid.along(axis):
            rounds = self.found.get(name_of(stage, point, WALL if axis == "processes" else CPU), {}).values()
            values = [one[what] for one in rounds if what in one]
            found += [(getattr(point, axis), statistics.median(values))] if values else []
        return found

    def walls(self, stage: str) -> list[tuple[float, ...]]:
        """Seconds by number of processes, for every round that has all of them."""
        rounds = [self.found.get(name_of(stage, point, WALL), {}) for point in self.grid.along("processes")]
        return [tuple(one[turn]["seconds"] for one in rounds) for turn in rounds[0] if all(turn in one for one in rounds)]

    @property
    def rounds(self) -> int:
        """How many rounds every point has."""
        names = [name_of(stage, point, CPU) for stage, point in self.grid.jobs()]
        names += [name_of(stage, point, WALL) for stage in SHARED for point in self.grid.along("processes")]
        return min(len(self.found.get(name, {})) for name in names)


def run(store: Store, rounds: int) -> None:
    """Measures what is missing, round by round."""
    warm_up(store.grid.base)
    launches = [("", point) for point in store.grid.along("processes")]
    for turn in range(rounds):
        jobs = [*store.grid.jobs(), *launches]
        for stage, point in Random(turn).sample(jobs, len(jobs)):
            if not stage:
                launch(store, point, turn)
            elif not store.has(name_of(stage, point, CPU), turn):
                store.keep(name_of(stage, point, CPU), turn, measured(stage, point))


def launch(store: Store, point: Point, turn: int) -> None:
    """Measures all stages that processes share, under torchrun."""
    if all(store.has(name_of(stage, point, WALL), turn) for stage in SHARED):
        return
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "found.json"
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(point.processes)]
        command = [*torchrun, str(SCRIPT), json.dumps(asdict(point)), str(turn), str(out)]
        subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        for stage, found in read_json(out).items():
            store.keep(name_of(stage, point, WALL), turn, found)


def conditions(store: Store) -> str:
    base, settings = store.grid.base, store.settings
    return (
        f"{settings['machine']}, no GPU; torch {settings['torch']}, transformers {settings['transformers']}; float32, one thread for each "
        f"process; medians of {store.rounds} rounds. Base: {base.layers} layers, {base.heads} heads, width {base.width}, {base.examples} "
        f"examples of {base.length} tokens, {base.batch} in a batch; processes share {store.grid.shared} examples."
    )


def operations(point: Point) -> dict[str, float]:
    """What the arithmetic of large models says of a point that was measured."""
    shape = Shape(point.layers, point.heads, point.heads, point.width, 4 * point.width, ffn_matrices=2, vocabulary=0)
    tokens = point.examples * point.length
    once = shape.forward(tokens, point.length)
    return {
        "scoring": 2 * once,
        "ablation": shape.ablated(tokens, point.length, point.layers * point.heads),
        "roles": once,
        "dsp": 3 * once,
    }


def write_tables(store: Store, document: Path, figure: Path) -> None:
    """Puts tables and plot into the document; every point must have been measured once."""
    if not store.rounds:
        raise SystemExit(f"{store.path} does not hold every point yet; measure first: python benchmarks/scale.py --out {store.path}")
    curves = {(what, stage, axis): store.curve(what, stage, axis) for what in LABELS for stage in EXPECTED for axis in store.grid.sizes}
    write_atomic(figure, draw(curves, list(store.grid.sizes)))
    most = store.grid.along("examples")[-1]
    has_memory = any(curves["mib", stage, axis] for stage, axes in EXPECTED.items() for axis in axes)
    parts = {
        "conditions": conditions(store),
        "figure": f"![Time and memory along every axis, on logarithmic scales](figures/{figure.name})",
        "time": growth(curves, "seconds"),
        "memory": growth(curves, "mib") if has_memory else "Not measured: this system has no counter of peak memory that can be reset.",
        "processes": gains({stage: store.walls(stage) for stage in SHARED}, curves),
        "rates": rates(operations(most), {stage: dict(curves["seconds", stage, "examples"])[most.examples] for stage in SHARED}),
    }
    for name, text in parts.items():
        put(document, f"scale-{name}", text)


def write_large(document: Path) -> None:
    """Puts the arithmetic for 70 billion parameters into the document."""
    machine, job = Machine(), Job()
    header = ("work", "FLOPs", f"{machine.accelerators} accelerators at work", "layer after layer", "memory")
    lines = "\n".join(f"- {line}" for line in assumptions(LLAMA_70B, machine, job))
    put(document, "scale-large", f"{lines}\n\n{table(header, table_rows(LLAMA_70B, machine, job))}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", choices=("all", "tables", "large"), nargs="?", default="all")
    parser.add_argument("--out", type=Path, help="the JSON file that keeps what was measured")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--tiny", action="store_true", help="sizes to try the script with")
    parser.add_argument("--document", type=Path, default=DOCS / "scale.md")
    parser.add_argument("--figure", type=Path, default=DOCS / "figures" / "scale.svg")
    options = parser.parse_args()
    write_large(options.document)
    if options.what == "large":
        return
    if options.out is None:
        parser.error("--out names the JSON file that keeps what was measured")
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    store = Store(options.out, TINY if options.tiny else FULL)
    if options.what == "all":
        run(store, options.rounds)
    write_tables(store, options.document, options.figure)


if __name__ == "__main__":
    main()
