"""Saved folders: what is written, what is refused, and that nothing half-written or damaged is ever used."""

from __future__ import annotations

import json
import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import headcount as hc
from headcount.core.errors import ArtifactError, UnsupportedModel
from headcount.core.files import add_seal, json_bytes, seal
from headcount.models.dummy_inputs.text import probe_inputs
from headcount.models.tiny.build import tiny_model
from headcount.surgery.cost import cost
from headcount.surgery.load import unregister
from headcount.surgery.verify import forward_outputs, largest_relative_difference
from headcount.testing.laws import emptying_plan

COMMAND = "headcount cut model --heads L0H1,L1H0,L1H2 --out out"


@pytest.fixture(scope="module")
def small() -> nn.Module:
    model = tiny_model("bert", dtype=torch.float32, auto="AutoModelForSequenceClassification")
    return hc.cut(model, hc.Plan.removing(["L0H1", "L1H0", "L1H2"]))


@pytest.fixture(scope="module")
def pristine(small: nn.Module, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hc.save(small, tmp_path_factory.mktemp("saved") / "out", command=COMMAND, cost=(cost(small), cost(small)))


@pytest.fixture
def folder(pristine: Path, tmp_path: Path) -> Path:
    return shutil.copytree(pristine, tmp_path / "out")


def test_what_is_written(pristine: Path) -> None:
    listing = json.loads((pristine / "heads.json").read_text())
    assert listing["schema_version"] == 2 and listing["seal"] == seal(listing)
    assert listing["removed"] == ["L0H1", "L1H0", "L1H2"]
    assert [block["heads"] for block in listing["blocks"]] == [[0, 2, 3, 4, 5], [1, 3, 4, 5]]
    assert set(listing["files"]) == {"README.md", "config.json", "model.safetensors", "heads.state"}  # its padding row is not zero
    card = (pristine / "README.md").read_text()
    assert COMMAND in card
    assert "library_name" in card.splitlines()[1]


@pytest.mark.parametrize("auto", [None, "AutoModel", "AutoModelForSequenceClassification"])
def test_any_auto_class_loads(folder: Path, small: nn.Module, auto: str | None) -> None:
    model = hc.load(folder, auto=auto)
    assert len(hc.HeadMap.of(model)) == 9
    inner = model.bert if hasattr(model, "bert") else model
    batch = probe_inputs(small)
    assert largest_relative_difference(forward_outputs(inner, batch), forward_outputs(small.bert, batch)) == 0


def test_another_task_head_is_refused_not_invented(folder: Path) -> None:
    with pytest.raises(ArtifactError, match="missing keys"):
        hc.load(folder, auto="AutoModelForMaskedLM")
    fresh = hc.load(folder, auto="AutoModelForMaskedLM", new_layers=True)
    assert len(hc.HeadMap.of(fresh)) == 9


def test_sharded_checkpoints(small: nn.Module, tmp_path: Path) -> None:
    hc.save(small, tmp_path / "out", max_shard_size="20KB")
    assert len(list((tmp_path / "out").glob("*.safetensors"))) > 1
    assert (
        largest_relative_difference(
            forward_outputs(hc.load(tmp_path / "out"), probe_inputs(small)), forward_outputs(small, probe_inputs(small))
        )
        == 0
    )


def test_device_map_and_dtype_pass_through(folder: Path) -> None:
    pytest.importorskip("accelerate")
    model = hc.load(folder, device_map="cpu", dtype=torch.bfloat16)
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}


def test_register_makes_plain_loading_work(folder: Path, small: nn.Module) -> None:
    import transformers

    with pytest.raises(RuntimeError, match=r"size mismatch|ignore_mismatched_sizes"):
        transformers.AutoModelForSequenceClassification.from_pretrained(folder)
    hc.register()
    hc.register()
    try:
        model = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
        base = transformers.AutoModel.from_pretrained(folder)
    finally:
        unregister()
    assert largest_relative_difference(forward_outputs(model, probe_inputs(small)), forward_outputs(small, probe_inputs(small))) < 1e-6
    assert len(hc.HeadMap.of(base)) == 9
    with pytest.raises(RuntimeError):
        transformers.AutoModelForSequenceClassification.from_pretrained(folder)


