"""One forward pass, and one backward pass where gradients are asked for, that serves every method with an `of_block`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from headcount.core.errors import UnsupportedModel
from headcount.core.heads import AttentionBlock
from headcount.data.checks import check_batch
from headcount.data.chunks import n_rows
from headcount.data.losses import OneByOne, accepts, finite_losses
from headcount.data.nonfinite import explain_nonfinite
from headcount.importance.base import Work
from headcount.models.modules import Batch
from headcount.models.observe import Observation, Observer, model_inputs

Pair = tuple[Tensor, Tensor]
"""Numbers [batch, heads(, features)] and their weights [batch, 1 | heads]."""


def shared_needs(methods: Iterable[Any]) -> list[str]:
    """What the methods of one pass ask of it for all of them; the last bits of each depend on that, since kernels do."""
    needs = {need for method in methods if method.has("of_block") for need in method.about.needs}
    return sorted(needs & {"attention", "gradient"})


class SharedPass:
    """Turns a batch into each method's numbers per example and head, `name` and `name/weight`."""

    def __init__(
        self, work: Work, methods: Mapping[str, Any], special_ids: frozenset[int] | None, checkpointing: bool, needs: Iterable[str] = ()
    ) -> None:
        self.work, self.methods, self.checkpointing = work, methods, checkpointing
        needs = {*needs, *shared_needs(methods.values())}
        self.gradient = "gradient" in needs
        self.observer = Observer(
            work.model,
            self._consume,
            blocks=work.heads.blocks,
            attention="attention" in needs,
            outputs=True,
            gradient=self.gradient,
            special_ids=special_ids,
        )
        self.width = max((block.value_dim for block in work.heads.blocks), default=1)
        self._found: dict[str, dict[str, Pair]] = {}
        self._rows = 0

    def __call__(self, batch: Batch, numbers: list[int]) -> dict[str, Tensor]:
        """The numbers of one batch, whose rows are the examples `numbers`."""
        batch = model_inputs(batch, self.work.model)
        check_batch(self.work.model, batch, numbers)
        if not self.methods:
            return {}
        self._rows, self._found = n_rows(batch), {name: {} for name in self.methods}
        with ExitStack() as stack:
            stack.enter_context(explain_nonfinite(self.work.model, self.work.heads, batch))
            if self.checkpointing and self.gradient:
                if accepts(self.work.model, "use_cache"):
                    batch = {**batch, "use_cache": False}  # a layer that runs again would append to the cache again
                stack.enter_context(checkpointed(self.work.model, self.work.heads.blocks))
            stack.enter_context(self.observer)
            output = self.observer.run(batch)
            if self.gradient:
                with torch.enable_grad():
                    losses = finite_losses(self.work.losses(output, batch), numbers)
                self.observer.backward(losses)
        return {key: value for name in self.methods for key, value in self._assembled(name).items()}

    def _consume(self, seen: Observation) -> None:
        for name, method in self.methods.items():
            if ("gradient" in method.about.needs) == (seen.gradient is not None):
                made = method.module.of_block(seen, method.variant)
                values, weights = made if isinstance(made, tuple) else (made, torch.ones(made.shape[0], 1, device=made.device))
                self._add(name, method.about.adds, seen.block, (values.double(), weights.double()))

    def _add(self, name: str, adds: bool, block: AttentionBlock, new: Pair) -> None:
        """Merges what one call of a block gave: rows of one example (windows) and several calls become one number."""
        values, weights = new
        values, weights = by_example(block, self._rows, values if adds else values * _wide(weights, values), weights)
        old = self._found[name].get(block.path)
        if adds:
            self._found[name][block.path] = (values if old is None else old[0] + values, torch.ones_like(weights))
        else:
            self._found[name][block.path] = (values, weights) if old is None else (old[0] + values, old[1] + weights)

    def _assembled(self, name: str) -> dict[str, Tensor]:
        """Blocks side by side in flat order; features padded to the widest block's."""
        method, values, weights = self.methods[name], [], []
        for block in self.work.heads.blocks:
            if not block.n_heads:
                continue
            if block.path not in self._found[name]:
                raise UnsupportedModel(
                    f"block '{block.path}' did not run on this batch, so {name} cannot judge its heads; give data that reach it"
                )
            value, weight = self._found[name][block.path]
            values.append(value if method.about.adds else value / _wide(weight, value).clamp(min=1e-300))
            weights.append(weight.expand(-1, block.n_heads))
        joined = torch.cat(_padded(values), dim=1)
        joined = method.module.per_example(joined, method.variant) if method.has("per_example") else joined
        return {name: joined, f"{name}/weight": torch.cat(weights, dim=1)}


def by_example(block: AttentionBlock, examples: int, values: Tensor, weights: Tensor) -> Pair:
    """Sums over the rows that a block has for each example, such as windows of an image."""
    rows = values.shape[0]
    if rows == examples:
        return values, weights
    if rows == 1:
        raise OneByOne  # the block flattens its batch
    if rows % examples:
        raise UnsupportedModel(f"block '{block.path}' has {rows} rows for {examples} examples, so they cannot be told apart")
    parts = (examples, rows // examples)
    return values.unflatten(0, parts).sum(1), weights.unflatten(0, parts).sum(1)


def _wide(weights: Tensor, values: Tensor) -> Tensor:
    return weights.view(*weights.shape, *(1,) * (values.ndim - weights.ndim))


def _padded(values: list[Tensor]) -> list[Tensor]:
    widest = max((value.shape[-1] for value in values if value.ndim == 3), default=0)
    return [nn.functional.pad(value, (0, widest - value.shape[-1])) if value.ndim == 3 else value for value in values]


@contextmanager
def checkpointed(model: nn.Module, blocks: tuple[AttentionBlock, ...]) -> Iterator[None]:
    """Inside, every layer with heads keeps only its inputs and computes the rest again in the backward pass."""
    layers = {id(layer): layer for block in blocks if (layer := layer_of(model, block)) is not None}
    with ExitStack() as stack:
        for layer in layers.values():
            had = "forward" in vars(layer)
            before = layer.forward
            layer.forward = _again(before)
            stack.callback(
                lambda layer=layer, had=had, before=before: setattr(layer, "forward", before) if had else delattr(layer, "forward")
            )
        yield


def _again(forward: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: checkpoint(forward, *args, use_reentrant=False, **kwargs)


def layer_of(model: nn.Module, block: AttentionBlock) -> nn.Module | None:
    """The transformer layer around a block: the outermost member of a list of modules on its path."""
    parts = block.path.split(".")
    for end in range(1, len(parts)):
        if isinstance(model.get_submodule(".".join(parts[:end])), nn.ModuleList):
            return model.get_submodule(".".join(parts[: end + 1]))
    return None
