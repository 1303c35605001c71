"""Model folders that lead transformers to a pickle, or declare sizes that their weights do not hold: refused before anything is read or allocated."""

from __future__ import annotations

import json
import os
import pickle
import resource
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import headcount as hc
from headcount.core.errors import ArtifactError
from headcount.models.tiny.build import tiny_model
from headcount.surgery.sizes import SLACK


class Trap:
    """A pickle that leaves a folder behind when it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.path),)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hostile") / "model"
    tiny_model("bert", dtype=torch.float32, auto="AutoModelForSequenceClassification").save_pretrained(folder)
    return folder


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "model"))


def change(path: Path, **values: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def to_pickle(folder: Path, name: str = "pytorch_model.bin") -> None:
    """Replaces the safetensors file of a model by a pickle of the same weights."""
    torch.save(load_file(folder / "model.safetensors"), folder / name)
    (folder / "model.safetensors").unlink()


def decoy(folder: Path) -> dict[str, object]:
    to_pickle(folder)
    save_file({"x": torch.zeros(1)}, folder / "other.safetensors")
    return {}


def index_of_pickles(folder: Path) -> dict[str, object]:
    names = list(load_file(folder / "model.safetensors"))
    to_pickle(folder, "shard.bin")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": dict.fromkeys(names, "shard.bin")}))
    return {}


def index_of_pickles_beside_a_decoy(folder: Path) -> dict[str, object]:
    names = list(load_file(folder / "model.safetensors"))
    to_pickle(folder, "shard.bin")
    save_file({"x": torch.zeros(1)}, folder / "decoy.safetensors")
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"metadata": {}, "weight_map": dict.fromkeys(names, "shard.bin")}))
    return {}


def explicit_file(folder: Path) -> dict[str, object]:
    shutil.copy(folder / "model.safetensors", folder / "kept.safetensors")
    to_pickle(folder, "adapter_model.bin")
    (folder / "kept.safetensors").rename(folder / "model.safetensors")
    change(folder / "config.json", transformers_weights="adapter_model.bin")
    return {}


def variant(folder: Path) -> dict[str, object]:
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.fp16.bin")
    return {"model_kwargs": {"variant": "fp16"}}


def asked_for(folder: Path) -> dict[str, object]:
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    return {"model_kwargs": {"use_safetensors": False}}


def in_a_subfolder(folder: Path) -> dict[str, object]:
    inner = folder / "inner"
    shutil.copytree(folder, inner)
    to_pickle(inner)
    save_file({"x": torch.zeros(1)}, inner / "other.safetensors")
    return {"subfolder": "inner"}


def with_the_header_of_another_framework(folder: Path) -> dict[str, object]:
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    save_file(load_file(folder / "model.safetensors"), folder / "tf_model.safetensors", metadata={"format": "tf"})
    (folder / "model.safetensors").unlink()
    return {}


WAYS = [decoy, index_of_pickles, index_of_pickles_beside_a_decoy, explicit_file, variant, asked_for, in_a_subfolder,
        with_the_header_of_another_framework]  # fmt: skip


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_no_way_leads_to_a_pickle(folder: Path, way: Callable[[Path], dict[str, object]], tmp_path: Path) -> None:
    options = way(folder)
    for path in folder.rglob("*.bin"):
        path.write_bytes(pickle.dumps(Trap(tmp_path / "sprung")))
    with pytest.raises(ArtifactError, match=r"is a pickle, which can run code.*allow_pickle=True"):
        hc.load(folder, **options)
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("way", [decoy, index_of_pickles, variant, asked_for], ids=lambda way: way.__name__)
def test_pickles_are_read_where_they_are_allowed(saved: Path, folder: Path, way: Callable[[Path], dict[str, object]]) -> None:
    expected = hc.load(saved).state_dict()
    actual = hc.load(folder, allow_pickle=True, **way(folder)).state_dict()
    assert all(torch.equal(expected[name], actual[name]) for name in expected)


def test_a_pickle_that_is_not_read_does_no_harm(folder: Path, tmp_path: Path) -> None:
    (folder / "training_args.bin").write_bytes(pickle.dumps(Trap(tmp_path / "sprung")))
    (folder / "optimizer.pt").write_bytes(pickle.dumps(Trap(tmp_path / "sprung")))
    hc.load(folder)
    assert not (tmp_path / "sprung").exists()


def test_a_distributed_checkpoint_is_refused(folder: Path) -> None:
    shutil.copy(folder / "model.safetensors", folder / "shard-00000-model-00001-of-00001.safetensors")
    with pytest.raises(ArtifactError, match="part of a distributed checkpoint; gather it"):
        hc.load(folder)


SIZES = {
    "num_labels": (10**12, "num_labels may be at most 262144, got 1000000000000; use the config.json"),
    "num_labels ": (10**5, "num_labels may be at most .*, since no tensor of the weights has a dimension above"),
    "vocab_size": (
        10**10,
        r"declares a model of more than .* elements, but its weights hold .*vocab_size 10000000000\); use the config.json",
    ),
    "hidden_size": (48 * 10**6, "declares a model of more than .*hidden_size 48000000"),
    "max_position_embeddings": (10**10, "declares a model of more than .*max_position_embeddings 10000000000"),
    "type_vocab_size": (10**10, "declares a model of more than .*type_vocab_size 10000000000"),
    "intermediate_size": (10**10, "declares a model of more than .*intermediate_size 10000000000"),
    "num_hidden_layers": (1000, "num_hidden_layers may be at most .*, since the weights hold .* tensors, got 1000"),
    "num_attention_heads": (10**7, "num_attention_heads may be at most .*, got 10000000"),
}


@pytest.mark.parametrize("name", SIZES)
def test_a_declared_size_is_bounded_by_the_weights(folder: Path, name: str) -> None:
    value, message = SIZES[name]
    config = json.loads((folder / "config.json").read_text())
    for other in ("id2label", "label2id"):
        config.pop(other, None)
    (folder / "config.json").write_text(json.dumps({**config, name.strip(): value}))
    before = peak_memory()
    with pytest.raises(ArtifactError, match=message):
        hc.load(folder)
    assert peak_memory() - before < 64 * 2**20


def peak_memory() -> int:
    """Bytes of memory that this process had at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def test_the_bound_holds_for_checkpoints_of_transformers_4(folder: Path) -> None:
    change(folder / "config.json", pruned_heads={"0": [1]}, vocab_size=10**12)
    with pytest.raises(ArtifactError, match="declares a model of more than"):
        hc.load_legacy(folder)


