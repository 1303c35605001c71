"""Repair: the output projections of a pruned model, refitted in closed form so that its blocks give what the dense model's gave. No training.

Block after block from the input on, on the pruned model's own inputs, in one pass: see `lockstep` and `least_squares`. Cross-attention, grouped KV
heads, causal models and any number type go the same way; padding counts nowhere. docs/repair.md has what it recovers.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from headcount.core.arguments import check_arguments
from headcount.core.errors import DataError
from headcount.core.heads import AttentionBlock
from headcount.core.options import Configurable, option
from headcount.core.plan import Plan
from headcount.data.chunks import chunks, default_batch_size
from headcount.data.task import Data, Split, Task
from headcount.models.head_map import HeadMap
from headcount.models.modules import Batch, pad_id, unwrap
from headcount.models.observe import evaluating, model_inputs
from headcount.models.ownership import holds_model, restrict_to_owner
from headcount.models.randomness import fork_rng
from headcount.models.state import copy_model
from headcount.pruning.repair.least_squares import FitResult, Products, append_ones, fit_best_ridge
from headcount.pruning.repair.lockstep import Lockstep
from headcount.pruning.repair.projection import (
    LinearProjection,
    has_bias,
    output_projection,
    read_weight_and_bias,
    rows_of_heads,
    rows_of_real_tokens,
    write_weight_and_bias,
)

FIT_EXAMPLES, CHECK_EXAMPLES = 512, 128
"""Examples that weights are fitted on by default, and at most that many that choose the ridge."""
TOKENS_IN_FLIGHT = 2**19
"""Tokens that may be on their way at once, those of the check included; more calibration data are read once for every block."""
BATCHES_IN_FLIGHT = 512
"""Batches that may be on their way at once: each has two threads."""

BlockCall = tuple[str, int]
"""The path of a block, and which of its calls in a pass it is, from 1."""
ProductsByBlock = dict[tuple[str, bool], Products]
"""The products of every block, by its path, and of the batches of the fit (False) and of the check (True)."""


class FitOrCheckBatch(NamedTuple):
    """A batch, and whether it checks the fit (True) or is fitted on (False)."""

    batch: Batch
    is_check: bool


@dataclass(frozen=True)
class RepairSettings(Configurable):
    """Everything beside model, plan and data that determines a repair; values are checked when the object is made."""

    name: ClassVar[str] = "repair"
    _: KW_ONLY
    split: Split = option("calibration", "The split of a task to fit on.")
    limit: int = option(FIT_EXAMPLES, "How many examples to fit on at most.", minimum=1)
    ridge: float | None = option(None, "λ as a share of the mean diagonal of the Gram matrix; by default chosen by the error.", above=0)
    batch_size: int | None = option(None, "Examples per batch; by default that of the task.", minimum=1)
    by: Literal["weights", "gates"] = option("weights", "What is fitted: all weights, or one number per head.")


@dataclass(frozen=True, slots=True)
class Repaired:
    """The model with refitted output projections, in the shape it had, and the fit of each block by its name.

    All other weights are shared with the model that was repaired.
    """

    model: nn.Module
    blocks: dict[str, FitResult]


@check_arguments
def repair(  # noqa: PLR0913 - every argument is explicit
    model: nn.Module,
    plan: Plan,
    data: Data,
    *,
    split: Split = RepairSettings.split,
    limit: int = RepairSettings.limit,
    ridge: float | None = RepairSettings.ridge,
    batch_size: int | None = RepairSettings.batch_size,
    by: Literal["weights", "gates"] = RepairSettings.by,
) -> nn.Module:
    """Refits the output projections of the heads that a plan keeps, so that they make up for those that it removes.

    Every projection W that loses heads becomes the minimum of ‖X W' − Y‖² + λ ‖W' − W‖², where X are the outputs of the heads that stay, on the
    pruned model's own inputs, and Y is what the dense block gives. The model keeps its shape, and the removed heads give nothing: `cut` it by the
    same plan afterwards. It needs forward passes alone, about two over the data.

    Args:
        model: A live model of transformers; it is not changed.
        plan: The heads that go.
        data: A Task, a datasets.Dataset of model inputs, or batches. Labels are not used.
        split: The split of a task to fit on.
        limit: How many examples to fit on at most. All of them together must have more tokens than a block has inputs.
        ridge: λ as a share of the mean diagonal of XᵀX, above 0. By default the one of 1e-6, 1e-5, … 1 with the least error on 128 examples of
            the selection split of a task, or on the last fifth of other data; where no refit has a smaller error there, W stays. 1e-3 where
            there are too few batches for that.
        batch_size: Examples per batch, by default that of the task.
        by: "weights" fits all weights, "gates" one number per head, by which its part of the projection is multiplied.

    Returns:
        A repaired copy of the model.

    Raises:
        OptionError: an argument has the wrong type or is out of range.
        UnknownName: there is no such split, or nothing of the name `by` to fit.
        PlanError: `plan` is no plan, or no plan for this model.
        DataError: the data are missing, have too few tokens, or do not run a block that loses heads.
        UnsupportedModel: an output projection cannot be written to, such as a quantised one.

    Example:
        >>> import headcount as hc
        >>> model = hc.load("demo/entailment")
        >>> task = hc.open_task("demo/entailment", model, limit=64)
        >>> plan = hc.Plan.removing(["L0H1", "L2H3"])
        >>> small = hc.cut(hc.repair(model, plan, task), plan)
        >>> len(hc.HeadMap.of(model)) - len(hc.HeadMap.of(small))
        2
    """
    settings = RepairSettings(split=split, limit=limit, ridge=ridge, batch_size=batch_size, by=by)
    return copy_model(refit(model, plan, data, settings).model)


@holds_model("a repair")
def refit(model: nn.Module, plan: Plan, data: Data, settings: RepairSettings = RepairSettings()) -> Repaired:
    """Returns what `repair` does, with the fit of each block; the model shares all weights but its output projections with the one given."""
    dense: Any = unwrap(model)
    heads = HeadMap.of(dense)
    plan.check(heads)
    blocks = [block for block in heads.blocks if len(plan.kept_positions(block)) < block.n_heads]
    if not blocks:
        return Repaired(copy_model(dense, only=()), {})
    if data is None:
        raise DataError("data must be a Task, a dataset or batches; got None, and a repair is fitted on data")
    projections = [output_projection(dense, block) for block in blocks]
    batches = _read_batches(dense, data, settings)
    work = _Refit(dense, copy_model(dense, only=projections), plan, blocks, settings)
    with evaluating(dense), evaluating(work.pruned), fork_rng(()):
        work.run(batches)
    return Repaired(work.pruned, work.fits)


def _read_batches(model: nn.Module, data: Data, settings: RepairSettings) -> list[FitOrCheckBatch]:
    """Returns the batches of the fit, then those of the check: of the selection split of a task, else the last fifth of all."""
    batch_size = default_batch_size(data) if settings.batch_size is None else settings.batch_size

    def read_batches_of_split(split: Split, limit: int) -> list[Batch]:
        pieces = chunks(data, split=split, limit=limit, pad_id=pad_id(model))
        return [model_inputs(batch, model) for chunk in pieces for _, batch in chunk.batches(batch_size)]

    fitting = read_batches_of_split(settings.split, settings.limit)
    if isinstance(data, Task):
        checking = read_batches_of_split("selection", min(CHECK_EXAMPLES, settings.limit))
    else:
        n_fitting = len(fitting) - len(fitting) // 5
        fitting, checking = fitting[:n_fitting], fitting[n_fitting:]
    return [FitOrCheckBatch(batch, is_check) for split, is_check in ((fitting, False), (checking, True)) for batch in split]


class _Refit:
    """One repair: the dense model, the copy that is repaired, and the blocks that lose heads."""

    def __init__(self, dense: nn.Module, pruned: nn.Module, plan: Plan, blocks: Sequence[AttentionBlock], settings: RepairSettings) -> None:
        self.dense, self.pruned, self.settings = dense, pruned, settings
        self.blocks = {block.path: block for block in blocks}
        self.kept_rows = {block.path: rows_of_heads(block, plan.kept_positions(block)) for block in blocks}
        self.fits: dict[str, FitResult] = {}
        self.old_weights: dict[str, Tensor] = {}
        self._zero_removed_heads()

    def _zero_removed_heads(self) -> None:
        """Takes the removed heads out of the pruned model: their rows of the projection become zero."""
        for path, block in self.blocks.items():
            module = output_projection(self.pruned, block)
            matrix = read_weight_and_bias(module)
            self.old_weights[path] = matrix[self._fitted_rows(path, module)]
            matrix[sorted(set(range(block.n_heads * block.value_dim)) - set(self.kept_rows[path]))] = 0
            write_weight_and_bias(module, matrix)

    def _fitted_rows(self, path: str, module: LinearProjection) -> list[int]:
        """Returns the rows of the matrix that are fitted: those of the heads that stay, and the bias."""
        return [*self.kept_rows[path], len(read_weight_and_bias(module)) - 1] if has_bias(module) else self.kept_rows[path]

    def run(self, batches: list[FitOrCheckBatch]) -> None:
        """Fits every block on the batches."""
        n_calls = self._count_calls(batches[0][0])
        called_once = [path for path, count in n_calls.items() if count == 1]
        called_again = [path for path, count in n_calls.items() if count > 1]
        n_tokens = sum(_estimate_n_tokens(batch) for batch, _ in batches)
        fits_in_memory = (n_tokens <= TOKENS_IN_FLIGHT and len(batches) <= BATCHES_IN_FLIGHT) or len(batches) == 1
        if fits_in_memory and called_once:
            products: ProductsByBlock = {}  # a block is refitted as soon as all batches have reached it
            self._run_in_lockstep(batches, called_once, products, lambda key: self._refit_block(key[0], products))
        elif called_once:
            for path in called_once:
                self._sum_products_and_refit(batches, [path], in_waves=True)
        if called_again:
            self._sum_products_and_refit(batches, called_again, in_waves=not fits_in_memory)

    def _count_calls(self, batch: Batch) -> dict[str, int]:
        """Returns how often each block runs in one pass, in the order in which they run first."""
        counts: Counter[str] = Counter()

        def count_call(path: str, *_: Any) -> None:
            counts[path] += 1

        with ExitStack() as stack:
            for path, block in self.blocks.items():
                hook = restrict_to_owner(self.dense, partial(count_call, path))
                stack.callback(self.dense.get_submodule(block.o.path).register_forward_hook(hook).remove)
            self.dense(**batch)
        silent = next((block.name for path, block in self.blocks.items() if path not in counts), None)
        if silent is not None:
            raise DataError(f"the data do not run block {silent}, so it cannot be refitted; give batches that reach it")
        return dict(counts)

    def _sum_products_and_refit(self, batches: list[FitOrCheckBatch], paths: Sequence[str], *, in_waves: bool) -> None:
        """Runs all batches, as many at once as memory takes, and refits the blocks at the end."""
        products: ProductsByBlock = {}
        for wave in _split_into_waves(batches) if in_waves else [batches]:
            self._run_in_lockstep(wave, paths, products, lambda _: None)
        for path in paths:
            self._refit_block(path, products)

    def _run_in_lockstep(
        self, batches: list[FitOrCheckBatch], paths: Sequence[str], products: ProductsByBlock, refit_at_pause: Callable[[BlockCall], None]
    ) -> None:
        """Runs batches in step, adding up the products of some blocks; `refit_at_pause` is called when all have paused at one of these."""
        lockstep = Lockstep(refit_at_pause)
        with _Hooks(self, lockstep, paths, products) as hooks:
            lockstep.run([job for batch, is_check in batches for job in hooks.forward_pass_jobs(batch, is_check)])

    def _refit_block(self, path: str, products: ProductsByBlock) -> None:
        """Refits one block by its products."""
        block, module = self.blocks[path], output_projection(self.pruned, self.blocks[path])
        fitting, checking = products.pop((path, False), None), products.pop((path, True), None)
        rows = self._fitted_rows(path, module)
        if fitting is None or fitting.n_tokens <= len(rows):
            raise DataError(
                f"block {block.name} has {len(rows)} inputs to refit and the calibration data {0 if fitting is None else fitting.n_tokens} tokens; "
                f"give more than {len(rows)} tokens (a larger limit), or prune without repair"
            )
        if not rows:
            return
        result = fit_best_ridge(
            fitting,
            checking,
            self.old_weights[path],
            has_bias=has_bias(module),
            ridge=self.settings.ridge,
            inputs_per_head=block.value_dim if self.settings.by == "gates" else None,
        )
        matrix = read_weight_and_bias(module)
        matrix[rows] = result.weights
        write_weight_and_bias(module, matrix)
        self.fits[block.name] = result


def _estimate_n_tokens(batch: Batch) -> int:
    """Returns roughly how many tokens a batch has: the entries of its widest input of whole numbers, or of images' patches."""
    sizes = [value.numel() for value in batch.values() if isinstance(value, Tensor) and not value.is_floating_point()]
    return max(sizes, default=max((value.shape[0] * 256 for value in batch.values() if isinstance(value, Tensor)), default=1))


