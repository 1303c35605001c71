"""A tape of one forward pass: every operation on a value that descends from the model's inputs, with the values it read and computed.

Operations are seen below autograd, as torch's dispatcher hands them to the kernels, so no model is re-implemented. A tensor that does not
descend from the inputs (parameters, masks, positions, rotary tables) is a constant, and operations on constants leave no node. An operation in
place, on a tensor or on a view of it, is recorded as one that returns a new tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from headcount.core.errors import UnsupportedModel
from headcount.importance.relevance.noise import RoundingNoise

LOOKUPS = {"embedding", "index_select", "index", "gather"}
"""Operations that turn token ids into vectors of a table."""

STATISTICS = {"rsqrt", "sqrt", "var", "var_mean", "std", "std_mean", "linalg_vector_norm", "norm"}
"""Operations whose results are statistics of a normalisation, hence constants, wherever they run."""

CREATIONS = {f"{kind}_like" for kind in ("zeros", "ones", "full", "empty")} | {f"new_{kind}" for kind in ("zeros", "ones", "full", "empty")}
"""Operations that read only the shape of a value."""

REDUCTIONS = {"mean", "sum"}
"""Operations whose results are statistics inside a module that normalises."""

RESETS = {"fill", "zero", "normal", "uniform"}
"""In-place operations after which nothing of the old value is left."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A value of the forward pass that descends from the inputs, by its index in the values of the tape."""

    index: int


Arguments = dict[str, Any]
"""The arguments of an operation by name, with a `Slot` in place of every tensor that descends from the inputs."""


@dataclass(frozen=True, slots=True)
class TapeNode:
    """One operation.

    Attributes:
        name: Its name, without the underscore of in-place variants.
        function: The operation; None for a module that hands relevance on unchanged, such as an activation.
        arguments: Its arguments.
        outputs: The slots of its results; None for results that carry no relevance.
        module: The path of the module that it ran in.
    """

    name: str
    function: Callable[..., Any] | None
    arguments: Arguments
    outputs: tuple[int | None, ...]
    module: str

    @property
    def input_slots(self) -> tuple[int, ...]:
        """The slots that it reads, once each."""
        leaves = tree_flatten(self.arguments)[0]
        return tuple(dict.fromkeys(leaf.index for leaf in leaves if isinstance(leaf, Slot)))

    def error(self, reason: str = "has no relevance rule") -> UnsupportedModel:
        """Returns the error that says why relevance cannot pass this operation."""
        return UnsupportedModel(
            f"operation aten.{self.name} in module '{self.module or '(top)'}' {reason}, so relevance cannot be propagated through this model. "
            "Score its heads by another importance."
        )


@dataclass(slots=True)
class Tape:
    """Nodes in the order in which they ran, and the value of every slot; `sources` are the slots of the inputs."""

    nodes: list[TapeNode] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)
    sources: list[int] = field(default_factory=list)

    def restrict_to_ancestors(self, slot: int) -> Tape:
        """Returns the tape of only those nodes on which a slot depends."""
        needed, nodes = {slot}, []
        for node in reversed(self.nodes):
            if needed.intersection(output for output in node.outputs if output is not None):
                needed.update(node.input_slots)
                nodes.append(node)
        return replace(self, nodes=nodes[::-1], sources=[source for source in self.sources if source in needed])

    def slots_and_values(self, arguments: Any) -> Iterator[tuple[int, Tensor]]:
        """Yields the (slot, value) pairs among arguments, in order, with repetitions."""
        for leaf in tree_flatten(arguments)[0]:
            if isinstance(leaf, Slot):
                yield leaf.index, self.values[leaf.index]