def test_other_threads_may_build_what_they_like(folder: Path) -> None:
    """The bound is that of the thread that loads."""
    import threading

    from headcount.surgery.sizes import WeightSizes, limit_built_size

    errors: list[Exception] = []

    def build() -> None:
        try:
            with torch.device("meta"):
                torch.nn.Linear(2**14, 2**14)
        except Exception as error:
            errors.append(error)

    with limit_built_size(folder / "config.json", {}, WeightSizes(0, 0, 0), {}):
        thread = threading.Thread(target=build)
        thread.start()
        thread.join()
        assert not errors and SLACK < 2**28
        with pytest.raises(ArtifactError, match="declares a model of more than"), torch.device("meta"):
            torch.nn.Linear(2**14, 2**14)
    with torch.device("meta"):
        torch.nn.Linear(2**14, 2**14)


@pytest.mark.parametrize("content", ['{"num_beams": 1000000000}', "[1]", "{"])
def test_a_generation_config_is_bounded(folder: Path, content: str) -> None:
    (folder / "generation_config.json").write_text(content)
    with pytest.raises(ArtifactError, match=r"generation_config.json"):
        hc.load(folder)


@pytest.mark.parametrize("size", [{"height": 10**9, "width": 10**9}, 10**9, {"shortest_edge": 10**9}])
def test_the_size_of_pictures_is_bounded(tmp_path: Path, size: object) -> None:
    from headcount.data.readers.processor import tokenizer_or_image_processor

    model = tiny_model("vit", dtype=torch.float32)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"image_processor_type": "ViTImageProcessor", "size": size}))
    with pytest.raises(ArtifactError, match=r"preprocessor_config.json: size.* may be at most .*, got 1000000000; use the one that came"):
        tokenizer_or_image_processor(model, tmp_path)
