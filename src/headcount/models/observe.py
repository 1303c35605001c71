"""Observing heads while data run through the model: attention maps and head outputs, batch by batch, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from headcount.core.arguments import check_arguments
from headcount.core.errors import DataError, GateError, UnsupportedModel
from headcount.core.heads import AttentionBlock
from headcount.models.archs.addresses import MEDIA
from headcount.models.attention import AttentionTap
from headcount.models.head_map import HeadMap
from headcount.models.modules import Batch, device_of, is_transposed, unwrap
from headcount.models.ownership import Ownership, SavedStates, holding
from headcount.models.padding import with_position_ids_if_needed
from headcount.models.state import forward_preserving_state, preserve

SPECIAL_IDS = ("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id", "decoder_start_token_id")


@dataclass(frozen=True, slots=True)
class Observation:
    """What one block did with one batch.

    `queries` and `keys` tell real tokens from padding, `special` and `special_keys` tell which of them are delimiters: those of
    `special_ids`, or of the configuration. They are None where neither names any (BERT's configuration does not: pass
    tokenizer.all_special_ids), or where the block reads no token ids. Rows are examples, or windows of them where the model works in windows.
    `visible` tells which keys each query can see. `gradient` is that of the summed losses with respect to `outputs`; `projection` is what maps a
    head's output into the residual stream.
    """

    block: AttentionBlock
    attention: Float[Tensor, "batch heads q k"] | None
    outputs: Float[Tensor, "batch q heads head_dim"] | None
    queries: Bool[Tensor, "batch q"]
    keys: Bool[Tensor, "batch k"] | None
    special: Bool[Tensor, "batch q"] | None
    special_keys: Bool[Tensor, "batch k"] | None = None
    visible: Bool[Tensor, "batch q k"] | None = None
    gradient: Float[Tensor, "batch q heads head_dim"] | None = None
    projection: Float[Tensor, "heads head_dim hidden"] | None = None


@dataclass(slots=True)
class _Pending:
    """What a block's softmax showed, until its output projection runs and completes the observation."""

    attention: Tensor | None = None
    visible: Tensor | None = None


_MODES: SavedStates[list[tuple[nn.Module, bool]]] = SavedStates()
_TRAINED: SavedStates[list[nn.Parameter]] = SavedStates()


@contextmanager
def in_eval_mode(model: nn.Module) -> Iterator[None]:
    """Eval mode inside; every module's own mode once all contexts over it are closed."""

    def restore_modes(modes: list[tuple[nn.Module, bool]]) -> None:
        for module, mode in modes:
            module.training = mode

    with _MODES.saving(model, lambda: [(module, module.training) for module in model.modules()], restore_modes):
        model.eval()
        yield


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Eval mode and no gradients inside; the model with every module's own mode and all of its state as before afterwards."""
    with preserve(model), torch.no_grad():
        model.eval()
        yield


@contextmanager
def frozen_parameters(model: nn.Module) -> Iterator[None]:
    """No parameter asks for gradients inside; each as before once all contexts over it are closed."""

    def restore_requires_grad(trained: list[nn.Parameter]) -> None:
        for parameter in trained:
            parameter.requires_grad_(True)

    with _TRAINED.saving(model, lambda: [parameter for parameter in model.parameters() if parameter.requires_grad], restore_requires_grad):
        model.requires_grad_(False)
        yield


def on_device(batch: Batch, model: nn.Module) -> dict[str, Any]:
    """Returns the batch with its tensors on the model's device."""
    device = device_of(model)
    return {name: value.to(device) if isinstance(value, Tensor) else value for name, value in batch.items()}


def model_inputs(batch: Batch, model: nn.Module) -> dict[str, Any]:
    """Returns the batch on the model's device, with position ids where padding on the left would otherwise change what the model computes."""
    return with_position_ids_if_needed(model, on_device(batch, model))


def _queries_are_decoder_tokens(model: nn.Module, block: AttentionBlock) -> bool:
    return bool(getattr(model.config, "is_encoder_decoder", False)) and block.kind != "encoder-self"


def reads_text(block: AttentionBlock) -> bool:
    """Returns whether a block belongs to no tower for images, sound or video."""
    return not any(part.startswith(MEDIA) for part in block.path.lower().split("."))


