"""Evaluates interventions on one model: by replay on a record of the unchanged pass, or by gates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from headcount.core.heads import AttentionBlock
from headcount.data.stream import reraise_memory
from headcount.importance.replay.calls import standing_in
from headcount.importance.replay.last_position import Narrow, read_positions, select_positions
from headcount.importance.replay.passes import Pass, gap
from headcount.importance.replay.replay import Recording, Route, gate_contexts, stand_ins
from headcount.importance.replay.routes import Survey, recording
from headcount.importance.replay.stacking import Layout, tile
from headcount.models.gates import HeadGates
from headcount.models.modules import device_of

TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5, torch.bfloat16: 5e-2, torch.float16: 1e-2}
"""How far replay may be from gates in a trial, relative to the largest number read (or one)."""


def first_copy(result: Any) -> Any:
    """The result [rows, …] of the first copy in [copies, rows, …]."""
    return tree_map(lambda tensor: tensor[0], result)


def tolerance(model: nn.Module) -> float:
    """The difference that rounding may make in a model's lowest precision."""
    dtypes = {p.dtype for p in model.parameters() if p.is_floating_point()}
    return max((TOLERANCE.get(dtype, 5e-2) for dtype in dtypes), default=1e-5)


@dataclass(frozen=True, slots=True)
class Player:
    """Evaluates gates [copies, heads of a block] on a batch: by replay along a route, or by the gates themselves."""

    gates: HeadGates
    survey: Survey

    @property
    def model(self) -> nn.Module:
        """The model that plays."""
        return self.gates.model

    def record(self, work: Pass) -> tuple[Any, Recording]:
        """Returns the unchanged result [rows, …] and the record of the pass."""
        survey = self.survey
        if self.gates.how != "uniform":
            record = Recording()
            with recording(self.model, survey.blocks, survey.units, record):
                return first_copy(work.result()), record
        record = _Halves(survey.layouts, {path: route.axis for path, route in survey.routes.items()})
        values = torch.ones(2 * work.rows, len(self.gates.heads), dtype=torch.float64)
        values[work.rows :] = 0.0
        self.gates.values = values
        with self.gates, recording(self.model, survey.blocks, survey.units, record):
            return first_copy(work.result(2)), record

    def run_gated(self, work: Pass, block: AttentionBlock, gates: Tensor) -> Any:
        """Returns the result [copies, rows, …] under gates."""
        values = torch.ones(len(gates), len(self.gates.heads), dtype=torch.float64)
        values[:, self.gates.heads.positions(block)] = gates
        self.gates.values = values[0] if len(gates) == 1 else values.repeat_interleave(work.rows, dim=0)
        with self.gates:
            return work.result(len(gates))

    def replay(self, work: Pass, record: Recording, route: Route, gates: Tensor, narrow: Narrow | None) -> Any:
        """Returns the result [copies, rows, …] by replay."""
        copies, path = len(gates), route.block.path
        context, uniform, forwards = record.contexts[path], record.uniform.get(path), {}
        if narrow is not None:
            positions, length = self._read_positions(work, record, narrow)
            forwards = narrow.forwards(self.model, tile(positions, 0, copies), length)
            if path == narrow.route.block.path:
                context, uniform = select_positions(context, positions), None if uniform is None else select_positions(uniform, positions)
        alternative = self.gates.means[path] if self.gates.means is not None else uniform
        changed = self.model.get_submodule(route.block.o.path).forward(gate_contexts(context, gates, route.axis, alternative))
        forwards |= stand_ins(route, record, self.survey.layouts, changed, copies)
        with standing_in(self.model, forwards, self.survey.altered.intersection(route.recorded)):
            return work.result(copies)

    def narrow_holds(self, work: Pass, record: Recording, baseline: Any, narrow: Narrow) -> bool:
        """Whether the narrow last layer reproduces the baseline of this batch with NaN at all positions that are not read."""
        ones = torch.ones(1, narrow.route.block.n_heads, dtype=torch.float64)
        try:
            result = self.replay(work, record, narrow.route, ones, replace(narrow, poisoned=True))
        except Exception as error:  # a module, or a reader, that cannot do with one position
            reraise_memory(error)
            return False
        return gap(first_copy(result), baseline) <= tolerance(self.model)

    def _read_positions(self, work: Pass, record: Recording, narrow: Narrow) -> tuple[Tensor, int]:
        length = record.contexts[narrow.route.block.path].shape[1]
        return read_positions(narrow.reads, work.batch, work.rows, length, device_of(self.model)), length


class _Halves(Recording):
    """The record of a pass over twice the rows whose second half attends uniformly: its contexts are kept, then overwritten."""

    def __init__(self, layouts: Mapping[str, Layout], axes: Mapping[str, int]) -> None:
        super().__init__()
        self.layouts, self.axes = layouts, axes

    def keep(self, path: str, output: Any) -> None:
        super().keep(path, output)
        if path in self.outputs:
            self.outputs[path] = self.layouts[path].first_half(self.outputs[path])

    def keep_context(self, block: AttentionBlock, context: Tensor) -> Tensor | None:
        axis = self.axes[block.path]
        own, uniform = context.chunk(2, dim=axis)
        self.uniform[block.path] = uniform.clone()
        super().keep_context(block, own)
        return torch.cat([own, own], dim=axis)
