"""Where a model comes from: its folder or hub id, its raw configuration, its weights and its class, each checked before anything is built."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from headcount.core.errors import ArtifactError, HeadcountError, UnsupportedModel, unknown_name_error
from headcount.core.files import is_file, read_json
from headcount.core.folders import finish_replacement
from headcount.core.tensor_files import read_tensor_shapes
from headcount.surgery.sizes import WeightSizes, check_config_counts

Built = TypeVar("Built")
EMBEDDED = Path(__file__).parents[1] / "data" / "embedded" / "models"
"""The models that come with the package."""


def _embedded_model_names() -> list[str]:
    """Returns the names of the embedded models, such as `demo/encoder`."""
    return sorted(f"demo/{path.parent.name}" for path in EMBEDDED.glob("*/config.json"))


def embedded_folder(name: str | Path) -> Path | None:
    """Returns the folder of an embedded model, which `demo/NAME` names; None for other names."""
    owner, _, model = str(name).partition("/")
    known = _embedded_model_names()
    if owner != "demo" or not known:
        return None
    if str(name) not in known:
        raise unknown_name_error("embedded model", str(name), known)
    return EMBEDDED / model


def local_folder(
    name: str | Path,
    *,
    revision: str | None = None,
    token: str | bool | None = None,
    cache_dir: str | Path | None = None,
    force_download: bool = False,
    local_files_only: bool = False,
) -> Path:
    """Returns the folder of a model: a path, an embedded model, or the downloaded snapshot of a hub id (no pickles, no code).

    `demo/NAME` is the embedded model, unless a folder of that name holds a model: `demo` may be a folder of results.
    """
    path = Path(name)
    finish_replacement(path)
    try:
        if path.is_dir() and (str(name) not in _embedded_model_names() or is_file(path / "config.json")):
            return path
        exists = path.exists()
    except (OSError, ValueError):  # longer than a file system takes, or no text
        exists = True
    if (folder := embedded_folder(name)) is not None:
        return folder
    if exists or str(name).startswith((".", "/", "~")):
        raise ArtifactError(f"{name!s:.200} is no folder; name a folder with config.json and weights, or a hub id")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    patterns = ["*.json", "*.safetensors", "*.txt", "*.model", "*.md", "*.jinja", "*.spm", "*.codes", "*.tokenizer", "heads.state"]
    try:
        snapshot = snapshot_download(
            str(name),
            allow_patterns=patterns,
            revision=revision,
            token=token,
            cache_dir=cache_dir,
            force_download=force_download,
            local_files_only=local_files_only,
        )
    except (HFValidationError, HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise ArtifactError(f"'{name}' is neither a folder nor a hub id that can be fetched: {error}") from error
    return Path(snapshot)


PICKLES = ("*.bin", "*.pt", "*.pth", "*.pkl", "*.pickle", "*.ckpt", "*.distcp")
SAFE = ".safetensors"
SAFE_INDEX = f"{SAFE}.index.json"
DISTRIBUTED = "shard-*-model-*-of-*.safetensors"
MAX_BEAMS = 1024


def check_and_measure_weights(
    folder: Path, allow_pickle: bool, config: Mapping[str, object], from_pretrained_arguments: Mapping[str, object]
) -> WeightSizes:
    """Returns the sizes of a folder's weights; raises ArtifactError for missing and damaged files, and for pickles that are not allowed.

    `from_pretrained_arguments` are the arguments of from_pretrained that choose files (variant, use_safetensors, target_lang).
    """
    shapes = {f"{path.name} {name}": shape for path in sorted(folder.glob(f"*{SAFE}")) for name, shape in read_tensor_shapes(path).items()}
    shards = {path.name: _list_index_shards(path) for path in sorted(folder.glob("*.index.json"))}
    if (folder / "adapter_config.json").exists():  # transformers would go where that file says
        raise ArtifactError(
            f"{folder} holds an adapter (adapter_config.json), not a model; merge it (model.merge_and_unload()) and save that"
        )
    _check_generation_config(folder)
    pickles = sorted({path for pattern in PICKLES for path in folder.glob(pattern)})
    choice = _choose_weight_file(folder, config, from_pretrained_arguments)
    read, why = choice.file_name, choice.reason
    if read is None and not pickles:
        raise ArtifactError(f"{folder} holds no weights: no {SAFE} file{why}; put them there, or name another folder")
    shards_read = shards.get(read, []) if read is not None else []
    unsafe = (
        pickles[0].name if read is None else next((name for name in (read, *shards_read) if not name.endswith((SAFE, SAFE_INDEX))), None)
    )
    if (
        unsafe is None
        and from_pretrained_arguments.get("target_lang")
        and not (folder / f"adapter.{from_pretrained_arguments['target_lang']}{SAFE}").is_file()
    ):
        unsafe = f"adapter.{from_pretrained_arguments['target_lang']}.bin"
    if unsafe is not None and not allow_pickle:
        raise ArtifactError(
            f"{folder / unsafe} is a pickle, which can run code when read{why}. Convert it to safetensors, or allow it "
            "(allow_pickle=True) if you trust it."
        )
    return WeightSizes.from_tensor_shapes(shapes, sum(path.stat().st_size for path in pickles) if unsafe is not None else 0)


class WeightFileChoice(NamedTuple):
    """The file that transformers would read, None if that is a pickle or there is none; and why, for a message."""

    file_name: str | None
    reason: str


def _choose_weight_file(folder: Path, config: Mapping[str, object], from_pretrained_arguments: Mapping[str, object]) -> WeightFileChoice:
    """Returns the weight file that transformers would read; raises ArtifactError for a distributed checkpoint."""
    distributed = sorted(folder.glob(DISTRIBUTED))
    if distributed:  # read before anything else, by way of a pickled index
        raise ArtifactError(f"{distributed[0]} is part of a distributed checkpoint; gather it into one model (save_pretrained) first")
    explicit = config.get("transformers_weights")
    if explicit is not None:
        if not isinstance(explicit, str) or Path(explicit).name != explicit:
            raise ArtifactError(
                f"{folder / 'config.json'}: transformers_weights must name a file in its folder, got {explicit!r:.60}; use the config.json "
                "that came with the weights"
            )
        return WeightFileChoice(explicit, ", and transformers_weights in config.json names it")
    if from_pretrained_arguments.get("use_safetensors") is False:
        return WeightFileChoice(None, ", and use_safetensors=False asks for it")
    variant = from_pretrained_arguments.get("variant")
    for name in (f"model{SAFE}", f"model{SAFE_INDEX}"):
        stem, _, ending = name.rpartition(".")
        named = f"{stem}.{variant}.{ending}" if variant else name
        if (folder / named).is_file():
            return WeightFileChoice(named, "")
    others = sorted(path.name for path in folder.glob(f"*{SAFE}"))
    why = f" under a name that is read (model{SAFE}, model{SAFE_INDEX}{f', variant {variant}' if variant else ''})"
    return WeightFileChoice(None, f"{why}, only {others[0]}" if others else "")


def _list_index_shards(index_file: Path) -> list[str]:
    """Returns the shards of an index; raises ArtifactError if it names files outside its folder, or missing ones."""
    content = read_json(index_file)
    shards = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(shards, dict):
        raise ArtifactError(f"{index_file} must hold a weight_map from tensors to files; fetch it again, with the weights")
    files = list(dict.fromkeys(map(str, shards.values())))
    for shard in files:
        if Path(shard).name != shard:
            raise ArtifactError(f"{index_file} names a file outside its folder: {shard!r:.80}; fetch it again from where it came")
        if not (index_file.parent / shard).is_file():
            raise ArtifactError(f"{index_file} names {shard!r:.80}, which is not there; fetch all shards of the model")
    return files


def _check_generation_config(folder: Path) -> None:
    """Raises ArtifactError for a generation_config.json that is no object, or that asks for more than MAX_BEAMS beams."""
    path = folder / "generation_config.json"
    content = read_json(path) if path.exists() else {}
    if not isinstance(content, dict):
        raise ArtifactError(f"{path} must hold an object, got {type(content).__name__}; use the one that came with the weights")
    for name in ("num_beams", "num_beam_groups", "num_return_sequences"):
        if type(content.get(name)) is int and content[name] > MAX_BEAMS:
            raise ArtifactError(
                f"{path}: {name} may be at most {MAX_BEAMS}, got {content[name]!r:.30}; use the generation_config.json that came with the weights"
            )


def _find_remote_code_field(config: Mapping[str, object], name_prefix: str = "") -> str | None:
    """Returns the field of a configuration that asks for code from outside transformers: classes of its own, or kernels of a hub repository."""
    for name, value in config.items():
        if name == "auto_map":
            return f"{name_prefix}{name}"
        implementations = value.values() if isinstance(value, dict) else [value]
        if name.endswith(("attn_implementation", "experts_implementation")) and any(
            "/" in str(implementation) for implementation in implementations
        ):
            return f"{name_prefix}{name}: {value!r:.60}"
        if isinstance(value, dict) and name.endswith("config") and (field := _find_remote_code_field(value, f"{name_prefix}{name}.")):
            return field
    return None


def read_config(folder: Path, trust_remote_code: bool = False) -> dict[str, object]:
    """Returns the raw configuration of a model folder; raises ArtifactError if it asks for code of its own that is not trusted."""
    config = read_json(folder / "config.json")
    if not isinstance(config, dict):
        raise ArtifactError(
            f"{folder / 'config.json'} must hold an object, got {type(config).__name__}; use the one that came with the weights"
        )
    check_config_counts(folder / "config.json", config)
    if (field := _find_remote_code_field(config)) is not None and not trust_remote_code:
        raise ArtifactError(
            f"{folder / 'config.json'} asks for remote code ({field}). Allow it (trust_remote_code=True) only if you trust its author."
        )
    return config


def _resolve_auto_class(class_or_name: Any) -> Any:
    """Returns an Auto class of transformers from itself or its name."""
    import transformers

    known = [name for name in dir(transformers) if name.startswith("AutoModel")]
    if isinstance(class_or_name, str) and class_or_name not in known:
        raise unknown_name_error("Auto class of transformers", class_or_name, known)
    auto_class = getattr(transformers, class_or_name) if isinstance(class_or_name, str) else class_or_name
    if not hasattr(auto_class, "_model_mapping"):
        raise UnsupportedModel(
            f"auto must be an Auto class of transformers, or its name, such as 'AutoModelForCausalLM'; got {class_or_name!r}"
        )
    return auto_class


def _load_remote_class(folder: Path, auto_map: Any, class_or_name: Any) -> type:
    from transformers.dynamic_module_utils import get_class_from_dynamic_module

    names = [name for name in auto_map if name.startswith("AutoModel")] if isinstance(auto_map, dict) else []
    requested = getattr(class_or_name, "__name__", class_or_name) or next(iter(names), None)
    if requested not in names:
        raise UnsupportedModel(f"{folder / 'config.json'} brings code for {', '.join(names) or 'no model'}, not for {requested}")
    return get_class_from_dynamic_module(auto_map[requested], str(folder))


def build_from_config(folder: Path, built_name: str, build: Callable[[], Built]) -> Built:
    """Returns what `build` builds from a folder's config.json; wraps any error of the configuration class in ArtifactError."""
    try:
        return build()
    except HeadcountError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split())[:300]
        raise ArtifactError(f"{folder / 'config.json'} builds no {built_name}: {type(error).__name__}: {reason}. Correct it") from error


