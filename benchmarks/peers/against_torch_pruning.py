"""Torch-Pruning, heads only, against headcount: is what it leaves what was asked for, is it right, does it load again; time; accuracy.

    python benchmarks/peers/against_torch_pruning.py families [--rounds 5] [--patience 60]
    python benchmarks/peers/against_torch_pruning.py accuracy --data DATA --model TUNED [--keep 54,36,18,9] [--examples 512] [--limit N]

Needs torch-pruning next to headcount. `families` asks for half of the heads of small random models and compares with the dense model
whose same heads are masked; times are CPU time of choosing and removing, interleaved, one thread. `accuracy` prunes TUNED, a classifier
of SST-2, with the same calibration sentences for both. Tables go to docs/peers.md.
"""

from __future__ import annotations

import argparse
import copy
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from sidebyside import cpu, interleaved, put, ratio, table
from small_models import FAMILIES, Family, made
from torch_pruner import Wanted, kept, prune, tell_config, with_linears

import headcount as hc

DOCUMENT = Path(__file__).parents[2] / "docs" / "peers.md"
TOLERANCE = 1e-4
"""Of the largest logit, in float32."""
WANTED = (Wanted("magnitude", 0.5), Wanted("Taylor", 0.5), Wanted("magnitude", 0.5, over_all=True))


@dataclass(frozen=True, slots=True)
class Way:
    """How a family is handed to Torch-Pruning: as it is, or changed so that it can read it."""

    name: str
    cache: bool = False
    linear: bool = False


WAYS = {
    "BERT": (Way("", cache=True),),
    "ViT": (Way("", cache=True),),
    "LLaMA": (Way("as it is", cache=True), Way("`use_cache=False`")),
    "GPT-2": (Way("`use_cache=False`"), Way("`use_cache=False`, Conv1D as Linear", linear=True)),
}
USUAL = (Way("`use_cache=False`"),)


@dataclass(slots=True)
class Found:
    """What came of one request; texts stand in the table as they are."""

    heads: list[int] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    result: str = ""
    reload: str = ""
    other: list[str] = field(default_factory=list)


