"""Tiny configurations and models of every registered transformers model type, built in-process."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

import torch
import transformers
from transformers import CONFIG_MAPPING, PretrainedConfig, PreTrainedModel
from transformers.models.auto import modeling_auto

from headcount.core.errors import HeadcountError
from headcount.models.modules import constructor_config_class
from headcount.models.tiny import layers, sizes
from headcount.models.tiny.draw import draw_weights
from headcount.models.tiny.overrides import ARGUMENTS, AUTO, CLASS_OVERRIDES, DEFAULTS, MROPE, OVERRIDES, PARTS, UNDECLARED

# Attributes that older base classes take as keyword arguments, whatever the signature says.
_COMMON = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")
# Bookkeeping, and names of stages that `out_indices` already says.
_DROPPED = {
    "transformers_version",
    "architectures",
    "dtype",
    "id2label",
    "label2id",
    "_name_or_path",
    "model_type",
    "output_attentions",
    "output_hidden_states",
    "return_dict",
    "_out_features",
    "_out_indices",
    "out_features",
}
_TOKEN = re.compile(r"(token_ids?|token_index|_start_id|_end_id|_id|bos_id|eos_id)$")

# Best class first: the first mapping that holds the type decides.
_AUTO = (
    "AutoModelForSeq2SeqLM",
    "AutoModelForSpeechSeq2Seq",
    "AutoModelForImageTextToText",
    "AutoModelForMultimodalLM",
    "AutoModelForCTC",
    "AutoModelForZeroShotImageClassification",
    "AutoModelForMaskedLM",
    "AutoModelForCausalLM",
    "AutoModelForImageClassification",
    "AutoModelForVideoClassification",
    "AutoModelForAudioClassification",
    "AutoModel",
)


class ShrinkError(HeadcountError, ValueError):
    """A model type of which no tiny model can be built."""


@cache
def model_classes() -> list[type[PreTrainedModel]]:
    """Every model class that transformers exports or that one of its auto classes builds, without the abstract ones, by name.

    Imports every modeling module of transformers, which takes about twenty seconds.
    """
    names = {name for name in dir(transformers) if name[0].isupper()}
    names |= {name for by_auto in _class_names_by_type_and_auto_class().values() for name in by_auto.values()}
    exported = [getattr(transformers, name, None) for name in sorted(names)]
    models = [cls for cls in exported if isinstance(cls, type) and issubclass(cls, PreTrainedModel) and cls.config_class is not None]
    return list({cls.__name__: cls for cls in models if not cls.__name__.endswith("PreTrainedModel")}.values())


def tiny_config(
    model_type: str | type[PretrainedConfig],
    overrides: Mapping[str, Any] = MappingProxyType({}),
    class_overrides: Mapping[str, Any] = MappingProxyType({}),
) -> PretrainedConfig:
    """The type's default configuration with few layers, 6 heads of 8 where possible, and no dropout.

    The type is a registered name or a configuration class. ``overrides`` replace attributes of the small configuration,
    ``class_overrides`` dotted attributes as in `CLASS_OVERRIDES`.
    """
    if isinstance(model_type, str) and model_type not in CONFIG_MAPPING:
        raise ShrinkError(f"no model type {model_type!r} in this version of transformers")
    config_class = CONFIG_MAPPING[model_type] if isinstance(model_type, str) else model_type
    name = model_type if isinstance(model_type, str) else model_type.model_type or model_type.__name__
    try:
        default = config_class(**DEFAULTS.get(name, {}))
        unknown = [key for key in overrides if not hasattr(default, key) and key not in UNDECLARED.get(default.model_type, ())]
        if unknown:
            raise ShrinkError(f"{default.model_type}: its configuration has no attribute {', '.join(unknown)} to override")
        return _shrink_config(
            default, _map_special_ids_into_small_vocabulary(default), {**OVERRIDES.get(name, {}), **class_overrides, **overrides}
        )
    except ShrinkError:
        raise
    except Exception as error:
        raise ShrinkError(f"{name}: the configuration does not shrink: {_format_error(error)}") from error


def tiny_config_of_class(
    model_class: type[PreTrainedModel],
    overrides: Mapping[str, Any] = MappingProxyType({}),
    model_type: str | None = None,
) -> PretrainedConfig:
    """The small configuration that a model class is built from: that of its type, or the part of it that the constructor takes.

    ``overrides`` replace attributes of the whole; ``model_type`` is the registered type where several share the class.
    """
    config_class = model_class.config_class
    assert config_class is not None
    config = tiny_config(model_type or config_class, overrides, CLASS_OVERRIDES.get(model_class.__name__, {}))
    if model_class.__name__ in PARTS:
        return getattr(config, PARTS[model_class.__name__])
    parts = [part for part in _subconfigs(config).values() if type(part) is constructor_config_class(model_class)]
    return parts[0] if parts else config


def tiny_model(
    model_type: str,
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
    attn: str | None = None,
    auto: str | None = None,
    **overrides: Any,
) -> PreTrainedModel:
    """A tiny model in eval mode whose weights are drawn by ``seed`` and leave no head without effect.

    ``auto`` names the auto class, such as "AutoModelForSequenceClassification"; without it the most natural class with
    logits is taken, or the base model. ``attn`` is the attention implementation, ``overrides`` go to `tiny_config`.
    """
    cls = model_class(model_type, auto)
    return build_model(cls, tiny_config_of_class(cls, overrides, model_type), seed=seed, dtype=dtype, attn=attn)


def build_model(
    model_class: type[PreTrainedModel],
    config: PretrainedConfig,
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
    attn: str | None = None,
) -> PreTrainedModel:
    """A model of a class and a small configuration, in eval mode, with weights drawn by ``seed``."""
    options = ARGUMENTS.get(model_class.__name__, {}) | ({} if attn is None else {"attn_implementation": attn})
    if dtype is torch.float64:
        # The grouped matrix product of the default expert implementation has no float64 kernel.
        options["experts_implementation"] = "eager"
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = model_class._from_config(config, dtype=dtype, **options)
    except Exception as error:
        raise ShrinkError(
            f"{config.model_type or type(config).__name__}: {model_class.__name__} does not build: {_format_error(error)}"
        ) from error
    draw_weights(model, torch.Generator().manual_seed(seed))
    # Tables that the model computes in single precision follow its weights to double, as they do under `model.double()`.
    return (model.double() if dtype is torch.float64 else model).eval()


def model_class(model_type: str, auto_class_name: str | None = None) -> type[PreTrainedModel]:
    """The class that builds the type: the one ``auto_class_name`` maps it to, or the most natural one."""
    classes = _class_names_by_type_and_auto_class().get(model_type, {})
    if auto_class_name is not None and auto_class_name not in classes:
        raise ShrinkError(f"{model_type}: {auto_class_name} has no class for it. Known: {', '.join(sorted(classes)) or 'none'}")
    auto_class_name = auto_class_name or AUTO.get(model_type)
    order = [auto_class_name] if auto_class_name else [*(a for a in _AUTO if a in classes), *classes]
    if not order:
        raise ShrinkError(f"{model_type}: no auto class builds it")
    name = classes[order[0]]
    try:
        return getattr(transformers, name)
    except (AttributeError, ImportError) as error:
        raise ShrinkError(f"{model_type}: transformers {transformers.__version__} cannot import {name}: {_format_error(error)}") from error


@cache
def _class_names_by_type_and_auto_class() -> dict[str, dict[str, str]]:
    """Model type -> auto class -> class name, for each auto class of transformers."""
    classes: dict[str, dict[str, str]] = {}
    for auto in sorted(name for name in vars(modeling_auto) if name.startswith(("AutoModel", "AutoBackbone"))):
        for model_type, names in getattr(modeling_auto, auto)._model_mapping._model_mapping.items():
            name = names if isinstance(names, str) else names[0]
            classes.setdefault(model_type, {})[auto] = name
    return classes


def _format_error(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def _constructor_arguments(config: PretrainedConfig) -> dict[str, Any]:
    """What the constructor takes, with sub-configurations as objects; derived attributes are left to it."""
    plain = {**config.to_dict(), **_subconfigs(config)}
    accepted = set(inspect.signature(type(config).__init__).parameters)
    accepted |= {name for name in _COMMON if plain.get(name) is not None}
    if hasattr(config, "out_indices"):
        accepted.add("out_indices")
    return {k: v for k, v in plain.items() if k in accepted and k not in _DROPPED}


def _subconfigs(config: PretrainedConfig) -> dict[str, PretrainedConfig]:
    return {k: v for k, v in vars(config).items() if isinstance(v, PretrainedConfig)}


def _walk_configs(config: PretrainedConfig) -> Iterator[PretrainedConfig]:
    yield config
    for child in _subconfigs(config).values():
        yield from _walk_configs(child)


def _map_special_ids_into_small_vocabulary(config: PretrainedConfig) -> dict[int, int]:
    """Special token ids that lie outside the small vocabulary -> free ids at its end."""
    tokens: list[int] = []
    for part in _walk_configs(config):
        for name, value in part.to_dict().items():
            values = value if isinstance(value, (list, tuple)) else [value]
            if _TOKEN.search(name):
                tokens += [v for v in values if isinstance(v, int) and v >= sizes.VOCAB - sizes.SPECIAL]
    unique = list(dict.fromkeys(tokens))
    return {token: sizes.VOCAB - 1 - number for number, token in enumerate(unique)}


def _shrink_config(
    config: PretrainedConfig, new_token_ids: Mapping[int, int], overrides_by_dotted_name: Mapping[str, Any]
) -> PretrainedConfig:
    """The small configuration; ``overrides_by_dotted_name`` maps dotted attributes to values that no rule touches."""
    attributes = _constructor_arguments(config)
    layer_indices = layers.choose_representative_layers(attributes)
    if layer_indices is not None:
        attributes = layers.cut_layer_lists(attributes, layer_indices)
    attributes = layers.cap_layer_counts(attributes, len(layer_indices) if layer_indices else layers.MIN_LAYERS)
    children = {k: v for k, v in attributes.items() if isinstance(v, PretrainedConfig)}
    plain = {k: v for k, v in attributes.items() if k not in children}
    context = {**plain, "has_mrope": bool(MROPE.match(config.model_type))}
    small = {k: _replace_token_ids(k, sizes.small_attribute_value(k, v, context), new_token_ids) for k, v in plain.items()}
    for name, child in children.items():
        child_changes = {
            key.removeprefix(f"{name}."): value for key, value in overrides_by_dotted_name.items() if key.startswith(f"{name}.")
        }
        small[name] = _shrink_config(child, new_token_ids, child_changes).to_dict()
    return type(config)(**small | {k: v for k, v in overrides_by_dotted_name.items() if "." not in k})


def _replace_token_ids(attribute_name: str, value: Any, new_token_ids: Mapping[int, int]) -> Any:
    if not _TOKEN.search(attribute_name):
        return value
    if isinstance(value, (list, tuple)):
        return type(value)(new_token_ids.get(v, v) for v in value)
    return new_token_ids.get(value, value)
