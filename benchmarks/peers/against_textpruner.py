"""TextPruner, on transformers 4.48, against headcount: time of scoring and removing heads, accuracy with the same number of heads.

    python benchmarks/peers/against_textpruner.py --python PYTHON --data DATA --model TUNED [--keep 54,36,18,9] [--rounds 3] [--limit N]

PYTHON is that of an environment with textpruner, TUNED a classifier of SST-2. Same calibration sentences in the same batches, same test
sentences; CPU time, one thread, the two sides in turn. The folder that TextPruner saves is loaded in its own environment, and by
hc.load_legacy here. Tables go to docs/peers.md.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import batches
import torch
from sidebyside import Peer, cpu, interleaved, median, put, ratio, table
from sst2 import Sst2

import headcount as hc

DOCUMENT = Path(__file__).parents[2] / "docs" / "peers.md"
THEIRS = (
    ("loss, 1 round, over all layers", {"rounds": 1, "even": False, "logits": False}),
    ("loss, 4 rounds, over all layers", {"rounds": 4, "even": False, "logits": False}),
    ("loss, 1 round, in each layer", {"rounds": 1, "even": True, "logits": False}),
    ("logits, 1 round, over all layers", {"rounds": 1, "even": False, "logits": True}),
)
OURS = (("gradient", "gradient", False), ("surgeon, repaired", "surgeon", True))


def read_here(folder: str, batch: dict[str, torch.Tensor], wanted: list[list[float]]) -> str:
    """What headcount makes of the folder that TextPruner saved."""
    try:
        model: Any = hc.load_legacy(folder, allow_pickle=True).eval()
        with torch.no_grad():
            same = torch.allclose(model(**batch).logits, torch.tensor(wanted), atol=1e-4)
        return "yes" if same else "loads, other output"
    except Exception as error:  # whatever a peer raises is its answer
        return f"no, {type(error).__name__}"


def theirs(peer: Peer, sst2: Sst2, given: dict[str, Any], keep: int) -> tuple[str, str]:
    """Accuracy, and how the saved folder loads."""
    answer = peer.ask("prune", keep=keep, **given)
    if "error" in answer:
        return answer["error"], "–"
    many = f" ({answer['heads']} heads)" if answer["heads"] != keep else ""
    return (
        f"{100 * answer['right'] / len(sst2.test):.1f}{many}",
        f"{answer['reload']} / {read_here(answer['folder'], next(sst2.batches()), answer['logits'])}",
    )


def accuracies(options: argparse.Namespace, peer: Peer, sst2: Sst2, files: dict[str, str]) -> None:
    keeps = [int(keep) for keep in options.keep.split(",")]
    lines = []
    for name, wanted in THEIRS:
        found = []
        for keep in keeps:
            with tempfile.TemporaryDirectory() as folder:
                found.append(theirs(peer, sst2, {**wanted, **files, "folder": folder}, keep))
        lines.append([f"TextPruner, {name}", *[value for value, _ in found], found[0][1]])
        print(lines[-1], flush=True)
    for name, method, repair in () if options.peer_alone else OURS:
        made = [sst2.prune(method, keep, repair=repair) for keep in keeps]
        lines.append([f"headcount, {name}", *[f"{100 * sst2.accuracy(model):.1f}" for model in made], "yes"])
        print(lines[-1], flush=True)
    header = ("method", *[f"{keep} of {len(sst2.heads)}" for keep in keeps], "loads again: in its environment / by headcount")
    put(options.document, "textpruner-accuracy", table(header, lines))


def speeds(options: argparse.Namespace, peer: Peer, sst2: Sst2, files: dict[str, str]) -> None:
    keep, lines = len(sst2.heads) // 2, []
    asked = {"keep": keep, "path": files["path"], "test": None, "folder": None, "even": False, "logits": False}
    for rounds, method in ((1, "gradient"), (4, "rank(by=gradient;again=true;step=0.125)")):

        def ours(method: str = method) -> float:
            return cpu(lambda: sst2.prune(method, keep, repair=False))

        def peers(rounds: int = rounds) -> float:
            return peer.ask("prune", rounds=rounds, **asked)["seconds"]

        times = interleaved({"headcount": ours, "TextPruner": peers}, options.rounds)
        seconds = f"{median(times, 'TextPruner')} / {median(times, 'headcount')}"
        lines.append([f"{rounds} round{'s' if rounds > 1 else ''}", method, seconds, ratio(times, "TextPruner", "headcount")])
        print(lines[-1], flush=True)
    put(
        options.document,
        "textpruner-time",
        table(("TextPruner, loss", "headcount", "CPU seconds", "TextPruner / headcount"), lines, left=2),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--python", required=True, help="the python of an environment with textpruner")
    parser.add_argument("--data", type=Path, required=True, help="the folder that holds sst2/train.tsv, dev.tsv and test.tsv")
    parser.add_argument("--model", type=Path, required=True, help="a fine-tuned classifier with its tokenizer")
    parser.add_argument("--keep", default="54,36,18,9")
    parser.add_argument("--examples", type=int, default=512, help="calibration sentences")
    parser.add_argument("--limit", type=int, help="test sentences, by default all")
    parser.add_argument("--rounds", type=int, default=3, help="of timing")
    parser.add_argument("--peer-alone", action="store_true", help="accuracy of TextPruner alone")
    parser.add_argument("--document", type=Path, default=DOCUMENT)
    options = parser.parse_args()
    torch.set_num_threads(1)
    sst2 = Sst2(options.model, options.data, examples=options.examples, limit=options.limit)
    peer = Peer(options.python, "textpruner_part.py", str(options.model))
    with tempfile.TemporaryDirectory() as folder:
        path = batches.write(list(sst2.batches()), Path(folder) / "calibration.npz")
        files = {"path": path, "test": batches.write(list(sst2.tests()), Path(folder) / "test.npz")}
        speeds(options, peer, sst2, files)
        accuracies(options, peer, sst2, files)
    peer.close()


if __name__ == "__main__":
    main()
