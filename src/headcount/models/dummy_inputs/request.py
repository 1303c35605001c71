"""What the makers of probe inputs share: the model, the sizes asked for, and a look into nested configurations."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

# Positions at the end of every example but the first that are padding.
N_PADDED = 2
_TOKEN = re.compile(r"(token_ids?|token_index|_start_id|_end_id|bos_id|eos_id)$")


@dataclass(slots=True)
class Probe:
    """A batch in the making; `inputs` grows in the order of the makers."""

    model: nn.Module
    batch: int
    length: int
    generator: torch.Generator
    arguments: dict[str, inspect.Parameter]
    inputs: dict[str, Any] = field(default_factory=dict)

    @property
    def config(self) -> Any:
        """The model's configuration."""
        return self.model.config

    @property
    def model_type(self) -> str:
        """The registered name of the architecture, or the class name of a model without one."""
        return getattr(getattr(self.model, "config", None), "model_type", "") or type(self.model).__name__

    def first_config_value(self, *names: str, default: Any = None) -> Any:
        """The value of the first name that some part of the configuration sets, outermost part first."""
        for name in names:
            for part in config_parts(self.config):
                value = getattr(part, name, None)
                if value is not None:
                    return value
        return default

    def takes_any_of(self, *argument_names: str) -> bool:
        """Whether the forward pass has one of the arguments."""
        return any(name in self.arguments for name in argument_names)

    def normal_floats(self, *shape: int) -> Tensor:
        """Standard normal values."""
        return torch.randn(shape, generator=self.generator, dtype=torch.float64)

    def integers(self, low: int, stop: int, *shape: int) -> Tensor:
        """Uniform integers in low..high - 1."""
        return torch.randint(low, max(stop, low + 1), shape, generator=self.generator)

    def ones(self, *shape: int) -> Tensor:
        """Integer ones, as masks want them."""
        return torch.ones(shape, dtype=torch.long)

    def ordinary_ids(self, vocabulary_size: int, *shape: int) -> Tensor:
        """Ordinary token ids: none that the configuration gives a meaning."""
        ordinary = torch.ones(vocabulary_size, dtype=torch.bool)
        ordinary[[t for t in special_token_ids(self.config) if 0 <= t < vocabulary_size]] = False
        ids = ordinary.nonzero().flatten()
        return ids[self.integers(0, len(ids), *shape)]

    def model_method(self, name: str) -> Callable[..., Any] | None:
        """The model's method of that name, taken from its innermost owner since wrappers hide its signature."""
        for owner in (getattr(self.model, "model", None), getattr(self.model, "base_model", None), self.model):
            if hasattr(owner, name):
                return getattr(owner, name)
        return None

    def call_with_inputs(self, function: Callable[..., Any]) -> Any:
        """The function's result on what was made so far, its other arguments as the configuration has them."""
        accepted = inspect.signature(function).parameters
        settings = {k: getattr(self.config, k) for k in accepted if hasattr(self.config, k)}
        return function(**settings, **{k: v for k, v in self.inputs.items() if k in accepted})


InputMaker = Callable[[Probe], Any]


def config_parts(config: Any) -> Iterator[Any]:
    """The configuration and its sub-configurations, outermost first."""
    queue = [config]
    while queue:
        part = queue.pop(0)
        yield part
        queue += [v for v in vars(part).values() if hasattr(v, "to_dict") and hasattr(v, "model_type")]


def special_token_ids(config: Any) -> set[int]:
    """Every token id that some part of the configuration names."""
    tokens: set[int] = set()
    for part in config_parts(config):
        for name, value in vars(part).items():
            if _TOKEN.search(name):
                tokens |= {v for v in (value if isinstance(value, (list, tuple)) else [value]) if isinstance(v, int)}
    return tokens
