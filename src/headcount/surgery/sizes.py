"""Sizes that a configuration may declare: bounded by what the weights on disk hold, and checked before anything of that size is built."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import NamedTuple

from torch import Tensor, nn
from torch.nn.modules import module as modules

from headcount.core.errors import ArtifactError
from headcount.models.archs import names
from headcount.models.archs.cut_record import CutBlockRecord

MAX_LAYERS, MAX_SIZE, MAX_LABELS = 1024, 2**40, 2**18
"""The largest counts that a configuration may state whatever the weights are."""
LAYER_COUNTS = ("layers", "n_layer", "depth", "depths", "num_blocks", "num_stages", "codebooks")
"""How names of configuration fields end whose value is a number of modules."""
FEW, FEW_LAYERS, FEW_LABELS = 64, 128, 2**15
"""A model may have so many heads, layers (which may share their weights) and labels (a base model has no weights for them), however little its
weights hold."""
TIMES, SLACK = 6, 2**27
"""A model may have so many times the elements of its weights while it is built (an embedding that several modules share is stored once), and so
many beyond: masks, position tables, a fresh task head."""
MAX_RATIO = 64
"""A cut model is built at full size before its heads are removed; it may be so many times larger then."""
REMEDY = "use the config.json that came with the weights"
BUILD_LOCK = threading.RLock()
"""Held while a model is built or loaded: transformers sets torch's default dtype, and `limit_built_size` registers hooks, for all threads."""


class WeightSizes(NamedTuple):
    """What weight files hold: number of tensors, elements of all of them, and the largest dimension of any."""

    tensors: int
    elements: int
    largest: int

    @classmethod
    def from_tensor_shapes(cls, shapes: Mapping[str, tuple[int, ...]], pickled_bytes: int = 0) -> WeightSizes:
        """The sizes of tensors by name, and of pickles by their bytes alone: they are not opened to be measured."""
        elements = sum(prod(shape) for shape in shapes.values()) + pickled_bytes
        largest = max((size for shape in shapes.values() for size in shape), default=0)
        return cls(len(shapes) + pickled_bytes, elements, max(largest, pickled_bytes))


def check_config_counts(config_file: Path, config: Mapping[str, object], weights: WeightSizes | None = None, name_prefix: str = "") -> None:
    """Raises ArtifactError for numbers of layers, heads or labels that no model has, or more than its weights can hold."""
    for name, value in config.items():
        if isinstance(value, dict) and name.endswith("config"):
            check_config_counts(config_file, value, weights, f"{name_prefix}{name}.")
        for number in value if isinstance(value, list) else [value]:
            if type(number) is int:
                _check_config_count(config_file, f"{name_prefix}{name}", name, number, weights)


def _check_config_count(config_file: Path, dotted_name: str, name: str, value: int, weights: WeightSizes | None) -> None:
    if value < 1 and name in (*names.HEAD_COUNTS, *names.KV_COUNTS, "num_hidden_layers", "hidden_size"):
        raise ArtifactError(f"{config_file}: {dotted_name} must be at least 1, got {value}; {REMEDY}")
    is_layers = name.endswith(LAYER_COUNTS) and not name.startswith("max_")
    most = MAX_LAYERS if is_layers else MAX_LABELS if name == "num_labels" else MAX_SIZE
    if value > most:
        raise ArtifactError(f"{config_file}: {dotted_name} may be at most {most}, got {value!r:.30}; {REMEDY}")
    if weights is None:
        return
    if is_layers:
        limit, reason = max(weights.tensors, FEW_LAYERS), f"the weights hold {weights.tensors} tensors"
    elif name == "num_labels" or name in (*names.HEAD_COUNTS, *names.KV_COUNTS) or name.endswith("experts"):
        few = FEW_LABELS if name == "num_labels" else FEW
        limit, reason = max(weights.largest, few), f"no tensor of the weights has a dimension above {weights.largest}"
    else:
        return
    if value > limit:
        raise ArtifactError(f"{config_file}: {dotted_name} may be at most {limit}, since {reason}, got {value!r:.30}; {REMEDY}")


@contextmanager
def limit_built_size(
    config_file: Path, config: Mapping[str, object], weights: WeightSizes, block_records: Mapping[str, CutBlockRecord]
) -> Iterator[None]:
    """Raises ArtifactError in the context as soon as a model is built, on the meta device, that is far larger than its weights.

    transformers builds a model there before it allocates memory, so nothing of a declared size was allocated when this raises.
    """
    ratio = min(max((entry.of / max(1, len(entry.heads)) for entry in block_records.values()), default=1.0), MAX_RATIO)
    packed = 16 if "quantization_config" in config else 1  # several numbers in an element
    limit = int(TIMES * weights.elements * ratio * packed) + SLACK
    total, thread = 0, threading.get_ident()
    counted: dict[tuple[int, str], int] = {}

    def add_to_total_or_raise(owner: nn.Module, name: str, tensor: Tensor | None) -> None:
        nonlocal total
        if tensor is None or not tensor.is_meta or threading.get_ident() != thread:
            return
        total += tensor.numel() - counted.get((id(owner), name), 0)
        counted[id(owner), name] = tensor.numel()
        if total > limit:
            shape = tuple(tensor.shape)
            declared = [f"{title} {value}" for title, value in _whole_config_numbers(config) if value in shape]
            cause = f" ({', '.join(declared[:4])})" if declared else ""
            raise ArtifactError(
                f"{config_file} declares a model of more than {limit:,} elements, but its weights hold {weights.elements:,}: '{name}' of "
                f"{type(owner).__name__} would have the shape {shape}{cause}; {REMEDY}"
            )

    with BUILD_LOCK:
        hooks = (
            modules.register_module_parameter_registration_hook(add_to_total_or_raise),
            modules.register_module_buffer_registration_hook(add_to_total_or_raise),
        )
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()


def _whole_config_numbers(config: Mapping[str, object], name_prefix: str = "") -> Iterator[tuple[str, int]]:
    """Every whole number of a configuration by its name."""
    for name, value in config.items():
        if isinstance(value, dict) and name.endswith("config"):
            yield from _whole_config_numbers(value, f"{name_prefix}{name}.")
        elif type(value) is int:
            yield f"{name_prefix}{name}", value
