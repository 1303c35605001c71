"""Passes of one model over one batch: unchanged, under gates, or replayed on a record of the unchanged pass.

A replayed pass runs the model with some forward passes replaced. The modules of a route return their recorded outputs. The output projection
of the changed block returns

    o(Concat_h(g_h ctx_h + (1 − g_h) alt_h))        g_h the gate of head h, ctx_h its recorded context; alt_h is 0, the head's mean output,
                                                    or its context under uniform attention

which needs no attention, since the inputs of the block are unchanged. All other modules run as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map

from headcount.core.errors import reraise_if_out_of_memory
from headcount.core.heads import AttentionBlock
from headcount.importance.replay.calls import Forward, replace_forwards
from headcount.importance.replay.narrow_layer import NarrowLayer, find_read_positions, select_one_token_per_row
from headcount.importance.replay.routes import PassRecord, ReplacementContext, Route, RouteSurvey, record_pass
from headcount.importance.replay.stacking import OutputLayout, count_batch_rows, stack_batch, take_first_rows_of_batch, tile_copies
from headcount.models.gates import HeadGates
from headcount.models.modules import Batch, device_of
from headcount.models.randomness import pass_rng
from headcount.models.state import forward_preserving_state

OutputReader = Callable[[Any, Batch], Any]
"""(model output, stacked batch) -> a tensor with one row per row of the batch, or a tuple or dict of such tensors."""

TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5, torch.bfloat16: 5e-2, torch.float16: 1e-2}
"""How far replay may be from gates in a trial, relative to the largest number read (or one)."""


@dataclass(frozen=True, slots=True)
class ModelPass:
    """A model, a batch of `rows` examples, and the function that reads the model's output.

    `options` are further arguments of the model; entries of the batch named in `withhold` are for `read` alone.
    """

    model: nn.Module
    batch: Batch
    rows: int
    read: OutputReader
    options: Mapping[str, object]
    withhold: frozenset[str]

    @classmethod
    def over_batch(
        cls, model: nn.Module, batch: Batch, read: OutputReader, options: Mapping[str, object], withhold: frozenset[str]
    ) -> ModelPass:
        """Returns the pass over a batch; options that the batch contains itself are dropped."""
        further = {name: value for name, value in options.items() if name not in batch}
        return cls(model, batch, count_batch_rows(batch), read, further, withhold)

    @property
    def approximate_n_tokens(self) -> int:
        """The approximate number of tokens in the batch; a guess for inputs other than text."""
        texts = [self.batch[name].numel() for name in ("input_ids", "decoder_input_ids") if isinstance(self.batch.get(name), Tensor)]
        return max(texts, default=256 * self.rows)

    def take_first_rows(self, n_rows: int) -> ModelPass:
        """Returns the pass over the first few examples."""
        return self if n_rows >= self.rows else replace(self, batch=take_first_rows_of_batch(self.batch, self.rows, n_rows), rows=n_rows)

    def forward(self, copies: int = 1) -> Any:
        """Returns the model's output for stacked copies of the batch. Models that draw random numbers draw the same ones in every pass."""
        return self._run_model(self._stacked_batch(copies))

    def run_and_read(self, copies: int = 1) -> Any:
        """Returns what `read` gives for stacked copies of the batch: tensors [copies, rows, …]."""
        stacked = self._stacked_batch(copies)
        rows = self.read(self._run_model(stacked), stacked)
        return tree_map(lambda tensor: tensor.unflatten(0, (copies, self.rows)), rows)

    def _stacked_batch(self, copies: int) -> Batch:
        return self.batch if copies == 1 else stack_batch(self.batch, self.rows, copies)

    def _run_model(self, batch: Batch) -> Any:
        device = device_of(self.model)
        inputs = {name: value for name, value in batch.items() if name not in self.withhold}
        with pass_rng(self.model, seed=0, devices=[device] if device.type == "cuda" else ()):
            return forward_preserving_state(self.model, {**inputs, **self.options})


