"""Gates: one value per head, or per example and head, that multiplies what the head hands to the output projection.

MHA(x) = Concat_h(g_h * head_h(x)) W_O + b_O. A gate of 1 leaves the head alone bit for bit; 0 removes it ("zero"), or puts its mean output
("mean") or uniform attention over the visible keys ("uniform") in its place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from headcount.core.arguments import check_arguments
from headcount.core.errors import GateError, VerificationError
from headcount.core.heads import AttentionBlock, Head
from headcount.models.attention import AttentionTap
from headcount.models.dummy_inputs.text import naming_inputs_in_errors, probe_inputs
from headcount.models.head_map import HeadMap
from headcount.models.modules import Batch, unwrap
from headcount.models.observe import evaluating, frozen_parameters
from headcount.models.ownership import Ownership, holding
from headcount.models.randomness import pass_rng
from headcount.models.state import feature_caches_bypassed, forward_preserving_state

Replacement = Literal["zero", "mean", "uniform"]
"""What takes the place of the output of a removed head."""
GateValues = Float[Tensor, "heads"] | Float[Tensor, "batch heads"]
Means = Mapping[str, Float[Tensor, "heads head_dim"]]
"""The mean output of every head, by block path."""


def _has_compiled_code() -> bool:
    """Returns whether anything was compiled that might have been traced without these hooks: compiled code does not look for new ones."""
    import sys

    frames = sys.modules.get("torch._dynamo.convert_frame")
    return bool(frames is not None and getattr(frames, "FRAME_COUNTER", 1))


class HeadGates:
    """Multiplies every head by its gate inside the context; leaves the model as it was before. Contexts nest and compose.

    Args:
        model: A transformers model, plain or wrapped (peft, DDP, torch.compile).
        values: One gate per head in the order of `HeadMap.of(model)`, or one row of gates per example; None for gates of one. The tensor may
            require gradients, and may be replaced (`gates.values = …`) or changed in place while the context is open. Rows of a batch that the
            model itself multiplies (beams, windows) follow their example.
        how: What takes the place of a head as its gate goes to zero: nothing ("zero"), its mean output ("mean"), or uniform attention over
            the visible keys ("uniform").
        means: The mean output of every head by block path, for `how="mean"`: `headcount.models.observe.mean_outputs(model, data)`.
        heads: The heads of the model, if the caller knows them already.

    Raises:
        GateError: the number of gates is not that of the heads, a gate is not finite, or `how` and `means` do not fit together.
        UnsupportedModel: the model has no attention heads that can be gated.

    Example:
        >>> gates = torch.ones(len(hc.HeadMap.of(model)))
        >>> gates[0] = 0.0
        >>> with hc.HeadGates(model, gates):
        ...     logits = model(**batch).logits
    """

    @check_arguments
    def __init__(
        self,
        model: nn.Module,
        values: GateValues | Sequence[float] | None = None,
        *,
        how: Replacement = "zero",
        means: Means | None = None,
        heads: HeadMap | None = None,
    ) -> None:
        self.model = unwrap(model)
        self.heads = HeadMap.of(self.model) if heads is None else heads
        self.how = how
        self.means = means
        self._check_means_fit_replacement()
        self.values = values if values is not None else torch.ones(len(self.heads))
        self._open: list[ExitStack] = []

    def _check_means_fit_replacement(self) -> None:
        if (self.how == "mean") != (self.means is not None):
            raise GateError("how='mean' needs means= (see headcount.models.observe.mean_outputs), and no other intervention takes them")
        means = self.means or {}
        for block in self.heads.blocks if self.means is not None else ():
            block.require_one_output("how='mean'")
            shape = (block.n_heads, block.value_dim)
            if block.n_heads and (block.path not in means or tuple(means[block.path].shape) != shape):
                raise GateError(
                    f"means must hold a tensor of shape {shape} for block '{block.path}'; make them with mean_outputs(model, data)"
                )

    @property
    def values(self) -> GateValues:
        """The gates that act now."""
        return self._values

    @values.setter
    def values(self, values: GateValues | Sequence[float]) -> None:
        tensor = values if isinstance(values, Tensor) else torch.tensor(values, dtype=torch.float64)
        if not tensor.is_floating_point():
            tensor = tensor.double()
        if tensor.ndim not in (1, 2) or tensor.shape[-1] != len(self.heads):
            raise GateError(f"gates must have shape ({len(self.heads)},) or (batch, {len(self.heads)}), got {tuple(tensor.shape)}")
        if not tensor.is_meta and not bool(torch.isfinite(tensor.detach()).all()):
            raise GateError("gates must be finite numbers; NaN or infinity was given")
        self._values = tensor

    def __enter__(self) -> HeadGates:
        blocks = [block for block in self.heads.blocks if block.n_heads]
        with ExitStack() as stack:
            stack.enter_context(feature_caches_bypassed(self.model))
            if _has_compiled_code():
                torch.compiler.reset()
                stack.callback(torch.compiler.reset)
            hold = stack.enter_context(holding(self.model, "gates on its heads"))
            if self.how == "uniform":
                stack.enter_context(AttentionTap(self.model, blocks, self._mix_with_uniform))
                stack.callback(self.model.register_forward_pre_hook(_make_marker_hook(self.model)).remove)
            else:
                for block in blocks:
                    for output in block.outputs:
                        projection = self.model.get_submodule(output.path)
                        hook = self._gating_hook(block, output.rows.size, projection, hold)
                        stack.callback(projection.register_forward_pre_hook(hook).remove)
            self._open.append(stack.pop_all())
        return self

    def __exit__(self, *_: object) -> None:
        self._open.pop().close()

    def _gates_of_block(self, head_positions: slice, n_rows: int, like: Tensor) -> Tensor:
        """Returns the gates of one block as [heads] or [rows, heads], for `n_rows` leading entries."""
        gate = self._values[..., head_positions].to(device=like.device, dtype=like.dtype)
        if gate.ndim == 1:
            return gate
        if n_rows % gate.shape[0]:
            raise GateError(f"gates for {gate.shape[0]} examples met a tensor with {n_rows} rows, which is no multiple of it")
        return gate if n_rows == gate.shape[0] else gate.repeat_interleave(n_rows // gate.shape[0], dim=0)

    def _gating_hook(
        self, block: AttentionBlock, head_output_size: int, projection: nn.Module, owner: Ownership
    ) -> Callable[[nn.Module, tuple[Any, ...]], tuple[Any, ...] | None]:
        span, size = self.heads.positions(block), (block.n_heads, head_output_size)
        mean = self.means[block.path] if self.means is not None else None

        def gate_heads(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
            if not owner.hook_acts_in_pass_of(module, projection):
                return None
            output = args[0]  # [batch, ..., heads * head_dim], or [token, batch, heads * head_dim]
            gate = self._gates_of_block(span, output.shape[1 if block.time_first else 0], output)
            if gate.ndim == 2:
                if output.ndim < 3:
                    raise GateError(f"block '{block.path}' flattens its batch, so it takes one gate per head, not one per example")
                middle = (1,) * (output.ndim - 2)
                gate = gate.view(*middle, *gate.shape) if block.time_first else gate.view(gate.shape[0], *middle, gate.shape[1])
            per_head = output.unflatten(-1, size)
            gated = per_head * gate.unsqueeze(-1)
            if mean is not None:
                gated = gated + (1 - gate.unsqueeze(-1)) * mean.to(output)
            return (gated.flatten(-2), *args[1:])

        gate_heads.headcount_gate = projection  # pyright: ignore[reportFunctionMemberAccess]
        return gate_heads

    def _mix_with_uniform(self, block: AttentionBlock, probabilities: Tensor, visible: Tensor) -> Tensor:
        gate = self._gates_of_block(self.heads.positions(block), probabilities.shape[0], probabilities)
        gate = gate.view(-1, block.n_heads, 1, 1)
        number = visible.sum(-1, keepdim=True)
        uniform = torch.where(number > 0, visible / number.clamp(min=1), probabilities).to(probabilities.dtype)
        return torch.where(gate == 1, probabilities, gate * probabilities + (1 - gate) * uniform)


def _make_marker_hook(model: nn.Module) -> Callable[..., None]:
    """Returns a hook that does nothing, by which `are_gates_open` recognises gates that act on attention."""

    def do_nothing(*_: Any) -> None:
        return

    do_nothing.headcount_gate = model  # pyright: ignore[reportFunctionMemberAccess]
    return do_nothing


def are_gates_open(model: nn.Module) -> bool:
    """Returns whether gates act on a model now."""
    modules = ((module, hook) for module in model.modules() for hook in module._forward_pre_hooks.values())
    return any(getattr(hook, "headcount_gate", None) is module for module, hook in modules)


def floating_point_outputs(output: Any) -> list[Tensor]:
    """Returns the floating-point results of a forward pass: logits, hidden states, losses; no caches and no attention maps."""
    if isinstance(output, Tensor):
        return [output] if output.is_floating_point() else []
    if isinstance(output, Mapping):
        skip = ("past_key_values", "attentions", "cache")
        return [t for name, value in output.items() if not any(word in name for word in skip) for t in floating_point_outputs(value)]
    if isinstance(output, list | tuple):
        return [t for value in output for t in floating_point_outputs(value)]
    return []


def verify_gates(model: nn.Module, heads: HeadMap, inputs: Batch | None = None) -> None:
    """Raises VerificationError unless the gate of every head changes the model's output on a probe batch.

    One backward pass decides for most: a gate with a gradient has an effect. A gate without one is set to zero and tried for real.
    """
    inner = unwrap(model)
    batch = dict(inputs) if inputs is not None else probe_inputs(inner)
    with evaluating(inner), naming_inputs_in_errors(inner, batch, is_dummy=inputs is None):
        silent = _heads_whose_gates_have_no_gradient(inner, heads, batch)
        dead = [head for head in silent if not _gating_changes_output(inner, heads, head, batch)]
    if dead:
        names = ", ".join(map(str, dead[:8])) + (f" and {len(dead) - 8} more" if len(dead) > 8 else "")
        raise VerificationError(
            f"gating {names} changes nothing in the output of {type(inner).__name__}. Either these heads do not run on this input "
            "(pass inputs= that reach them), or their weights are zero, or the outputs are not finite, or they were detected wrongly."
        )


def _heads_whose_gates_have_no_gradient(model: nn.Module, heads: HeadMap, batch: Batch) -> list[Head]:
    values = torch.full((len(heads),), 0.9, dtype=torch.float64, requires_grad=True)
    try:
        with frozen_parameters(model), torch.enable_grad(), HeadGates(model, values, heads=heads):
            results = floating_point_outputs(forward_preserving_state(model, batch))
            total = sum((result * _uneven_weights_like(result)).sum() for result in results)
        if not isinstance(total, Tensor) or not total.requires_grad:
            return list(heads)
        (gradient,) = torch.autograd.grad(total, values)
    except RuntimeError:
        return list(heads)  # some kernels have no backward pass; every head is then tried by itself
    return [head for head, slope in zip(heads, gradient.tolist(), strict=True) if slope == 0.0 or not math.isfinite(slope)]


def _uneven_weights_like(result: Tensor) -> Tensor:
    """Returns fixed uneven weights, so that effects of opposite sign do not cancel."""
    steps = torch.arange(result.numel(), device=result.device, dtype=torch.float64)
    return (steps * 0.754877666).sin().view(result.shape).to(result.dtype)


def _gating_changes_output(model: nn.Module, heads: HeadMap, head: Head, batch: Batch) -> bool:
    values = torch.ones(len(heads), dtype=torch.float64)
    values[heads.position(head)] = 0.0
    with torch.no_grad(), pass_rng(model, seed=0):
        plain = floating_point_outputs(forward_preserving_state(model, batch))
        torch.manual_seed(0)
        with HeadGates(model, values, heads=heads):
            gated = floating_point_outputs(forward_preserving_state(model, batch))
    # Numbers that are not finite say nothing: NaN differs from itself.
    return any(not torch.equal(a.nan_to_num(0, 0, 0), b.nan_to_num(0, 0, 0)) for a, b in zip(plain, gated, strict=True))
