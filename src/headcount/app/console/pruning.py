"""What the verbs that prune share: their options, and how a table of pruned models is shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from headcount.app.console.inputs import TaskOptions, pairs
from headcount.app.console.options import split
from headcount.app.console.session import Session
from headcount.core.plan import Budget, heads_kept

if TYPE_CHECKING:
    from headcount.core.evaluation import Evaluation
    from headcount.models.head_map import HeadMap
    from headcount.pruning.training.fine_tune import Recipe
    from headcount.workflows.prune import TrainingEstimate, Wish

KeepOne = Annotated[str | None, typer.Option("--keep", metavar="K", help="How many heads stay: a number, or a share such as 25%.")]
Parameters = Annotated[int | None, typer.Option("--parameters", min=1, help="Instead of --keep: how many parameters may stay.")]
KvBytes = Annotated[int | None, typer.Option("--kv-bytes", min=1, help="Instead of --keep: bytes of KV cache per token.")]
Latency = Annotated[
    float | None,
    typer.Option(
        "--latency",
        min=0.0,
        metavar="MS",
        help="Instead of --keep: milliseconds for 8 rows of 128 tokens, or as many as the model reads, measured here.",
    ),
]
Options = Annotated[list[str] | None, typer.Option("--option", metavar="NAME=VALUE", help="An option of the method.")]
Ablation = Annotated[
    str,
    typer.Option(
        "--ablation", metavar="NAME", help="What stands in for a removed head: nothing (zero), or its mean output, in the bias (mean)."
    ),
]
Repair = Annotated[
    bool | None, typer.Option("--repair/--no-repair", help="Refit output projections in closed form; by default unless training follows.")
]
Recover = Annotated[
    str | None,
    typer.Option("--recover", metavar="LENGTH", help="Fine-tune the cut model: a number of epochs, or of steps (300steps), or auto."),
]
Scratch = Annotated[
    str | None,
    typer.Option(
        "--scratch",
        metavar="LENGTH",
        help="The control: draw the weights of the smaller model anew and train them; LENGTH as for --recover, at --scratch-rate.",
    ),
]
ScratchRate = Annotated[
    float, typer.Option("--scratch-rate", min=0.0, help="The learning rate of --scratch; --rate is for weights that were trained before.")
]
Rate = Annotated[float, typer.Option("--rate", min=0.0, help="The learning rate of weights, where they train.")]
TrainBatch = Annotated[int, typer.Option("--train-batch", min=1, help="Examples per training step.")]
Distil = Annotated[
    float, typer.Option("--distil", min=0.0, max=1.0, help="The weight of the whole model's predictions in the loss of the recovery.")
]
Steps = Annotated[
    int | None,
    typer.Option("--steps", min=1, help="Optimiser steps of methods that train; else those of one epoch, and at least 300."),
]
Epochs = Annotated[float | None, typer.Option("--epochs", min=0.0, help="Instead of --steps: epochs of methods that train.")]
Protect = Annotated[str | None, typer.Option("--protect", metavar="L0H3,…", help="Heads that stay whatever their score.")]
Floor = Annotated[int, typer.Option("--floor", min=0, help="Heads that stay at least in every block.")]
Kinds = Annotated[
    str | None,
    typer.Option(
        "--kinds",
        metavar="KIND,…",
        help="Attention that may lose heads (encoder-self, decoder-self, cross); --keep counts these.",
    ),
]
Unit = Annotated[
    str, typer.Option("--unit", metavar="NAME", help="kv_group, or even: what goes together where heads share keys and values.")
]


class How(NamedTuple):
    """What is done to the heads that a method chooses, and how it trains: the options that all verbs that prune share."""

    kinds: Kinds = None
    option: Options = None
    ablation: Ablation = "zero"
    repair: Repair = None
    recover: Recover = None
    scratch: Scratch = None
    scratch_rate: ScratchRate = 5e-4
    steps: Steps = None
    epochs: Epochs = None
    rate: Rate = 5e-5
    train_batch: TrainBatch = 32
    distil: Distil = 0.0
    protect: Protect = None
    floor: Floor = 0
    unit: Unit = "kv_group"

    @property
    def attention(self) -> tuple[str, ...]:
        """The kinds of attention that may lose heads."""
        return tuple(split(self.kinds or ""))

    def wish(self, given: TaskOptions, method: str, keep: int, **more: Any) -> Wish:
        """One pruned model; `more` are further fields of it."""
        from headcount.pruning.prune import parse_method
        from headcount.workflows.prune import Wish

        name, own = parse_method(method)
        trains_by = recipe(given, self.rate, self.train_batch, self.distil, self.epochs, self.steps)
        anew = replace(trains_by, rate=self.scratch_rate, distil=0.0)
        made = Wish(
            name,
            keep,
            repair=self.repair,
            recover=self.recover if self.recover is None else length_of(self.recover),
            scratch=None if self.scratch is None else anew.lasting(self.scratch, "scratch"),
            options={**own, **pairs(self.option, "--option")},
            recipe=trains_by,
            floor=self.floor,
            unit=self.unit,
            kinds=self.attention,
            protected=tuple(sorted(set(split(self.protect or "")))),
            ablation=self.ablation,  # pyright: ignore[reportArgumentType]
        )
        return replace(made, **more)


DEFAULT_PRUNING = How()
"""No option given."""


def heads_of(text: str, heads: HeadMap, kinds: Sequence[str] = ()) -> int:
    """A number of heads, from a number or a share, of those of some kinds of attention."""
    total = sum(block.n_heads for block in heads.blocks if not kinds or block.kind in kinds) or len(heads)
    try:
        if text.strip().endswith("%"):
            return Budget(fraction=float(text.strip()[:-1]) / 100).heads(total)
        return heads_kept(number_of(text), total)
    except ValueError as error:
        raise typer.BadParameter(
            f"--keep is a number of heads from 1 to {total}, or a share up to 100%, such as 25% or 0.25; got {text}"
        ) from error


def number_of(text: str) -> int | float:
    """A whole number, or a fraction, as it is written: 8 is a number of heads, 0.25 a share."""
    return int(text) if text.strip().isdecimal() else float(text)


def method_names(text: str) -> list[str]:
    """The methods in a list with commas; brackets may hold some."""
    found, depth, start = [], 0, 0
    for place, letter in enumerate(f"{text},"):
        depth += (letter == "(") - (letter == ")")
        if letter == "," and not depth:
            found.append(text[start:place].strip())
            start = place + 1
    return [name for name in found if name]


def length_of(text: str) -> float | str:
    """How long a training lasts: a number of epochs as a number, anything else as it is."""
    try:
        return float(text)
    except ValueError:
        return text


def limit_of(keep: str | None, own_size: str = "", **limits: float | None) -> tuple[str, float] | None:
    """The one limit of a budget, if it is not a number of heads; none where an option of the method decides how many stay."""
    given = [(name, value) for name, value in limits.items() if value is not None]
    if own_size and (given or keep is not None):
        raise typer.BadParameter(f"{own_size} decides how many heads stay; leave it out, or --keep, --parameters, --kv-bytes and --latency")
    if not own_size and len(given) + (keep is not None) != 1:
        raise typer.BadParameter("say how much stays by exactly one of --keep, --parameters, --kv-bytes and --latency")
    if not given:
        return None
    name, value = given[0]
    return name, value / 1000 if name == "latency" else value


def recipe(given: TaskOptions, rate: float, batch: int, distil: float, epochs: float | None = None, steps: int | None = None) -> Recipe:
    """How methods that train do so."""
    from headcount.pruning.training.fine_tune import Recipe

    if steps is not None and epochs is not None:
        raise typer.BadParameter("say how long methods train by --steps or by --epochs, not by both")
    return Recipe(epochs=epochs, steps=steps, rate=rate, batch=batch, seed=given.seed, distil=distil)


def note_training(session: Session, estimate: TrainingEstimate | None) -> None:
    """Says how long training will take, before it starts."""
    if estimate is not None:
        session.note(estimate.sentence)


def show_table(session: Session, dense: Evaluation, table: Sequence[Mapping[str, Any]]) -> None:
    """The whole model, then one line per pruned model with its change, interval and p-value."""
    metric = dense.metric or "loss"
    value = dense.loss if dense.value is None else dense.value
    session.line(f"the whole model: {metric} {value:.4g}, loss {dense.loss:.4g} on {dense.n_examples} examples")
    what = "metric" if any("metric p" in row for row in table) else "loss"
    lines = [
        (
            row["method"],
            row["keep"],
            row["seed"],
            "" if row.get("steps") is None else row["steps"],
            f"{row['value'] if row['value'] is not None else row['loss']:.4g}",
            f"{row[f'{what} difference']:+.4g}",
            f"{row[f'{what} low']:+.3g} … {row[f'{what} high']:+.3g}",
            f"{row[f'{what} p']:.2g}",
            f"{row['loss difference']:+.3g}",
            f"{row['parameters']:,}",
        )
        for row in table
    ]
    columns = ("method", "heads", "seed", "steps", metric, "change", "95% interval", "p", "loss", "parameters")
    session.table(columns, lines, right=columns[1:])
