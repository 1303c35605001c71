"""Loading: a saved model with the head counts it was cut to, bit for bit; nothing of the folder is executed."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from headcount.core.arguments import check_arguments
from headcount.core.errors import (
    ArtifactError,
    HeadcountError,
    OptionError,
    raising_out_of_memory,
    reraise_if_out_of_memory,
    unknown_name_error,
)
from headcount.core.files import is_folder, read_json
from headcount.models.archs import cut_record as record
from headcount.models.head_map import HeadMap
from headcount.models.modules import constructor_config_class
from headcount.models.randomness import fork_rng
from headcount.surgery import manifest, state
from headcount.surgery.caches import install_cache_separation
from headcount.surgery.reshape import apply_cuts, cuts_keeping_positions
from headcount.surgery.sizes import BUILD_LOCK, check_config_counts, limit_built_size
from headcount.surgery.source import check_and_measure_weights, local_folder, model_class_of, read_config
from headcount.surgery.state import restore_unrestored_tensors

CutBlockRecords = Mapping[str, record.CutBlockRecord]
"""What is left of each attention block, by its path relative to the base model."""
LOCATION_OPTIONS = ("revision", "token", "cache_dir", "force_download", "local_files_only", "proxies", "subfolder")
"""Arguments of from_pretrained that say where the files of a model are."""


def cut_to_record(model: nn.Module, block_records: CutBlockRecords) -> None:
    """Removes, from a freshly built model, every head that is not listed; blocks that the configuration already built small are left."""
    values, lists = record.config_values_before_uniform_cut(model), record.read_config_head_pairs_before_cuts(model)
    setattr(model.config, record.KEY, None)
    heads = HeadMap.of(model)
    by_path = {record.path_without_base_prefix(model, block.path): block for block in heads.blocks}
    positions: dict[str, tuple[int, ...]] = {}
    columns: dict[str, tuple[int, ...]] = {}
    built_small: dict[str, record.CutBlockRecord] = {}
    for path, entry in block_records.items():
        block = by_path.get(path)
        if block is None:
            if any(path.partition(".")[0] == name.partition(".")[0] for name in by_path):
                raise ArtifactError(
                    f"the record of the cut names block '{path}', which {type(model).__name__} does not have; use the config.json that was "
                    "saved with it"
                )
            continue  # a class that holds only part of the model, such as an encoder
        if block.n_heads == len(entry.heads) < entry.of:
            built_small[path] = entry
            continue
        if block.n_heads != entry.of:
            raise ArtifactError(
                f"block '{path}' is built with {block.n_heads} heads, the record of the cut says {len(entry.heads)} of {entry.of}"
            )
        positions[block.path] = entry.heads
        if entry.columns is not None:
            columns[block.path] = entry.columns
    if positions:
        apply_cuts(model, cuts_keeping_positions(heads, positions), columns)
    install_cache_separation(model, heads)
    record.write_cut_record(model, record.read_cut_record(model) | built_small, values)
    if lists:
        record.write_config_head_pairs_before_cuts(model, lists)


def make_cut_class(model_class: type, block_records: CutBlockRecords) -> type:
    """Returns a subclass whose instances are cut as soon as they are built, before any weights arrive."""

    def post_init(self: Any) -> None:
        model_class.post_init(self)  # pyright: ignore[reportAttributeAccessIssue]
        if type(self).__dict__.get("_headcount_cut"):  # not a sub-model of the same kind
            cut_to_record(self, block_records)

    return type(
        model_class.__name__, (model_class,), {"post_init": post_init, "__module__": model_class.__module__, "_headcount_cut": True}
    )


def load_into_cut_class(model_class: type, block_records: CutBlockRecords, load_into: Callable[[type], Any]) -> Any:
    """Returns what `load_into` loads into a class that is cut to `block_records`; the model becomes an instance of `model_class` itself."""
    result = load_into(make_cut_class(model_class, block_records))
    model = result[0] if isinstance(result, tuple) else result
    model.__class__ = model_class
    return result


def _belongs_to_part_without_module(model: nn.Module, tensor_name: str) -> bool:
    """Returns whether a left-over tensor belongs to a part that the class does not have at all, rather than to one of its numbered layers."""
    prefix = getattr(model, "base_model_prefix", "")
    *parts, leaf = tensor_name.removeprefix(f"{prefix}.").split(".")
    module = getattr(model, prefix) if prefix and tensor_name.startswith(f"{prefix}.") and hasattr(model, prefix) else model
    for part in parts:
        inner = module._modules.get(part)
        if inner is None:
            return not part.isdigit()
        module = inner
    return not parts and not hasattr(module, leaf)


def _is_computed_by_class(model: nn.Module, tensor_name: str) -> bool:
    """Returns whether a missing tensor is a fixed table, such as sinusoidal positions, that the class computes itself."""
    try:
        owner = model.get_submodule(tensor_name.rpartition(".")[0])
    except AttributeError:
        return False
    return "Sinusoidal" in type(owner).__name__


def _check_loaded_weights(
    model: nn.Module, loading_info: Mapping[str, Iterable[object] | None], folder: Path, allows_new_layers: bool
) -> None:
    """Raises ArtifactError for weights that are missing, left over, mismatched or not finite; `loading_info` is transformers' loading info."""
    keys = {
        problem: sorted(map(str, loading_info.get(problem) or ()))
        for problem in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs")
    }
    if type(model).__name__ not in (getattr(model.config, "architectures", None) or []):  # another class leaves the old head behind
        keys["unexpected_keys"] = [key for key in keys["unexpected_keys"] if not _belongs_to_part_without_module(model, key)]
    keys["missing_keys"] = [key for key in keys["missing_keys"] if not _is_computed_by_class(model, key)]
    if allows_new_layers:  # a fresh pooler or task head has no numbered layers and no embeddings
        keys["missing_keys"] = [key for key in keys["missing_keys"] if "embed" in key or any(part.isdigit() for part in key.split("."))]
    for problem, names in keys.items():
        if names:
            raise ArtifactError(
                f"{folder}: weights and configuration do not belong together as {type(model).__name__}: {problem.replace('_', ' ')}: {names[0]}"
                f"{f' and {len(names) - 1} more' if len(names) > 1 else ''}. Nothing is filled in at random, unless new_layers=True (in Python) "
                "asks for a fresh pooler or task head."
            )
    for name, parameter in model.named_parameters():
        if parameter.is_floating_point() and not parameter.is_meta and not bool(torch.isfinite(parameter).all()):
            raise ArtifactError(f"{folder}: tensor '{name}' holds NaN or infinity; the file is damaged, or training diverged")


