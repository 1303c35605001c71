"""BertViz against the attention page of headcount's report: bytes, and time until attention is drawn, for the same model and sentence.

    python benchmarks/peers/against_bertviz.py --python PYTHON --model MODEL --text FILE --scripts SCRIPTS [--lengths 16,64,128]

PYTHON is that of an environment with bertviz, MODEL an encoder with its tokenizer, FILE plain text. Needs playwright and Chromium here.
Both pages are opened from disk. BertViz' pages ask for require.min.js, d3.min.js and jquery.min.js from the network; the folder SCRIPTS
has them, and the browser is given these files where it asks, so that a network costs nothing. Times are from navigation to the frame
after the first attention is in the page, in turn; the table goes to docs/peers.md.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from playwright.sync_api import Browser, Route, TimeoutError, sync_playwright
from sidebyside import Times, interleaved, median, put, ratio, table
from transformers import AutoModel, AutoTokenizer

import headcount as hc
from headcount.behaviour.corpus import read_corpus
from headcount.behaviour.profiles.profile import ProfileSpec
from headcount.models.observe import observe
from headcount.models.provenance import machine_entries, model_record
from headcount.runs.describe import describe_run
from headcount.runs.report.write import write_report
from headcount.runs.store import Run
from headcount.workflows.profiles import profiles_into

DOCUMENT = Path(__file__).parents[2] / "docs" / "peers.md"
DRAWN = {"headcount": ".matrix canvas", "model_view": "#vis svg line", "head_view": "#vis svg line"}
PAINTED = "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
ABROAD = re.compile("^https?://")
PATIENCE = 120_000
"""Milliseconds after which a page counts as not opening."""


def sentence(tokenizer: Any, text: str, length: int) -> str:
    """The first words of a text that make about `length` tokens, delimiters included."""
    words: list[str] = []
    for word in text.split():
        if len(tokenizer(" ".join([*words, word]))["input_ids"]) > length:
            break
        words.append(word)
    return " ".join(words)


def ours(model: Any, tokenizer: Any, text: str, folder: Path) -> Path:
    """A report that holds the attention of one sentence."""
    with Run.lead(folder / "run", command="benchmarks/peers/against_bertviz.py") as run:
        record = describe_run(model_record(model, "model"), command="", seed=0, task="", machine=machine_entries(model))
        run.stage_records(record, hc.HeadMap.of(model))
        profiles_into(run, model, read_corpus(model, [text], tokenizer), tokenizer, ProfileSpec(n_maps=1, max_map_length=1000))
        return write_report(run, max_mb=10)


def theirs(options: argparse.Namespace, model: Any, tokenizer: Any, text: str, folder: Path) -> dict[str, Path]:
    """BertViz' pages of the same sentence."""
    batch = dict(tokenizer(text, return_tensors="pt"))
    maps = {str(i): one.attention.float().numpy() for seen in observe(model, [batch], outputs=False) for i, one in enumerate(seen)}
    np.savez(folder / "attention.npz", **maps)
    (folder / "tokens.json").write_text(json.dumps(tokenizer.convert_ids_to_tokens(batch["input_ids"][0])))
    part = Path(__file__).parent / "bertviz_part.py"
    subprocess.run([options.python, str(part), str(folder / "attention.npz"), str(folder / "tokens.json"), str(folder)], check=True)
    return {name: folder / f"{name}.html" for name in ("model_view", "head_view")}


def opener(browser: Browser, name: str, path: Path, scripts: Path | None) -> Callable[[], float]:
    """Opens a page anew at every call; the seconds until attention is drawn."""

    def answer(route: Route) -> None:
        file = None if scripts is None else scripts / Path(route.request.url).name
        route.fulfill(path=file) if file is not None and file.is_file() else route.abort()

    def open_page() -> float:
        context = browser.new_context(viewport={"width": 1280, "height": 900})
        page = context.new_page()
        page.route(ABROAD, answer)
        start = time.perf_counter()
        page.goto(path.as_uri() + ("#/attention" if name == "headcount" else ""), wait_until="commit")
        try:
            page.locator(DRAWN[name]).first.wait_for(state="attached", timeout=PATIENCE)
            page.evaluate(PAINTED)
            seconds = time.perf_counter() - start
        except TimeoutError:
            seconds = math.inf
        context.close()
        return seconds

    return open_page


def offline(browser: Browser, path: Path) -> str:
    """Whether a BertViz page shows anything without its scripts."""
    context = browser.new_context()
    page = context.new_page()
    page.route(ABROAD, lambda route: route.abort())
    page.goto(path.as_uri())
    drawn = page.locator(DRAWN["model_view"]).count()
    context.close()
    return "yes" if drawn else "no"


def line(name: str, tokens: int, path: Path, times: Times, shown: str) -> list[str]:
    against = "1" if name == "headcount" else ratio(times, name, "headcount")
    return [str(tokens), name, f"{path.stat().st_size / 1e3:.0f}", median(times, name), against, shown]


def compared(options: argparse.Namespace, browser: Browser) -> list[list[str]]:
    model: Any = AutoModel.from_pretrained(options.model).eval()
    tokenizer, lines = AutoTokenizer.from_pretrained(options.model), []
    words = options.text.read_text(encoding="utf-8")
    for length in (int(length) for length in options.lengths.split(",")):
        with tempfile.TemporaryDirectory() as folder:
            text = sentence(tokenizer, words, length)
            pages = {"headcount": ours(model, tokenizer, text, Path(folder)), **theirs(options, model, tokenizer, text, Path(folder))}
            times = interleaved({name: opener(browser, name, path, options.scripts) for name, path in pages.items()}, options.rounds)
            for name, path in pages.items():
                lines.append(line(name, length, path, times, "yes" if name == "headcount" else offline(browser, path)))
                print(lines[-1], flush=True)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--python", required=True, help="the python of an environment with bertviz")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--scripts", type=Path, required=True, help="the folder with require.min.js, d3.min.js and jquery.min.js")
    parser.add_argument("--lengths", default="16,64,128")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--document", type=Path, default=DOCUMENT)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        lines = compared(options, browser)
        browser.close()
    header = ("tokens", "page", "kB", "seconds to drawn attention", "times headcount's", "opens without a network")
    put(options.document, "bertviz", table(header, lines, left=2))


if __name__ == "__main__":
    main()
