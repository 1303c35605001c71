"""A tape of one forward pass: every operation on what descends from the model's inputs, with the values it saw.

Operations are seen below autograd, as torch's dispatcher hands them to the kernels, so no model is re-implemented. What does not descend from
the inputs (parameters, masks, positions, rotary tables) is a constant and leaves no node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from headcount.core.errors import UnsupportedModel
from headcount.importance.relevance.memory import Region, Write, overlap, overwrite, storage_of
from headcount.importance.relevance.noise import RoundingNoise

LOOKUPS = {"embedding", "index_select", "index", "gather"}
"""Operations that turn token ids into vectors of a table."""

STATISTICS = {"rsqrt", "sqrt", "var", "var_mean", "std", "std_mean", "linalg_vector_norm", "norm"}
"""Operations whose results are statistics of a normalisation, hence constants, wherever they run."""

CREATIONS = {f"{kind}_like" for kind in ("zeros", "ones", "full", "empty")} | {f"new_{kind}" for kind in ("zeros", "ones", "full", "empty")}
"""Operations that read only the shape of a value."""

REDUCTIONS = {"mean", "sum"}
"""Operations whose results are statistics inside a module that normalises."""

FORGETTING = {"fill", "zero", "normal", "uniform"}
"""In-place operations after which nothing of the old value is left."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A value of the forward pass that descends from the inputs, by its place on the tape."""

    index: int


@dataclass(frozen=True, slots=True)
class Node:
    """One operation: its name without the underscore of in-place variants, arguments by name with slots for values, and results."""

    name: str
    function: Callable[..., Any] | None
    arguments: dict[str, Any]
    outputs: tuple[int | None, ...]
    module: str

    @property
    def inputs(self) -> tuple[int, ...]:
        """The slots that it reads, once each."""
        leaves = tree_flatten(self.arguments)[0]
        return tuple(dict.fromkeys(leaf.index for leaf in leaves if isinstance(leaf, Slot)))

    def refuse(self, reason: str = "has no relevance rule") -> UnsupportedModel:
        """The error that says that relevance cannot pass this operation."""
        return UnsupportedModel(
            f"operation aten.{self.name} in module '{self.module or '(top)'}' {reason}, so relevance cannot be propagated through this model. "
            "Score its heads by another importance."
        )


@dataclass(slots=True)
class Tape:
    """Nodes in the order in which they ran, and the values between them; `sources` are the inputs' own slots."""

    nodes: list[Node] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)
    sources: list[int] = field(default_factory=list)

    def upto(self, slot: int) -> Tape:
        """Returns the tape of only those nodes on which a slot depends."""
        needed, nodes = {slot}, []
        for node in reversed(self.nodes):
            if needed.intersection(o for o in node.outputs if o is not None):
                needed.update(node.inputs)
                nodes.append(node)
        return replace(self, nodes=nodes[::-1], sources=[s for s in self.sources if s in needed])