@check_arguments
def load(  # noqa: PLR0913 - one argument, the rest by name
    folder: str | Path,
    *,
    auto: Any = None,
    new_layers: bool = False,
    dtype: str | torch.dtype = "auto",
    device_map: Any = None,
    attn_implementation: str | None = None,
    subfolder: str = "",
    revision: str | None = None,
    token: str | bool | None = None,
    cache_dir: str | Path | None = None,
    force_download: bool = False,
    local_files_only: bool = False,
    trust_remote_code: bool = False,
    allow_pickle: bool = False,
    model_kwargs: Mapping[str, object] | None = None,
) -> nn.Module:
    """Loads the model of a folder or hub id, cut or not, bit for bit as it was saved.

    Hashes and seal are checked where heads.json is there. Weights that are missing, left over, mismatched, damaged or not finite are refused.
    Nothing of the folder is executed.

    Args:
        folder: A folder with config.json and weights, a hub id, or an embedded model, `demo/NAME`.
        auto: An Auto class of transformers or its name, such as "AutoModelForMaskedLM"; None for the class that saved the model.
        new_layers: Whether the class may start with a fresh pooler or task head that the checkpoint never had.
        dtype: The dtype of the weights, by name or as a torch.dtype; "auto" for the stored one.
        device_map: Where the layers go, as in transformers.
        attn_implementation: The attention implementation, such as "eager" or "sdpa"; None for the default of the class.
        subfolder: The folder of the model inside `folder`.
        revision: The branch, tag or commit of a hub repository.
        token: The access token of a private hub repository.
        cache_dir: Where downloads are stored.
        force_download: Whether to download again what is stored already.
        local_files_only: Whether to refuse downloads.
        trust_remote_code: Whether to run code that the folder brings; only if you trust its author.
        allow_pickle: Whether to read weights in pickle format, which can run code; only if you trust their author.
        model_kwargs: Further arguments of transformers' `from_pretrained`, such as {"experts_implementation": "eager"}.

    Returns:
        The model, on its device and in the mode that transformers loads it in (eval).

    Raises:
        ArtifactError: the folder is no model, is damaged, asks for code or pickles that are not allowed, or was pruned by transformers 4.
        UnknownName: `auto` or `dtype` names nothing.

    Example:
        >>> model = hc.load("smaller")
        >>> model = hc.load("smaller", auto="AutoModelForMaskedLM", dtype="bfloat16")
    """
    options = build_from_pretrained_arguments(
        dtype, model_kwargs=model_kwargs, device_map=device_map, attn_implementation=attn_implementation
    )
    root = local_folder(
        folder, revision=revision, token=token, cache_dir=cache_dir, force_download=force_download, local_files_only=local_files_only
    )
    path = root / subfolder
    config = read_config(path, trust_remote_code)
    if config.get("pruned_heads"):
        raise ArtifactError(
            f"{path} was pruned by transformers 4 (config.pruned_heads). Import it with headcount.load_legacy(folder), or on the command "
            "line with headcount load-legacy"
        )
    listed = read_checked_manifest(path, is_cut=bool(config.get(record.KEY)))
    sizes = check_and_measure_weights(path, allow_pickle, config, options)
    check_config_counts(path / "config.json", config, sizes)
    cls, blocks = model_class_of(path, config, auto), record.parse_cut_record(config.get(record.KEY))
    options |= ({} if allow_pickle else {"use_safetensors": True}) | ({"trust_remote_code": True} if trust_remote_code else {})
    with raising_out_of_memory(f"loading {path}"), limit_built_size(path / "config.json", config, sizes, blocks):
        model = load_with_record(path, cls, blocks, options, new_layers=new_layers)
    if listed is not None and type(model).__name__ == listed.model_class:
        manifest.check_heads_match(path, listed, HeadMap.of(model))
    return model


