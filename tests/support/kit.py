"""Run folders made by hand, of numbers drawn by a seed, without a model: whatever a run can hold, under any names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from headcount.core.damage import Damage
from headcount.core.evaluation import Evaluation
from headcount.core.heads import Head
from headcount.core.scores import Scores
from headcount.core.stats.samples import Samples
from headcount.pruning.spec import PruneSpec
from headcount.runs.artifacts import ArtifactKey
from headcount.runs.describe import describe_run
from headcount.runs.results import pack_evaluation
from headcount.runs.schema import ModelRecord
from headcount.runs.scores import pack_scores
from headcount.runs.store import Run

ROLES = ("offset:-1", "syntax:nsubj", "syntax:nsubj-of", "sink")
COST = {"heads": 0, "parameters": 900, "bytes": 3600, "flops": 10_000, "tokens": 8, "kv_bytes_per_token": 0}
MADE = {
    "history": [],
    "steps": {},
    "repaired": {},
    "cost": COST,
    "whole_cost": {**COST, "parameters": 1000, "bytes": 4000},
    "trained": False,
}
"""What every artifact of a pruned model says of it beside its request, its heads and its evaluation."""


def heads_of(layers: int = 2, heads: int = 4, stack: str = "") -> list[str]:
    return [str(Head(stack, layer, index)) for layer in range(layers) for index in range(heads)]


def blocks_of(layers: int, heads: int, kv_heads: int) -> Any:
    return SimpleNamespace(
        blocks=[
            SimpleNamespace(
                name=f"L{layer}",
                kind="encoder-self",
                stack="",
                layer=layer,
                path=f"encoder.{layer}",
                heads=[Head("", layer, index) for index in range(heads)],
                n_original=heads,
                n_kv_heads=kv_heads,
                head_dim=4,
                can_cut=True,
            )
            for layer in range(layers)
        ]
    )


def request(method: str = "random", keep: Any = 4, seed: int = 0, **more: Any) -> dict[str, Any]:
    """What the artifact of a pruned model says of its request; a method that nobody registered stands in place of random."""
    spec = PruneSpec.of("random", keep, seed=seed, **more)
    messages = {
        "spec": spec.to_dict(),
        "label": spec.label.replace("random", method, 1),
        "arguments": {**spec.arguments(), "method": method},
    }
    messages["spec"]["method"] = {"name": method}
    return messages


def evaluation(rng: np.random.Generator, n: int, right: float, data: str = "data") -> Evaluation:
    parts = np.stack([(rng.random(n) < right).astype(float), np.ones(n)], -1)
    value = float(parts[:, 0].mean())
    return Evaluation("t", "report", n, rng.random(n) + (1 - right), "accuracy", True, value, parts, data)


def make_run(
    folder: Path,
    *,
    seed: int = 0,
    n: int = 300,
    text: str = "plain",
    layers: int = 2,
    heads: int = 4,
    kv_heads: int | None = None,
    tokens: int = 6,
    shown: int = 3,
    kinds: Sequence[str] = ("scores", "roles", "evaluation", "pruned", "bench", "study", "profiles", "damage"),
    data: str = "data",
) -> Run:
    """A run with everything in it; `text` stands wherever a model, a data set or a user may put one."""
    rng = np.random.default_rng(seed)
    model = ModelRecord(name=text, class_name=text, model_type=text, weights=f"{seed:064d}", n_parameters=1000)
    facts: dict[str, Any] = {"command": text, "seed": seed, "task": text, "machine": {"threads": 1, text: text}, "config": {text: text}}
    makers = {"scores": _scores, "roles": _roles, "pruned": _pruned, "study": _study, "profiles": _profiles, "damage": _damage}
    with Run.lead(folder, command="made by hand") as run:
        run.stage_records(describe_run(model, **facts), blocks_of(layers, heads, kv_heads or heads))
        names, artifacts = heads_of(layers, heads), []
        if "evaluation" in kinds:
            content, arrays = pack_evaluation(evaluation(rng, n, 0.9, data))
            artifacts.append(run.commit(ArtifactKey("evaluation", "dense", {"seed": seed}), content, arrays, provenance={}))
        for kind, maker in makers.items():
            if kind in kinds:
                for spec, content, arrays in maker(rng, names, n=n, text=text, tokens=tokens, shown=shown, layers=layers, data=data):
                    artifacts.append(run.commit(spec, content, arrays, provenance={}))
        if "bench" in kinds:
            key = next(artifact.key.digest for artifact in artifacts if artifact.key.kind == "pruned")
            row = {"batch": 8, "length": 64, "seconds": 0.2, "low": 0.1, "high": 0.3, "rounds": 5}
            rows = [{**row, "name": name, "speedup": speedup} for name, speedup in (("dense", 1.0), ("masked", 0.9), ("removed", 1.34))]
            artifacts.append(run.commit(ArtifactKey("bench", text, {"of": key}), {"rows": rows}, provenance={}))
        run.register_results(*artifacts, data_fingerprints={text: text})
    return Run.open(folder)


def _scores(rng: np.random.Generator, names: list[str], *, n: int, **_: Any) -> Any:
    for method in ("gradient", "ablation", "confidence"):
        samples = Samples.of(rng.normal(np.linspace(0, 1, len(names)), 1.0, (n, len(names))))
        scores = Scores(
            tuple(map(Head.parse, names)),
            tuple(samples.means().tolist()),
            method,
            stderr=tuple(samples.stderr().tolist()),
            n_examples=n,
            samples=samples,
            data="calibration",
        )
        yield ArtifactKey("scores", method, {"n": n}), *pack_scores(scores)


def _damage(_rng: np.random.Generator, names: list[str], **_: Any) -> Any:
    """Damage on 900 report examples: the first head does none, the last much."""
    losses = np.random.default_rng(0).normal(0, 0.02, (900, len(names))) + np.linspace(0, 0.1, len(names))
    losses[:, 0] = 0.0
    samples = Samples.of(losses)
    scores = Scores(
        tuple(map(Head.parse, names)),
        tuple(samples.means().tolist()),
        "ablation",
        n_examples=900,
        samples=samples,
        damage=Damage.in_hash_order([bytes([i % 256, i // 256]) for i in range(900)], losses, losses > 0.05),
        conditions={"split": "report"},
    )
    yield ArtifactKey("damage", "ablation", {}), *pack_scores(scores)


def _roles(rng: np.random.Generator, names: list[str], *, text: str, **_: Any) -> Any:
    rows = []
    for head in names:
        for role in (*ROLES, text):
            bias, accuracy = float(rng.random() * 6), float(rng.random())
            rows.append(
                {
                    **dict.fromkeys(("stderr", "p", "q", "p_permutation", "effect", "chance"), 0.1),
                    **{"head": head, "role": role, "n_sentences": 30, "n_tokens": 90, "bias": bias, "low": bias - 1, "high": bias + 1},
                    **{"maximum": 8.0, "normalised": bias / 8, "accuracy": accuracy, "accuracy_low": accuracy - 0.05},
                    **{
                        "accuracy_high": accuracy + 0.05,
                        "baseline": 0.5,
                        "baseline_offset": -1,
                        "has_role": bias > 3,
                        "by_argmax": accuracy > 0.6,
                    },
                    **{"p_t": None, "attainable": True, "note": text},
                }
            )
    content = {"tau": 3.0, "alpha": 0.05, "data": "text", "heads": names, "rows": rows, "untested": {text: text}, "refused": {text: 2}}
    best = [
        {
            "role": role,
            "head": names[i % len(names)],
            "accuracy": 0.4 + 0.1 * i,
            "accuracy_low": 0.3 + 0.1 * i,
            "accuracy_high": 0.5 + 0.1 * i,
        }
        | {"baseline": 0.5, "baseline_offset": -1, "p": 0.03, "chance": 0.1, "n_sentences": 14, "n_tokens": 40, "n_choosing": 16}
        for i, role in enumerate((*ROLES, text))
    ]
    yield ArtifactKey("roles", "roles", {}), {**content, "conditions": {"n_examples": 30}, "best_heads": best}, {}


def _pruned(rng: np.random.Generator, names: list[str], *, n: int, text: str, data: str, **_: Any) -> Any:
    for method, seeds in (("surgeon", 1), ("random", 2), (text, 1)):
        for keep in (2, 4):
            for seed in range(seeds):
                made = evaluation(rng, n, 0.85 if keep == 4 and method != "random" else 0.5, data)
                removed = [names[i] for i in sorted(rng.permutation(len(names))[: len(names) - keep].tolist())]
                by_name = {name: getattr(made, name) for name in ("metric", "higher_is_better", "value", "n_examples", "data", "loss")}
                content = {**by_name, **request(method, keep, seed), "removed": removed, **MADE}
                name = f"{method}, {keep} heads{f', seed {seed}' if seed else ''}"
                selection = evaluation(rng, n, 0.85 if keep == 4 and method != "random" else 0.5, "selection")
                content["selection"] = {name: getattr(selection, name) for name in ("loss", "value", "n_examples", "data")}
                yield ArtifactKey("pruned", name, {"keep": keep, "seed": seed}), content, {"losses": made.losses, "parts": made.parts}


def _study(_rng: np.random.Generator, _names: list[str], *, text: str, **_: Any) -> Any:
    yield ArtifactKey("study", "survivors", {}), {"rows": [{text: text, "number": 1.5, "truth": True, "none": None}, {"number": 2}]}, {}


def _profiles(rng: np.random.Generator, names: list[str], *, text: str, tokens: int, shown: int, layers: int, **_: Any) -> Any:
    n, per = len(names), len(names) // layers
    words = [text] * tokens
    side = {"tokens": words, "special": [False] * tokens, "word": list(range(tokens)), "words": words, "pos": words, "arcs": [[0, 1, text]]}
    example = {"tokens": words, "query": 0, "keys": [[1, 0.5]], "query_tokens": None, "weight": 0.5}
    content = {
        "n_sentences": shown,
        "heads": names,
        "distances": ["0", "no word"],
        "distance": rng.random((n, 2)).round(3).tolist(),
        "pos": {
            "names": [text, "no word"],
            "share": [[0.5, None]] * n,
            "expected_by_kind": {"encoder-self": [0.5, 0.5]},
        },
        "relation": None,
        "entropy": [1.0] * n,
        "confidence": [0.5] * n,
        "similar": [[[(i + 1) % n, 0.25]] for i in range(n)],
        "examples": [{"top": [example], "middle": [], "random": [example]}] * n,
        "sentences": [{"id": text, "source": side, "target": None, "causal": False}] * shown,
        "blocks": [f"encoder.{layer}" for layer in range(layers)],
        "notes": [text],
    }
    maps = {f"{s}/{b}": rng.integers(0, 256, (per, tokens, tokens)).astype(np.uint8) for s in range(shown) for b in range(layers)}
    yield ArtifactKey("profiles", "profiles", {}), content, maps


__all__ = ["evaluation", "heads_of", "make_run", "request"]