@pytest.mark.parametrize("case", ["uneven", "empty"])
def test_without_headcount_a_folder_fails_loudly(case: str, small: nn.Module, tmp_path: Path) -> None:
    model = hc.cut(small, emptying_plan(hc.HeadMap.of(small).blocks[0])) if case == "empty" else small
    hc.save(model, tmp_path / "out")
    code = "import sys, transformers; transformers.AutoModelForSequenceClassification.from_pretrained(sys.argv[1])"
    outcome = subprocess.run([sys.executable, "-c", code, str(tmp_path / "out")], capture_output=True, text=True, check=False)
    assert outcome.returncode != 0
    assert "ignore_mismatched_sizes" in outcome.stderr or "size mismatch" in outcome.stderr


def test_only_layer_zero_emptied_fails_loudly_too(tmp_path: Path) -> None:
    """Nothing else is cut: without care the missing weights would be filled in at random."""
    import transformers

    model = tiny_model("llama", dtype=torch.float32)
    hc.save(hc.cut(model, emptying_plan(hc.HeadMap.of(model).blocks[0])), tmp_path / "out")
    with pytest.raises(RuntimeError):
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")


def damage_truncate(folder: Path) -> str:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    return "model.safetensors has .* bytes, heads.json says"


def damage_flip(folder: Path) -> str:
    path = folder / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-50] ^= 1
    path.write_bytes(content)
    return "model.safetensors does not match its hash"


def damage_rename(folder: Path) -> str:
    (folder / "model.safetensors").rename(folder / "weights.safetensors")
    return "model.safetensors is missing"


def damage_config(folder: Path) -> str:
    config = json.loads((folder / "config.json").read_text())
    config["num_hidden_layers"] = 3
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    return "config.json has .* bytes|config.json does not match"


def damage_foreign(folder: Path) -> str:
    save_file({"x": torch.zeros(1)}, folder / "other.safetensors")
    return "other.safetensors is not listed"


def damage_schema(folder: Path) -> str:
    listing = json.loads((folder / "heads.json").read_text())
    listing["schema_version"] = 99
    (folder / "heads.json").write_bytes(json_bytes(add_seal(listing)))
    return "schema version 99 and this headcount reads 2; install a newer headcount"


def damage_manifest(folder: Path) -> str:
    (folder / "heads.json").write_text("{nonsense")
    return "heads.json is no valid JSON"


def damage_escape(folder: Path) -> str:
    listing = json.loads((folder / "heads.json").read_text())
    listing["files"]["../secret"] = listing["files"]["config.json"]
    (folder / "heads.json").write_bytes(json_bytes(add_seal(listing)))
    return "names a file outside the folder"


def damage_key(folder: Path) -> str:
    listing = json.loads((folder / "heads.json").read_text())
    del listing["blocks"][0]["of"]
    (folder / "heads.json").write_bytes(json_bytes(add_seal(listing)))
    return "heads.json is not valid: blocks.0.of"


def damage_removed(folder: Path) -> str:
    listing = json.loads((folder / "heads.json").read_text())
    listing["removed"] = ["L0H2", "L1H0", "L1H2"]
    (folder / "heads.json").write_bytes(json_bytes(listing))
    return "heads.json is damaged or was edited"


def damage_removed_and_sealed(folder: Path) -> str:
    listing = json.loads((folder / "heads.json").read_text())
    listing["removed"] = ["L0H2", "L1H0", "L1H2"]
    (folder / "heads.json").write_bytes(json_bytes(add_seal(listing)))
    return "lists other heads than the model has"


def damage_older_schema(folder: Path) -> str:
    listing = json.loads((folder / "heads.json").read_text())
    del listing["seal"]
    (folder / "heads.json").write_bytes(json_bytes({**listing, "schema_version": 1}))
    return "schema version 1 and this headcount reads 2; open the folder with headcount 0.1.0"