def said(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:110].replace("|", "/")


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raises TimeoutError inside after that much CPU time."""

    def stop(*_: object) -> None:
        raise TimeoutError(f"not done after {seconds:g} s of CPU time")

    signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


@torch.no_grad()
def logits(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return model(**batch).logits


def difference(got: torch.Tensor, wanted: torch.Tensor) -> str:
    """Whether two outputs agree, and by how much they do not, relative to the largest logit."""
    gap = float((got - wanted).abs().max() / wanted.abs().max())
    return f"equal ({gap:.0e})" if gap <= TOLERANCE else f"**wrong** ({gap:.0e})"


def masked(family: Family, removed: Sequence[str]) -> torch.Tensor:
    """The output of the dense model without these heads; raises where that is hardly another one, which would prove nothing."""
    dense, batch = made(family), family.batch()
    with hc.mask(dense, removed):
        expected = logits(dense, batch)
    effect = float((expected - logits(dense, batch)).abs().max() / expected.abs().max())
    if effect < 100 * TOLERANCE:
        raise SystemExit(f"{family.name}: masking changes the output by {effect:.0e} only; make its weights larger")
    return expected


def shrunk(dense: Any, model: Any, heads: hc.HeadMap) -> list[str]:
    """Parameters outside q, k, v and o whose shape changed."""
    own = tuple(part.path for block in heads.blocks for part in (block.q, block.k, block.v, block.o))
    sizes = {name: p.numel() for name, p in dense.named_parameters()}
    return [n for n, p in model.named_parameters() if not n.startswith(own) and p.numel() != sizes[n]]


def gone(dense: Any, model: Any, heads: hc.HeadMap) -> tuple[list[int], list[str]]:
    """How many heads each block has left, and which are gone; raises where q and o do not tell the same."""
    numbers, removed = [], []
    for block in heads.blocks:
        left = kept(dense, model, block, "q")
        if left != kept(dense, model, block, "o") or None in left:
            raise ValueError(f"{block.name}: q keeps {left}, o keeps {kept(dense, model, block, 'o')}")
        numbers.append(len(left))
        removed += [str(head) for place, head in enumerate(block.heads) if place not in left]
    return numbers, removed


def reloaded(model: Any, heads: hc.HeadMap, batch: dict[str, torch.Tensor]) -> str:
    """What plain saving and loading gives."""
    tell_config(model, heads)
    wanted = logits(model, batch)
    with tempfile.TemporaryDirectory() as folder:
        try:
            model.save_pretrained(folder)
            again = type(model).from_pretrained(folder).eval()
            return "yes" if torch.equal(logits(again, batch), wanted) else "loads, other output"
        except Exception as error:  # whatever a peer raises is its answer
            return f"no, {type(error).__name__}"


def traced(family: Family, way: Way) -> dict[str, Any]:
    return family.batch() | ({} if way.cache else {"use_cache": False})


def torch_pruning(family: Family, wanted: Wanted, way: Way, patience: float) -> Found:
    """What Torch-Pruning makes of a family."""
    dense, batch, found = made(family), family.batch(), Found()
    heads = hc.HeadMap.of(dense)
    model = copy.deepcopy(dense)
    if way.linear:
        model, dense = with_linears(model), with_linears(dense)
    try:
        with at_most(patience):
            prune(model, heads, [traced(family, way)], wanted)
        found.heads, found.removed = gone(dense, model, heads)
        found.other = shrunk(dense, model, heads)
    except Exception as error:  # whatever a peer raises is its answer
        found.result = f"raises {said(error)}"
        return found
    if not found.removed:
        found.result = "nothing removed, no error"
        return found
    expected = masked(family, found.removed)
    try:
        found.result = difference(logits(model, batch), expected)
    except Exception as error:  # whatever a peer raises is its answer
        found.result = f"forward raises {said(error)}"
        return found
    found.reload = reloaded(model, heads, batch)
    return found


def headcount(family: Family, removed: Sequence[str]) -> Found:
    """What headcount makes of the same request."""
    dense, batch = made(family), family.batch()
    small = hc.cut(dense, hc.Plan.removing(removed))
    found = Found(removed=list(removed), result=difference(logits(small, batch), masked(family, removed)))
    with tempfile.TemporaryDirectory() as folder:
        hc.save(small, Path(folder) / "cut")
        found.reload = "yes" if torch.equal(logits(hc.load(Path(folder) / "cut"), batch), logits(small, batch)) else "**no**"
    return found


def half(heads: hc.HeadMap) -> list[str]:
    """Every other head, where Torch-Pruning chose none."""
    return [str(head) for block in heads.blocks for head in block.heads[::2]]


def chosen(model: Any, batch: dict[str, torch.Tensor], by: str) -> None:
    """Headcount's share of the same work: score, keep half, cut and prove."""
    scores = hc.score(model, None if by == "magnitude" else [batch], by)
    hc.cut(model, hc.Plan.keep_top(scores, len(scores.heads) // 2))


def timed(family: Family, wanted: Wanted, way: Way, rounds: int) -> str:
    """CPU time of headcount over that of Torch-Pruning."""
    dense, batch = made(family), family.batch()
    heads, by = hc.HeadMap.of(dense), "magnitude" if wanted.importance == "magnitude" else "gradient"

    def theirs() -> float:
        model = copy.deepcopy(dense)
        return cpu(lambda: prune(model, heads, [traced(family, way)], wanted))

    times = interleaved({"headcount": lambda: cpu(partial(chosen, dense, batch, by)), "Torch-Pruning": theirs}, rounds)
    return ratio(times, "headcount", "Torch-Pruning")


def families(options: argparse.Namespace) -> None:
    lines, speeds = [], []
    for family in FAMILIES:
        for way in WAYS.get(family.name, USUAL):
            for wanted in WANTED:
                found = torch_pruning(family, wanted, way, options.patience)
                lines.append(line(family, way, wanted, found))
                print(lines[-1], flush=True)
                if "not done" in found.result:
                    break
                if found.result.startswith("equal") and not wanted.over_all and options.rounds:
                    speeds.append([family.name, wanted.importance, timed(family, wanted, way, options.rounds)])
                    print(speeds[-1], flush=True)
    header = ("family", "asked for half, by", "heads left in each block", "output against the masked model", "anything else smaller",
              "`from_pretrained` loads it", "headcount, same heads: output, reload")  # fmt: skip
    put(options.document, "torch-pruning-families", table(header, lines, left=7))
    put(options.document, "torch-pruning-time", table(("family", "by", "headcount / Torch-Pruning"), speeds, left=2))


def line(family: Family, way: Way, wanted: Wanted, found: Found) -> list[str]:
    """What both made of a request, as a line of the table."""
    name = f"{family.name}, {way.name}" if way.name else family.name
    asked = f"{wanted.importance}, {'over all layers' if wanted.over_all else 'in each layer'}"
    try:
        same = headcount(family, found.removed or half(hc.HeadMap.of(made(family))))
        ours = f"{same.result}, {same.reload}"
    except hc.HeadcountError as error:
        ours = f"refuses: {said(error)}"
    return [name, asked, format_counts(found.heads), found.result, ", ".join(found.other) or "no", found.reload or "–", ours]


def format_counts(numbers: Sequence[int]) -> str:
    return " ".join(map(str, numbers)) or "–"


def accuracy(options: argparse.Namespace) -> None:
    from sst2 import Sst2

    sst2 = Sst2(options.model, options.data, examples=options.examples, limit=options.limit)
    total = len(sst2.heads)
    keeps = [int(keep) for keep in options.keep.split(",")]
    makers: dict[str, Callable[[int], tuple[Any, int]]] = {
        f"Torch-Pruning {importance}, {'over all layers' if over_all else 'in each layer'}": partial(_pruned, sst2, importance, over_all)
        for importance in ("magnitude", "Taylor")
        for over_all in (False, True)
    }
    if not options.peer_alone:
        methods = (("gradient", "gradient", False), ("magnitude", "magnitude", False), ("surgeon, repaired", "surgeon", True))
        makers |= {f"headcount {name}": partial(_ours, sst2, method, repair) for name, method, repair in methods}
    lines = [["dense", *[f"{100 * sst2.accuracy(sst2.model):.1f}"] * len(keeps)]]
    for name, make in makers.items():
        lines.append([name, *[_entry(sst2, make, keep) for keep in keeps]])
        print(lines[-1], flush=True)
    put(options.document, "torch-pruning-accuracy", table(("method", *[f"{keep} of {total}" for keep in keeps]), lines))


def _pruned(sst2: Any, importance: str, over_all: bool, keep: int) -> tuple[Any, int]:
    model = copy.deepcopy(sst2.model)
    prune(model, sst2.heads, sst2.batches(), Wanted(importance, 1 - keep / len(sst2.heads), over_all))
    numbers, _ = gone(sst2.model, model, sst2.heads)
    return model, sum(numbers)


def _ours(sst2: Any, method: str, repair: bool, keep: int) -> tuple[Any, int]:
    model = sst2.prune(method, keep, repair=repair)
    return model, len(hc.HeadMap.of(model))


def _entry(sst2: Any, make: Callable[[int], tuple[Any, int]], keep: int) -> str:
    try:
        model, left = make(keep)
        return f"{100 * sst2.accuracy(model):.1f}" + (f" ({left} heads)" if left != keep else "")
    except Exception as error:  # whatever a peer raises is its answer
        return said(error)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", choices=("families", "accuracy"))
    parser.add_argument("--rounds", type=int, default=5, help="of timing; 0 times nothing")
    parser.add_argument("--patience", type=float, default=60, help="CPU seconds that Torch-Pruning has for a model")
    parser.add_argument("--data", type=Path, help="the folder that holds sst2/train.tsv, dev.tsv and test.tsv")
    parser.add_argument("--model", type=Path, help="a fine-tuned classifier with its tokenizer")
    parser.add_argument("--keep", default="54,36,18,9")
    parser.add_argument("--examples", type=int, default=512, help="calibration sentences")
    parser.add_argument("--limit", type=int, help="test sentences, by default all")
    parser.add_argument("--peer-alone", action="store_true", help="accuracy of Torch-Pruning alone")
    parser.add_argument("--document", type=Path, default=DOCUMENT)
    options = parser.parse_args()
    torch.set_num_threads(1)
    {"families": families, "accuracy": accuracy}[options.what](options)


if __name__ == "__main__":
    main()
