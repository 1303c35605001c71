"""After `register`, plain from_pretrained loads the cut models of every family; without it, it refuses them."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import transformers
from packaging.version import Version

import headcount as hc
from headcount.core.errors import ArtifactError
from headcount.models.dummy_inputs.text import probe_inputs
from headcount.models.tiny.build import tiny_model
from headcount.models.tiny.families import VARIANTS, family_variant
from headcount.surgery.cut import cut
from headcount.surgery.load import unregister
from headcount.surgery.verify import forward_outputs, largest_relative_difference
from headcount.testing.laws import Subject, cast_with_padding_rows, emptying_plan, require_same_model, uneven_plan

SIGLIP_CUTS = Version("5.8")


@pytest.mark.parametrize("name", [v.name for v in VARIANTS])
@pytest.mark.parametrize("shape", ["uneven", "first block empty"])
def test_plain_loading_needs_register(name: str, shape: str, tmp_path: Path) -> None:
    if name == "gemma3" and Version(transformers.__version__) < SIGLIP_CUTS:
        pytest.skip("SigLIP of this release reshapes by the model width")
    model = family_variant(name).build()
    blocks = Subject.of(model).cuttable
    small = cut(model, uneven_plan(blocks) if shape == "uneven" else emptying_plan(blocks[0]))
    folder = hc.save(small, tmp_path / "out")
    kernels = {"experts_implementation": "eager"} if name == "gpt_oss" else {}
    if any(block.n_heads < block.n_original for block in hc.HeadMap.of(small).blocks) and "replaced" not in small.config.headcount:
        with pytest.raises(RuntimeError):
            type(model).from_pretrained(folder, **kernels)
    hc.register()
    try:
        again = type(model).from_pretrained(folder, **kernels)
    finally:
        unregister()
    batch = probe_inputs(model)
    assert type(again) is type(model)
    assert hc.HeadMap.of(again).heads == hc.HeadMap.of(small).heads
    assert largest_relative_difference(forward_outputs(again, batch), forward_outputs(small, batch)) < 1e-9


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("model_type", ["kosmos-2", "youtu", "llama", "chinese_clip"])
@pytest.mark.parametrize("is_cut", [True, False])
def test_casts_and_padding_rows_come_back(model_type: str, dtype: torch.dtype, is_cut: bool, tmp_path: Path) -> None:
    """Plain loading ignored heads.state: outputs differed by .117 (Kosmos-2), .011 (Youtu), .0099 (LLaMA) and .007 (ChineseCLIP)."""
    model = cast_with_padding_rows(tiny_model(model_type), dtype)
    if is_cut:
        model = cut(model, uneven_plan(Subject.of(model).cuttable))
    folder = hc.save(model, tmp_path / "model")
    batch = probe_inputs(model)
    hc.register()
    try:
        for options in ({}, {"dtype": "auto"}, {"dtype": dtype}):
            require_same_model(model, type(model).from_pretrained(folder, **options), batch)
        again, _ = type(model).from_pretrained(folder, output_loading_info=True)
    finally:
        unregister()
    require_same_model(model, again, batch)
    require_same_model(model, hc.load(folder, dtype=dtype), batch)


@pytest.fixture
def registered() -> Iterator[None]:
    hc.register()
    yield
    unregister()


@pytest.fixture
def saved(tmp_path: Path) -> tuple[torch.nn.Module, Path]:
    """A cut model with casts and padding rows that only heads.state holds, and its folder."""
    model = cast_with_padding_rows(tiny_model("kosmos-2"), torch.bfloat16)
    small = cut(model, uneven_plan(Subject.of(model).cuttable))
    return small, hc.save(small, tmp_path / "model")


def flip_a_bit(model: torch.nn.Module, folder: Path) -> None:
    content = bytearray((folder / "model.safetensors").read_bytes())
    content[-3] ^= 64
    (folder / "model.safetensors").write_bytes(content)


def train_on(model: torch.nn.Module, folder: Path) -> None:
    """New weights over the old ones, by transformers alone: heads.json and heads.state are those of the old ones."""
    trained = copy.deepcopy(model)
    for parameter in trained.parameters():
        parameter.data.mul_(1.5)
    trained.save_pretrained(folder)  # pyright: ignore[reportCallIssue]


def lose_the_manifest(model: torch.nn.Module, folder: Path) -> None:
    (folder / "heads.json").unlink()


def train_on_and_lose_the_manifest(model: torch.nn.Module, folder: Path) -> None:
    train_on(model, folder)
    lose_the_manifest(model, folder)


def lose_the_state(model: torch.nn.Module, folder: Path) -> None:
    (folder / "heads.state").unlink()


@pytest.mark.parametrize("change", [flip_a_bit, train_on, lose_the_manifest, train_on_and_lose_the_manifest, lose_the_state])
@pytest.mark.usefixtures("registered")
def test_plain_loading_refuses_what_load_refuses(saved: tuple[torch.nn.Module, Path], change: Callable[..., None]) -> None:
    """A damaged file was loaded; over newly trained weights the padding row of the old ones was put (outputs differed by .061), by load too."""
    model, folder = saved
    change(model, folder)
    for load in (type(model).from_pretrained, hc.load):
        with pytest.raises(ArtifactError, match=r"heads\.json"):
            load(folder)


@pytest.mark.usefixtures("registered")
def test_a_cut_model_that_transformers_saved_is_loaded_with_a_warning(saved: tuple[torch.nn.Module, Path], tmp_path: Path) -> None:
    model, _ = saved
    model.save_pretrained(tmp_path / "checkpoint")  # pyright: ignore[reportCallIssue]
    for load in (type(model).from_pretrained, hc.load):
        with pytest.warns(UserWarning, match=r"no heads\.json"):
            assert hc.HeadMap.of(load(tmp_path / "checkpoint")).heads == hc.HeadMap.of(model).heads


@pytest.mark.usefixtures("registered")
def test_a_model_of_the_hub_comes_back_bit_for_bit(saved: tuple[torch.nn.Module, Path], tmp_path: Path) -> None:
    """A repository in the cache, as the hub's own library keeps it: blobs are files here, where it has links."""
    model, folder = saved
    home = tmp_path / "cache" / "models--me--model"
    shutil.copytree(folder, home / "snapshots" / "0" / "part")
    (home / "refs").mkdir()
    (home / "refs" / "main").write_text("0")
    options = {"cache_dir": tmp_path / "cache", "local_files_only": True}
    again = type(model).from_pretrained("me/model", subfolder="part", dtype="auto", **options)
    require_same_model(model, again, probe_inputs(model))
    train_on(model, home / "snapshots" / "0" / "part")
    with pytest.raises(ArtifactError, match=r"heads\.json"):
        type(model).from_pretrained("me/model", subfolder="part", **options)