def damage_added_generation_config(folder: Path) -> str:
    (folder / "generation_config.json").write_text('{"num_beams": 4}')
    return "generation_config.json is not listed in heads.json"


DAMAGES = [value for name, value in sorted(globals().items()) if name.startswith("damage_")]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda d: d.__name__)
def test_a_damaged_folder_is_refused_by_name(folder: Path, damage) -> None:
    text = damage(folder)
    with pytest.raises(ArtifactError, match=text):
        hc.load(folder)


def written_by_others(folder: Path) -> None:
    """Takes away what headcount alone writes; its state without its manifest is refused for that."""
    (folder / "heads.json").unlink()
    (folder / "heads.state").unlink(missing_ok=True)


def wrong_layers(folder: Path, config: dict) -> str:
    config["num_hidden_layers"] = 3
    return "missing keys"


def wrong_remote_code(folder: Path, config: dict) -> str:
    config["auto_map"] = {"AutoModel": "evil.Model"}
    return "asks for remote code"


def wrong_record(folder: Path, config: dict) -> str:
    config["headcount"]["blocks"]["encoder.layer.0.attention.self"]["heads"] = [5, 4]
    return "must be ascending"


def wrong_record_type(folder: Path, config: dict) -> str:
    config["headcount"] = [1, 2]
    return "must be an object"


def wrong_record_schema(folder: Path, config: dict) -> str:
    config["headcount"]["schema"] = 7
    return "this version reads 1"


def wrong_record_block(folder: Path, config: dict) -> str:
    config["headcount"]["blocks"]["encoder.layer.9.attention.self"] = {"heads": [0], "of": 6}
    return "does not have"


def wrong_architecture(folder: Path, config: dict) -> str:
    config["architectures"] = ["NoSuchModel"]
    return "'NoSuchModel', which transformers"


def wrong_nan(folder: Path, config: dict) -> str:
    tensors = load_file(folder / "model.safetensors")
    tensors["classifier.bias"] = torch.full_like(tensors["classifier.bias"], float("nan"))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return "'classifier.bias' holds NaN"


def wrong_truncated(folder: Path, config: dict) -> str:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-8])
    return "its header promises"


def wrong_empty_weights(folder: Path, config: dict) -> str:
    (folder / "model.safetensors").write_bytes(b"")
    return "no complete safetensors file"


def wrong_no_weights(folder: Path, config: dict) -> str:
    (folder / "model.safetensors").unlink()
    return "holds no weights"


WRONGS = [value for name, value in sorted(globals().items()) if name.startswith("wrong_")]


@pytest.mark.filterwarnings("ignore:.*no heads.json")
@pytest.mark.parametrize("wrong", WRONGS, ids=lambda w: w.__name__)
def test_what_does_not_belong_together_is_refused(folder: Path, wrong) -> None:
    """As written by other tools: no heads.json, so only the content itself can be checked."""
    written_by_others(folder)
    config = json.loads((folder / "config.json").read_text())
    text = wrong(folder, config)
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises((ArtifactError, UnsupportedModel), match=text):
        hc.load(folder)


class Bomb:
    def __reduce__(self) -> tuple:
        return (Path("/").joinpath, ("boom",))


@pytest.mark.filterwarnings("ignore:.*no heads.json")
def test_pickles_are_refused(folder: Path) -> None:
    written_by_others(folder)
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(ArtifactError, match="is a pickle, which can run code"):
        hc.load(folder)


def test_missing_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="is no folder"):
        hc.load(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ArtifactError, match=r"config\.json is missing"):
        hc.load(tmp_path / "empty")


def test_a_failed_save_leaves_nothing_and_harms_nothing(folder: Path, small: nn.Module) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(ArtifactError, match="is not empty"):
        hc.save(small, folder)
    with (
        mock.patch("headcount.surgery.save.format_card", side_effect=OSError(28, "No space left on device")),
        pytest.raises(ArtifactError, match="could not be written: the disk is full"),
    ):
        hc.save(small, folder, overwrite=True)
    assert before == {path.name: path.read_bytes() for path in folder.iterdir()}
    assert [path.name for path in folder.parent.iterdir()] == ["out"]
    hc.save(small, folder, overwrite=True)
    assert [path.name for path in folder.parent.iterdir()] == ["out"]


