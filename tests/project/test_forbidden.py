"""The static check: every forbidden thing is found, however it is imported, and nothing else is."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from forbidden import ALLOWED, check, check_python, check_web  # noqa: E402

FORBIDDEN = [
    "import pickle",
    "import pickle as p",
    "from pickle import loads",
    "import os, marshal",
    "import dill",
    "import joblib",
    "from joblib import load",
    "import shelve",
    "import cloudpickle",
    "import requests",
    "import urllib.request",
    "from urllib import request",
    "from http import client",
    "import httpx",
    "from transformers.dynamic_module_utils import get_class_from_dynamic_module",
    "import torch\ntorch.load(path)",
    "import torch\ntorch.load(path, weights_only=False)",
    "import torch\ntorch.load(path, weights_only=maybe)",
    "import torch as t\nt.load(path)",
    "from torch import load as read\nread(path)",
    "import torch\ntorch.save(model, path)",
    "import numpy as np\nnp.load(path, allow_pickle=True)",
    "import numpy\nnumpy.load(path, allow_pickle=maybe)",
    "import yaml\nyaml.load(text)",
    "import yaml\nyaml.load(text, Loader=yaml.Loader)",
    "import yaml\nyaml.unsafe_load(text)",
    "from yaml import full_load\nfull_load(text)",
    "eval('1')",
    "exec(text)",
    "compile(text, 'x', 'exec')",
    "__import__(name)",
    "import builtins\nbuiltins.eval(text)",
    "import subprocess\nsubprocess.run(text, shell=True)",
    "from subprocess import Popen\nPopen(text, shell=True)",
    "import os\nos.system(text)",
    "from os import popen\npopen(text)",
    "model.from_pretrained(name, trust_remote_code=True)",
    "import jinja2\njinja2.Environment()",
    "import jinja2\njinja2.Environment(autoescape=False)",
    "from jinja2 import Template\nTemplate(text)",
    "import tempfile\ntempfile.mktemp()",
    "import tarfile\ntarfile.open(path).extractall(folder)",
    "with zipfile.ZipFile(path) as archive:\n    archive.extractall()",
    "import shutil\nshutil.unpack_archive(path)",
    "import pandas\npandas.read_pickle(path)",
    "frame.to_pickle(path)",
    "import socket\nsocket.create_connection(place)",
    "session.get(url, verify=False)",
]
FINE = [
    "# import pickle; eval(text); torch.load(path)",
    "'import pickle; eval(text)'",
    '"""Never torch.load(path), os.system(text) or shell=True."""',
    "model.eval()",
    "import re\nre.compile(text)",
    "import torch\ntorch.compile(model)",
    "import torch\ntorch.load(path, weights_only=True)",
    "import numpy as np\nnp.load(path)\nnp.load(path, allow_pickle=False)",
    "import yaml\nyaml.safe_load(text)\nyaml.load(text, Loader=yaml.SafeLoader)",
    "model.from_pretrained(name, trust_remote_code=trusted)\nmodel.from_pretrained(name, trust_remote_code=False)",
    "import subprocess\nsubprocess.run(['ls'], shell=False)",
    "import jinja2\njinja2.Environment(autoescape=True)",
    "import tarfile\ntarfile.open(path).extractall(folder, filter='data')",
    "import socket\nsocket.gethostname()",
    "from . import pickle_free\nfrom .requests import Request",
    "import pickles\nfrom requests_of_ours import x",
    "pickle = 3\nexecutor.exec_module(module)",
]


@pytest.mark.parametrize("text", FORBIDDEN)
def test_what_is_forbidden_is_found(text: str) -> None:
    actual = check_python(text, "x.py")
    assert actual
    assert str(actual[0]).startswith(f"x.py:{text.count(chr(10)) + 1}: ")


@pytest.mark.parametrize("text", FINE)
def test_what_is_fine_is_left_alone(text: str) -> None:
    assert check_python(text, "x.py") == []


@pytest.mark.parametrize(
    "text",
    [
        "element.innerHTML = text;",
        "element.outerHTML = text",
        "<div dangerouslySetInnerHTML={{ __html: text }} />",
        "element.insertAdjacentHTML('beforeend', text)",
        "document.write(text)",
        "eval(text)",
        "const f = new Function(text)",
        "// fine\n/* fine\n */ element.innerHTML = 1",
    ],
)
def test_web_sources_make_no_elements_out_of_text(text: str) -> None:
    assert [finding.line for finding in check_web(text, "x.ts")] == [text.count("\n") + 1]


@pytest.mark.parametrize(
    "text", ["// innerHTML", "/* innerHTML\n */", "<!-- innerHTML -->", "const x = 'innerHTML'", "retrieval(x)", "x.textContent = y"]
)
def test_words_in_web_sources_are_left_alone(text: str) -> None:
    assert check_web(text, "x.ts") == []


def test_the_sources_hold_nothing_forbidden() -> None:
    assert check(ROOT, ALLOWED) == []


def test_what_is_allowed_is_allowed_in_its_place_alone(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.py").write_text("import pickle\n")
    (tmp_path / "src" / "b.py").write_text("import pickle\n")
    assert [finding.file for finding in check(tmp_path, {("src/a.py", "pickle"): "why"})] == ["src/b.py"]
    idle = check(tmp_path, {("src/a.py", "pickle"): "", ("src/b.py", "pickle"): "", ("src/c.py", "dill"): ""})
    assert [finding.file for finding in idle] == ["src/c.py"]
