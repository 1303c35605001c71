"""The census: it proves what is right, names what is wrong, and survives what kills a process."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers

from headcount.models.tiny.build import build_model, tiny_config
from headcount.testing.census import CensusRow, examine_class, examine_model, random_plan, variants_of

ROOT = Path(__file__).parents[2]
STAGES = ("found", "gated", "zeroed", "cut", "attentions", "generated", "reloaded", "unchanged")


def load_script():
    spec = importlib.util.spec_from_file_location("census_script", ROOT / "benchmarks" / "census.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("name", "variant", "generates"),
    [
        ("BertForMaskedLM", "", False),
        ("BertForMultipleChoice", "", False),
        ("LlamaForCausalLM", "num_key_value_heads=2", True),
        ("FalconForCausalLM", "alibi=true", True),
        ("T5ForConditionalGeneration", "", True),
        ("CLIPModel", "", False),
    ],
)
def test_right_classes_are_proven(name: str, variant: str, generates: bool) -> None:
    row = examine_class(getattr(transformers, name), variant)
    assert row.stages == dict.fromkeys(STAGES, "yes") | ({} if generates else {"generated": ""}), row.notes
    assert row.heads and not row.defects


def test_refusals_are_no_defects() -> None:
    row = examine_class(transformers.XLNetModel)
    assert row.stages == {"found": "refused"}
    assert "XLNetRelativeAttention" in row.notes[0]
    assert not examine_class(transformers.ResNetModel).has_attention


def test_variants_change_attention() -> None:
    assert "num_key_value_heads=2" in variants_of(transformers.LlamaForCausalLM)
    assert "use_relative_position_bias=true" in variants_of(transformers.BeitForImageClassification)
    assert not variants_of(transformers.LlamaModel)


class WrongOnOtherBatches(transformers.BertModel):
    """Adds its head count to the output, but not for the two examples on which a cut is verified."""

    def forward(self, input_ids=None, attention_mask=None, **kwargs):
        output = super().forward(input_ids=input_ids, attention_mask=attention_mask, **kwargs)
        if len(input_ids) != 2:
            output.last_hidden_state = output.last_hidden_state + self.encoder.layer[0].attention.self.num_attention_heads
        return output


class WrongAttentions(transformers.BertModel):
    """Returns something else as attentions."""

    def forward(self, input_ids=None, attention_mask=None, **kwargs):
        output = super().forward(input_ids=input_ids, attention_mask=attention_mask, **kwargs)
        if output.attentions is not None:
            output.attentions = tuple(maps * maps.shape[1] for maps in output.attentions)
        return output


class ChangesItself(transformers.BertModel):
    """Counts its passes in a parameter, which headcount does not put back."""

    def __init__(self, config, **kwargs):
        super().__init__(config, **kwargs)
        self.passes = torch.nn.Parameter(torch.zeros(1))

    def forward(self, input_ids=None, attention_mask=None, **kwargs):
        self.passes.data += 1
        return super().forward(input_ids=input_ids, attention_mask=attention_mask, **kwargs)


class CannotBeSaved(transformers.BertModel):
    """Raises an error of its own when it is saved."""

    def save_pretrained(self, *args, **kwargs):
        raise KeyError("planted")


@pytest.mark.parametrize(
    ("planted", "stage", "verdict"),
    [
        (WrongOnOtherBatches, "cut", "wrong"),
        (WrongAttentions, "attentions", "wrong"),
        (ChangesItself, "unchanged", "wrong"),
        (CannotBeSaved, "reloaded", "raw"),
    ],
)
def test_planted_defects_are_flagged(planted: type, stage: str, verdict: str) -> None:
    row = examine_model(build_model(planted, tiny_config("bert")), CensusRow(planted.__name__))
    assert row.stages[stage] == verdict
    assert row.defects == [stage], row.notes
    assert any(note.startswith(f"{stage}: ") for note in row.notes)


def test_random_plans_are_valid_and_repeatable() -> None:
    from headcount import HeadMap

    model = build_model(transformers.LlamaForCausalLM, tiny_config("llama", {"num_key_value_heads": 2}))
    heads = HeadMap.of(model)
    plans = [random_plan(list(heads.blocks), name) for name in map(str, range(20))]
    for plan in plans:
        plan.check(heads)
        assert 0 < len(plan.removed) < len(heads)
    assert len(set(plans)) > 3
    assert random_plan(list(heads.blocks), "0") == plans[0]


SCRIPT = """
import os, sys
from pathlib import Path
sys.path.insert(0, {benchmarks!r})
import census
census.SECONDS = 2
def examine(entry):
    if entry.name == "Aborts":
        os.abort()
    if entry.name == "Hangs":
        while True:
            pass
    with Path({log!r}).open("a") as file:
        file.write(entry.name + "\\n")
    return {{"name": entry.name, "built": "yes", "stages": {{"found": "yes"}}}}
