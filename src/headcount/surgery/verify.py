"""The proof of a cut: the smaller model gives what the gated one gives, to the precision of its dtype."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from headcount.core.errors import VerificationError
from headcount.core.heads import AttentionBlock
from headcount.core.plan import Plan
from headcount.models.gates import HeadGates, floating_point_outputs
from headcount.models.head_map import HeadMap
from headcount.models.modules import Batch
from headcount.models.observe import evaluating
from headcount.models.randomness import pass_rng
from headcount.models.state import copy_model

TOLERANCE = {torch.float64: 1e-9, torch.float32: 2e-5, torch.bfloat16: 5e-2, torch.float16: 1e-2}
"""The largest difference allowed, relative to the largest output (or one)."""
HALF = (torch.bfloat16, torch.float16)


def lowest_float_dtype(model: nn.Module) -> torch.dtype:
    """Returns the lowest floating-point precision among the model's parameters."""
    dtypes = {p.dtype for p in model.parameters() if p.is_floating_point()} or {torch.float32}
    return min(dtypes, key=lambda dtype: (torch.finfo(dtype).bits, -torch.finfo(dtype).eps))


def gate_values_of_plan(heads: HeadMap, plan: Plan) -> Tensor:
    """Returns one gate per head: 0 for those that the plan removes."""
    removed = frozenset(plan.removed)
    return torch.tensor([0.0 if head in removed else 1.0 for head in heads], dtype=torch.float64)


def forward_outputs(model: nn.Module, batch: Batch) -> list[Tensor]:
    """Returns the outputs of a plain forward pass in eval mode; models that draw random numbers even there draw the same ones every time."""
    with evaluating(model), pass_rng(model, seed=0):
        return [tensor.detach().clone() for tensor in floating_point_outputs(model(**batch))]


def run_gated(model: nn.Module, plan: Plan, batch: Batch, heads: HeadMap | None = None) -> list[Tensor]:
    """Returns the outputs of the model with the plan's heads gated to zero; `heads` are those of the model, if known already."""
    gates = HeadGates(model, heads=heads)
    gates.values = gate_values_of_plan(gates.heads, plan)
    with gates:
        return forward_outputs(model, batch)


def largest_relative_difference(outputs: Sequence[Tensor], reference_outputs: Sequence[Tensor]) -> float:
    """Returns the largest difference of two lists of outputs, relative to the largest entry (or one); infinite where shapes or finiteness differ."""
    if len(outputs) != len(reference_outputs) or any(a.shape != b.shape for a, b in zip(outputs, reference_outputs, strict=True)):
        return float("inf")
    worst = 0.0
    for a, b in zip(outputs, reference_outputs, strict=True):
        first, second = a.double(), b.double()
        if not torch.equal(first.isfinite(), second.isfinite()):
            return float("inf")
        gap = (first - second)[first.isfinite()].abs()
        scale = max(1.0, float(second[second.isfinite()].abs().max())) if second.isfinite().any() else 1.0
        worst = max(worst, float(gap.max()) / scale if gap.numel() else 0.0)
    return worst


def batch_in_float32(batch: Batch) -> dict[str, Any]:
    """Returns a batch whose floating-point tensors are float32."""
    return {name: value.float() if isinstance(value, Tensor) and value.is_floating_point() else value for name, value in batch.items()}


def copy_in_float32(model: nn.Module, batch: Batch) -> tuple[nn.Module, dict[str, Any]]:
    """Returns copies of a model and a batch in float32."""
    return copy_model(model).float(), batch_in_float32(batch)


@contextmanager
def computing_in_float32(model: nn.Module) -> Iterator[None]:
    """Lets a model in half precision compute in float32 inside, converting what runs for the time of its call: never the whole model at once.

    A layer of a stack is converted as a whole, and so is every other part without a stack, since its code may read the tensors of its parts.
    Code that reads tensors of another part fails inside with an error of mixed dtypes.
    """
    with ExitStack() as stack:
        for called_module, owners in _parts_to_convert(model):
            _convert_during_calls(called_module, owners, stack)
        yield