def _decoder_tokens_from_labels(model: nn.Module, batch: Batch) -> Tensor | None:
    """Returns the decoder's input tokens where the batch has only labels: these, shifted by one, behind the start token."""
    labels = batch.get("labels")
    if not isinstance(labels, Tensor) or labels.ndim != 2:
        return None
    start = getattr(model.config, "decoder_start_token_id", None) or 0
    return torch.cat([torch.full_like(labels[:, :1], start), labels[:, :-1]], dim=1)


def query_token_ids(model: nn.Module, block: AttentionBlock, batch: Batch) -> Tensor | None:
    """Returns the token ids that a block's queries stand for, if any; ignored labels stay -100."""
    if not reads_text(block):
        return None
    if not _queries_are_decoder_tokens(model, block):
        return batch.get("input_ids")
    tokens = batch.get("decoder_input_ids")
    return _decoder_tokens_from_labels(model, batch) if tokens is None else tokens


def real_query_mask(model: nn.Module, block: AttentionBlock, batch: Batch, n_rows: int, n_queries: int) -> Bool[Tensor, "batch q"]:
    """Returns which query positions of a block are no padding; all of them where the batch does not say."""
    if _queries_are_decoder_tokens(model, block):
        mask, labels = batch.get("decoder_attention_mask"), batch.get("labels")
        if mask is None and isinstance(labels, Tensor) and labels.ndim == 2:
            mask = labels != -100  # what predicts an ignored label is there only because another row is longer
    elif block.stack and not reads_text(block) and "input_ids" in batch:
        mask = None  # the mask of the text says nothing about another tower
    else:
        mask = batch.get("attention_mask", batch.get("padding_mask"))
    resize = getattr(model, "_get_feature_vector_attention_mask", None)
    if isinstance(mask, Tensor) and mask.ndim == 2 and mask.shape[1] > n_queries and resize is not None:
        mask = resize(n_queries, mask)  # speech: the mask counts samples, the block sees frames
    if isinstance(mask, Tensor) and tuple(mask.shape) == (n_rows, n_queries):
        return mask.bool()
    return torch.ones(n_rows, n_queries, dtype=torch.bool, device=device_of(model))


def _special_token_mask(token_ids: Tensor | None, special_ids: frozenset[int], expected_shape: tuple[int, int]) -> Tensor | None:
    if not special_ids or not isinstance(token_ids, Tensor) or tuple(token_ids.shape) != expected_shape:
        return None
    return torch.isin(token_ids, torch.tensor(sorted(special_ids), device=token_ids.device, dtype=token_ids.dtype))


def _special_ids_in_config(model: nn.Module) -> frozenset[int]:
    ids: set[int] = set()
    parts = [model.config, *(getattr(model.config, name, None) for name in getattr(model.config, "sub_configs", {}))]
    for name in SPECIAL_IDS:
        for part in parts:
            value = getattr(part, name, None)
            ids.update(value if isinstance(value, list | tuple) else [] if value is None else [value])
    return frozenset(ids)


def key_token_ids(model: nn.Module, block: AttentionBlock, batch: Batch) -> Tensor | None:
    """Returns the token ids that a block's keys stand for, if any: in cross-attention those of the encoder."""
    return batch.get("input_ids") if block.kind == "cross" and reads_text(block) else query_token_ids(model, block, batch)


def output_projection_by_head(model: nn.Module, block: AttentionBlock) -> Float[Tensor, "heads head_dim hidden"]:
    """Returns the part of the output projection that each head of a block feeds, measured where the layer is adapted or packed."""
    block.require_one_output("reading the output projection")
    module: Any = model.get_submodule(block.o.path)
    width = block.n_heads * block.value_dim
    if type(module) is nn.Linear:
        columns = module.weight.detach().T
    elif is_transposed(module):
        columns = module.weight.detach()
    else:
        unit = torch.eye(width, device=device_of(model), dtype=next(p.dtype for p in model.parameters() if p.is_floating_point()))
        with torch.no_grad():
            columns = module.forward(unit) - module.forward(torch.zeros_like(unit))
    return columns.unflatten(0, (block.n_heads, block.value_dim))