def first_copy(result: Any) -> Any:
    """Returns the first copy [rows, …] of a result [copies, rows, …]."""
    return tree_map(lambda tensor: tensor[0], result)


def relative_difference_of_results(result: Any, expected: Any) -> float:
    """Returns the largest difference of two results, relative to the largest number (or one); infinite if shape or finiteness differ."""
    (tensors, spec), (expected_tensors, expected_spec) = tree_flatten(result), tree_flatten(expected)
    if spec != expected_spec:
        return float("inf")
    return max(
        (_relative_difference_of_tensors(a.double(), b.double()) for a, b in zip(tensors, expected_tensors, strict=True)), default=0.0
    )


def _relative_difference_of_tensors(tensor: Tensor, expected: Tensor) -> float:
    finite = expected.isfinite()
    if tensor.shape != expected.shape or not torch.equal(tensor.isfinite(), finite):
        return float("inf")
    if not finite.any():
        return 0.0
    return float((tensor - expected)[finite].abs().max()) / max(1.0, float(expected[finite].abs().max()))


def rounding_tolerance(model: nn.Module) -> float:
    """Returns the relative gap that rounding may make in the lowest precision of a model."""
    dtypes = {p.dtype for p in model.parameters() if p.is_floating_point()}
    return max((TOLERANCE.get(dtype, 5e-2) for dtype in dtypes), default=1e-5)


@dataclass(frozen=True, slots=True)
class Replayer:
    """Evaluates gates [copies, heads of a block] on a batch: by replay along a route, or with `HeadGates` on the model itself."""

    gates: HeadGates
    survey: RouteSurvey

    @property
    def model(self) -> nn.Module:
        """The model."""
        return self.gates.model

    def record(self, model_pass: ModelPass) -> tuple[Any, PassRecord]:
        """Runs the unchanged pass and returns its result [rows, …] and its record."""
        survey = self.survey
        if self.gates.how != "uniform":
            recording = PassRecord()
            with record_pass(self.model, survey.routed_blocks, survey.paths_to_record, recording):
                return first_copy(model_pass.run_and_read()), recording
        recording = _UniformRecording(survey.layouts, {path: route.axis for path, route in survey.routes.items()})
        values = torch.ones(2 * model_pass.rows, len(self.gates.heads), dtype=torch.float64)
        values[model_pass.rows :] = 0.0
        self.gates.values = values
        with self.gates, record_pass(self.model, survey.routed_blocks, survey.paths_to_record, recording):
            return first_copy(model_pass.run_and_read(2)), recording

    def run_gated(self, model_pass: ModelPass, block: AttentionBlock, gates: Tensor) -> Any:
        """Returns the result [copies, rows, …] with `HeadGates` on the model."""
        values = torch.ones(len(gates), len(self.gates.heads), dtype=torch.float64)
        values[:, self.gates.heads.positions(block)] = gates
        self.gates.values = values[0] if len(gates) == 1 else values.repeat_interleave(model_pass.rows, dim=0)
        with self.gates:
            return model_pass.run_and_read(len(gates))

    def replay(self, model_pass: ModelPass, recording: PassRecord, route: Route, gates: Tensor, narrow: NarrowLayer | None) -> Any:
        """Returns the result [copies, rows, …] by replay, with a narrow last layer if there is one."""
        copies, path = len(gates), route.block.path
        context, uniform, forwards = recording.contexts[path], recording.uniform.get(path), {}
        if narrow is not None:
            length = recording.contexts[narrow.route.block.path].shape[1]
            positions = find_read_positions(narrow.position_read, model_pass.batch, model_pass.rows, length, device_of(self.model))
            forwards = narrow.narrow_forwards_by_path(self.model, tile_copies(positions, 0, copies), length)
            if path == narrow.route.block.path:
                context, uniform = (
                    select_one_token_per_row(context, positions),
                    None if uniform is None else select_one_token_per_row(uniform, positions),
                )
        alternative = self.gates.means[path] if self.gates.means is not None else uniform
        projected = self.model.get_submodule(route.block.o.path).forward(stack_gated_contexts(context, gates, route.axis, alternative))
        forwards |= make_replayed_forwards(route, recording, self.survey.layouts, projected, copies)
        with replace_forwards(self.model, forwards, without_hooks=self.survey.altered.intersection(route.paths_to_record)):
            return model_pass.run_and_read(copies)

    def narrow_layer_reproduces_baseline(self, model_pass: ModelPass, recording: PassRecord, baseline: Any, narrow: NarrowLayer) -> bool:
        """Whether a narrow last layer reproduces the baseline of this batch with NaN at all positions that are not read."""
        ones = torch.ones(1, narrow.route.block.n_heads, dtype=torch.float64)
        try:
            result = self.replay(model_pass, recording, narrow.route, ones, replace(narrow, is_poisoned=True))
        except Exception as error:  # a module, or a reader, that does not work on one position
            reraise_if_out_of_memory(error)
            return False
        return relative_difference_of_results(first_copy(result), baseline) <= rounding_tolerance(self.model)


