"""Records the forward pass of a model on a tape.

Linear layers and activation modules are recorded as one operation each; the inputs of output projections, where heads meet, are marked.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from headcount.core.errors import UnsupportedModel
from headcount.core.heads import AttentionBlock
from headcount.importance.relevance.noise import RoundingNoise
from headcount.importance.relevance.tape import Tape, TapeRecorder
from headcount.models.attention import eager_attention
from headcount.models.head_map import HeadMap
from headcount.models.modules import Batch
from headcount.models.observe import evaluating
from headcount.models.ownership import restrict_to_owner

NORMALISATION_CLASS = re.compile(r"norm", re.IGNORECASE)
ACTIVATION_CLASS = re.compile(r"(gelu|silu|relu|swish|mish)(activation)?$", re.IGNORECASE)
NO_SOURCE = re.compile(r"mask|position|bias|past|cache")
"""Arguments of a forward pass that are no content and carry no relevance."""


@dataclass(frozen=True, slots=True)
class RecordedPass:
    """The tape of a forward pass.

    Attributes:
        tape: The operations on which the logits depend.
        logits: The logits.
        logits_slot: Their slot.
        head_slots: For every call of a block, the slot of its output projection's input, which holds the outputs of its heads.
    """

    tape: Tape
    logits: Tensor
    logits_slot: int
    head_slots: tuple[tuple[AttentionBlock, int], ...]

    @property
    def n_examples(self) -> int:
        """The number of examples in the batch."""
        return len(self.logits)


def record_forward(
    model: nn.Module, heads: HeadMap, batch: Batch, logits_of: Callable[[Any], Tensor], noise: RoundingNoise | None = None
) -> RecordedPass:
    """Runs a forward pass in eval mode on the eager attention path and returns its record; the model stays as it was.

    Raises:
        UnsupportedModel: the logits do not descend from the inputs, or the heads of a block feed two output projections.
    """
    recorder = TapeRecorder(noise)
    head_slots: list[tuple[AttentionBlock, int]] = []
    sources = {name: value for name, value in batch.items() if isinstance(value, Tensor) and not NO_SOURCE.search(name)}
    with (
        evaluating(model),
        eager_attention(model),
        _watch_modules(model, recorder),
        _collect_head_slots(model, heads, recorder, head_slots),
    ):
        for value in sources.values():
            recorder.add_source(value)
        with recorder, _WholeLinearLayers(recorder):
            logits = logits_of(model(**batch))
    logits_slot = recorder.slot_of(logits)
    if logits_slot is None:
        raise UnsupportedModel(f"the logits of {type(model).__name__} do not descend from its inputs {', '.join(sources) or '(none)'}")
    return RecordedPass(recorder.tape.restrict_to_ancestors(logits_slot), logits, logits_slot, tuple(head_slots))


class _WholeLinearLayers(TorchFunctionMode):
    """Records a linear layer as one operation: whether torch adds its bias apart depends on the memory layout of the input."""

    def __init__(self, recorder: TapeRecorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is not F.linear:
            return func(*args, **kwargs)
        self.recorder.n_paused += 1
        result = func(*args, **kwargs)
        self.recorder.n_paused -= 1
        arguments = {"bias": None, **dict(zip(("input", "weight", "bias"), args, strict=False)), **kwargs}
        self.recorder.add_call("linear", F.linear, arguments, result)
        return result


@contextmanager
def _watch_modules(model: nn.Module, recorder: TapeRecorder) -> Iterator[None]:
    """Inside, the recorder knows which module runs, and activation modules are recorded as one operation."""
    with ExitStack() as stack:
        for path, module in model.named_modules():
            name, is_leaf = type(module).__name__, not list(module.children())
            if type(module).__module__ == "transformers.activations" or (is_leaf and ACTIVATION_CLASS.search(name)):
                before, after = _hooks_recording_activation(recorder)
            else:
                before, after = _module_stack_hooks(recorder, path, bool(NORMALISATION_CLASS.search(name)))
            stack.callback(module.register_forward_pre_hook(restrict_to_owner(model, before)).remove)
            stack.callback(module.register_forward_hook(restrict_to_owner(model, after)).remove)
        yield


def _hooks_recording_activation(recorder: TapeRecorder) -> _ModuleHooks:
    """Returns hooks that pause the recorder in an activation and record it as one operation."""

    def pause_recorder(*_: Any) -> None:
        recorder.n_paused += 1

    def record_activation(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        recorder.n_paused -= 1
        recorder.add_call(type(module).__name__, None, {"self": args[0]}, output)

    return _ModuleHooks(pause_recorder, record_activation)


class _ModuleHooks(NamedTuple):
    """What runs before and after the forward pass of a module."""

    before: Callable
    after: Callable


def _module_stack_hooks(recorder: TapeRecorder, path: str, is_normalisation: bool) -> _ModuleHooks:
    """Returns hooks that keep the recorder's stack of running modules."""

    def push_module(*_: Any) -> None:
        recorder.module_stack.append((path, is_normalisation))

    def pop_module(*_: Any) -> None:
        recorder.module_stack.pop()

    return _ModuleHooks(push_module, pop_module)


@contextmanager
def _collect_head_slots(
    model: nn.Module, heads: HeadMap, recorder: TapeRecorder, head_slots: list[tuple[AttentionBlock, int]]
) -> Iterator[None]:
    """Inside, the input of every output projection that runs is appended to `head_slots`."""

    def append_head_slot(block: AttentionBlock, _module: nn.Module, args: tuple[Any, ...]) -> None:
        slot = recorder.slot_of(args[0])
        if slot is not None:
            head_slots.append((block, slot))

    with ExitStack() as stack:
        for block in heads.blocks:
            if block.n_heads:
                block.require_one_output("relevance")
                hook = restrict_to_owner(model, partial(append_head_slot, block))
                stack.callback(model.get_submodule(block.o.path).register_forward_pre_hook(hook).remove)
        yield
