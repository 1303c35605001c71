"""One forward pass, and one backward pass if a method needs gradients, that serves every `BlockImportance`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from headcount.core.errors import UnsupportedModel
from headcount.core.heads import AttentionBlock
from headcount.data.checks import check_batch
from headcount.data.chunks import n_rows
from headcount.data.losses import OneByOne, accepts_argument, require_finite_losses
from headcount.data.nonfinite import explain_nonfinite
from headcount.importance.base import BlockImportance, Importance, ScoreContext, WeightedValues
from headcount.models.modules import Batch
from headcount.models.observe import Observation, Observer, model_inputs


def shared_needs(methods: Iterable[Importance]) -> list[str]:
    """Returns what the methods of one pass need of it together. The last bits of every method depend on that, since kernels do."""
    needs = {need for method in methods if isinstance(method, BlockImportance) for need in method.info.needs}
    return sorted(needs & {"attention", "gradient"})


class SharedPass:
    """Turns a batch into each method's numbers per example and head, by the keys `label` and `label/weight`.

    `needs` are further needs, such as those of methods that shared the pass before, so that it is the same pass again, to the bit.
    """

    def __init__(
        self,
        context: ScoreContext,
        methods: Mapping[str, BlockImportance],
        *,
        special_ids: frozenset[int] | None = None,
        checkpointing: bool = False,
        needs: Iterable[str] = (),
    ) -> None:
        self.context, self.methods, self.checkpointing = context, methods, checkpointing
        needs = {*needs, *shared_needs(methods.values())}
        self.gradient = "gradient" in needs
        self.observer = Observer(
            context.model,
            self._consume_observation,
            blocks=context.heads.blocks,
            attention="attention" in needs,
            outputs=True,
            gradient=self.gradient,
            special_ids=special_ids,
        )
        self._sums: dict[str, dict[str, WeightedValues]] = {}
        self._n_examples = 0

    def __call__(self, batch: Batch, numbers: list[int]) -> dict[str, Tensor]:
        """Returns the numbers of one batch, whose rows are the examples `numbers`."""
        model, heads = self.context.model, self.context.heads
        batch = model_inputs(batch, model)
        check_batch(model, batch, numbers)
        if not self.methods:
            return {}
        self._n_examples, self._sums = n_rows(batch), {label: {} for label in self.methods}
        with ExitStack() as stack:
            stack.enter_context(explain_nonfinite(model, heads, batch))
            if self.checkpointing and self.gradient:
                if accepts_argument(model, "use_cache"):
                    batch = {**batch, "use_cache": False}  # a layer that runs again would append to the cache again
                stack.enter_context(checkpoint_layers(model, heads.blocks))
            stack.enter_context(self.observer)
            output = self.observer.run(batch)
            if self.gradient:
                with torch.enable_grad():
                    losses = require_finite_losses(self.context.losses(output, batch), numbers)
                self.observer.backward(losses)
        return {key: value for label in self.methods for key, value in self._concat_heads_of_blocks(label).items()}

    def _consume_observation(self, observation: Observation) -> None:
        for label, method in self.methods.items():
            if ("gradient" in method.info.needs) == (observation.gradient is not None):
                result = method.of_block(observation)
                values, weights = result if isinstance(result, tuple) else (result, torch.ones(result.shape[0], 1, device=result.device))
                self._add_values(label, observation.block, values.double(), weights.double())

    def _add_values(self, label: str, block: AttentionBlock, values: Tensor, weights: Tensor) -> None:
        """Merges the numbers of one call of a block: rows of one example (windows) and several calls become one number."""
        sums_calls = self.methods[label].info.sums_calls
        values, weights = sum_rows_by_example(
            block, self._n_examples, values if sums_calls else values * _expand_weights(weights, values), weights
        )
        earlier = self._sums[label].get(block.path)
        if sums_calls:
            self._sums[label][block.path] = WeightedValues(values if earlier is None else earlier.values + values, torch.ones_like(weights))
        elif earlier is None:
            self._sums[label][block.path] = WeightedValues(values, weights)
        else:
            self._sums[label][block.path] = WeightedValues(earlier.values + values, earlier.weights + weights)

    def _concat_heads_of_blocks(self, label: str) -> dict[str, Tensor]:
        """Puts blocks side by side in flat order; features are padded to the widest block's."""
        method, values, weights = self.methods[label], [], []
        for block in self.context.heads.blocks:
            if not block.n_heads:
                continue
            if block.path not in self._sums[label]:
                raise UnsupportedModel(
                    f"block '{block.path}' did not run on this batch, so {label} cannot judge its heads; give data that reach it"
                )
            value, weight = self._sums[label][block.path]
            values.append(value if method.info.sums_calls else value / _expand_weights(weight, value).clamp(min=1e-300))
            weights.append(weight.expand(-1, block.n_heads))
        widest = max((value.shape[-1] for value in values if value.ndim == 3), default=0)
        padded = [nn.functional.pad(value, (0, widest - value.shape[-1])) if value.ndim == 3 else value for value in values]
        return {label: method.per_example(torch.cat(padded, dim=1)), f"{label}/weight": torch.cat(weights, dim=1)}


def sum_rows_by_example(block: AttentionBlock, n_examples: int, values: Tensor, weights: Tensor) -> WeightedValues:
    """Sums over the rows that a block has for each example, such as windows of an image."""
    rows = values.shape[0]
    if rows == n_examples:
        return WeightedValues(values, weights)
    if rows == 1:
        raise OneByOne  # the block flattens its batch
    if rows % n_examples:
        raise UnsupportedModel(f"block '{block.path}' has {rows} rows for {n_examples} examples, so they cannot be told apart")
    shape = (n_examples, rows // n_examples)
    return WeightedValues(values.unflatten(0, shape).sum(1), weights.unflatten(0, shape).sum(1))


def _expand_weights(weights: Tensor, values: Tensor) -> Tensor:
    """Appends axes to weights until they broadcast with values."""
    return weights.view(*weights.shape, *(1,) * (values.ndim - weights.ndim))


@contextmanager
def checkpoint_layers(model: nn.Module, blocks: tuple[AttentionBlock, ...]) -> Iterator[None]:
    """Inside, every layer with heads keeps only its inputs and computes the rest again in the backward pass."""
    layers = {id(layer): layer for block in blocks if (layer := transformer_layer_of(model, block)) is not None}
    with ExitStack() as stack:
        for layer in layers.values():
            own_forward = vars(layer).get("forward")  # None for the forward pass of its class
            if own_forward is None:
                stack.callback(delattr, layer, "forward")
            else:
                stack.callback(setattr, layer, "forward", own_forward)
            layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)
        yield


def transformer_layer_of(model: nn.Module, block: AttentionBlock) -> nn.Module | None:
    """Returns the transformer layer around a block: the outermost member of a list of modules on its path."""
    parts = block.path.split(".")
    for end in range(1, len(parts)):
        if isinstance(model.get_submodule(".".join(parts[:end])), nn.ModuleList):
            return model.get_submodule(".".join(parts[: end + 1]))
    return None
