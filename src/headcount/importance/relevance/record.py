"""Recording a model: its forward pass on a tape, with activation modules as one operation and the output projections marked."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from headcount.core.errors import UnsupportedModel
from headcount.core.heads import AttentionBlock
from headcount.importance.relevance.noise import RoundingNoise
from headcount.importance.relevance.tape import Recorder, Tape
from headcount.models.attention import eager
from headcount.models.head_map import HeadMap
from headcount.models.modules import Batch
from headcount.models.observe import evaluating
from headcount.models.ownership import for_owner

NORMALISES = re.compile(r"norm", re.IGNORECASE)
ACTIVATES = re.compile(r"(gelu|silu|relu|swish|mish)(activation)?$", re.IGNORECASE)
NO_SOURCE = re.compile(r"mask|position|bias|past|cache")
"""Arguments of a forward pass that say where to look, not what is there."""


@dataclass(frozen=True, slots=True)
class Recording:
    """A tape down from the logits, and where on it every block's heads meet its output projection."""

    tape: Tape
    logits: Tensor
    top: int
    marks: tuple[tuple[AttentionBlock, int], ...]

    @property
    def n_examples(self) -> int:
        """How many examples the batch has."""
        return len(self.logits)


def record(
    model: nn.Module, heads: HeadMap, batch: Batch, logits: Callable[[Any], Tensor], noise: RoundingNoise | None = None
) -> Recording:
    """One forward pass in eval mode on the eager attention path, with `noise` where given; the model is as it was afterwards."""
    recorder = Recorder(noise)
    marks: list[tuple[AttentionBlock, int]] = []
    sources = {name: value for name, value in batch.items() if isinstance(value, Tensor) and not NO_SOURCE.search(name)}
    with evaluating(model), eager(model), _watch_modules(model, recorder), _mark_projections(model, heads, recorder, marks):
        for value in sources.values():
            recorder.add_source(value)
        with recorder, _LinearLayers(recorder):
            chosen = logits(model(**batch))
    top = recorder.slot_of(chosen)
    if top is None:
        raise UnsupportedModel(f"the logits of {type(model).__name__} do not descend from its inputs {', '.join(sources) or '(none)'}")
    return Recording(recorder.tape.upto(top), chosen, top, tuple(marks))


class _LinearLayers(TorchFunctionMode):
    """Records a linear layer as one operation: torch takes its bias apart or not, depending on how the input lies in memory."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is not F.linear:
            return func(*args, **kwargs)
        self.recorder.paused += 1
        result = func(*args, **kwargs)
        self.recorder.paused -= 1
        arguments = {"bias": None, **dict(zip(("input", "weight", "bias"), args, strict=False)), **kwargs}
        self.recorder.add_call("linear", F.linear, arguments, result)
        return result


@contextmanager
def _watch_modules(model: nn.Module, recorder: Recorder) -> Iterator[None]:
    """Tells the recorder which module runs."""
    with ExitStack() as stack:
        for path, module in model.named_modules():
            before, after = _activation(recorder) if _is_activation(module) else _frame(recorder, path, module)
            stack.callback(module.register_forward_pre_hook(for_owner(model, before)).remove)
            stack.callback(module.register_forward_hook(for_owner(model, after)).remove)
        yield


def _is_activation(module: nn.Module) -> bool:
    cls = type(module)
    return cls.__module__ == "transformers.activations" or (not list(module.children()) and bool(ACTIVATES.search(cls.__name__)))


def _activation(recorder: Recorder) -> tuple[Callable, Callable]:
    def before(*_: Any) -> None:
        recorder.paused += 1

    def after(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        recorder.paused -= 1
        recorder.add_call(type(module).__name__, None, {"self": args[0]}, output)

    return before, after


def _frame(recorder: Recorder, path: str, module: nn.Module) -> tuple[Callable, Callable]:
    frame = (path, bool(NORMALISES.search(type(module).__name__)))

    def before(*_: Any) -> None:
        recorder.stack.append(frame)

    def after(*_: Any) -> None:
        recorder.stack.pop()

    return before, after


@contextmanager
def _mark_projections(model: nn.Module, heads: HeadMap, recorder: Recorder, marks: list) -> Iterator[None]:
    """Notes what every output projection reads."""

    def mark(block: AttentionBlock) -> Callable[[nn.Module, tuple[Any, ...]], None]:
        def output_projection_runs(_module: nn.Module, args: tuple[Any, ...]) -> None:
            slot = recorder.slot_of(args[0])
            if slot is not None:
                marks.append((block, slot))

        return output_projection_runs

    with ExitStack() as stack:
        for block in heads.blocks:
            if block.n_heads:
                block.require_one_output("relevance")
                stack.callback(model.get_submodule(block.o.path).register_forward_pre_hook(for_owner(model, mark(block))).remove)
        yield