def test_foreign_folders_are_never_overwritten(small: nn.Module, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ArtifactError, match="was not written by headcount"):
        hc.save(small, tmp_path, overwrite=True)
    with pytest.raises(ArtifactError, match="is a file"):
        hc.save(small, tmp_path / "notes.txt")


def test_tokenizer_files_come_along(small: nn.Module, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "tokenizer.json").write_text("{}")
    (tmp_path / "in" / "secret.env").write_text("no")
    hc.save(small, tmp_path / "out", tokenizer=tmp_path / "in")
    assert (tmp_path / "out" / "tokenizer.json").is_file()
    assert not (tmp_path / "out" / "secret.env").exists()
    hc.load(tmp_path / "out")


def test_push_to_hub_sends_the_folder_with_its_card(small: nn.Module, tmp_path: Path) -> None:
    with mock.patch("huggingface_hub.HfApi") as api:
        hc.save(small, tmp_path / "out", push_to_hub="someone/model")
    api.return_value.create_repo.assert_called_once_with("someone/model", exist_ok=True)
    sent = api.return_value.upload_folder.call_args.kwargs
    assert sent["repo_id"] == "someone/model"
    assert (Path(sent["folder_path"]) / "README.md").is_file()


@pytest.mark.parametrize("text", ["</script><script>alert(1)</script>", "`rm -rf` <b>", "a\n# heading", "| x | y |\n"])
def test_the_card_quotes_what_it_does_not_control(small: nn.Module, tmp_path: Path, text: str) -> None:
    hc.save(small, tmp_path / "out", command=text)
    card = (tmp_path / "out" / "README.md").read_text()
    assert "<script" not in card
    assert "<b>" not in card
    assert "\n# heading" not in card


def test_legacy_checkpoints_with_full_weights_are_refused(tmp_path: Path) -> None:
    """A failed prune_heads of transformers 4 writes config.pruned_heads beside weights of full size."""
    model = tiny_model("bert", dtype=torch.float32)
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for pruned, text in [
        ({"0": [1]}, "cannot be loaded"), ({"9": [0]}, "names layer 9"), ({"0": [6]}, "names head 6"), ({"0": [1, 1]}, "distinct"),
        ({"x": [1]}, "distinct"), ({}, "has no pruned_heads"),
    ]:  # fmt: skip
        (tmp_path / "config.json").write_text(json.dumps(config | {"pruned_heads": pruned}))
        with pytest.raises(ArtifactError, match=text):
            hc.load_legacy(tmp_path)


@pytest.mark.parametrize("name", ["bart", "t5"])
def test_legacy_checkpoints_that_do_not_say_which_stack_are_refused(name: str, tmp_path: Path) -> None:
    """`prune_heads` of transformers 4 fails on encoder-decoders, so that its layers are those of no stack."""
    model = tiny_model(name, dtype=torch.float32)
    hc.cut(model, hc.Plan.removing(["dec.L0H1"]))
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "pruned_heads": {"0": [1]}}))
    with pytest.raises(ArtifactError, match=f"which of the stacks enc, dec .* transformers 4 prunes no {type(model).__name__}"):
        hc.load_legacy(tmp_path)


@pytest.mark.filterwarnings("ignore:.*no heads.json")
def test_pickled_weights_load_when_allowed(folder: Path, small: nn.Module) -> None:
    written_by_others(folder)
    (folder / "model.safetensors").unlink()
    torch.save(small.state_dict(), folder / "pytorch_model.bin")
    with pytest.raises(ArtifactError, match="is a pickle"):
        hc.load(folder)
    again = hc.load(folder, allow_pickle=True)
    assert largest_relative_difference(forward_outputs(again, probe_inputs(small)), forward_outputs(small, probe_inputs(small))) == 0
