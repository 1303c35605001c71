"""Saving: safetensors, configuration, heads.json and a model card, in a folder that appears only when it is complete."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn

from headcount import __version__
from headcount.core.arguments import check_arguments
from headcount.core.errors import ArtifactError, UnsupportedModel, reraise_if_out_of_memory
from headcount.core.folders import new_folder
from headcount.models.archs import cut_record as record
from headcount.models.head_map import HeadMap
from headcount.models.ownership import holds_model
from headcount.models.state import preserve
from headcount.surgery import manifest
from headcount.surgery.card import format_card
from headcount.surgery.config import config_builds_same_model, head_map_built_by_config
from headcount.surgery.cost import Cost
from headcount.surgery.named_heads import config_head_pairs_of_dense_model
from headcount.surgery.state import write_unrestored_tensors

COMPANIONS = ("tokenizer*", "vocab*", "merges.txt", "special_tokens_map.json", "added_tokens.json", "spiece.model", "sentencepiece*", "source.spm",
              "target.spm", "preprocessor_config.json", "processor_config.json", "chat_template*", "normalizer.json")  # fmt: skip
"""Files of a model folder that belong to its tokenizer or processor."""
MAX_SHARD_SIZE = "50GB"
"""The largest weight file unless another size is asked for, as in transformers."""


def _copy_tokenizer_files(source_folder: Path, target_folder: Path) -> None:
    for pattern in COMPANIONS:
        for path in sorted(source_folder.glob(pattern)):
            if path.is_file() and not (target_folder / path.name).exists():
                _check_link_stays_inside(path)
                shutil.copyfile(path, target_folder / path.name)


def _check_link_stays_inside(path: Path) -> None:
    """Refuses a link that leads out of a model folder: what it points to would be copied, and published with the model."""
    folder = path.parent.resolve()
    blobs = folder.parent.parent / "blobs"  # hub snapshots link to their blobs
    real = path.resolve()
    if not real.is_relative_to(folder) and not (folder.parent.name == "snapshots" and real.is_relative_to(blobs)):
        raise ArtifactError(
            f"{path} links to {real}, outside its folder, so it is not copied; put the file itself there, or remove the link"
        )


@check_arguments
@holds_model("saving")
def save(  # noqa: PLR0913 - two arguments, the rest by name
    model: nn.Module,
    folder: str | Path,
    *,
    tokenizer: Any = None,
    notes: Sequence[str] = (),
    command: str | None = None,
    cost: tuple[Cost, Cost] | None = None,
    max_shard_size: int | str = MAX_SHARD_SIZE,
    push_to_hub: str | None = None,
    overwrite: bool = False,
) -> Path:
    """Writes a model, cut or not, so that `load` restores it bit for bit.

    The folder holds safetensors, configuration, `heads.json` with a hash of every file, and a model card. It appears when it is complete.

    Args:
        model: A transformers model; adapters must be merged first.
        folder: The folder to write: new, empty, or with `overwrite` one that headcount wrote before.
        tokenizer: A tokenizer or processor, whose files are written too; or the folder of a model, whose tokenizer files are copied.
        notes: Sentences about the model, for the model card.
        command: The command line that made the model, for the model card.
        cost: The costs of the model before and after its cut, for the model card.
        max_shard_size: The largest weight file, such as "2GB"; more weights are split into several files.
        push_to_hub: The hub repository that receives the folder, such as "me/model".
        overwrite: Whether to replace what headcount wrote there before.

    Returns:
        The folder.

    Raises:
        ArtifactError: the folder holds something else, or a tokenizer file links out of its folder.
        UnsupportedModel: the model is no transformers model, has an unmerged adapter, or is a part of a cut model.

    Example:
        >>> hc.save(small, "smaller", tokenizer=tokenizer, notes=["Fine-tuned on SST-2."])
        >>> small = hc.load("smaller")
    """
    check_savable(model, tokenizer)
    if push_to_hub is not None and not isinstance(push_to_hub, str):
        raise UnsupportedModel(f"push_to_hub names the repository that receives the folder, such as 'me/model'; got {push_to_hub!r}")
    if isinstance(notes, str):
        raise ArtifactError(f"notes is a list of sentences; got a text, {notes!r:.40}. Write notes=[…]")
    heads = HeadMap.of(model)
    _check_not_part_of_cut_model(model, heads)
    target = Path(folder)
    with (
        new_folder(target, overwrite=overwrite, marker_file=manifest.NAME) as fresh,
        preserve(model),
    ):  # transformers writes into configurations
        write_weights(model, fresh, max_shard_size)
        unrestored_names = write_unrestored_tensors(model, fresh)
        write_tokenizer_card_and_manifest(
            model, fresh, heads, tokenizer=tokenizer, notes=notes, command=command, cost=cost, unrestored_names=unrestored_names
        )
    if push_to_hub is not None:
        _push_to_hub(target, push_to_hub)
    return target


def check_savable(model: nn.Module, tokenizer: Any) -> None:
    """Raises UnsupportedModel for an adapter or a model that is not of transformers, ArtifactError for a tokenizer that is none."""
    if hasattr(model, "peft_config"):
        raise UnsupportedModel("the model has an adapter that is not merged; merge it first (model.merge_and_unload()), then save")
    if not hasattr(model, "save_pretrained"):
        raise UnsupportedModel(f"{type(model).__name__} is no transformers model; pass the model inside the wrapper")
    if tokenizer is not None and not isinstance(tokenizer, str | Path) and not hasattr(tokenizer, "save_pretrained"):
        raise ArtifactError(f"tokenizer is a tokenizer, a processor or the folder of one; got {type(tokenizer).__name__}")


def _check_not_part_of_cut_model(model: nn.Module, heads: HeadMap) -> None:
    """Refuses a part of a cut model: its configuration builds other head counts, and the record of the cut belongs to the whole."""
    recorded = record.read_cut_record(model)
    dense = head_map_built_by_config(model)
    counts = {block.path: block.n_heads for block in dense.blocks} if dense else {}
    for block in heads.blocks:
        if record.path_without_base_prefix(model, block.path) not in recorded and counts.get(block.path, block.n_heads) != block.n_heads:
            raise UnsupportedModel(
                f"block '{block.path}' has {block.n_heads} heads, the configuration of {type(model).__name__} builds {counts[block.path]}, and "
                "nothing says which were removed: this is a part of a cut model. Save the whole model, or cut the part by itself"
            )


def write_weights(model: nn.Module, folder: Path, max_shard_size: int | str) -> None:
    """Writes weights and configuration."""
    try:
        model.save_pretrained(folder, max_shard_size=max_shard_size)  # pyright: ignore[reportCallIssue]
    except RuntimeError as error:  # conversions to the layout of the first release count on the dense number of heads
        reraise_if_out_of_memory(error)
        raise UnsupportedModel(
            f"transformers cannot write this {type(model).__name__}: {' '.join(str(error).split())[:300]}. It converts the weights to the layout "
            "of their first release on saving, which a cut of uneven head counts does not have; keep the dense model and the plan"
        ) from error


def write_tokenizer_card_and_manifest(  # noqa: PLR0913 - three arguments, the rest by name
    model: nn.Module,
    folder: Path,
    heads: HeadMap,
    *,
    tokenizer: Any,
    notes: Sequence[str],
    command: str | None,
    unrestored_names: Sequence[str],
    cost: tuple[Cost, Cost] | None = None,
) -> None:
    """Writes tokenizer files, the model card and, last, heads.json with the hashes of all files."""
    if isinstance(tokenizer, str | Path):
        _copy_tokenizer_files(Path(tokenizer), folder)
    elif tokenizer is not None:
        tokenizer.save_pretrained(folder)
    listing = _build_manifest(model, heads, command, cost)
    listing.notes = list(notes)
    card = format_card(listing, config_builds_same_model(model, model.config, heads), unrestored_names)
    (folder / "README.md").write_text(card, encoding="utf-8")
    listing.files = manifest.hash_files(folder)
    manifest.write_manifest(folder, listing)


def _build_manifest(model: nn.Module, heads: HeadMap, command: str | None, cost: tuple[Cost, Cost] | None) -> manifest.Manifest:
    import transformers

    return manifest.Manifest(
        schema_version=manifest.SCHEMA,
        headcount=__version__,
        transformers=transformers.__version__,
        model_class=type(model).__name__,
        model_type=heads.model_type,
        command=command,
        removed=manifest.removed_addresses(heads),
        blocks=manifest.block_entries(heads),
        named_heads=config_head_pairs_of_dense_model(model, heads),
        cost={"before": cost[0].to_dict(), "after": cost[1].to_dict()} if cost else None,
        files={},
    )


def _push_to_hub(folder: Path, repository: str) -> None:
    """Uploads a saved folder, model card included, to a hub repository, which is created if need be."""
    from huggingface_hub import HfApi

    api = HfApi()
    api.create_repo(repository, exist_ok=True)
    api.upload_folder(repo_id=repository, folder_path=folder, commit_message="Add a model with fewer attention heads")
