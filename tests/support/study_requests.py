"""What every study is tried on: its text, model, task and further arguments. A study that is not named here is tried on its default inputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from command_line import run

from headcount.data.embedded.sentences import draw_sentences

ENTAILMENT = "demo/entailment"
SENTENCES = ["the small dog sees a cat .", "a man reads the old book ."] * 8
REQUESTS: dict[str, tuple[str, str | None, str | None, dict[str, Any]]] = {
    "all-but-one": ("all-but-one", ENTAILMENT, ENTAILMENT, {}),
    "attention-maps": ("attention-maps", "demo/encoder", "demo/text", {}),
    "by-type": ("by-type", "demo/translator", "demo/translation", {"limit": 4}),
    "compensation": ("compensation(keep=12;method=magnitude;steps=2;seeds=2;train_batch=4)", ENTAILMENT, ENTAILMENT, {}),
    "dynamics": ("dynamics:demo/entailment-english(keep=50%+25%;by=magnitude)", ENTAILMENT, ENTAILMENT, {"limit": 40}),
    "finetune-roles": ("finetune-roles:demo/entailment(only=offset)", "demo/encoder", None, {"text": SENTENCES}),
    "from-scratch": (
        "from-scratch:magnitude(keep=50%+25%;seeds=2;scratch=2steps;train_batch=4)",
        ENTAILMENT,
        ENTAILMENT,
        {},
    ),
    "importance-map": ("importance-map:gradient+magnitude(distances=true)", ENTAILMENT, ENTAILMENT, {}),
    "kept": ("kept(methods=magnitude;keep=50%+25%;seeds=2)", ENTAILMENT, ENTAILMENT, {}),
    "importance-or-random": (
        "importance-or-random(by=magnitude;keep=24;seeds=2;recover=2steps;train_batch=4)",
        ENTAILMENT,
        ENTAILMENT,
        {},
    ),
    "interventions": ("interventions(keep=16+24;seeds=2)", ENTAILMENT, ENTAILMENT, {}),
    "languages": (
        "languages(tasks=demo/entailment+demo/entailment-tavi;against=demo/entailment-english;keep=50%;method=magnitude)",
        ENTAILMENT,
        None,
        {"limit": 40},
    ),
    "layers": ("layers", ENTAILMENT, ENTAILMENT, {}),
    "penalty-sweep": (
        "penalty-sweep:0.001+0.1(exact=magnitude;seeds=2;steps=4;gate_rate=1;train_batch=4)",
        ENTAILMENT,
        ENTAILMENT,
        {},
    ),
    "pruning-curve": ("pruning-curve(methods=magnitude;keep=50%+25%;seeds=2)", ENTAILMENT, ENTAILMENT, {}),
    "rare-words": ("rare-words(frequent=20)", "demo/encoder-english", None, {"text": draw_sentences("english", 80, seed=0), "limit": 80}),
    "relation-accuracy": ("relation-accuracy", "demo/encoder-english", None, {"text": draw_sentences("english", 80, seed=0), "limit": 80}),
    "role-definitions": ("role-definitions", ENTAILMENT, ENTAILMENT, {"limit": 40}),
    "role-families": ("role-families(definition=pande2021(tau=1))", ENTAILMENT, ENTAILMENT, {"limit": 40}),
    "role-map": ("role-map(definition=pande2021(tau=1))", ENTAILMENT, ENTAILMENT, {"limit": 40}),
    "remaining-roles": ("remaining-roles(methods=magnitude;keep=50%+25%;seeds=2)", "demo/encoder", "demo/text", {}),
    "role-pruning": ("role-pruning(role=offset:-1;seeds=2;keep=50%+75%)", "demo/encoder", "demo/text", {}),
    "roles-importance": ("roles-importance(definition=voita2019)", "demo/encoder", "demo/text", {}),
    "single-heads": ("single-heads", ENTAILMENT, ENTAILMENT, {}),
    "speed": ("speed(method=magnitude;keep=50%+25%;batches=1;length=8;rounds=15)", ENTAILMENT, ENTAILMENT, {}),
    "plan-transfer": ("plan-transfer:demo/entailment-tavi(method=magnitude;keep=16;seeds=2)", ENTAILMENT, ENTAILMENT, {}),
    "strategies": ("strategies(strategies=layers:top;keep=16;seeds=2;recover=2steps;train_batch=4)", ENTAILMENT, ENTAILMENT, {}),
    "survivors": ("survivors", None, None, {"text": SENTENCES}),
    "task-transfer": ("task-transfer:demo/entailment-tavi", ENTAILMENT, ENTAILMENT, {"limit": 40}),
    "weight-change": ("weight-change:demo/entailment-english", ENTAILMENT, None, {}),
    "training-log": ("training-log(method=dsp;steps=4;train_batch=4)", ENTAILMENT, ENTAILMENT, {}),
    "transfer": ("transfer:{folder}/a+{folder}/b", None, None, {}),
}
FIGURES = {
    "all-but-one": ["layers", "metric"],
    "attention-maps": ["positional"],
    "by-type": ["types"],
    "compensation": ["weights", "importance"],
    "dynamics": ["curves"],
    "finetune-roles": ["roles"],
    "from-scratch": ["controls"],
    "importance-map": ["gradient", "magnitude", "distances of encoder-self", "parameters"],
    "kept": [f"layers by {method}" for method in ("magnitude", "random")],
    "languages": ["languages", "lost", "tasks"],
    "layers": ["groups", "pairs"],
    "penalty-sweep": ["heads", "metric", "exact"],
    "pruning-curve": ["curve", "difference"],
    "rare-words": ["ranks", "heads"],
    "relation-accuracy": ["relations"],
    "role-definitions": ["sweep", "rules", "blocks"],
    "role-families": ["shares", "overlap", "layers", "thirds"],
    "role-map": ["bias", "labels", "p-values", "map", "map-local", "map-block", "map-delimiter"],
    "remaining-roles": ["families by magnitude", "families by random"],
    "role-pruning": ["roles"],
    "roles-importance": ["heads", "ranks"],
    "single-heads": ["histogram", "map"],
    "speed": ["batches", "sizes"],
    "importance-or-random": ["choices-24", "choices-8"],
    "interventions": ["interventions"],
    "plan-transfer": ["transfer"],
    "strategies": ["strategies"],
    "survivors": ["families 1", "families 2", "share"],
    "task-transfer": ["metric 1", "loss 1"],
    "weight-change": ["layers"],
    "training-log": ["gates", "loss", "log10 tau", "expected open heads", "open heads"],
    "transfer": ["pair 1"],
}
"""The figures of every study that is named here."""


def request_of(name: str, folder: Path) -> tuple[str, str | None, str | None, dict[str, Any]]:
    """The text, model, task and further arguments of a study; one that is not named above has its default inputs."""
    text, model, data, options = REQUESTS.get(name, (name, None, None, {}))
    limit = {"limit": None} if name in ("transfer", "survivors") else {}
    return text.format(folder=folder), model, data, {**limit, **options}


def prepare(study: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Makes the run folders that a study reads."""
    if study == "transfer":
        for name, data in (("a", ENTAILMENT), ("b", "demo/entailment-tavi")):
            assert run(capsys, "score", ENTAILMENT, "--task", data, "--by", "fluctuation", "--limit", 8, "--out", folder / name)[0] == 0
    elif study == "survivors":
        words = ("--task", "demo/text", "--methods", "magnitude", "--keep", "25%,50%", "--seeds", 2, "--no-repair", "--limit", 8)
        assert run(capsys, "compare", "demo/encoder", *words, "--out", folder / "run")[0] == 0