def _split_into_waves(batches: list[FitOrCheckBatch]) -> Iterator[list[FitOrCheckBatch]]:
    """Yields batches in groups that may be on their way at once."""
    wave: list[FitOrCheckBatch] = []
    for entry in batches:
        if wave and (len(wave) == BATCHES_IN_FLIGHT or sum(_estimate_n_tokens(batch) for batch, _ in [*wave, entry]) > TOKENS_IN_FLIGHT):
            yield wave
            wave = []
        wave.append(entry)
    yield wave


class _BatchState:
    """One batch on its way: what the dense model gave in each block, until the pruned one gets there."""

    def __init__(self, batch: Batch, is_check: bool) -> None:
        self.batch, self.is_check = batch, is_check
        self.outputs: dict[str, list[Tensor]] = defaultdict(list)
        self.n_calls: Counter[tuple[str, str]] = Counter()


class _Hooks:
    """Pauses the dense and the pruned pass of every batch at each block, and adds up the products of the pruned inputs and the dense outputs."""

    def __init__(self, work: _Refit, lockstep: Lockstep, paths: Sequence[str], products: ProductsByBlock) -> None:
        self.work, self.lockstep, self.paths, self.products = work, lockstep, paths, products
        self._stack = ExitStack()
        self._current: _BatchState | None = None

    def __enter__(self) -> _Hooks:
        for path, block in self.work.blocks.items():
            if path in self.paths:
                dense_module, pruned_module = (model.get_submodule(block.o.path) for model in (self.work.dense, self.work.pruned))
                dense_hook = restrict_to_owner(self.work.dense, self._hook_collecting_dense_outputs(path, block))
                self._stack.callback(dense_module.register_forward_hook(dense_hook).remove)
                self._stack.callback(pruned_module.register_forward_pre_hook(self._hook_adding_pruned_inputs(path, block)).remove)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def forward_pass_jobs(self, batch: Batch, is_check: bool) -> list[Callable[[], None]]:
        """Returns the two passes of a batch: the dense model's, then the pruned one's."""
        state = _BatchState(batch, is_check)

        def run_forward(model: nn.Module) -> None:
            self._current = state
            with torch.no_grad():
                model(**batch)

        return [partial(run_forward, self.work.dense), partial(run_forward, self.work.pruned)]

    def _hook_collecting_dense_outputs(self, path: str, block: AttentionBlock) -> Callable[..., None]:
        def collect_outputs(_module: nn.Module, _args: Any, output: Tensor) -> None:
            state = self._current_state()
            state.outputs[path].append(rows_of_real_tokens(self.work.dense, block, state.batch, output))
            self._pause(state, path, "dense")

        return collect_outputs

    def _hook_adding_pruned_inputs(self, path: str, block: AttentionBlock) -> Callable[..., None]:
        def add_inputs(module: LinearProjection, args: tuple[Any, ...]) -> None:
            state = self._current_state()
            inputs = rows_of_real_tokens(self.work.pruned, block, state.batch, args[0])[:, self.work.kept_rows[path]]
            inputs = append_ones(inputs) if has_bias(module) else inputs
            outputs, key = state.outputs[path].pop(0), (path, state.is_check)
            if key not in self.products:
                self.products[key] = Products.empty(inputs.shape[1], outputs.shape[1], inputs.device)
            self.products[key].add(inputs, outputs)
            self._pause(state, path, "pruned")

        return add_inputs

    def _current_state(self) -> _BatchState:
        assert self._current is not None
        return self._current

    def _pause(self, state: _BatchState, path: str, model_name: str) -> None:
        state.n_calls[path, model_name] += 1
        self.lockstep.pause((path, state.n_calls[path, model_name]))
        self._current = state  # other batches ran in between