def read_checked_manifest(folder: Path, is_cut: bool) -> manifest.Manifest | None:
    """Returns the manifest of a folder that is as `save` wrote it; None, with a warning for a cut model, where transformers alone wrote it.

    Raises ArtifactError for files that are damaged, missing or foreign, and for a heads.state that no heads.json ties to the weights.
    """
    listed = manifest.read_manifest(folder)
    if listed is not None:
        manifest.check_files_match(folder, listed)
    elif (folder / state.NAME).is_file():
        raise ArtifactError(
            f"{folder} has {state.NAME} but no {manifest.NAME}, so nothing says that it belongs to these weights; restore {manifest.NAME}, or save "
            f"the model again. Remove {state.NAME} to load what transformers alone reads"
        )
    elif is_cut:
        warnings.warn(
            f"{folder} has no {manifest.NAME}, as where transformers saved a cut model: its files cannot be checked for damage, and padding rows "
            "and buffers that transformers does not restore are as it makes them",
            stacklevel=3,
        )
    return listed


def build_from_pretrained_arguments(
    dtype: str | torch.dtype,
    *,
    model_kwargs: Mapping[str, object] | None = None,
    device_map: Any = None,
    attn_implementation: str | None = None,
) -> dict[str, object]:
    """Returns arguments of from_pretrained; raises OptionError if `model_kwargs` holds an argument of `load`, or proxies, which have no effect."""
    if isinstance(dtype, str) and dtype != "auto" and not isinstance(getattr(torch, dtype, None), torch.dtype):
        raise unknown_name_error("dtype", dtype, ("auto", "float64", "float32", "bfloat16", "float16"))
    if not isinstance(dtype, str | torch.dtype):
        raise OptionError(f"dtype is a torch.dtype, its name, or 'auto'; got {dtype!r}")
    own = sorted(set(model_kwargs or {}) & set(inspect.signature(load).parameters))
    if own:
        raise OptionError(f"{own[0]} is an argument of load; pass it by itself, not in model_kwargs")
    if "proxies" in (model_kwargs or {}):
        raise OptionError("proxies has no effect on downloads from the hub; set the environment variable HTTPS_PROXY instead")
    named = {"device_map": device_map, "attn_implementation": attn_implementation}
    return {"dtype": dtype, **{name: value for name, value in named.items() if value is not None}, **(model_kwargs or {})}


