"""What pruning costs a model of the papers' size: all-mpnet-base-v2 (144 heads) on SST-2, encoder frozen, by methods that train nothing.

    python benchmarks/frozen.py --data DATA --model all-mpnet-base-v2 --out RUN --keep 50%       # sizes one by one: each goes on from RUN
    python benchmarks/frozen.py --data DATA --model all-mpnet-base-v2 --out RUN                  # all sizes in one table

Only the classification head that transformers puts on the encoder (dense, tanh, linear, on the first token) is fitted, by L-BFGS on
features that are computed once; its weight decay is chosen on the validation sentences. Everything is kept in RUN and goes on after a stop;
tables go to docs/real-models.md.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from curves import Curves, arguments, sizes
from peers.sidebyside import put
from results import describe_results, make_task, read_sst2, tuned, untrained
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import headcount as hc
from headcount.data.task import Task

DOCUMENT = Path(__file__).parents[1] / "docs" / "real-models.md"
METHODS = ("surgeon", "gradient", "fisher", "random")
DECAYS = (1e-4, 1e-3, 1e-2, 1e-1)
CHUNK, BATCH, STEPS = 512, 32, 100


def features(model: Any, task: Task, examples: Sequence[Any], folder: Path) -> tuple[Tensor, Tensor]:
    """What the encoder says at the first token of every example [examples, hidden], and the labels; finished chunks are read back."""
    folder.mkdir(parents=True, exist_ok=True)
    found = []
    for start in range(0, len(examples), CHUNK):
        path = folder / f"{start:06d}.safetensors"
        if not path.is_file():
            chunk = [examples[i] for i in range(start, min(start + CHUNK, len(examples)))]
            partial = path.with_suffix(".partial")
            save_file(first_tokens(model, task, chunk), partial)
            partial.rename(path)
            print(f"features: {start + len(chunk)} of {len(examples)}", flush=True)
        found.append(load_file(path))
    return torch.cat([part["features"] for part in found]), torch.cat([part["labels"] for part in found])


@torch.no_grad()
def first_tokens(model: Any, task: Task, examples: list[Any]) -> dict[str, Tensor]:
    order = sorted(range(len(examples)), key=lambda i: len(examples[i]["input_ids"]))
    made, labels = torch.zeros(len(order), model.config.hidden_size), torch.zeros(len(order), dtype=torch.long)
    for start in range(0, len(order), BATCH):
        places = order[start : start + BATCH]
        batch = dict(task.collate([examples[i] for i in places]))
        labels[places] = batch.pop("labels")
        made[places] = model.base_model(**batch).last_hidden_state[:, 0]
    return {"features": made, "labels": labels}


def logits(head: nn.Module, values: Tensor) -> Tensor:
    """What a head that reads the first token says of features."""
    return head(values[:, None])


def fitted(head: nn.Module, values: Tensor, labels: Tensor, decay: float) -> nn.Module:
    """A copy of a head, at the least cross-entropy that L-BFGS finds, with `decay` / 2 times the squares of its weights."""
    made = copy.deepcopy(head).eval()  # no dropout
    weights = list(made.parameters())
    optimiser = torch.optim.LBFGS(weights, max_iter=STEPS, history_size=20, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimiser.zero_grad()
        value = nn.functional.cross_entropy(logits(made, values), labels)
        value = value + decay / 2 * torch.stack([w.square().sum() for w in weights if w.ndim > 1]).sum()
        value.backward()
        return value

    optimiser.step(loss)  # pyright: ignore[reportArgumentType]
    return made


@torch.no_grad()
def judged(head: nn.Module, values: Tensor, labels: Tensor) -> tuple[float, float]:
    """Cross-entropy and accuracy."""
    said = logits(head, values)
    return float(nn.functional.cross_entropy(said, labels)), float((said.argmax(-1) == labels).double().mean())


def make_classifier(options: argparse.Namespace, files: tuple[Path, Path, Path]) -> None:
    """Saves the frozen encoder with a fitted head, once, as a model that plain transformers loads."""
    folder = options.out / "tuned"
    if (folder / "config.json").is_file():
        return
    torch.manual_seed(0)
    model: Any = AutoModelForSequenceClassification.from_pretrained(options.model, num_labels=2).eval()
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    task = make_task("sst2", model, tokenizer, files)
    fit = features(model, task, first(task.calibration, options.sentences), options.out / "features" / f"train-{options.sentences}")
    check = features(model, task, task.selection, options.out / "features" / "dev")
    made = {decay: fitted(model.classifier, *fit, decay) for decay in DECAYS}
    for decay, head in made.items():
        print("decay {:g}: validation loss {:.4f}, accuracy {:.2%}".format(decay, *judged(head, *check)), flush=True)
    best = min(made, key=lambda decay: judged(made[decay], *check)[0])
    model.classifier.load_state_dict(made[best].state_dict())
    partial = options.out / "tuned.partial"
    model.save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    partial.rename(folder)


def first(examples: Sequence[Any], number: int) -> list[Any]:
    return [examples[i] for i in range(min(number, len(examples)))]


def some(task: Task, options: argparse.Namespace) -> Task:
    """The first examples of each split."""
    return replace(
        task,
        calibration=first(task.calibration, options.calibration),
        selection=first(task.selection, options.selection),
        report=first(task.report, options.test),
    )


def main() -> None:
    parser = arguments(__doc__, METHODS)
    parser.add_argument("--sentences", type=int, default=6920, help="of the training part, that the head is fitted on")
    parser.add_argument("--calibration", type=int, default=128, help="training sentences that choose and repair")
    parser.add_argument("--selection", type=int, default=64, help="validation sentences that judge")
    parser.add_argument("--test", type=int, default=500, help="test sentences that are shown")
    parser.add_argument("--document", type=Path, default=DOCUMENT)
    options = parser.parse_args()
    torch.set_num_threads(1)
    files = read_sst2(options.data, options.out / "files")
    make_classifier(options, files)
    model, tokenizer = tuned(options, files)
    task = some(make_task("sst2", model, tokenizer, files), options)
    keeps = sizes(options.keep, len(hc.HeadMap.of(model)))
    wanted = untrained(options.methods.split(","), keeps, options.seeds)
    made = Curves(options.out / "run", "all-mpnet-base-v2", model, task, wanted, "python benchmarks/frozen.py")
    conditions = f"{len(task.calibration)} sentences choose and repair, {len(task.selection)} judge."
    put(options.document, "frozen", f"{describe_results(made)}\n\n{conditions}")
    print(f"\n{describe_results(made)}\n\n{conditions}\n{made.failed or ''}")


if __name__ == "__main__":
    main()