def _parts_to_convert(module: nn.Module) -> Iterator[tuple[nn.Module, list[nn.Module]]]:
    """Yields modules, each with the owners of the tensors that are converted while it runs: layers of outermost stacks and parts without a stack
    with all that is inside, the modules around them with their own.
    """
    parts = list(module.modules())
    if not any(isinstance(part, nn.ModuleList) for part in parts):
        yield module, parts
        return
    yield module, [module]
    for child in module.children():
        if isinstance(module, nn.ModuleList):
            yield child, list(child.modules())
        else:
            yield from _parts_to_convert(child)


def _convert_during_calls(module: nn.Module, owners: Sequence[nn.Module], stack: ExitStack) -> None:
    """Converts the floating-point tensors of some modules to float32 whenever `module` is called, and puts them back afterwards."""
    parameters: list[tuple[nn.Parameter, Tensor]] = []
    buffers: list[tuple[nn.Module, str, Tensor]] = []

    def convert(*_: Any) -> None:
        for owner in owners:
            for parameter in owner._parameters.values():
                if parameter is not None and parameter.is_floating_point() and parameter.dtype != torch.float32:
                    parameters.append((parameter, parameter.data))
                    parameter.data = parameter.data.float()
            for name, buffer in owner._buffers.items():
                if buffer is not None and buffer.is_floating_point() and buffer.dtype != torch.float32:
                    buffers.append((owner, name, buffer))
                    owner._buffers[name] = buffer.float()

    def put_back(*_: Any) -> None:
        for parameter, data in parameters:
            parameter.data = data
        for owner, name, buffer in buffers:
            owner._buffers[name] = buffer
        parameters.clear()
        buffers.clear()

    stack.callback(put_back)
    stack.callback(module.register_forward_pre_hook(convert, prepend=True).remove)
    stack.callback(module.register_forward_hook(put_back, always_call=True).remove)


@contextmanager
def require_every_block_runs(model: nn.Module, blocks: Iterable[AttentionBlock]) -> Iterator[None]:
    """Raises VerificationError unless the output projection of each block runs inside: what does not run proves nothing."""
    silent = {block.path for block in blocks}
    with ExitStack() as stack:
        for block in blocks:
            layer = model.get_submodule(block.o.path)
            stack.callback(layer.register_forward_pre_hook(lambda *_, path=block.path: silent.discard(path)).remove)
        yield
    if silent:
        raise VerificationError(
            f"the inputs do not reach block '{sorted(silent)[0]}', so nothing is proven about it. Pass inputs= that run every block to be cut."
        )


CUT_UNDONE = "The cut was not made. Evaluate the plan with gates, and report the model class."


def checked_relative_difference(
    expected: Sequence[Tensor],
    outputs: Sequence[Tensor],
    dtype: torch.dtype,
    model_name: str,
    *,
    reference_name: str = "the gated model",
    remedy: str = CUT_UNDONE,
) -> float:
    """Returns the relative difference of a model's outputs from the expected ones; raises VerificationError above the dtype's tolerance.

    `model_name` and `reference_name` name the two models in the error, `remedy` says what was not made and what to do.
    """
    if not any(bool(tensor.isfinite().any()) for tensor in expected):
        raise VerificationError("the model gives no finite number on the inputs, so nothing is proven. Pass inputs= on which it works.")
    gap, allowed = largest_relative_difference(outputs, expected), TOLERANCE[dtype]
    if not gap <= allowed:
        rounding = dtype == torch.float64 and gap <= TOLERANCE[torch.float32]
        hint = (
            "A gap of this size is typical of code that computes in float32 inside; if so, it is gone in float32 (model.float()). "
            if rounding
            else ""
        )
        raise VerificationError(
            f"{model_name} differs from {reference_name} by {gap:.3g} (relative), more than the {allowed:g} allowed in {str(dtype)[6:]}. "
            f"{hint}{remedy}"
        )
    return gap