def load_with_record(
    folder: Path,
    model_class: type,
    block_records: CutBlockRecords,
    from_pretrained_arguments: Mapping[str, object],
    *,
    new_layers: bool = False,
) -> nn.Module:
    """Returns a model of a class with the blocks of a record, bit for bit as saved; `from_pretrained_arguments` are arguments of from_pretrained."""
    model = _load_and_check_weights(folder, model_class, block_records, from_pretrained_arguments, new_layers=new_layers)
    _restore_exact_state(model, folder, from_pretrained_arguments["dtype"])
    return model


def load_by_plain_transformers(saved_model: nn.Module, folder: Path) -> nn.Module:
    """Returns what plain from_pretrained gives of a folder, with the kernels and on the device of `saved_model`, which was saved there."""
    kernels = {name: getattr(saved_model.config, f"_{name}", None) for name in ("attn_implementation", "experts_implementation")}
    with fork_rng(()):  # models are built with random weights first
        plain = _load_and_check_weights(
            folder, type(saved_model), {}, {name: value for name, value in kernels.items() if value is not None}
        )
    return plain.to(next(saved_model.parameters()).device)


def _load_and_check_weights(
    folder: Path,
    model_class: type,
    block_records: CutBlockRecords,
    from_pretrained_arguments: Mapping[str, object],
    *,
    new_layers: bool = False,
) -> nn.Module:
    """Returns what transformers loads into a class with the blocks of a record; raises ArtifactError unless all weights are right."""
    original = _original_from_pretrained()

    def load_into(loaded_class: type) -> Any:
        return original(loaded_class, folder, **from_pretrained_arguments, output_loading_info=True)

    try:
        reader = _class_that_reads_saved_type(model_class, read_json(folder / "config.json").get("model_type"))
        with BUILD_LOCK:
            model, loading_info = load_into_cut_class(reader, block_records, load_into) if block_records else load_into(reader)
        if reader is not model_class:
            model.__class__ = model_class
    except HeadcountError:
        raise
    except Exception as error:  # transformers raises many kinds of errors for configurations and weights that do not fit
        reraise_if_out_of_memory(error)
        reason = " ".join(str(error).split())[:400]
        if "ignore_mismatched_sizes" in reason:
            reason = "its tensors have other shapes than its config.json builds"
        raise ArtifactError(
            f"{folder} cannot be loaded as {model_class.__name__}: {reason}. Use config.json and weights that were saved together"
        ) from error
    _check_loaded_weights(model, loading_info, folder, new_layers)
    return model