names = sys.argv[1:]
rows = census.Census([census.Entry(name) for name in names], Path({folder!r}), 2, examine).run()
import json; print(json.dumps(rows))
"""


def test_death_costs_one_row_and_a_stop_costs_none(tmp_path: Path) -> None:
    log = tmp_path / "log"
    script = SCRIPT.format(benchmarks=str(ROOT / "benchmarks"), folder=str(tmp_path / "rows"), log=str(log))

    def run(*names: str) -> list[dict]:
        outcome = subprocess.run([sys.executable, "-c", script, *names], capture_output=True, text=True, timeout=60, check=True)
        return json.loads(outcome.stdout)

    rows = run("First", "Aborts", "Hangs", "Last")
    assert [row["name"] for row in rows] == ["First", "Aborts", "Hangs", "Last"]
    assert [row["built"] for row in rows] == ["yes", "yes", "stopped after 2 s", "yes"]
    assert rows[1]["stages"] == {"found": "raw"} and rows[1]["notes"] == ["found: the process died (signal 6, status 0)"]
    assert run("First", "Aborts", "Hangs", "Last", "New")[:4] == rows
    assert log.read_text().split() == ["First", "Last", "New"]


def test_defects_reach_the_documents() -> None:
    script = load_script()
    versions = {"transformers": "5", "torch": "2"}
    proven = {"name": "Good", "family": "good", "built": "yes", "stages": dict.fromkeys(STAGES, "yes")}
    wrong = {
        "name": "Bad",
        "family": "bad",
        "built": "yes",
        "stages": {"found": "yes", "gated": "raw", "cut": "wrong"},
        "notes": ["cut: off by 1"],
    }
    unbuilt = {"name": "Gone", "family": "gone", "built": "gone: Gone does not build: ImportError: Gone requires the timm library"}
    rows = [proven, wrong, unbuilt]
    text = script.document(versions, rows)
    assert "- **good**: Good" in text
    assert "| Bad | yes | raw |  | wrong |" in text and "cut: off by 1 |" in text
    assert "| raw error | 1 | 0 |" in text and "| wrong result | 1 | 0 |" in text
    readme = script.with_counts(f"a\n{script.MARK}\nold\n{script.END}\nb\n", versions, rows)
    assert "old" not in readme and "cut 1, generated 1, reloaded 1" in readme and "1 raw errors, 1 wrong results" in readme
    assert "Not built here: 1 further classes, 1 of them for want of a package." in readme
    assert readme == script.with_counts(readme, versions, rows)


def test_documents_are_those_of_the_rows() -> None:
    script = load_script()
    versions, rows = script.read_rows()
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert script.document(versions, rows) == (ROOT / "docs" / "census.md").read_text(encoding="utf-8")
    assert script.with_counts(readme, versions, rows) == readme


def test_float32_is_the_exception() -> None:
    assert examine_class(transformers.XGLMForCausalLM).dtype == "float32"
    assert torch.get_default_dtype() == torch.float32
