"""An ONNX file takes what the tokenizer gives, is compared on texts and pairs of several lengths, and claims no more than was compared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import headcount as hc
from headcount.app.main import main
from headcount.core.errors import DataError, VerificationError
from headcount.data.chunks import batches
from headcount.data.open_task import open_task
from headcount.data.readers.processor import tokenizer_or_image_processor
from headcount.models.dummy_inputs.text import probe_inputs
from headcount.models.tiny.build import tiny_model
from headcount.surgery.export import onnx as export
from headcount.surgery.samples import comparison_batches, names_of_varying_inputs
from headcount.surgery.source import local_folder

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")


def test_a_classifier_of_pairs_predicts_in_onnxruntime_what_it_does_in_torch(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["export", "demo/entailment", "--to", "onnx", "--task", "demo/entailment", "--out", str(tmp_path / "m.onnx"), "--json"]
    assert main(words) == 0
    content = json.loads(capsys.readouterr().out)
    assert (
        set(content["inputs"]) == set(content["varied"]) == {"input_ids", "attention_mask", "token_type_ids"} and content["unproven"] == []
    )
    assert content["dynamic"] and len(set(content["compared"])) >= 6
    session = onnxruntime.InferenceSession(str(tmp_path / "m.onnx"), providers=["CPUExecutionProvider"])
    folder = local_folder("demo/entailment")
    model: Any = hc.load(folder).eval()
    task = open_task("demo/entailment", model, tokenizer_or_image_processor(model, folder))
    right = 0
    for batch in batches(task, split="report", limit=256):
        (logits,) = session.run(None, {name: batch[name].numpy() for name in content["inputs"]})
        with torch.no_grad():
            expected = model(**{name: batch[name] for name in content["inputs"]}).logits
        torch.testing.assert_close(torch.from_numpy(logits), expected, rtol=1e-4, atol=1e-4)
        right += int((expected.argmax(-1) == batch["labels"]).sum())
    assert right > 0.9 * 256


def test_a_file_that_ignores_segments_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model = tiny_model("bert", dtype=torch.float32)
    write = export._write_onnx

    def write_without_segments(wrapper: Any, values: tuple[torch.Tensor, ...], names: list[str], path: Path, dynamic: bool) -> None:
        indexs = [index for index, name in enumerate(names) if name != "token_type_ids"]
        short = export._FirstOutput(model, [names[place] for place in indexs])
        write(short, tuple(values[place] for place in indexs), short.names, path, dynamic)

    monkeypatch.setattr(export, "_write_onnx", write_without_segments)
    with pytest.raises(VerificationError, match="differs from the model"):
        hc.export(model, tmp_path / "m.onnx", "onnx")
    assert list(tmp_path.iterdir()) == []


def test_what_did_not_vary_is_not_claimed(tmp_path: Path) -> None:
    model = tiny_model("bert", dtype=torch.float32)
    probe = probe_inputs(model)
    inputs = {**probe, "token_type_ids": torch.zeros_like(probe["input_ids"])}
    exported = export.Onnx().write(model, tmp_path / "m.onnx", inputs=inputs)
    assert exported.unproven == ("token_type_ids",) and set(exported.varied) == {"input_ids", "attention_mask"}
    assert exported.compared == ("2x9", "1x9")
    with pytest.warns(UserWarning, match="Nothing is known of other values of token_type_ids"):  # export returns a path alone
        hc.export(model, tmp_path / "warned.onnx", "onnx", inputs=inputs)
    with pytest.raises(DataError, match="several with the same names"):
        hc.export(model, tmp_path / "n.onnx", "onnx", inputs=[inputs, probe])


@pytest.mark.parametrize("name", ["bert", "roberta", "gpt2", "t5", "vit"])
def test_samples_agree_in_their_inputs(name: str) -> None:
    samples = comparison_batches(tiny_model(name, dtype=torch.float32))
    assert all(list(batch) == list(samples[0]) for batch in samples) and "labels" not in samples[0]
    assert ("token_type_ids" in names_of_varying_inputs(samples)) == (name in ("bert", "roberta"))
    assert len({tuple(batch[next(iter(batch))].shape) for batch in samples}) > 1


def test_segments_that_no_example_has_are_no_input() -> None:
    model = tiny_model("roberta", dtype=torch.float32)
    data = [{name: value for name, value in probe_inputs(model).items() if name != "token_type_ids"}]
    assert set(comparison_batches(model, data=data)[0]) == {"input_ids", "attention_mask"}