@dataclass(frozen=True, slots=True)
class Region:
    """The positions of a tensor's entries in its storage."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    @classmethod
    def of_tensor(cls, value: Tensor) -> Region:
        """Returns the region of a tensor."""
        return cls(tuple(value.shape), value.stride(), int(value.storage_offset()))

    def positions_in_storage(self) -> Int[Tensor, " n"]:
        """Returns the position of every entry, in the order of the entries."""
        end = self.offset + sum((size - 1) * step for size, step in zip(self.shape, self.stride, strict=True)) + 1
        return torch.arange(max(end, 0)).as_strided(self.shape, self.stride, self.offset).flatten()


@dataclass(frozen=True, slots=True)
class Write:
    """A write to a region of a storage; holding the storage keeps its address from being used again."""

    storage: torch.UntypedStorage
    source: Slot | Tensor
    region: Region


def storage_address(value: Tensor) -> int:
    """Returns the address of the memory that a tensor views."""
    return value.untyped_storage()._cdata


class OverwrittenEntries(NamedTuple):
    """The entries of a tensor that a write changed, and for each the entry of the write that it got."""

    changed: Int[Tensor, " m"]
    source_entries: Int[Tensor, " m"]


def find_overwritten_entries(value: Tensor, written: Region) -> OverwrittenEntries:
    """Returns which entries of a tensor a write to a region of its storage changed, by which entries of the write."""
    if not value.numel() or 0 in written.shape:
        nothing = torch.empty(0, dtype=torch.long, device=value.device)
        return OverwrittenEntries(nothing, nothing)
    positions, targets = Region.of_tensor(value).positions_in_storage(), written.positions_in_storage()
    writer = torch.full((int(max(positions.max(), targets.max())) + 1,), -1)
    writer[targets] = torch.arange(len(targets))
    hits = writer[positions]
    changed = (hits >= 0).nonzero().flatten()
    return OverwrittenEntries(changed.to(value.device), hits[changed].to(value.device))


def replace_entries(self: Tensor, source: Tensor, changed: Int[Tensor, " m"], source_entries: Int[Tensor, " m"]) -> Tensor:
    """Returns `self` with the entries `changed` replaced by the entries `source_entries` of `source`."""
    return self.reshape(-1).index_put((changed,), source.reshape(-1)[source_entries]).reshape(self.shape)


class TapeRecorder(TorchDispatchMode):
    """Writes a tape of the operations that run inside the context, with rounding noise in their results if there is any."""

    def __init__(self, noise: RoundingNoise | None = None) -> None:
        super().__init__()
        self.tape = Tape()
        self.noise = noise
        self.module_stack: list[tuple[str, bool]] = []  # (path of a running module, whether it normalises)
        self.n_paused = 0  # nothing is recorded while this is above 0
        self._slots: dict[int, int] = {}  # by id of the tensor
        self._token_ids: set[int] = set()  # ids of integer tensors that descend from the inputs
        self._writes: dict[int, list[Write]] = {}  # by address of the storage
        self._n_writes_known: dict[int, int] = {}  # how many writes to its storage the slot of a tensor takes into account
        self._alive: list[Tensor] = []  # tensors are known by id, so none may be freed while the tape is written

    def add_source(self, value: Tensor) -> None:
        """Declares a tensor to be an input: floating values carry relevance, integers are token ids that look it up."""
        if value.is_floating_point():
            self.tape.sources.append(self._add_slot(value))
        else:
            self._mark_as_token_ids(value)

    def slot_of(self, value: Tensor) -> int | None:
        """Returns the slot of a tensor; None for a constant."""
        self._renew_slots_of_written_memory([value])
        return self._slots.get(id(value))

    def add_call(self, name: str, function: Callable[..., Any] | None, arguments: Arguments, output: Tensor) -> None:
        """Records a call that ran while the recorder was paused as one operation."""
        self._renew_slots_of_written_memory([leaf for leaf in arguments.values() if isinstance(leaf, Tensor)])
        slots = tree_map(self._slot_or_leaf, arguments)
        if not self.n_paused and any(isinstance(leaf, Slot) for leaf in slots.values()):
            self._add_node(name, function, slots, (self._add_slot(output),))

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if self.n_paused:
            return self._run_operation(func, args, kwargs)
        tensors = [leaf for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, Tensor)]
        self._renew_slots_of_written_memory(tensors)
        if not any(id(t) in self._slots or id(t) in self._token_ids for t in tensors):
            return self._run_operation(func, args, kwargs)
        names = (argument.name for argument in func._schema.arguments)
        arguments = tree_map(self._slot_or_leaf, {**dict(zip(names, args, strict=False)), **kwargs})
        if func._schema.is_mutable:
            return self._run_in_place(func, args, kwargs, arguments)
        result = self._run_operation(func, args, kwargs)
        self._record_operation(func, arguments, tensors, result)
        return result

    def _run_operation(self, func, args, kwargs) -> Any:
        """Returns the result of an operation, with rounding noise if the tape is recorded with it."""
        result = func(*args, **kwargs)
        return result if self.noise is None else self.noise.add_noise_to_result(operation_name(func), result)

    def _record_operation(self, func, arguments: Arguments, tensors: list[Tensor], result: Any) -> None:
        """Records an operation that returned new tensors, unless its results are constants."""
        name = operation_name(func)
        results = [r for r in (result if isinstance(result, list | tuple) else [result]) if isinstance(r, Tensor)]
        if any(id(t) in self._token_ids for t in tensors):
            self._follow_token_ids(name, tensors, results)
        is_root = name == "pow" and arguments.get("exponent") in (0.5, -0.5)
        is_statistic = name in STATISTICS or is_root or (name in REDUCTIONS and bool(self.module_stack) and self.module_stack[-1][1])
        if is_statistic or name in CREATIONS or not any(id(t) in self._slots for t in tensors):
            return
        carrying = results[:1] if "norm" in name else results  # a normalisation also returns its statistics
        outputs = tuple(self._add_slot(r) if r.is_floating_point() else None for r in carrying)
        outputs += (None,) * (len(results) - len(outputs))
        if any(output is not None for output in outputs):
            self._add_node(name, out_of_place_operation(func), arguments, outputs)

    def _follow_token_ids(self, name: str, tensors: list[Tensor], results: list[Tensor]) -> None:
        """Follows token ids to the table that they look up; comparisons of ids (a mask, positions) are constants."""
        for result in results:
            if result.is_floating_point() and name in LOOKUPS and not any(id(t) in self._slots for t in tensors):
                self.tape.sources.append(self._add_slot(result))
            elif not result.is_floating_point() and result.dtype != torch.bool:
                self._mark_as_token_ids(result)

    def _run_in_place(self, func, args, kwargs, arguments: Arguments) -> Any:
        """Runs an operation that overwrites its first argument, and records it as if it had returned a new tensor."""
        target, name = args[0], operation_name(func)
        if not isinstance(target, Tensor) or not target.is_floating_point():
            result = func(*args, **kwargs)
            if isinstance(target, Tensor) and target.dtype != torch.bool:
                self._mark_as_token_ids(target)
            return result
        before, address = target.clone(), storage_address(target)
        for index, value in enumerate(self.tape.values):  # slots that view the same memory keep their old values
            if storage_address(value) == address:
                self.tape.values[index] = value.clone()
        if isinstance(arguments.get("self"), Tensor):
            arguments["self"] = before
        result = func(*args, **kwargs)
        self._slots.pop(id(target), None)
        if name not in RESETS:
            self._add_node(name, out_of_place_operation(func), arguments, (self._add_slot(target),))
        slot = self._slots.get(id(target))
        write = Write(target.untyped_storage(), target.clone() if slot is None else Slot(slot), Region.of_tensor(target))
        self._writes.setdefault(storage_address(target), []).append(write)
        self._keep_alive(target)
        return result

    def _renew_slots_of_written_memory(self, tensors: list[Tensor]) -> None:
        """Gives tensors whose memory was written through another view a slot for their present values."""
        for tensor in tensors if self._writes else ():
            writes = self._writes.get(storage_address(tensor), [])
            for write in writes[self._n_writes_known.get(id(tensor), 0) :]:
                changed, source_entries = find_overwritten_entries(tensor, write.region)
                if changed.numel():
                    old = self._slot_or_leaf(tensor)
                    arguments = {
                        "self": tensor.clone() if old is tensor else old,
                        "source": write.source,
                        "changed": changed,
                        "source_entries": source_entries,
                    }
                    self._add_node("overwrite", replace_entries, arguments, (self._add_slot(tensor),))
            if writes:
                self._keep_alive(tensor)

    def _slot_or_leaf(self, leaf: Any) -> Any:
        """Returns the slot of a tensor that has one; everything else as it is."""
        slot = self._slots.get(id(leaf)) if isinstance(leaf, Tensor) else None
        return leaf if slot is None else Slot(slot)

    def _keep_alive(self, value: Tensor) -> None:
        self._alive.append(value)
        self._n_writes_known[id(value)] = len(self._writes.get(storage_address(value), ()))

    def _mark_as_token_ids(self, tensor: Tensor) -> None:
        self._alive.append(tensor)
        self._token_ids.add(id(tensor))

    def _add_slot(self, value: Tensor) -> int:
        self._keep_alive(value)
        self.tape.values.append(value)
        self._slots[id(value)] = len(self.tape.values) - 1
        return self._slots[id(value)]

    def _add_node(self, name: str, function: Callable[..., Any] | None, arguments: Arguments, outputs: tuple[int | None, ...]) -> None:
        self.tape.nodes.append(TapeNode(name, function, arguments, outputs, self.module_stack[-1][0] if self.module_stack else ""))


def operation_name(func: Any) -> str:
    """Returns the plain name of an operation: `add` for aten::add_.Tensor."""
    name = func._schema.name.split("::")[-1]
    return name[:-1] if name.endswith("_") and not name.endswith("__") else name


def out_of_place_operation(func: Any) -> Any:
    """Returns the operation that returns a new tensor, for one that works in place."""
    if not func._schema.is_mutable:
        return func
    return getattr(getattr(torch.ops.aten, operation_name(func)), func._overloadname)
