"""A model's own state around forward passes: whatever a pass changes in the model is put back afterwards, also after an exception.

Models change themselves when they run. BigBird switches to full attention on a short input, Swin shrinks its windows on a small image, dynamic
rotary embeddings recompute their frequencies, classifiers write `config.problem_type`, OmDet-Turbo keeps the features of texts. headcount runs
every pass over a model inside `preserve`, so that no call changes a model and no result depends on the passes before it.
"""

from __future__ import annotations

import copy
import operator
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn

from headcount.core.errors import UnsupportedModel
from headcount.models.modules import Batch
from headcount.models.ownership import SavedStates
from headcount.models.randomness import fork_rng, pass_rng

HOOKS = frozenset(name for name in vars(nn.Module()) if "hook" in name)
"""Attributes that hold hooks. Their handles take them off, since several contexts may have hooks on one model; those of transformers have none."""

CONTAINERS = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set")

CLONED_BYTES = 2**28
"""Buffers are copied up to this size in total, the smallest first; a pass that writes into one beyond it is refused."""

FEATURE_CACHES: dict[str, tuple[str, ...]] = {"OmDetTurboForObjectDetection": ("language_cache_class", "language_cache_prompt")}
"""By class name, attributes that hold results of earlier passes and are served instead of running part of the model."""


COLLECTIONS = (dict, list, set, deque)
PLAIN = frozenset(
    {int, float, bool, str, tuple, type(None), Tensor, nn.Parameter, torch.dtype, torch.device, type, FunctionType, MethodType}
)


def _is_collection_or_transformers_object(value: Any) -> bool:
    """Whether an object other than a module or tensor may change in a pass: collections, and objects of transformers' own classes."""
    kind = type(value)
    if kind in PLAIN or isinstance(value, nn.Module):
        return False
    return isinstance(value, COLLECTIONS) or (kind.__module__.startswith("transformers") and hasattr(value, "__dict__"))


class ModelState:
    """The configuration, attributes, submodules, buffers and modes of a model at one moment."""

    def __init__(self, model: nn.Module) -> None:
        modules = list(model.modules())
        self.attributes = [(vars(module), vars(module).copy()) for module in modules]
        self.hooks = [(module, tuple(module._forward_hooks)) for module in modules]
        self.objects: dict[int, tuple[Any, Any]] = {}
        for _, attributes in self.attributes:
            for name in CONTAINERS:
                self.objects[id(attributes[name])] = (attributes[name], attributes[name].copy())
            for name in HOOKS & attributes.keys():
                del attributes[name]
            self._record_contents(value for name, value in attributes.items() if name not in CONTAINERS)
        parameters = [parameter for module in modules for parameter in module._parameters.values() if parameter is not None]
        self.parameters = [(parameter, parameter.data) for parameter in parameters]
        self.buffers = _buffers_with_versions_and_copies(modules)

    def _record_contents(self, values: Iterable[Any]) -> None:
        """Copies the contents of every object with state that can be reached from the values."""
        pending = [value for value in values if _is_collection_or_transformers_object(value)]
        while pending:
            value = pending.pop()
            if id(value) not in self.objects:
                contents = value.copy() if isinstance(value, COLLECTIONS) else vars(value).copy()
                self.objects[id(value)] = (value, contents)
                children = contents.values() if isinstance(contents, dict) else contents
                pending += [child for child in children if _is_collection_or_transformers_object(child)]

    def restore(self) -> None:
        """Puts everything back to the moment of recording; what did not change is not touched."""
        for module, names in self.hooks:
            if len(module._forward_hooks) != len(names):
                _remove_hooks_added_by_transformers(module, names)
        for current, recorded in self.attributes:
            _restore_dict(current, recorded, HOOKS)
        for value, contents in self.objects.values():
            if isinstance(value, (list, set, deque)):
                _restore_collection(value, contents)
            else:
                _restore_dict(value if isinstance(value, dict) else vars(value), contents)
        for parameter, data in self.parameters:
            if parameter.dtype != data.dtype:
                parameter.data = data
        for buffer, version, clone in self.buffers:
            if buffer._version == version:
                continue
            if clone is None:
                raise UnsupportedModel(
                    f"a forward pass wrote into a buffer of shape {tuple(buffer.shape)}, "
                    f"beyond the {CLONED_BYTES >> 20} MiB of buffers that headcount "
                    "copies to put back. The model is changed: load it again, and run the passes on a copy of it."
                )
            with torch.no_grad():
                buffer.copy_(clone)


def _remove_hooks_added_by_transformers(module: nn.Module, recorded_hook_ids: Iterable[int]) -> None:
    """Takes off hooks that transformers added, as it does for good when a pass returns attention maps; a flag on the model says so too."""
    for name in set(module._forward_hooks) - set(recorded_hook_ids):
        if module._forward_hooks[name].__module__.startswith("transformers"):
            for hooks in (module._forward_hooks, module._forward_hooks_with_kwargs, module._forward_hooks_always_called):
                hooks.pop(name, None)


