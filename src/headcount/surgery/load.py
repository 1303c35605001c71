"""Loading: a saved model with the head counts it was cut to, bit for bit; nothing of the folder is executed."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from headcount.core.errors import ArtifactError, HeadcountError
from headcount.models.archs import cut_record as record
from headcount.models.head_map import HeadMap
from headcount.surgery import manifest
from headcount.surgery.caches import keep_caches_apart
from headcount.surgery.reshape import cuts_of, reshape
from headcount.surgery.sizes import bounded_build, check_counts
from headcount.surgery.source import HUB_OPTIONS, check_weights, class_of, local_folder, read_config
from headcount.surgery.state import restore_state

Blocks = Mapping[str, record.Kept]


def fit(model: nn.Module, blocks: Blocks) -> None:
    """Removes, from a freshly built model, every head that is not listed; blocks that the configuration already built small are left."""
    values, lists = record.replaced(model), record.read_named(model)
    setattr(model.config, record.KEY, None)
    heads = HeadMap.of(model)
    absolute = {record.relative(model, block.path): block for block in heads.blocks}
    kept: dict[str, tuple[int, ...]] = {}
    columns: dict[str, tuple[int, ...]] = {}
    small: dict[str, record.Kept] = {}
    for path, entry in blocks.items():
        block = absolute.get(path)
        if block is None:
            if any(path.partition(".")[0] == name.partition(".")[0] for name in absolute):
                raise ArtifactError(
                    f"the record of the cut names block '{path}', which {type(model).__name__} does not have; use the config.json that was "
                    "saved with it"
                )
            continue  # a class that holds only part of the model, such as an encoder
        if block.n_heads == len(entry.heads) < entry.of:
            small[path] = entry
            continue
        if block.n_heads != entry.of:
            raise ArtifactError(
                f"block '{path}' is built with {block.n_heads} heads, the record of the cut says {len(entry.heads)} of {entry.of}"
            )
        kept[block.path] = entry.heads
        if entry.columns is not None:
            columns[block.path] = entry.columns
    if kept:
        reshape(model, cuts_of(heads, kept), columns)
    keep_caches_apart(model, heads)
    record.write(model, record.read(model) | small, values)
    if lists:
        record.write_named(model, lists)


def shaped(cls: type, blocks: Blocks) -> type:
    """A subclass that is cut as soon as it is built, before any weights arrive."""

    def post_init(self: Any) -> None:
        cls.post_init(self)  # pyright: ignore[reportAttributeAccessIssue]
        if type(self).__dict__.get("_headcount_shaped"):  # not a sub-model of the same kind
            fit(self, blocks)

    return type(cls.__name__, (cls,), {"post_init": post_init, "__module__": cls.__module__, "_headcount_shaped": True})


def from_pretrained(original: Callable[..., Any], cls: type, folder: Any, blocks: Blocks, *args: Any, **kwargs: Any) -> Any:
    """What `original` (an unbound from_pretrained) loads into a class cut to `blocks`; the result is an instance of the class itself."""
    result = original(shaped(cls, blocks), folder, *args, **kwargs)
    model = result[0] if isinstance(result, tuple) else result
    model.__class__ = cls
    return result


def _in_the_stack(key: str) -> bool:
    """Whether a tensor belongs to numbered layers or embeddings, rather than to a pooler or a task head on top."""
    return "embed" in key or any(part.isdigit() for part in key.split("."))


def _of_an_absent_part(model: nn.Module, key: str) -> bool:
    """Whether a left-over tensor belongs to a part that the class does not have at all, rather than to one of its numbered layers."""
    prefix = getattr(model, "base_model_prefix", "")
    *parts, leaf = key.removeprefix(f"{prefix}.").split(".")
    module = getattr(model, prefix) if prefix and key.startswith(f"{prefix}.") and hasattr(model, prefix) else model
    for part in parts:
        inner = module._modules.get(part)
        if inner is None:
            return not part.isdigit()
        module = inner
    return not parts and not hasattr(module, leaf)


def _made_by_the_class(model: nn.Module, key: str) -> bool:
    """Whether a missing tensor is a fixed table, such as sinusoidal positions, that the class computes itself."""
    try:
        owner = model.get_submodule(key.rpartition(".")[0])
    except AttributeError:
        return False
    return "Sinusoidal" in type(owner).__name__


def _check_loaded(model: nn.Module, info: Mapping[str, Any], folder: Path, new_layers: bool) -> None:
    wrong = {
        problem: sorted(map(str, info.get(problem) or ()))
        for problem in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs")
    }
    if type(model).__name__ not in (getattr(model.config, "architectures", None) or []):  # another class leaves the old head behind
        wrong["unexpected_keys"] = [key for key in wrong["unexpected_keys"] if not _of_an_absent_part(model, key)]
    wrong["missing_keys"] = [key for key in wrong["missing_keys"] if not _made_by_the_class(model, key)]
    if new_layers:
        wrong["missing_keys"] = [key for key in wrong["missing_keys"] if _in_the_stack(key)]
    for problem, found in wrong.items():
        if found:
            raise ArtifactError(
                f"{folder}: weights and configuration do not belong together as {type(model).__name__}: {problem.replace('_', ' ')}: {found[0]}"
                f"{f' and {len(found) - 1} more' if len(found) > 1 else ''}. Nothing is filled in at random, unless new_layers=True (in Python) "
                "asks for a fresh pooler or task head."
            )
    for name, parameter in model.named_parameters():
        if parameter.is_floating_point() and not parameter.is_meta and not bool(torch.isfinite(parameter).all()):
            raise ArtifactError(f"{folder}: tensor '{name}' holds NaN or infinity; the file is damaged, or training diverged")


def load(
    folder: str | Path,
    *,
    auto: Any = None,
    new_layers: bool = False,
    trust_remote_code: bool = False,
    allow_pickle: bool = False,
    **kwargs: Any,
) -> nn.Module:
    """The model in a folder (or hub id), cut or not, as its own class or as an Auto class sees it.

    Hashes and seal are checked where heads.json is there; weights that are missing, left over, mismatched, damaged or not finite are refused,
    except that `new_layers` lets a class start with a fresh pooler or task head that the checkpoint never had. Further arguments (dtype,
    device_map, attn_implementation…) go to transformers' from_pretrained.
    """
    path = local_folder(folder, **{name: kwargs.pop(name) for name in HUB_OPTIONS if name in kwargs}) / (
        kwargs.pop("subfolder", None) or ""
    )
    config = read_config(path, trust_remote_code)
    if config.get("pruned_heads"):
        raise ArtifactError(
            f"{path} was pruned by transformers 4 (config.pruned_heads). Import it: headcount.load_legacy(folder), or on the command line "
            "headcount load-legacy DIR --out NEW"
        )
    listed = manifest.read(path)
    if listed is not None:
        manifest.check_files(path, listed)
    elif config.get(record.KEY):
        warnings.warn(f"{path} has no {manifest.NAME}: its files cannot be checked for damage", stacklevel=2)
    sizes = check_weights(path, allow_pickle, config, kwargs)
    check_counts(path / "config.json", config, sizes)
    cls, blocks = class_of(path, config, auto), record.parse(config.get(record.KEY))
    kwargs = kwargs if allow_pickle else {**kwargs, "use_safetensors": True}
    with bounded_build(path / "config.json", config, sizes, blocks):
        model = load_blocks(path, cls, blocks, new_layers=new_layers, trust_remote_code=trust_remote_code, **kwargs)
    if listed is not None and type(model).__name__ == listed.model_class:
        manifest.check_heads(path, listed, HeadMap.of(model))
    return model


def load_blocks(folder: Path, cls: type, blocks: Blocks, *, new_layers: bool = False, **kwargs: Any) -> nn.Module:
    """A model of some class with the blocks of a record, its weights checked for completeness."""
    original = _unpatched()
    options = {"dtype": "auto", **kwargs, "output_loading_info": True}
    if not options.get("trust_remote_code"):
        options.pop("trust_remote_code", None)
    try:
        result = from_pretrained(original, cls, folder, blocks, **options) if blocks else original(cls, folder, **options)
    except (HeadcountError, torch.OutOfMemoryError, MemoryError):
        raise
    except Exception as error:  # configurations and weights that do not fit make transformers fail in any way it likes
        reason = " ".join(str(error).split())[:400]
        if "ignore_mismatched_sizes" in reason:
            reason = "its tensors have other shapes than its config.json builds"
        raise ArtifactError(
            f"{folder} cannot be loaded as {cls.__name__}: {reason}. Use config.json and weights that were saved together"
        ) from error
    model, info = result
    _check_loaded(model, info, folder, new_layers)
    restore_state(model, folder, options["dtype"])
    _align(model)
    return model


def _align(model: nn.Module) -> None:
    """Moves tensors that lie across cache lines, as files map them: kernels round differently there, and a reload should repeat every bit."""
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.device.type == "cpu" and tensor.data_ptr() % 64:
            tensor.data = tensor.data.clone()


def _unpatched() -> Callable[..., Any]:
    from transformers import PreTrainedModel

    function = PreTrainedModel.from_pretrained.__func__
    return getattr(function, "headcount_original", function)


def register() -> None:
    """Lets plain `AutoModelFor….from_pretrained` load folders of cut models, for the rest of this process. Calling it twice does no harm."""
    from transformers import PreTrainedModel

    original = _unpatched()

    @functools.wraps(original)
    def with_heads(cls: type, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> Any:
        config = kwargs.get("config")
        if config is None and pretrained_model_name_or_path is not None and hasattr(cls, "config_class"):
            where = {name: kwargs[name] for name in (*HUB_OPTIONS, "subfolder") if name in kwargs}
            config = cls.config_class.from_pretrained(pretrained_model_name_or_path, **where)
        blocks = record.parse(getattr(config, record.KEY, None))
        if not blocks or getattr(cls, "_headcount_shaped", False):
            return original(cls, pretrained_model_name_or_path, *args, **kwargs)
        return from_pretrained(original, cls, pretrained_model_name_or_path, blocks, *args, **kwargs)

    with_heads.headcount_original = original  # pyright: ignore[reportAttributeAccessIssue]
    PreTrainedModel.from_pretrained = classmethod(with_heads)  # pyright: ignore[reportAttributeAccessIssue]


def unregister() -> None:
    """Takes back what `register` did."""
    from transformers import PreTrainedModel

    PreTrainedModel.from_pretrained = classmethod(_unpatched())  # pyright: ignore[reportAttributeAccessIssue]
