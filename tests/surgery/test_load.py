"""Loading: in several threads at once, and what reaches the hub."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch

import headcount as hc
from headcount.core.errors import OptionError
from headcount.models.tiny.build import tiny_model
from headcount.surgery.source import EMBEDDED, local_folder

TIMES = 30


@pytest.fixture
def frequent_switches() -> Iterator[None]:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("frequent_switches")
def test_threads_that_load_and_cut_do_not_disturb_each_other(tmp_path: Path) -> None:
    """transformers sets torch's default dtype for all threads while it builds a model."""
    plan = hc.Plan.removing(["L0H1", "L1H1"])
    folders, states = {}, {}
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        model = hc.cut(tiny_model("bert", dtype=dtype), plan)
        folders[dtype] = hc.save(model, tmp_path / str(dtype))
        states[dtype] = {name: tensor.clone() for name, tensor in (*model.named_parameters(), *model.named_buffers())}
    wide = tiny_model("llama", dtype=torch.float32)
    uniform = hc.Plan.removing([f"L{block.layer}H0" for block in hc.HeadMap.of(wide).blocks])
    expected_config = hc.cut(wide, uniform).config.to_dict()
    problems: list[str] = []

    def load(dtype: torch.dtype) -> None:
        for _ in range(TIMES):
            try:
                model = hc.load(folders[dtype])
            except Exception as error:  # reported below, in the thread of the test
                problems.append(repr(error))
                continue
            for name, tensor in (*model.named_parameters(), *model.named_buffers()):
                stored = states[dtype][name]
                if tensor.dtype != stored.dtype or not torch.equal(tensor, stored):
                    problems.append(f"{name}: {tensor.dtype} for {stored.dtype}")

    def cut() -> None:
        for _ in range(TIMES // 3):
            if hc.cut(wide, uniform).config.to_dict() != expected_config:
                problems.append("the configuration of a uniform cut")

    threads = [*(threading.Thread(target=load, args=(dtype,)) for dtype in folders), threading.Thread(target=cut)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems, problems[:3]
    assert torch.get_default_dtype() == torch.float32


def test_arguments_of_the_hub_reach_the_download(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = hc.save(tiny_model("bert", dtype=torch.float32), tmp_path / "models" / "small")
    downloads: list[dict[str, Any]] = []
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda name, **options: downloads.append(options) or str(saved.parent))
    location = {"revision": "v1", "token": "secret", "cache_dir": tmp_path, "force_download": True, "local_files_only": False}
    hc.load("me/model", subfolder="small", **location)  # pyright: ignore[reportArgumentType]
    assert {name: downloads[0][name] for name in location} == location


def test_arguments_without_effect_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'proxies'"):
        hc.load(tmp_path, proxies={"https": "localhost:1"})  # pyright: ignore[reportCallIssue]
    with pytest.raises(OptionError, match="HTTPS_PROXY"):
        hc.load(tmp_path, model_kwargs={"proxies": {"https": "localhost:1"}})
    with pytest.raises(OptionError, match="force_download is an argument of load"):
        hc.load(tmp_path, model_kwargs={"force_download": True})


def test_a_folder_of_results_does_not_hide_embedded_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`headcount demo --out demo` failed: demo/entailment/config.json is missing."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "demo" / "entailment").mkdir(parents=True)
    assert local_folder("demo/entailment") == EMBEDDED / "entailment"
    assert local_folder("./demo/entailment") == Path("demo/entailment")
    hc.save(tiny_model("bert"), tmp_path / "demo" / "entailment")
    assert local_folder("demo/entailment") == Path("demo/entailment")