def _class_that_reads_saved_type(model_class: type, saved_type: object) -> type:
    """Returns the class, or, where it takes a part of its family's configuration and such a part was saved, a subclass that reads that part."""
    taken = constructor_config_class(model_class)
    parts = getattr(getattr(model_class, "config_class", None), "sub_configs", {}).values()
    if not saved_type or taken not in parts or getattr(taken, "model_type", None) != saved_type:
        return model_class
    return type(model_class.__name__, (model_class,), {"config_class": taken, "__module__": model_class.__module__})


def _restore_exact_state(model: nn.Module, folder: Path, requested_dtype: Any) -> None:
    """Puts back what transformers did not restore from a folder, and moves tensors to addresses at which kernels round alike."""
    restore_unrestored_tensors(model, folder, requested_dtype)
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.device.type == "cpu" and tensor.data_ptr() % 64:  # kernels round differently across cache lines, as files map tensors
            tensor.data = tensor.data.clone()


def _local_folder_if_saved(name_or_folder: str, location_options: Mapping[str, Any]) -> Path | None:
    """Returns a local folder, or the hub snapshot of a model that `save` wrote; None for other models of the hub."""
    if is_folder(Path(name_or_folder)):
        return Path(name_or_folder, location_options.get("subfolder", ""))
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError

    for file in (manifest.NAME, state.NAME):
        try:
            hf_hub_download(name_or_folder, file, **{key: value for key, value in location_options.items() if key != "proxies"})
        except EntryNotFoundError:
            continue
        folder_options = {key: value for key, value in location_options.items() if key not in ("proxies", "subfolder")}
        return local_folder(name_or_folder, **folder_options) / location_options.get("subfolder", "")
    return None


def _original_from_pretrained() -> Callable[..., Any]:
    from transformers import PreTrainedModel

    function = PreTrainedModel.from_pretrained.__func__
    return getattr(function, "headcount_original", function)


def register() -> None:
    """Lets plain `from_pretrained` of transformers, and with it `pipeline`, load cut models, and all that `save` wrote, bit for bit.

    Files of a folder that `save` wrote are checked as `load` checks them. It holds for the rest of this process. Calling it twice does no harm;
    `unregister` takes it back.

    Example:
        >>> hc.register()
        >>> model = AutoModelForMaskedLM.from_pretrained("smaller")
    """
    from transformers import PreTrainedModel

    original = _original_from_pretrained()

    @functools.wraps(original)
    def from_pretrained_with_cuts(cls: type, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> Any:
        config = kwargs.get("config")
        location = {name: kwargs[name] for name in LOCATION_OPTIONS if name in kwargs}
        dtype = kwargs.get("dtype", kwargs.get("torch_dtype"))
        folder = None if pretrained_model_name_or_path is None else _local_folder_if_saved(str(pretrained_model_name_or_path), location)
        if config is None and pretrained_model_name_or_path is not None and hasattr(cls, "config_class"):
            config = cls.config_class.from_pretrained(pretrained_model_name_or_path, **location)
        blocks = record.parse_cut_record(getattr(config, record.KEY, None))
        listed = None if folder is None else read_checked_manifest(folder, is_cut=bool(blocks))
        if not blocks or getattr(cls, "_headcount_cut", False):
            result = original(cls, pretrained_model_name_or_path, *args, **kwargs)
        else:
            result = load_into_cut_class(
                cls, blocks, lambda loaded_class: original(loaded_class, pretrained_model_name_or_path, *args, **kwargs)
            )
        if folder is not None and listed is not None:
            _restore_exact_state(result[0] if isinstance(result, tuple) else result, folder, dtype)
        return result

    from_pretrained_with_cuts.headcount_original = original  # pyright: ignore[reportAttributeAccessIssue]
    PreTrainedModel.from_pretrained = classmethod(from_pretrained_with_cuts)  # pyright: ignore[reportAttributeAccessIssue]


def unregister() -> None:
    """Takes back what `register` did."""
    from transformers import PreTrainedModel

    PreTrainedModel.from_pretrained = classmethod(_original_from_pretrained())  # pyright: ignore[reportAttributeAccessIssue]
