"""Reports of any size, made up from a seed: what the page must be able to show, without a model and without torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from sentences import ARABIC, POS, RELATIONS, SENTENCE, Json, attention
from study_pages import DRAWN, PAPER, PLAIN

from headcount.core.heads import Head
from headcount.core.scores import Scores
from headcount.core.study_result import StudyResult
from headcount.runs.report.bench import flag_times
from headcount.runs.report.scores import head_index_groups_in_removal_order, head_indices_in_removal_order
from headcount.runs.report.studies import pack_result, pack_table

ROLES = [
    ("previous token", "p", "Attends to the token before."),
    ("next token", "n", "Attends to the token after."),
    ("delimiter", "d", "Attends to separators."),
    ("sink", "s", "Attends to the first token."),
    ("same token", "=", "Attends to the same word elsewhere."),
    ("syntax:nsubj", "Sn", "Attends from a subject to its verb."),
    ("syntax:amod", "Sa", "Attends from an adjective to its noun."),
    ("syntax:obj", "So", "Attends from an object to its verb."),
    ("rare", "r", "Attends to the rarest words."),
    ("induction", "i", "Attends to what followed the same token before."),
]


@dataclass(frozen=True, slots=True)
class Kind:
    """One stack of attention blocks."""

    name: str = "encoder-self"
    stack: str = ""
    layers: int = 12
    heads: int = 12
    group: int = 1


@dataclass(frozen=True, slots=True)
class Shape:
    """What a run has, and how much of it."""

    kinds: tuple[Kind, ...] = (Kind(),)
    sentences: int = 8
    tokens: int = 32
    methods: int = 6
    points: int = 10
    seeds: int = 3
    causal: bool = False
    words: list[str] = field(default_factory=lambda: SENTENCE)
    lang: str = "en"
    name: str = "bert-sst2"
    model: str = "bert-base-uncased"


BERT = Shape()
GQA = Shape(kinds=(Kind("decoder-self", "", 16, 32, 4),), sentences=2, causal=True, name="llama-gqa", model="llama-1b", seeds=2)
TRANSLATION = Shape(
    kinds=(Kind("encoder-self", "encoder", 6, 8), Kind("decoder-self", "decoder", 6, 8), Kind("cross", "cross", 6, 8)),
    sentences=3,
    name="opus-de",
    model="opus-mt-en-de",
)
RTL = Shape(words=ARABIC, lang="ar", sentences=3, name="arabert", model="arabert-base")
LONG = Shape(sentences=1, tokens=512, name="long", methods=2, points=4)
SMALL = Shape(kinds=(Kind(layers=3, heads=4),), sentences=2, tokens=16, methods=3, points=4, name="tiny")


def report(*runs: Json, live: Json | None = None) -> Json:
    """A whole payload; two runs over the same heads are compared."""
    both = len(runs) == 2 and runs[0]["heads"] == runs[1]["heads"]
    return {"schema": 1, "runs": list(runs), "comparison": comparison(*runs) if both else None, "left_out": [], "live": live}


def run(shape: Shape = BERT, seed: int = 0) -> Json:
    """A run with everything."""
    rng = np.random.default_rng(seed)
    made = bare(shape)
    n = len(made["heads"])
    made["scores"] = _scores(rng, made)
    made["verdicts"] = _verdicts(n)
    made["roles"] = _roles(rng, n)
    made["curves"] = _curves(rng, shape, made)
    made["bench"] = _bench(rng, made["curves"], n)
    made["profiles"] = _portraits(rng, shape, made)
    made["attention"] = attention(rng, shape, made["blocks"])
    made["tables"] = [
        {
            "name": "survivors by layer",
            "about": "How many heads stay in every layer.",
            "columns": ["layer", "kept"],
            "rows": [[0, 8], [1, 11]],
        }
    ]
    made["studies"] = [study_page("kept", PLAIN), study_page("layers", DRAWN)]
    made["papers"] = [paper_page()]
    chosen = next(point for point in made["curves"]["points"] if point["id"] == made["curves"]["chosen"]["point"])
    made["summary"] = [
        f"{shape.model} has {n} attention heads.",
        f"Certified within 2pt: with {chosen['keep']} of {n} heads it is {chosen['bound_text']} (95 %, one-sided, n = 872).",
        f"At {chosen['keep']} heads the model is measured 1.34 × as fast at batch 8, length 128, and has 83.1 % of its parameters.",
        f"{sum(map(bool, made['roles']['labels']))} heads have a role; for 5 of 8 dependency relations a head beats the best fixed offset.",
    ]
    made["warnings"] = ["The selection split has 872 examples: differences under 1.5 points cannot be told apart."]
    return made


def bare(shape: Shape = SMALL) -> Json:
    """A run with nothing but its heads."""
    heads: list[str] = []
    blocks: list[Json] = []
    for kind in shape.kinds:
        for layer in range(shape.kinds[0].layers if kind.layers == 0 else kind.layers):
            prefix = f"{kind.stack}." if kind.stack else ""
            positions = list(range(len(heads), len(heads) + kind.heads))
            heads += [f"{prefix}L{layer}H{head}" for head in range(kind.heads)]
            groups = [head // kind.group for head in range(kind.heads)] if kind.group > 1 else None
            path = f"model.{kind.stack or 'encoder'}.layer.{layer}.attention"
            blocks.append({"path": path, "kind": kind.name, "stack": kind.stack, "layer": layer, "heads": positions, "kv_group": groups})
    return {
        "name": shape.name,
        "command": f"headcount compare {shape.model} --task glue/sst2 --methods surgeon,gradient,random --out runs/{shape.name}",
        "task": "glue/sst2",
        "created": "2026-03-01T09:12:44Z",
        "updated": "2026-03-01T10:40:02Z",
        "seed": 0,
        "model": {
            "name": shape.model,
            "class_name": "BertForSequenceClassification",
            "model_type": "bert",
            "n_parameters": 109_483_778,
            "weights": "sha256:5c3a19",
        },
        "versions": {"headcount": "0.9.0", "torch": "2.10.0", "transformers": "5.3.0"},
        "machine": {"cpu": "Xeon 8375C", "threads": 2, "device": "cpu", "dtype": "float32", "memory": "23 GB"},
        "config": {"task": "glue/sst2", "limit": 872, "floor": 0, "methods": ["surgeon", "gradient", "random"]},
        "data": {"calibration": "sst2 train, 512 examples", "report": "sst2 validation, 872 examples"},
        "summary": [],
        "warnings": [],
        "heads": heads,
        "blocks": blocks,
        "scores": [],
        "verdicts": None,
        "roles": None,
        "curves": None,
        "bench": [],
        "profiles": None,
        "attention": None,
        "attention_left_out": False,
        "tables": [],
        "studies": [],
        "papers": [],
    }


def study_page(name: str, result: StudyResult) -> Json:
    """The page of a study."""
    conditions = ["Model: bert-base-uncased.", "Seed: 0."]
    page = {"name": name, "about": f"What {name} asks.", "command": f"headcount study {name} bert-base-uncased", "conditions": conditions}
    return {**page, "result": pack_result(result)}


def paper_page() -> Json:
    """The page of a paper with two results of three items, and what the paper reports for one of them."""
    page = {name: getattr(PAPER, name) for name in ("name", "title", "bibtex", "command", "conditions")}
    items = [
        {
            **{name: getattr(entry, name) for name in ("id", "title", "part", "reason", "command")},
            "result": None if entry.result is None else pack_result(entry.result),
            "published": None if entry.published is None else pack_table(entry.published),
        }
        for entry in PAPER.entries
    ]
    return {**page, "items": items}


def ranked(run: Json, values: list[float]) -> Json:
    """Values of an importance, with the orders in which headcount lets heads and KV groups of a run go by it."""
    heads = tuple(map(Head.parse, run["heads"]))
    groups: dict[tuple[str, int], list[Head]] = {}
    for block in run["blocks"]:
        for head, group in zip(block["heads"], block["kv_group"] or block["heads"], strict=True):
            groups.setdefault((block["path"], group), []).append(heads[head])
    scores = Scores(heads, tuple(values), units=tuple(map(tuple, groups.values())))
    orders = {
        "removal_order": head_indices_in_removal_order(scores, run["heads"]),
        "group_removal_order": head_index_groups_in_removal_order(scores, run["heads"]),
    }
    return {"values": values, **orders}


def _scores(rng: np.random.Generator, run: Json) -> list[Json]:
    n = len(run["heads"])
    base = rng.gamma(1.2, 0.15, n)
    made = []
    for name, noise, text in (
        ("ablation", 0.02, "Rise of the loss when the head is switched off."),
        ("gradient", 0.06, "Mean of the absolute gradient of the loss at the head's gate."),
        ("fisher", 0.09, "Mean of the squared gradient at the gate."),
        ("magnitude", 0.3, "Norm of the weights of the head."),
    ):
        values = base + rng.normal(0, noise, n)
        error = np.abs(rng.normal(0, 0.04, n)) + 0.01
        made.append(
            {
                "name": name,
                "about": text,
                "kind": "importance",
                "higher_is_keep": True,
                **ranked(run, [round(float(value), 5) for value in values]),
                "stderr": [round(float(value), 5) for value in error] if name != "magnitude" else None,
                "low": [round(float(value), 5) for value in values - 2 * error] if name != "magnitude" else None,
                "high": [round(float(value), 5) for value in values + 2.2 * error] if name != "magnitude" else None,
                "significant": [bool(one) for one in values > 3 * error] if name != "magnitude" else None,
                "n_examples": 512 if name != "magnitude" else None,
            }
        )
    distance = [round(float(value), 4) for value in rng.gamma(2, 2, n)]
    text = "Mean distance of the key from the query, in tokens."
    made.append(
        {
            "name": "distance",
            "about": text,
            "kind": "description",
            "higher_is_keep": True,
            "values": distance,
            "stderr": None,
            "low": None,
            "high": None,
            "significant": None,
            "n_examples": 512,
            "removal_order": None,
            "group_removal_order": None,
        }
    )
    return made


def _verdicts(n: int) -> Json:
    """Every third head is safe when it is removed alone."""
    bounds = [0.011 if head % 3 == 0 else round(0.03 + 0.001 * head, 4) for head in range(n)]
    return {
        "method": "ablation",
        "unit": "nats",
        "tolerance": 0.02,
        "clip": 2,
        "level": 0.95,
        "n_examples": 1100,
        "n_documents": None,
        "n_needed": 450,
        "n_missing": 0,
        "reason": "",
        "cost": [round(bound - 0.009, 4) for bound in bounds],
        "bound": bounds,
        "q": [0.001 if bound < 0.02 else 1 for bound in bounds],
        "safe": [bound < 0.02 for bound in bounds],
    }


def _roles(rng: np.random.Generator, n: int) -> Json:
    names = [name for name, _, _ in ROLES]
    labels = [sorted(rng.choice(len(names), rng.choice([0, 0, 1, 1, 2]), replace=False).tolist()) for _ in range(n)]
    columns = (
        "head role bias low high q effect normalised accuracy accuracy_low accuracy_high baseline baseline_offset has_role by_argmax n "
        "is_content compared_bias twin_bias explained excess excess_low excess_high"
    )
    rows: dict[str, list[Any]] = {name: [] for name in columns.split()}
    for head in range(n):
        for role, name in enumerate(names):
            holds = role in labels[head]
            bias = float(rng.gamma(8, 0.6) if holds else rng.gamma(6, 0.16))
            syntax = name.startswith("syntax")
            accuracy = float(rng.uniform(0.45, 0.9) if holds else rng.uniform(0.02, 0.3)) if syntax else None
            row = (
                (head, role, bias, bias * 0.85, bias * 1.17, 0.0004 if holds else float(rng.uniform(0.06, 1)), bias - 1, bias / 10)
                + ((accuracy, accuracy - 0.05, accuracy + 0.05, 0.38, -1) if accuracy is not None else (None,) * 5)
                + (holds, syntax, 812, syntax)
                + ((bias, 1.4, 0.4 / (bias - 1) if bias > 1 else None, 0.21, 0.17, 0.25) if syntax else (None,) * 6)
            )
            for column, value in zip(rows, row, strict=True):
                rows[column].append(round(value, 4) if isinstance(value, float) else value)
    relations = [
        {
            "role": role,
            "head": int(rng.integers(n)),
            "accuracy": 0.71,
            "baseline": 0.44,
            "baseline_offset": -1,
            "difference": 0.27 if name != "syntax:amod" else -0.02,
            "low": 0.22 if name != "syntax:amod" else -0.06,
            "high": 0.32 if name != "syntax:amod" else 0.03,
            "q": 0.0004 if name != "syntax:amod" else 0.61,
            "n": 412,
            "holds": name != "syntax:amod",
        }
        for role, name in enumerate(names)
        if name.startswith("syntax")
    ]
    return {
        "names": names,
        "about": [about for _, _, about in ROLES],
        "letters": [letter for _, letter, _ in ROLES],
        "labels": labels,
        "rows": rows,
        "curves": [
            {
                "head": head,
                "role": names.index("syntax:nsubj"),
                "offsets": list(range(-4, 5)),
                "attention": [0.1 + 0.02 * (4 - abs(offset)) for offset in range(-4, 5)],
                "twin": [0.02 * (4 - abs(offset)) for offset in range(-4, 5)],
            }
            for head in range(n)
        ],
        "swapped": {"n_swaps": 20, "n_sentences": 640, "labels": 84, "swapped_labels": 3.4, "ratio": 0.04},
        "definition": "beyond-distance",
        "best": [
            {"role": r["role"], "head": r["head"], "accuracy": 0.71, "accuracy_low": 0.66, "accuracy_high": 0.76, "baseline": 0.44}
            | {"chance": 0.1, "n": 104}
            for r in relations
        ],
        "relations": relations,
        "n_sentences": 200,
        "tau": 3,
        "alpha": 0.05,
        "skipped": ["sentence 17: its words do not align with the tokens"],
    }


METHODS = ("surgeon", "gradient", "random", "gates", "ablation", "gradient + recovery", "fisher", "l0")


def _curves(rng: np.random.Generator, shape: Shape, content: Json) -> Json:
    n = len(content["heads"])
    unit = shape.kinds[0].group
    keeps = sorted({max(unit, round(n * share / unit) * unit) for share in np.linspace(0.1, 0.95, shape.points)})
    points = []
    for at, method in enumerate(METHODS[: shape.methods]):
        for seed in range(shape.seeds):
            order = _units(rng, n, unit)
            for keep in keeps:
                lost = (1 - keep / n) ** (1.4 if method == "random" else 4 - 0.3 * at) * 0.4 + float(rng.normal(0, 0.004))
                removed = sorted(order[: n - keep])
                points.append(
                    {
                        "id": f"{method} {keep} {seed}",
                        "method": method,
                        "is_random": method == "random",
                        "is_trained": method in ("gates", "gradient + recovery", "l0"),
                        "keep": keep,
                        "seed": seed,
                        "value": round(0.924 - lost, 4),
                        "loss": round(0.21 + lost, 4),
                        "difference": round(-lost, 4),
                        "low": round(-lost - 0.012, 4),
                        "high": round(-lost + 0.012, 4),
                        "bound": round(lost + 0.012, 4),
                        "bound_text": f"at most {100 * (lost + 0.012):.2g} points worse by accuracy",
                        "procedure": "Tango",
                        "margin": "2pt",
                        "verdict": "certified" if lost + 0.012 < 0.02 else "worse" if lost - 0.012 > 0.02 else "undecided",
                        "right_to_wrong": 20 + round(872 * max(lost, 0)),
                        "wrong_to_right": 20,
                        "loss_difference": round(lost, 4),
                        "is_repaired": method == "surgeon",
                        "removed": removed,
                        "parameters": 109_483_778 - 196_992 * (n - keep),
                        "bytes": 4 * (109_483_778 - 196_992 * (n - keep)),
                        "flops": 22.4e9 * (0.7 + 0.3 * keep / n),
                        "kv_bytes_per_token": 512 * keep,
                        "command": f"headcount prune {shape.model} --method {method.split()[0]} --keep {keep} --seed {seed} --out pruned",
                    }
                )
    by_size = [min((point for point in points if point["keep"] == keep), key=lambda one: -one["value"]) for keep in reversed(keeps)]
    n_passed = next((at for at, one in enumerate(by_size) if one["verdict"] != "certified"), len(by_size))
    tested, chosen = by_size[: n_passed + 1], by_size[max(0, n_passed - 1)]
    dense = {"value": 0.924, "loss": 0.21, "n_examples": 872, "low": 0.905, "high": 0.941, "parameters": 109_483_778, "bytes": 437_935_112}
    return {
        "metric": "accuracy",
        "higher_is_better": True,
        "dense": {**dense, "flops": 22.4e9, "kv_bytes_per_token": 512 * n, "tokens": 128},
        "points": points,
        "margin": "2pt",
        "by_size": [one["id"] for one in by_size],
        "sizes": [{"point": one["id"], **{name: one[name] for name in ("keep", "bound_text", "verdict")}} for one in tested],
        "chosen": {"point": chosen["id"], "verdict": chosen["verdict"]},
        "commands": {
            method: f"headcount prune {shape.model} --method {method.split()[0]} --keep {{keep}} --seed 0 --out pruned"
            for method in METHODS[: shape.methods]
        },
        "unit": unit,
    }


def _units(rng: np.random.Generator, n: int, unit: int) -> list[int]:
    groups = rng.permutation(n // unit)
    return [int(group) * unit + index for group in groups for index in range(unit)]


def _bench(rng: np.random.Generator, curves: Json, n: int) -> list[Json]:
    keeps = sorted({point["keep"] for point in curves["points"]})[1::3]
    rows = []
    for method in ("surgeon", "gradient"):
        for keep in keeps:
            for batch, length in ((1, 32), (8, 128), (32, 128)):
                dense = 0.004 * batch * length / 32 * (1 + 0.001 * float(rng.normal()))
                for name, factor in (("dense", 1.0), ("masked", 1.01), ("removed", 0.55 + 0.45 * keep / n)):
                    seconds = dense * factor
                    rows.append(
                        {
                            "of": f"{method}, {keep} heads",
                            "point": f"{method} {keep} 0",
                            "method": method,
                            "keep": keep,
                            "seed": 0,
                            "name": name,
                            "batch": batch,
                            "length": length,
                            "seconds": seconds,
                            "low": seconds * 0.97,
                            "high": seconds * 1.06,
                            "speedup": dense / seconds,
                            "speedup_low": 0.97 * dense / seconds,
                            "speedup_high": 1.03 * dense / seconds,
                            "rounds": 30,
                        }
                    )
    return judge(rows)


def judge(rows: list[Json]) -> list[Json]:
    """Times with the verdicts that the report has on them."""
    models = dict.fromkeys(row["of"] for row in rows)
    return [row for of in models for row in flag_times([one for one in rows if one["of"] == of])]


def _portraits(rng: np.random.Generator, shape: Shape, content: Json) -> Json:
    n = len(content["heads"])

    def shares(size: int) -> list[list[float]]:
        return [[round(float(value), 4) for value in rng.dirichlet(np.full(size, 0.5))] for _ in range(n)]

    def example(weight: float) -> Json:
        start = int(rng.integers(0, max(1, len(shape.words) - 12)))
        words = shape.words[start : start + 12]
        query, key = int(rng.integers(len(words))), int(rng.integers(len(words)))
        keys = [[key, round(weight, 3)], [(key + 1) % len(words), round((1 - weight) * 0.6, 3)]]
        return {"tokens": words, "query": query, "keys": keys, "query_tokens": None, "weight": round(weight, 3)}

    examples = [
        {
            "top": [example(float(rng.uniform(0.85, 0.99))) for _ in range(3)],
            "middle": [example(float(rng.uniform(0.4, 0.6))) for _ in range(3)],
            "random": [example(float(rng.uniform(0.1, 0.9))) for _ in range(3)],
        }
        for _ in range(n)
    ]
    kinds = [kind.name for kind in shape.kinds]
    return {
        "n_sentences": 200,
        "distances": ["≤ −5", "−4", "−3", "−2", "−1", "0", "1", "2", "3", "4", "≥ 5"],
        "distance": shares(11),
        "pos": {"names": POS, "share": shares(len(POS)), "expected_by_kind": {kind: [0.125] * len(POS) for kind in kinds}},
        "relation": {
            "names": RELATIONS,
            "share": shares(len(RELATIONS)),
            "expected_by_kind": {kind: [0.05] * len(RELATIONS) for kind in kinds},
        },
        "entropy": [round(float(value), 4) for value in rng.uniform(0.2, 3, n)],
        "confidence": [round(float(value), 4) for value in rng.uniform(0.1, 0.95, n)],
        "similar": [
            [[int(other), round(0.1 + 0.05 * at, 3)] for at, other in enumerate(rng.choice(n, 5, replace=False))] for _ in range(n)
        ],
        "examples": examples,
    }


OUTCOMES = {"both": 760, "only_a": 31, "only_b": 46, "neither": 35}


def comparison(a: Json, b: Json) -> Json:
    """What two runs over the same heads differ in."""
    scores = []
    for score, other in zip(a["scores"], b["scores"], strict=True):
        difference = [round(y - x, 5) for x, y in zip(score["values"], other["values"], strict=True)]
        marked = [abs(value) > 0.25 for value in difference]
        scores.append({"name": score["name"], "difference": difference, "significant": marked, "spearman": 0.62, "low": 0.5, "high": 0.71})
    labels = [run["roles"]["labels"] if run["roles"] else [] for run in (a, b)]
    changed = [{"head": at, "a": x, "b": y} for at, (x, y) in enumerate(zip(*labels, strict=True)) if x != y]
    return {
        "title": f"{b['name']} against {a['name']}",
        "scores": scores,
        "roles": changed if a["roles"] and b["roles"] else None,
        "roles_only": {"a": [], "b": []},
        "outcomes": {**OUTCOMES, "p": 0.11, "test": "Tango", "metric": "accuracy", "a": 0.907, "b": 0.924},
        "config": [{"key": "seed", "a": "0", "b": "1"}, {"key": "model.weights", "a": "sha256:5c3a19", "b": "sha256:99e0b1"}],
        "warnings": [],
    }
