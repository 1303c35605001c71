"""The example packages, installed from their wheels: the command line lists them, the laws hold for them, and broken variants break a law."""

from __future__ import annotations

import json
import shutil

import pytest
from wheels import KINDS, PLUGINS, Run, install_wheel, run_with

TEXTS = {
    "importance": ("top-share", "top-share(k=2)"),
    "role": ("first-token", "first-token(skip=1)"),
    "pruner": ("deep-first", "deep-first(reverse=true)"),
}
BROKEN = {
    "importance": ("return per_token(", "return observation.gone or per_token(", "it scores a model"),
    "role": ("return view.ordinary & is_target[:, None, :]", "return view.ordinary.float()", "its sieve is a boolean tensor"),
    "pruner": ("sign = 1", "next(context.model.parameters()).data.add_(1.0); sign = 1", "it leaves the model as it was"),
}
"""By kind: a part of the source, what a broken variant has in its place, and the law that it breaks."""
CHECK_ALL = """
import json, sys
from headcount.testing import kinds
from headcount.testing.laws import LawBroken

def broken_laws(kind, texts):
    for text in texts:
        try:
            getattr(kinds, f"check_{kind}")(text)
        except LawBroken as error:
            yield str(error)

print("laws:" + json.dumps({kind: list(broken_laws(kind, texts)) for kind, texts in json.loads(sys.argv[1]).items()}))
"""


def list_broken_laws(run: Run) -> dict[str, list[str]]:
    """What breaks of the laws, by kind, in one process for all."""
    checked = run("-c", CHECK_ALL, json.dumps(TEXTS))
    assert checked.returncode == 0, checked.stderr
    return json.loads(checked.stdout.rpartition("laws:")[2])


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Runs Python with the example packages installed."""
    folder = tmp_path_factory.mktemp("plugins")
    for kind in KINDS:
        install_wheel(PLUGINS / f"headcount-example-{kind}", folder / "site", folder)
    return run_with(folder / "site")


@pytest.fixture(scope="session")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Runs Python with the broken variants installed."""
    folder = tmp_path_factory.mktemp("broken")
    for kind, (part, replacement, _) in BROKEN.items():
        source = shutil.copytree(PLUGINS / f"headcount-example-{kind}", folder / f"headcount-example-{kind}")
        module = source / f"headcount_example_{kind}.py"
        assert part in module.read_text()
        module.write_text(module.read_text().replace(part, replacement))
        install_wheel(source, folder / "site", folder)
    return run_with(folder / "site")


@pytest.mark.parametrize(("registry", "kind"), [("importance", "importance"), ("roles", "role"), ("pruners", "pruner")])
def test_an_installed_package_is_listed(installed: Run, registry: str, kind: str) -> None:
    listed = installed("-m", "headcount", "ls", registry)
    assert listed.returncode == 0 and TEXTS[kind][0] in listed.stdout, listed.stderr


def test_installed_packages_keep_the_laws(installed: Run) -> None:
    assert list_broken_laws(installed) == {kind: [] for kind in KINDS}


def test_a_broken_package_breaks_a_law(broken: Run) -> None:
    messages = list_broken_laws(broken)
    for kind, (_, _, law) in BROKEN.items():
        assert messages[kind] and all(f"breaks the law that {law}: " in message for message in messages[kind]), messages[kind]
