"""The law that no public call changes a model: not its configuration, attributes, buffers, modes, parameters or hooks, nor after an exception."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor, nn

from headcount.behaviour.base import Corpus, make_wordless_sequence
from headcount.behaviour.roles import roles
from headcount.core.errors import HeadcountError
from headcount.core.plan import Plan
from headcount.data.chunks import select_rows
from headcount.data.evaluate import evaluate
from headcount.data.mask import mask
from headcount.data.task import Task
from headcount.importance.score import score
from headcount.models.gates import HeadGates, Replacement, floating_point_outputs
from headcount.models.head_map import HeadMap
from headcount.models.modules import Batch
from headcount.models.observe import observe
from headcount.pruning.prune import prune
from headcount.pruning.repair.repair import repair
from headcount.surgery.cost import cost
from headcount.surgery.cut import cut
from headcount.surgery.export_base import export
from headcount.surgery.save import save
from headcount.surgery.verify import forward_outputs
from headcount.testing.fingerprint import require_unchanged

BoundCall = Callable[[], Any]


def outputs_loss(output: Any, _batch: Any) -> Tensor:
    """A loss per example that depends on every entry of the model's first output."""
    result = floating_point_outputs(output)[0].double()
    steps = torch.arange(result[0].numel(), device=result.device, dtype=torch.float64)
    return (result.flatten(1) * (steps * 0.754877666).sin()).sum(1)


def join_rows(examples: list[Any]) -> dict[str, Tensor]:
    """Returns the batch of some examples, each a batch of one row."""
    return {name: torch.cat([example[name] for example in examples]) for name in examples[0]}


def probe_task(batch: Batch) -> Task:
    """A task whose examples are the rows of a batch."""
    tensors = {name: value for name, value in batch.items() if isinstance(value, Tensor)}
    rows = next(iter(tensors.values())).shape[0]
    examples = [select_rows(tensors, slice(row, row + 1)) for row in range(rows)]
    return Task("probe", examples, examples, examples, join_rows, loss=outputs_loss)


def costly_calls_on(model: nn.Module, batch: Batch) -> dict[str, BoundCall]:
    """By name, the longer public calls: pruning, roles, relevance and entropy, which the law makes for a few families."""
    task = probe_task(batch)
    token_ids = batch.get("input_ids")
    calls: dict[str, BoundCall] = {
        "prune by ranking": lambda: prune(model, task, "gradient", 0.5, repair=False, progress=False),
        "prune by surgeon": lambda: prune(model, task, "surgeon", 0.5, repair=False, progress=False),
        "score by lrp": lambda: score(model, task, "lrp", progress=False),
        "score by entropy": lambda: score(model, task, "entropy", progress=False),
    }
    if isinstance(token_ids, Tensor):
        corpus = Corpus(tuple(make_wordless_sequence(row) for row in token_ids.tolist()))
        calls["roles"] = lambda: roles(model, corpus, only=["local", "same"], progress=False)
    return calls


def public_calls_on(model: nn.Module, heads: HeadMap, batch: Batch, plan: Plan | None, folder: Path) -> dict[str, BoundCall]:
    """By name, the public calls that run or read a model; `plan` is None for models that cannot be cut."""
    task = probe_task(batch)

    def run_with_first_head_masked(intervention: Replacement) -> None:
        with mask(model, heads[:1], intervention, data=[batch] if intervention == "mean" else None):
            forward_outputs(model, batch)

    calls: dict[str, BoundCall] = {
        "HeadMap.verify": lambda: heads.verify(model, batch),
        "HeadMap.verify without inputs": lambda: heads.verify(model),
        "HeadGates": lambda: HeadGates(model).__enter__().__exit__(),
        **{f"mask, {intervention}": partial(run_with_first_head_masked, intervention) for intervention in get_args(Replacement)},
        "observe": lambda: list(observe(model, [batch])),
        "score by gradient": lambda: score(model, task, "gradient"),
        "score by ablation": lambda: score(model, task, "ablation"),
        "evaluate": lambda: evaluate(model, task),
        "cost": lambda: cost(model, batch),
        "save": lambda: save(model, folder / "saved", overwrite=True),
    }
    if plan is not None:
        calls |= {
            "repair": lambda: repair(model, plan, [batch]),
            "cut": lambda: cut(model, plan, inputs=batch),
            "export": lambda: export(model, folder / "portable", inputs=batch, overwrite=True),
        }
    return calls


@contextmanager
def _interrupt_passes_at(model: nn.Module, path: str, error: type[BaseException]) -> Iterator[None]:
    """Raises `error` inside whenever a pass reaches a module."""

    def raise_error(*_: Any) -> None:
        raise error("the pass was interrupted")

    handle = model.get_submodule(path).register_forward_pre_hook(raise_error)
    try:
        yield
    finally:
        handle.remove()


def require_calls_change_nothing(model: nn.Module, batch: Batch, plan: Plan | None, *, costly: bool = False) -> str:
    """Makes every public call, each also interrupted in its last block by an error and by Ctrl-C; raises ModelChanged naming what changed.

    `costly` makes those of `costly_calls_on` instead.
    """
    modes = [module.training for module in model.modules()]
    for number, module in enumerate(model.modules()):
        module.training = number % 2 == 0  # no call may leave one mode for all
    heads = HeadMap.of(model)
    last = next(block for block in reversed(heads.blocks) if block.n_heads)
    completed: list[str] = []
    try:
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            calls = costly_calls_on(model, batch) if costly else public_calls_on(model, heads, batch, plan, folder)
            for name, call in calls.items():
                with require_unchanged(model, name):
                    completed += [name] if _call_succeeds(call) else []
                for error in (RuntimeError, KeyboardInterrupt):
                    with _interrupt_passes_at(model, last.o.path, error), require_unchanged(model, f"{name}, ended by {error.__name__},"):
                        _call_succeeds(call)
    finally:
        for module, mode in zip(model.modules(), modes, strict=True):
            module.training = mode
    return f"{len(completed)} calls, each also interrupted twice: {', '.join(completed)}"


def _call_succeeds(call: BoundCall) -> bool:
    """Whether a call ends without an error; refusals by name and interruptions are as good, if they change nothing."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what was not compared; this law is about the model alone
            call()
    except (HeadcountError, RuntimeError, KeyboardInterrupt):
        return False
    return True