def _buffers_with_versions_and_copies(modules: Iterable[nn.Module]) -> list[tuple[Tensor, int, Tensor | None]]:
    """(buffer, its version, a copy where the sum of sizes allows it); buffers of inference mode have no version and cannot change."""
    buffers = (buffer for module in modules for buffer in module._buffers.values() if buffer is not None)
    writable = [buffer for buffer in buffers if not buffer.is_inference() and not buffer.is_meta]
    budget, copies = CLONED_BYTES, []
    for buffer in sorted(writable, key=lambda buffer: buffer.nbytes):
        budget -= buffer.nbytes
        copies.append((buffer, buffer._version, buffer.detach().clone() if budget >= 0 else None))
    return copies


def _restore_dict(current: dict[Any, Any], recorded: Mapping[Any, Any], names_left_alone: frozenset[str] = frozenset()) -> None:
    """Gives a dictionary its recorded entries, in their order; entries called as in `names_left_alone` stay as they are now."""
    others = {name: current[name] for name in names_left_alone if name in current} if names_left_alone else {}
    now = {name: value for name, value in current.items() if name not in others} if others else current
    same = len(now) == len(recorded) and all(map(operator.is_, now.values(), recorded.values())) and all(map(operator.eq, now, recorded))
    if not same and list(now) == list(recorded):
        current.update(recorded)  # at no moment without its entries, since other threads may read them
    elif not same:
        current.clear()
        current.update({**recorded, **others})


def _restore_collection(current: Any, recorded: Any) -> None:
    """Gives a list, deque or set its recorded members."""
    if isinstance(current, set):
        if current != recorded:
            current.clear()
            current.update(recorded)
    elif len(current) != len(recorded) or not all(map(operator.is_, current, recorded)):
        current.clear()
        current.extend(recorded)


def _feature_caches(model: nn.Module) -> list[tuple[nn.Module, list[Any]]]:
    """The modules of a model that keep results of earlier passes, each with its caches."""
    owners = [module for module in model.modules() if type(module).__name__ in FEATURE_CACHES]
    return [(owner, [getattr(owner, name) for name in FEATURE_CACHES[type(owner).__name__]]) for owner in owners]


def _clear_caches(caches: Iterable[Any]) -> None:
    for features in caches:
        features.cache, features.current_load = OrderedDict(), 0


def clear_feature_caches(model: nn.Module) -> None:
    """Empties what a model keeps of earlier passes; needed wherever weights or gates differ from those of that pass."""
    for _, caches in _feature_caches(model):
        _clear_caches(caches)


@contextmanager
def feature_caches_bypassed(model: nn.Module) -> Iterator[None]:
    """Every pass inside computes all of the model anew, and leaves nothing for passes afterwards; what was kept before comes back."""
    with ExitStack() as stack:
        for owner, caches in _feature_caches(model):
            for features in caches:
                stack.callback(vars(features).update, dict(vars(features)))
            _clear_caches(caches)
            stack.callback(owner.register_forward_pre_hook(lambda *_, caches=caches: _clear_caches(caches)).remove)
        yield


_STATES: SavedStates[ModelState] = SavedStates()


@contextmanager
def preserve(model: nn.Module) -> Iterator[None]:
    """Leaves the model as it was: configuration, attributes, submodules, buffers and modes go back, hooks stay with their handles.

    Inside, results that the model kept from earlier passes are not served. Where several contexts over one model are open, the last to
    close puts back what the first one found.
    """
    with _STATES.saving(model, lambda: ModelState(model), ModelState.restore):
        clear_feature_caches(model)
        yield


def forward_preserving_state(model: nn.Module, inputs: Batch) -> Any:
    """The output of one forward pass, which leaves the model and torch's random numbers as they were."""
    with preserve(model), pass_rng(model, devices=()):
        return model(**inputs)


@contextmanager
def attention_type_restored(model: nn.Module) -> Iterator[None]:
    """For training, whose other changes stay: models that switched to full attention on a short batch switch back afterwards."""
    owners = [module for module in model.modules() if hasattr(module, "set_attention_type") and hasattr(module, "attention_type")]
    types = [owner.attention_type for owner in owners]
    try:
        yield
    finally:
        with fork_rng(()):  # a switch draws weights, and puts the model's own in their place
            for owner, attention_type in zip(owners, types, strict=True):
                owner.set_attention_type(attention_type)  # pyright: ignore[reportCallIssue]


def copy_model(model: nn.Module, *, only: Iterable[nn.Module] | None = None) -> nn.Module:
    """A deep copy whose weights may change: results that the original kept from earlier passes do not come along.

    With `only`, the parameters of all other modules are not copied but shared with the original, so that they may not be written to.
    """
    shared: dict[int, Any] = {}
    if only is not None:
        shared = {id(parameter): parameter for parameter in model.parameters()}
        for module in only:
            for parameter in module.parameters():
                shared.pop(id(parameter), None)
    duplicate = copy.deepcopy(model, shared)
    clear_feature_caches(duplicate)
    return duplicate
