"""Where a model comes from: its folder or hub id, its raw configuration, its weights and its class, each checked before anything is built."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headcount.archs import names
from headcount.errors import ArtefactError, UnsupportedModel
from headcount.files import check_safetensors, read_json
from headcount.registry import unknown

HUB_OPTIONS = ("revision", "token", "cache_dir", "force_download", "local_files_only", "proxies")
"""Arguments of from_pretrained that say where a hub id comes from."""


EMBEDDED = Path(__file__).parents[1] / "demo" / "models"
"""The models that come with the package."""


def embedded(name: str | Path) -> Path | None:
    """The folder of an embedded model, which `demo/NAME` names."""
    owner, _, model = str(name).partition("/")
    if owner != "demo" or not EMBEDDED.is_dir():
        return None
    known = sorted(path.name for path in EMBEDDED.iterdir() if (path / "config.json").is_file())
    if model not in known:
        raise unknown("embedded model", str(name), [f"demo/{each}" for each in known])
    return EMBEDDED / model


def local_folder(name: str | Path, **hub: Any) -> Path:
    """The folder of a model: a path, an embedded model, or the downloaded snapshot of a hub id (no pickles, no code)."""
    path = Path(name)
    if path.is_dir():
        return path
    if (folder := embedded(name)) is not None:
        return folder
    if path.exists() or str(name).startswith((".", "/", "~")):
        raise ArtefactError(f"{name} is no folder; name a folder with config.json and weights, or a hub id")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    patterns = ["*.json", "*.safetensors", "*.txt", "*.model", "*.md", "*.jinja"]
    try:
        return Path(snapshot_download(str(name), allow_patterns=patterns, **hub))
    except (HFValidationError, HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise ArtefactError(f"'{name}' is neither a folder nor a hub id that can be fetched: {error}") from error


def check_weights(folder: Path, allow_pickle: bool) -> None:
    """Refuses a folder without weights, with damaged ones, or with pickles that nobody allowed."""
    tensors = sorted(folder.glob("*.safetensors"))
    for path in tensors:
        check_safetensors(path)
    pickles = sorted(folder.glob("pytorch_model*.bin"))
    if not tensors and pickles and not allow_pickle:
        raise ArtefactError(
            f"{pickles[0]} is a pickle, which can run code when read. Convert it to safetensors, or allow it (allow_pickle=True, "
            "--allow-pickle) if you trust it."
        )
    if not tensors and not pickles:
        raise ArtefactError(f"{folder} holds no weights: no .safetensors file")


def _check_counts(path: Path, config: dict[str, Any], part: str = "") -> None:
    """Refuses numbers of heads or layers that no model has, before they reach its arithmetic."""
    for name, value in config.items():
        if isinstance(value, dict) and name.endswith("config"):
            _check_counts(path, value, f"{part}{name}.")
        elif name in (*names.HEAD_COUNTS, *names.KV_COUNTS, "num_hidden_layers", "hidden_size") and type(value) is int and value < 1:
            raise ArtefactError(f"{path}: {part}{name} must be at least 1, got {value}")


def read_config(folder: Path, trust_remote_code: bool = False) -> dict[str, Any]:
    """The raw configuration of a model folder; refuses one that asks for code of its own."""
    config = read_json(folder / "config.json")
    if not isinstance(config, dict):
        raise ArtefactError(f"{folder / 'config.json'} must hold an object, got {type(config).__name__}")
    _check_counts(folder / "config.json", config)
    if "auto_map" in config and not trust_remote_code:
        raise ArtefactError(
            f"{folder / 'config.json'} asks for remote code (auto_map). Allow it (trust_remote_code=True, --trust-remote-code) "
            "only if you trust its author."
        )
    return config


def _auto_class(auto: Any) -> Any:
    import transformers

    known = [name for name in dir(transformers) if name.startswith("AutoModel")]
    if isinstance(auto, str) and auto not in known:
        raise unknown("Auto class of transformers", auto, known)
    found = getattr(transformers, auto) if isinstance(auto, str) else auto
    if not hasattr(found, "_model_mapping"):
        raise UnsupportedModel(f"auto must be an Auto class of transformers, or its name, such as 'AutoModelForCausalLM'; got {auto!r}")
    return found


def _remote_class(folder: Path, auto_map: Any, auto: Any) -> type:
    from transformers.dynamic_module_utils import get_class_from_dynamic_module

    names = [name for name in auto_map if name.startswith("AutoModel")] if isinstance(auto_map, dict) else []
    wanted = getattr(auto, "__name__", auto) or next(iter(names), None)
    if wanted not in names:
        raise UnsupportedModel(f"{folder / 'config.json'} brings code for {', '.join(names) or 'no model'}, not for {wanted}")
    return get_class_from_dynamic_module(auto_map[wanted], str(folder))


def class_of(folder: Path, config: dict[str, Any], auto: Any = None) -> type:
    """The transformers class that a folder's model has, or that an Auto class gives it."""
    import transformers

    if "auto_map" in config:  # allowed by read_config before we came here
        return _remote_class(folder, config["auto_map"], auto)
    if auto is not None:
        auto = _auto_class(auto)
        kind = transformers.AutoConfig.from_pretrained(folder)
        if type(kind) not in auto._model_mapping:
            raise UnsupportedModel(f"{auto.__name__} has no class for the model type '{config.get('model_type')}'")
        found = auto._model_mapping[type(kind)]
        return found[0] if isinstance(found, tuple | list) else found
    wanted = config.get("architectures") or []
    cls = getattr(transformers, str(wanted[0]), None) if wanted else None
    if cls is None:
        raise UnsupportedModel(
            f"{folder / 'config.json'} names the architecture {wanted[0] if wanted else None!r}, which transformers "
            f"{transformers.__version__} does not have; pass auto='AutoModel…'"
        )
    return cls