class _UniformRecording(PassRecord):
    """The record of a pass over two stacked copies, the second of which attends uniformly.

    The contexts of the second copy are kept and then replaced by those of the first, so that all inputs of the next block are unchanged.
    """

    def __init__(self, layouts: Mapping[str, OutputLayout], axes: Mapping[str, int]) -> None:
        super().__init__()
        self.layouts, self.axes = layouts, axes

    def receive_output(self, path: str, output: Any) -> None:
        super().receive_output(path, output)
        if path in self.outputs:
            self.outputs[path] = self.layouts[path].first_half_of_rows(self.outputs[path])

    def receive_context(self, block: AttentionBlock, context: Tensor) -> ReplacementContext:
        axis = self.axes[block.path]
        own, uniform = context.chunk(2, dim=axis)
        self.uniform[block.path] = uniform.clone()
        super().receive_context(block, own)
        return torch.cat([own, own], dim=axis)


def stack_gated_contexts(context: Tensor, gates: Float[Tensor, "copies heads"], row_axis: int, alternative: Tensor | None) -> Tensor:
    """Returns stacked contexts [..., copies * rows, ..., heads * head_dim] under gates [copies, heads], gated as `HeadGates` does it."""
    heads = gates.shape[1]
    per_head = context.unflatten(-1, (heads, -1)).unsqueeze(row_axis)  # [..., 1, rows, ..., heads, head_dim]
    shape = [1] * per_head.ndim
    shape[row_axis], shape[-2] = gates.shape[0], heads
    gate = gates.to(context).view(shape)
    gated = per_head * gate
    if alternative is not None:
        if alternative.ndim == context.ndim and alternative.shape == context.shape:
            alternative = alternative.unflatten(-1, (heads, -1)).unsqueeze(row_axis)
        gated = gated + (1 - gate) * alternative.to(context)
    return gated.flatten(-2).flatten(row_axis, row_axis + 1)


def make_replayed_forwards(
    route: Route, recording: PassRecord, layouts: Mapping[str, OutputLayout], projection_output: Tensor, copies: int
) -> dict[str, Forward]:
    """Returns forward passes that return stacked recorded outputs, and `projection_output` as the output of the block's projection."""

    def forward_replaying_output(path: str, stacked_leaves: Mapping[int, Any] | None = None) -> Forward:
        return lambda *_, **__: layouts[path].stack(recording.outputs[path], copies, stacked_leaves)

    forwards = {path: forward_replaying_output(path) for path in route.unaffected}
    if route.output_leaf_index is None:
        forwards[route.block.o.path] = lambda *_, **__: projection_output
    else:
        forwards[route.block.path] = forward_replaying_output(route.block.path, {route.output_leaf_index: projection_output})
    return forwards