def _find_unexported_class(model_type: Any, class_name: str) -> type | None:
    """Returns a class that transformers has but does not export, such as the decoder of a sequence-to-sequence model."""
    from transformers import CONFIG_MAPPING, PreTrainedModel

    if not isinstance(model_type, str) or model_type not in CONFIG_MAPPING:
        return None
    package = CONFIG_MAPPING[model_type].__module__.rpartition(".")[0]
    for module in pkgutil.iter_modules(importlib.import_module(package).__path__):
        if module.name.startswith("modeling_"):
            cls = getattr(importlib.import_module(f"{package}.{module.name}"), class_name, None)
            if isinstance(cls, type) and issubclass(cls, PreTrainedModel):
                return cls
    return None


def model_class_of(folder: Path, config: Mapping[str, object], auto: Any = None) -> type:
    """Returns the transformers class that a folder's model has, or that an Auto class gives it."""
    import transformers

    if "auto_map" in config:  # allowed by read_config before we came here
        return _load_remote_class(folder, config["auto_map"], auto)
    if auto is not None:
        auto = _resolve_auto_class(auto)
        kind = build_from_config(folder, "configuration", lambda: transformers.AutoConfig.from_pretrained(folder))
        if type(kind) not in auto._model_mapping:
            raise UnsupportedModel(f"{auto.__name__} has no class for the model type '{config.get('model_type')}'")
        classes = auto._model_mapping[type(kind)]
        return classes[0] if isinstance(classes, tuple | list) else classes
    architectures = config.get("architectures")
    name = architectures[0] if isinstance(architectures, list) and architectures else architectures
    cls = getattr(transformers, name, None) or _find_unexported_class(config.get("model_type"), name) if isinstance(name, str) else None
    if not isinstance(cls, type) or not issubclass(cls, transformers.PreTrainedModel):
        raise UnsupportedModel(
            f"{folder / 'config.json'} names the architecture {name!r:.80}, which transformers "
            f"{transformers.__version__} does not have; pass auto='AutoModel…'"
        )
    return cls