class Observer:
    """Hands an Observation of each chosen block to `consume` during every forward pass inside the context; only one is alive at a time.

    With `gradient`, `backward(losses)` after a pass hands over each block once more, now with outputs and their gradient. Nothing below the
    first block and no weight gets a gradient.
    """

    def __init__(
        self,
        model: nn.Module,
        consume: Callable[[Observation], None],
        *,
        blocks: Iterable[AttentionBlock] | None = None,
        attention: bool = True,
        outputs: bool = True,
        gradient: bool = False,
        special_ids: Iterable[int] | None = None,
    ) -> None:
        if not attention and not outputs:
            raise GateError("nothing to observe: ask for attention, outputs or both")
        self.model = unwrap(model)
        self.blocks = tuple(HeadMap.of(self.model).blocks if blocks is None else blocks)
        self.consume, self.attention, self.outputs, self.gradient = consume, attention, outputs, gradient
        self.special_ids = _special_ids_in_config(self.model) if special_ids is None else frozenset(special_ids)
        self.batch: Batch = {}
        self._pending: dict[str, _Pending] = {}
        self._projections: dict[str, Tensor] = {}
        self._forward = True
        self._stack = ExitStack()

    def __enter__(self) -> Observer:
        for block in self.blocks if self.outputs or self.gradient else ():
            block.require_one_output("observing head outputs")
        with ExitStack() as stack:
            hold = stack.enter_context(holding(self.model, "an observation"))
            stack.enter_context(in_eval_mode(self.model))
            if self.gradient:
                stack.enter_context(frozen_parameters(self.model))
            if self.attention:
                stack.enter_context(AttentionTap(self.model, self.blocks, self._store_attention, several=False))
            for block in self.blocks:
                if block.n_heads:
                    projection = self.model.get_submodule(block.o.path)
                    stack.callback(projection.register_forward_pre_hook(self._output_projection_hook(block, projection, hold)).remove)
            stack.callback(self._pending.clear)
            stack.callback(self._projections.clear)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def run(self, batch: Batch) -> Any:
        """Runs one forward pass over a batch and returns its output."""
        self.batch = model_inputs(batch, self.model)
        self._forward = True
        with torch.set_grad_enabled(self.gradient):
            return forward_preserving_state(self.model, self.batch)

    def backward(self, losses: Float[Tensor, " batch"]) -> None:
        """Hands over every block of the last pass with the gradient of each example's loss."""
        if not losses.requires_grad:
            raise UnsupportedModel(
                f"the loss of {type(self.model).__name__} does not depend on its attention outputs, so it has no gradient"
            )
        self._forward = False  # what a checkpointed layer computes again is not new
        losses.backward(torch.ones_like(losses))

    def _store_attention(self, block: AttentionBlock, probabilities: Tensor, visible: Tensor) -> None:
        if not self._forward:
            return
        if block.sink:
            probabilities, visible = probabilities[..., :-1], visible[..., :-1]
        self._pending[block.path] = _Pending(probabilities.detach(), visible)

    def _output_projection_hook(
        self, block: AttentionBlock, projection: nn.Module, owner: Ownership
    ) -> Callable[[nn.Module, tuple[Any, ...]], tuple[Any, ...] | None]:
        def observe_output_projection(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
            if not owner.hook_acts_in_pass_of(module, projection):
                return None
            merged = args[0]
            if self.gradient and not merged.requires_grad:
                merged = merged.detach().requires_grad_(True)
            if self._forward:
                observation = self._make_observation(block, merged.detach())
                if self.gradient:
                    merged.register_hook(self._gradient_hook(replace(observation, attention=None)))
                self.consume(observation)
            return (merged, *args[1:]) if self.gradient else None

        return observe_output_projection

    def _gradient_hook(self, observation: Observation) -> Callable[[Tensor], None]:
        block = observation.block

        def observe_gradient(gradient: Tensor) -> None:
            per_head = _batch_first(gradient, block).unflatten(-1, (block.n_heads, block.value_dim))
            self.consume(replace(observation, gradient=per_head))

        return observe_gradient

    def _make_observation(self, block: AttentionBlock, concatenated_heads: Tensor) -> Observation:
        pending = self._pending.pop(block.path, _Pending())
        concatenated_heads = _batch_first(concatenated_heads, block)
        rows, length = concatenated_heads.shape[:2]
        keys = None if pending.visible is None else pending.visible.any(dim=(1, 2))
        queries = real_query_mask(self.model, block, self.batch, rows, length)
        if keys is not None and block.kind != "cross" and keys.shape == queries.shape:
            queries = queries & keys
        if self.outputs and block.path not in self._projections:
            self._projections[block.path] = output_projection_by_head(self.model, block)
        return Observation(
            block=block,
            attention=pending.attention,
            outputs=concatenated_heads.unflatten(-1, (block.n_heads, block.value_dim)) if self.outputs else None,
            queries=queries,
            keys=keys,
            special=_special_token_mask(query_token_ids(self.model, block, self.batch), self.special_ids, (rows, length)),
            special_keys=None
            if pending.attention is None
            else _special_token_mask(key_token_ids(self.model, block, self.batch), self.special_ids, (rows, pending.attention.shape[-1])),
            visible=None if pending.visible is None else pending.visible.any(dim=1),
            projection=self._projections[block.path] if self.outputs else None,
        )


def _batch_first(concatenated_heads: Tensor, block: AttentionBlock) -> Float[Tensor, "batch q width"]:
    """Returns the input of the output projection with one row per example; batches that the model flattened are one row."""
    rows = concatenated_heads.transpose(0, 1) if block.time_first else concatenated_heads
    return rows if rows.ndim == 3 else rows.reshape(1 if rows.ndim == 2 else rows.shape[0], -1, rows.shape[-1])


@check_arguments
def observe(
    model: nn.Module,
    data: Iterable[Batch],
    *,
    blocks: Iterable[AttentionBlock] | None = None,
    attention: bool = True,
    outputs: bool = True,
    special_ids: Iterable[int] | None = None,
) -> Iterator[list[Observation]]:
    """Runs batches through a model and yields what its heads did: attention maps and head outputs.

    Memory holds the chosen blocks of one batch; `Observer` holds one block at a time. The model is in eval mode without gradients while a
    batch runs, and as it was whenever control is with the caller. Attention needs the eager path and switches to it for the pass.

    Args:
        model: A transformers model, plain or wrapped (peft, DDP, torch.compile).
        data: Batches: mappings of the keyword arguments of the forward pass.
        blocks: The attention blocks to observe, from `HeadMap.of(model).blocks`; None for all.
        attention: Whether attention maps are observed.
        outputs: Whether head outputs are observed.
        special_ids: Token ids of delimiters, such as `tokenizer.all_special_ids`; None for those that the configuration names.

    Yields:
        For each batch, one Observation per block and call, in the order in which they ran.

    Raises:
        GateError: neither attention nor outputs are asked for.
        UnsupportedModel: the model has no heads, or they cannot be observed.

    Example:
        >>> for observations in hc.observe(model, [batch]):
        ...     entropy = [-(o.attention * o.attention.clamp(min=1e-9).log()).sum(-1).mean() for o in observations]
    """
    observations: list[Observation] = []
    observer = Observer(model, observations.append, blocks=blocks, attention=attention, outputs=outputs, special_ids=special_ids)
    if isinstance(data, Mapping | str) or not isinstance(data, Iterable):
        raise DataError(f"observe takes batches, each a mapping of tensors; got {type(data).__name__}. Write [batch] for one batch")

    def yield_observations_of_each_batch() -> Iterator[list[Observation]]:
        for batch in data:
            observations.clear()
            with observer:
                observer.run(batch)
            yield list(observations)

    return yield_observations_of_each_batch()


def mean_outputs(
    model: nn.Module, data: Iterable[Batch], *, blocks: Iterable[AttentionBlock] | None = None
) -> dict[str, Float[Tensor, "heads head_dim"]]:
    """Returns the mean output of every head over the real tokens of `data`, by block path, accumulated in float64.

    `blocks` are those to observe, all by default.
    """
    sums: dict[str, Tensor] = {}
    counts: dict[str, int] = {}

    def add_to_sums(observation: Observation) -> None:
        assert observation.outputs is not None
        path = observation.block.path
        real = observation.outputs[observation.queries].double()
        sums[path] = sums.get(path, torch.zeros_like(real[:1].sum(0))) + real.sum(0)
        counts[path] = counts.get(path, 0) + real.shape[0]

    observer = Observer(model, add_to_sums, blocks=blocks, attention=False)
    with observer:
        for batch in data:
            observer.run(batch)
    missing = [block.path for block in observer.blocks if block.n_heads and not counts.get(block.path)]
    if missing:
        raise GateError(
            f"the data reached no token of block '{missing[0]}', so its heads have no mean; pass at least one batch that runs it"
        )
    return {path: total / counts[path] for path, total in sums.items()}