class Recorder(TorchDispatchMode):
    """Writes a tape of what runs inside the context."""

    def __init__(self, noise: RoundingNoise | None = None) -> None:
        super().__init__()
        self.tape = Tape()
        self.noise = noise
        self.stack: list[tuple[str, bool]] = []  # (path of the running module, whether it normalises)
        self.paused = 0
        self._slots: dict[int, int] = {}
        self._ids: dict[int, Tensor] = {}
        self._writes: dict[int, list[Write]] = {}
        self._seen: dict[int, int] = {}  # how many writes to its storage a tensor's slot knows of
        self._alive: list[Tensor] = []  # tensors are known by id, so none may be freed while the tape is written

    def add_source(self, value: Tensor) -> None:
        """Declares a tensor to be an input: floating values carry relevance, integers are token ids that look it up."""
        if value.is_floating_point():
            self.tape.sources.append(self._new_slot(value))
        else:
            self._ids[id(value)] = value

    def slot_of(self, value: Tensor) -> int | None:
        """The slot of a tensor, or None for a constant."""
        self._refresh([value])
        return self._slots.get(id(value))

    def add_call(self, name: str, function: Callable[..., Any] | None, arguments: dict[str, Any], output: Tensor) -> None:
        """Records what ran unseen as one operation; one without a function hands relevance on unchanged."""
        self._refresh([leaf for leaf in arguments.values() if isinstance(leaf, Tensor)])
        slots = tree_map(self._as_slot, arguments)
        if not self.paused and any(isinstance(leaf, Slot) for leaf in slots.values()):
            self._add(Node(name, function, slots, (self._new_slot(output),), self.path))

    @property
    def path(self) -> str:
        """The module that runs now."""
        return self.stack[-1][0] if self.stack else ""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if self.paused:
            return self._run(func, args, kwargs)
        tensors = [leaf for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, Tensor)]
        self._refresh(tensors)
        if not any(id(t) in self._slots or id(t) in self._ids for t in tensors):
            return self._run(func, args, kwargs)
        arguments = self._name_arguments(func, args, kwargs)
        if func._schema.is_mutable:
            return self._run_in_place(func, args, kwargs, arguments)
        result = self._run(func, args, kwargs)
        self._record(func, arguments, tensors, result)
        return result

    def _run(self, func, args, kwargs) -> Any:
        """The result of an operation, with rounding noise where the tape is recorded with it."""
        result = func(*args, **kwargs)
        return result if self.noise is None else self.noise.of_operation(name_of(func), result)

    def _name_arguments(self, func, args, kwargs) -> dict[str, Any]:
        """Returns the arguments by their names in the schema, tracked values replaced by their slots."""
        names = (argument.name for argument in func._schema.arguments)
        return tree_map(self._as_slot, {**dict(zip(names, args, strict=False)), **kwargs})

    def _as_slot(self, leaf: Any) -> Any:
        slot = self._slots.get(id(leaf)) if isinstance(leaf, Tensor) else None
        return leaf if slot is None else Slot(slot)

    def _record(self, func, arguments: dict[str, Any], tensors: list[Tensor], result: Any) -> None:
        name = name_of(func)
        results = [r for r in (result if isinstance(result, list | tuple) else [result]) if isinstance(r, Tensor)]
        if any(id(t) in self._ids for t in tensors):
            self._record_ids(name, tensors, results)
        if not any(id(t) in self._slots for t in tensors):
            return
        if self._makes_constant(name, arguments):
            return
        carrying = results[:1] if "norm" in name else results  # a normalisation also returns its statistics
        outputs = tuple(self._new_slot(r) if r.is_floating_point() else None for r in carrying)
        outputs += (None,) * (len(results) - len(outputs))
        if any(output is not None for output in outputs):
            self._add(Node(name, functional(func), arguments, outputs, self.path))

    def _makes_constant(self, name: str, arguments: dict[str, Any]) -> bool:
        is_root = name == "pow" and arguments.get("exponent") in (0.5, -0.5)
        is_reduction = name in REDUCTIONS and bool(self.stack) and self.stack[-1][1]
        return name in STATISTICS or name in CREATIONS or is_root or is_reduction

    def _record_ids(self, name: str, tensors: list[Tensor], results: list[Tensor]) -> None:
        """Follows token ids to the table that they look up; what a comparison of ids says (a mask, positions) is a constant."""
        for result in results:
            if result.is_floating_point() and name in LOOKUPS and not any(id(t) in self._slots for t in tensors):
                self.tape.sources.append(self._new_slot(result))
            elif not result.is_floating_point() and result.dtype != torch.bool:
                self._ids[id(result)] = result

    def _run_in_place(self, func, args, kwargs, arguments: dict[str, Any]) -> Any:
        """Runs an operation that overwrites its first argument, and records it as if it had returned a new tensor."""
        target, name = args[0], name_of(func)
        if not isinstance(target, Tensor) or not target.is_floating_point():
            result = func(*args, **kwargs)
            if isinstance(target, Tensor) and target.dtype != torch.bool:
                self._ids[id(target)] = target
            return result
        before = target.clone()
        self._save_views(target)
        if isinstance(arguments.get("self"), Tensor):
            arguments["self"] = before
        result = func(*args, **kwargs)
        self._slots.pop(id(target), None)
        if name not in FORGETTING:
            self._add(Node(name, functional(func), arguments, (self._new_slot(target),), self.path))
        self._log_write(target)
        return result

    def _save_views(self, target: Tensor) -> None:
        """Copies what slots hold of a tensor's storage, before it is overwritten."""
        for index, value in enumerate(self.tape.values):
            if storage_of(value) == storage_of(target):
                self.tape.values[index] = value.clone()

    def _log_write(self, target: Tensor) -> None:
        slot = self._slots.get(id(target))
        written = Write(target.untyped_storage(), target.clone() if slot is None else Slot(slot), Region.of(target))
        self._writes.setdefault(storage_of(target), []).append(written)
        self._remember(target)

    def _refresh(self, tensors: list[Tensor]) -> None:
        """Gives tensors whose memory was written through another view a slot for their present values."""
        for tensor in tensors if self._writes else ():
            for write in self._writes.get(storage_of(tensor), [])[self._seen.get(id(tensor), 0) :]:
                changed, picks = overlap(tensor, write.region)
                if changed.numel():
                    old = self._as_slot(tensor)
                    arguments = {
                        "self": tensor.clone() if old is tensor else old,
                        "source": write.source,
                        "changed": changed,
                        "picks": picks,
                    }
                    self._add(Node("overwrite", overwrite, arguments, (self._new_slot(tensor),), self.path))
            if storage_of(tensor) in self._writes:
                self._remember(tensor)

    def _remember(self, value: Tensor) -> None:
        self._alive.append(value)
        self._seen[id(value)] = len(self._writes.get(storage_of(value), ()))

    def _new_slot(self, value: Tensor) -> int:
        self._remember(value)
        self.tape.values.append(value)
        self._slots[id(value)] = len(self.tape.values) - 1
        return self._slots[id(value)]

    def _add(self, node: Node) -> None:
        self.tape.nodes.append(node)


def name_of(func: Any) -> str:
    """The plain name of an operation: `add` for aten::add_.Tensor."""
    name = func._schema.name.split("::")[-1]
    return name[:-1] if name.endswith("_") and not name.endswith("__") else name


def functional(func: Any) -> Any:
    """The operation that returns a new tensor, for one that works in place."""
    if not func._schema.is_mutable:
        return func
    return getattr(getattr(torch.ops.aten, name_of(func)), func._overloadname)


def values_of(tape: Tape, arguments: Any) -> Iterator[tuple[int, Tensor]]:
    """The (slot, value) pairs among arguments, in order, with repetitions."""
    for leaf in tree_flatten(arguments)[0]:
        if isinstance(leaf, Slot):
            yield leaf.index, tape.values[leaf.index]
