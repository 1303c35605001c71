"""Models that must be refused: files cut short, headers that lie, pickles, foreign and missing weights."""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from bad_kit import Call, Kit, as_nobody, case, change, line, tensor

import headcount as hc
from headcount.core.files import add_seal, json_bytes


class Bomb:
    """A pickle that leaves a file behind when it is read."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, ("/tmp/headcount-was-here",)


@case("models", "its header promises", "fetch it again")
def truncated_weights(kit: Kit) -> Call:
    return kit.weights((kit.stock.plain() / "model.safetensors").read_bytes()[:-8])


@case("models", "its 100 bytes do not hold the header that they announce", "fetch it again")
def truncated_header(kit: Kit) -> Call:
    return kit.weights((kit.stock.plain() / "model.safetensors").read_bytes()[:100])


@case("models", "its 0 bytes do not hold the header that they announce", "fetch it again")
def empty_weights(kit: Kit) -> Call:
    return kit.weights(b"")


@case("models", "its 7 bytes do not hold the header that they announce", "fetch it again")
def weights_of_seven_bytes(kit: Kit) -> Call:
    return kit.weights(b"1234567")


@case("models", "its 1720 bytes do not hold the header that they announce", "fetch it again")
def text_as_weights(kit: Kit) -> Call:
    return kit.weights(b"<!doctype html><title>404 Not Found</title>" * 40)


@case("models", "has a header of 104857600 bytes", "Split the model into shards")
def header_of_100_megabytes(kit: Kit) -> Call:
    folder = kit.plain()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", 100 * 2**20))
        file.truncate(120 * 2**20)
    return lambda: hc.load(folder)


@case("models", "its 10 bytes do not hold the header that they announce", "fetch it again")
def header_longer_than_the_file(kit: Kit) -> Call:
    return kit.weights(struct.pack("<Q", 2**40) + b"{}")


@case("models", "its 10 bytes do not hold the header that they announce", "fetch it again")
def header_of_2_to_the_64(kit: Kit) -> Call:
    return kit.weights(struct.pack("<Q", 2**64 - 1) + b"{}")


@case("models", "has a header of", "at most 10485760 are read", "Split the model into shards")
def two_hundred_thousand_tensors(kit: Kit) -> Call:
    entries = ",".join(f'"{i}":{{"dtype":"U8","shape":[],"data_offsets":[]}}' for i in range(200_000))
    return kit.header(f"{{{entries}}}".encode())


@case("models", "declares 120000 tensors", "Split the model into shards")
def more_tensors_than_are_read(kit: Kit) -> Call:
    entries = ",".join(f'"{i:x}":{{"shape":[0],"data_offsets":[0,0]}}' for i in range(120_000))
    return kit.header(f"{{{entries}}}".encode())


@case("models", "tensor 'b' lies at bytes 4 to 12, the one before ends at 8", "fetch it again")
def overlapping_tensors(kit: Kit) -> Call:
    return kit.header({"a": tensor(0, 8), "b": tensor(4, 12)}, bytes(12))


@case("models", "its header promises 1125899906842783 bytes, it has 171", "fetch it again")
def tensor_beyond_the_file(kit: Kit) -> Call:
    return kit.header({"a": tensor(0, 8), "b": tensor(8, 2**50)}, bytes(12))


@case("models", "tensor 'a' lies at bytes -8 to 8, the one before ends at 0", "fetch it again")
def negative_offsets(kit: Kit) -> Call:
    return kit.header({"a": tensor(-8, 8)}, bytes(8))


@case("models", "tensor 'b' lies at bytes 8 to 4, the one before ends at 8", "fetch it again")
def tensor_that_ends_before_it_begins(kit: Kit) -> Call:
    return kit.header({"a": tensor(0, 8), "b": tensor(8, 4)}, bytes(8))


@case("models", "tensor 'b' lies at bytes 8 to 12, the one before ends at 4", "fetch it again")
def gap_between_tensors(kit: Kit) -> Call:
    return kit.header({"a": tensor(0, 4), "b": tensor(8, 12)}, bytes(12))


@case("models", "has a damaged safetensors header", "fetch the file again")
def header_that_is_no_json(kit: Kit) -> Call:
    return kit.header(b"{'a': 1}")


@case("models", "has a damaged safetensors header", "fetch the file again")
def header_that_is_a_list(kit: Kit) -> Call:
    return kit.header([1, 2, 3])


@case("models", "has a damaged safetensors header", "fetch the file again")
def header_of_brackets(kit: Kit) -> Call:
    return kit.header(b"[" * 1_000_000)


@case("models", "'a' comes twice", "fetch the file again")
def tensor_named_twice(kit: Kit) -> Call:
    return kit.header(
        b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}', bytes(4)
    )


@case("models", "tensor 'a' has the shape (-1,)", "fetch the file again")
def negative_shape(kit: Kit) -> Call:
    return kit.header({"a": tensor(0, 4, shape=[-1])}, bytes(4))


@case("models", "tensor 'a' has the shape (1099511627776, 1099511627776) and 4 bytes", "fetch the file again")
def shape_of_other_size(kit: Kit) -> Call:
    return kit.header({"a": tensor(0, 4, shape=[2**40, 2**40])}, bytes(4))


@case("models", "has a damaged safetensors header", "'many'", "fetch the file again")
def shape_of_text(kit: Kit) -> Call:
    return kit.header({"a": {"dtype": "F32", "shape": ["many"], "data_offsets": [0, 4]}}, bytes(4))


@case("models", "F23", "Use config.json and weights that were saved together")
def unknown_dtype(kit: Kit) -> Call:
    return kit.header({"a": tensor(0, 4, dtype="F23")}, bytes(4))


@case("models", "tensor 'classifier.bias' holds NaN or infinity", "the file is damaged, or training diverged")
def nan_in_a_weight(kit: Kit) -> Call:
    return kit.spoilt(lambda tensors: tensors["classifier.bias"].fill_(float("nan")))


@case("models", "tensor 'classifier.weight' holds NaN or infinity", "the file is damaged, or training diverged")
def infinity_in_a_weight(kit: Kit) -> Call:
    return kit.spoilt(lambda tensors: tensors["classifier.weight"][0].fill_(float("-inf")))


@case("models", "missing keys: bert.encoder.layer.1.attention.self.query.weight", "Nothing is filled in at random")
def missing_tensor(kit: Kit) -> Call:
    return kit.spoilt(lambda tensors: tensors.pop("bert.encoder.layer.1.attention.self.query.weight"))


@case("models", "unexpected keys: bert.encoder.layer.7.attention.self.query.weight", "Nothing is filled in at random")
def tensor_too_many(kit: Kit) -> Call:
    return kit.spoilt(lambda tensors: tensors.update({"bert.encoder.layer.7.attention.self.query.weight": torch.zeros(2, 2)}))


@case("models", "its tensors have other shapes than its config.json builds", "Use config.json and weights that were saved together")
def tensor_of_another_shape(kit: Kit) -> Call:
    return kit.spoilt(lambda tensors: tensors.update({"classifier.weight": torch.zeros(3, 3)}))


@case("models", "no .safetensors file", "put them there, or name another folder")
def no_weights(kit: Kit) -> Call:
    folder = kit.plain()
    (folder / "model.safetensors").unlink()
    return lambda: hc.load(folder)


@case("models", "is no regular file", "put the weights themselves there")
def weights_that_are_a_folder(kit: Kit) -> Call:
    folder = kit.plain()
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").mkdir()
    return lambda: hc.load(folder)


@case("models", "is no regular file", "put the weights themselves there")
def weights_that_link_to_themselves(kit: Kit) -> Call:
    folder = kit.plain()
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to("model.safetensors")
    return lambda: hc.load(folder)


@case("models", "is no regular file", "put the weights themselves there")
def weights_that_link_to_nothing(kit: Kit) -> Call:
    folder = kit.plain()
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to("/nowhere/model.safetensors")
    return lambda: hc.load(folder)


@case("models", "is no regular file", "put the weights themselves there")
def weights_that_are_a_pipe(kit: Kit) -> Call:
    folder = kit.plain()
    (folder / "model.safetensors").unlink()
    os.mkfifo(folder / "model.safetensors")
    return lambda: hc.load(folder)


@case("models", "Permission denied", "Check its permissions and links")
def weights_that_may_not_be_read(kit: Kit) -> Call:
    folder = kit.plain()
    (folder / "model.safetensors").chmod(0)
    return as_nobody(lambda: hc.load(folder))


def _pickled(kit: Kit, name: str) -> Path:
    folder = kit.plain()
    (folder / "model.safetensors").unlink()
    (folder / name).write_bytes(pickle.dumps(Bomb(), protocol=2))
    return folder


@case("models", "pytorch_model.bin is a pickle", "Convert it to safetensors, or allow it")
def pickled_weights(kit: Kit) -> Call:
    folder = _pickled(kit, "pytorch_model.bin")
    return lambda: hc.load(folder)


@case("models", "bytes do not hold the header that they announce", "fetch it again")
def pickle_under_the_name_of_safetensors(kit: Kit) -> Call:
    folder = _pickled(kit, "model.safetensors")
    return lambda: hc.load(folder)


@case("models", "Weights only load failed", "Use config.json and weights that were saved together")
def pickle_that_runs_code_where_pickles_are_allowed(kit: Kit) -> Call:
    folder = _pickled(kit, "pytorch_model.bin")
    return lambda: hc.load(folder, allow_pickle=True)


def _index(kit: Kit, content: object) -> Path:
    folder = kit.plain()
    (folder / "model.safetensors").rename(folder / "model-00001-of-00001.safetensors")
    (folder / "model.safetensors.index.json").write_text("{}")
    change(folder / "model.safetensors.index.json", metadata={}, weight_map=content)
    return folder


@case("models", "'../secret.safetensors'", "fetch it again from where it came")
def shard_outside_the_folder(kit: Kit) -> Call:
    (kit.place / "secret.safetensors").write_bytes((kit.stock.plain() / "model.safetensors").read_bytes())
    folder = _index(kit, {"classifier.bias": "../secret.safetensors"})
    return lambda: hc.load(folder)


@case("models", "names 'model-00002-of-00002.safetensors', which is not there", "fetch all shards of the model")
def shard_that_is_missing(kit: Kit) -> Call:
    folder = _index(kit, {"classifier.bias": "model-00002-of-00002.safetensors"})
    return lambda: hc.load(folder)


@case("models", "must hold a weight_map from tensors to files", "fetch it again, with the weights")
def index_without_a_map(kit: Kit) -> Call:
    folder = _index(kit, ["classifier.bias"])
    return lambda: hc.load(folder)


@case("models", "holds an adapter (adapter_config.json), not a model", "merge it (model.merge_and_unload()) and save that")
def adapter_of_a_model_elsewhere(kit: Kit) -> Call:
    folder = kit.plain()
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA", "base_model_name_or_path": "../../secret"}')
    return lambda: hc.load(folder)


@case("models", "is no folder", "name a folder with config.json and weights, or a hub id")
def zip_instead_of_a_folder(kit: Kit) -> Call:
    with zipfile.ZipFile(kit.place / "model.zip", "w") as archive:
        archive.writestr("../../evil", "x")
    return lambda: hc.load(kit.place / "model.zip")


@case("models", "is no folder", "name a folder with config.json and weights, or a hub id")
def tar_instead_of_a_folder(kit: Kit) -> Call:
    with tarfile.open(kit.place / "model.tar.gz", "w:gz") as archive:
        archive.addfile(tarfile.TarInfo("../evil"), io.BytesIO())
    return lambda: hc.load(str(kit.place / "model.tar.gz"))


@case("models", "no embedded model 'demo/../../../etc'", "Known: demo/decoder")
def embedded_model_that_is_not_there(kit: Kit) -> Call:
    return lambda: hc.load("demo/../../../etc")


def _listed(kit: Kit, spoil: Callable[[Path], object]) -> Call:
    folder = kit.copy(kit.stock.cut())
    spoil(folder)
    return lambda: hc.load(folder)


def _reseal(path: Path, **values: Any) -> None:
    """Changes a manifest and seals it anew: a fault of who wrote it, not of the disk."""
    path.write_bytes(json_bytes(add_seal(json.loads(path.read_text()) | values)))


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-50] ^= 1
    path.write_bytes(content)


@case("models", "does not match its hash in heads.json", "restore it")
def flipped_bit(kit: Kit) -> Call:
    return _listed(kit, lambda folder: _flip(folder / "model.safetensors"))


@case("models", "does not match its hash in heads.json", "restore it")
def flipped_bit_in_the_configuration(kit: Kit) -> Call:
    return _listed(kit, lambda folder: _flip(folder / "config.json"))


@case("models", "is missing, though heads.json lists it", "restore it, or save the model again")
def listed_file_that_is_missing(kit: Kit) -> Call:
    return _listed(kit, lambda folder: (folder / "model.safetensors").unlink())


@case("models", "the folder mixes files of two models", "take one out")
def weights_that_are_not_listed(kit: Kit) -> Call:
    return _listed(kit, lambda folder: (folder / "more.safetensors").write_bytes((folder / "model.safetensors").read_bytes()))


@case("models", "'../../etc/passwd'", "save the model again")
def manifest_that_names_a_file_outside(kit: Kit) -> Call:
    entry = {"bytes": 1, "sha256": "0" * 64}
    return _listed(kit, lambda folder: _reseal(folder / "heads.json", files={"../../etc/passwd": entry}))


@case("models", "schema version 99 and this headcount reads 2", "install a newer headcount")
def manifest_of_a_later_version(kit: Kit) -> Call:
    return _listed(kit, lambda folder: _reseal(folder / "heads.json", schema_version=99))


@case("models", "heads.json is no valid JSON", "restore or rewrite it")
def manifest_of_brackets(kit: Kit) -> Call:
    return _listed(kit, lambda folder: (folder / "heads.json").write_text("[" * 1_000_000))


@case("models", "files.model.safetensors.sha256", "save the model again")
def manifest_without_hashes(kit: Kit) -> Call:
    return _listed(kit, lambda folder: _reseal(folder / "heads.json", files={"model.safetensors": {"bytes": 1, "sha256": "none"}}))


@case("models", "tokenizer.json links to", "secret.txt", "put the file itself there")
def tokenizer_that_links_out(kit: Kit) -> Call:
    folder = kit.plain()
    kit.file("secret.txt", "secret")
    (folder / "tokenizer.json").symlink_to(kit.place / "secret.txt")
    return line("cut", folder, "--heads", "L0H1", "--out", kit.place / "out")
