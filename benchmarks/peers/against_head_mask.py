"""`head_mask` of transformers 4.57, used as run_bertology.py used it, against headcount's scores on transformers 5.

    python benchmarks/peers/against_head_mask.py --python PYTHON --data DATA --model TUNED [--examples 512] [--ablated 128] [--rounds 5]

PYTHON is that of an environment with transformers 4.57, TUNED a classifier of SST-2. Gradient importance at batch 1 and 32, and every
head ablated alone, on the same sentences; CPU time, one thread, the two sides in turn. Tables go to docs/peers.md.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import batches
import torch
from sidebyside import Peer, Times, cpu, interleaved, median, put, ratio, spearman, table
from sst2 import Sst2

import headcount as hc

DOCUMENT = Path(__file__).parents[2] / "docs" / "peers.md"


class Comparison:
    """One kind of score on both sides: the seconds of every round, and the last numbers."""

    def __init__(self, sst2: Sst2, peer: Peer, by: str, asked: dict) -> None:
        self.sst2, self.peer, self.by, self.asked = sst2, peer, by, asked
        self.ours: list[float] = []
        self.theirs: list[float] = []

    def score(self) -> float:
        def work() -> None:
            self.ours = list(hc.score(self.sst2.model, self.sst2.task, self.by, normalise="none", batch_size=self.sst2.batch).values)

        return cpu(work)

    def mask(self) -> float:
        answer = self.peer.ask(**self.asked)
        self.theirs = answer["values"]
        return answer["seconds"]

    def times(self, rounds: int) -> Times:
        return interleaved({"headcount": self.score, "head_mask": self.mask}, rounds)

    def agreement(self) -> str:
        """Rank correlation, and the largest difference, each side divided by its largest number: they take means over other counts."""
        ours, theirs = (max(map(abs, values)) for values in (self.ours, self.theirs))
        gap = max(abs(a / ours - b / theirs) for a, b in zip(self.ours, self.theirs, strict=True))
        return f"{spearman(self.ours, self.theirs):.4f}, {gap:.0e}"


def compared(options: argparse.Namespace, folder: Path) -> list[list[str]]:
    """The lines of the table; numbers of both sides agree where they have the same definition."""
    peer, lines = Peer(options.python, "head_mask_part.py", str(options.model)), []
    wanted = (
        ("gradient, example by example", "gradient", options.examples, 1, {"what": "gradient", "resets": True}),
        ("gradient, as the script sums it", "gradient:running", options.examples, 32, {"what": "gradient", "resets": False}),
        ("ablation of every head", "ablation", options.ablated, 32, {"what": "ablation"}),
    )
    sst2 = Sst2(options.model, options.data, examples=max(options.examples, options.ablated))
    for name, by, examples, batch, asked in wanted:
        path = batches.write(list(sst2.first(examples, batch).batches()), folder / f"{examples}-{batch}.npz")
        one = Comparison(sst2.first(examples, 32), peer, by, {**asked, "path": path})
        times = one.times(options.rounds)
        sizes = f"{batch} / 32"
        seconds = f"{median(times, 'head_mask')} / {median(times, 'headcount')}"
        lines.append([name, by, examples, sizes, seconds, ratio(times, "head_mask", "headcount"), one.agreement()])
        print(lines[-1], flush=True)
    peer.close()
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--python", required=True, help="the python of an environment with transformers 4.57")
    parser.add_argument("--data", type=Path, required=True, help="the folder that holds sst2/train.tsv, dev.tsv and test.tsv")
    parser.add_argument("--model", type=Path, required=True, help="a fine-tuned classifier with its tokenizer")
    parser.add_argument("--examples", type=int, default=512, help="sentences for gradients")
    parser.add_argument("--ablated", type=int, default=128, help="sentences for ablation")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--name", default="head-mask", help="of the place in the document")
    parser.add_argument("--document", type=Path, default=DOCUMENT)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        lines = compared(options, Path(folder))
    header = ("score", "headcount's name", "sentences", "batch: theirs / ours", "CPU seconds: theirs / ours", "theirs / ours", "agreement")
    put(options.document, options.name, table(header, lines, left=2))


if __name__ == "__main__":
    main()
