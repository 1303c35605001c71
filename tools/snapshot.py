"""Results of every method on the embedded models, as numbers: a guard for changes that must not change what is computed.

    python tools/snapshot.py BASE               runs the commit BASE and this checkout on this machine; all bits must be equal
    python tools/snapshot.py --write FILE       writes the results of this checkout
    python tools/snapshot.py --reference        rewrites tests/golden/snapshot.json, which the test suite compares with at 1e-5;
                                                with --only TEXT those results alone whose name holds this text

BASE runs its own copy of this script, so a renamed function needs no alias here. Models compute in float64; a result is a list of numbers or
names, and the SHA-256 of its bits. The reference holds fewer results from fewer examples, so that comparing them takes a minute: everything of
the first model, and of the decoder, the translator and the encoder of rare words everything but the pruners. A method that is added later is not
compared until the reference is rewritten.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
REFERENCE = ROOT / "tests" / "golden" / "snapshot.json"
MODELS = {
    "entailment": "demo/entailment",
    "encoder": "demo/text-tavi",
    "decoder": "demo/stories",
    "translator": "demo/translation",
    "encoder-english": "demo/text",
    "entailment-english": "demo/entailment",
    "rare-words": "demo/rare-words",
}
"""Every embedded model with its task."""
PRUNED = ("entailment", "decoder", "translator")
"""Models that are pruned: an encoder, a decoder, and an encoder with a decoder."""
EXAMPLES = 16
STEPS = 6
REFERENCE_MODELS = ("entailment", "decoder", "translator", "rare-words")
REFERENCE_EXAMPLES = 8
TOLERANCE = 1e-5
TOLERANCES = {"decoder score lrp:epsilon": 1e-3}
"""Results that CPUs round too differently for 1e-5. The decoder computes softmax and norms in float32, and this rule divides by small sums:
AVX-512, AVX2 and no vector instructions differ by 1.6e-5 of the largest number. All other results agree within 2e-7, all plans exactly."""
Results = dict[str, dict[str, Any]]


def record(values: Any) -> dict[str, Any]:
    """One result: numbers with the hash of their bits, or names."""
    if len(values) and isinstance(values[0], str):
        return {"names": list(values)}
    numbers = np.asarray(values, dtype=np.float64)
    return {"numbers": numbers.tolist(), "bits": hashlib.sha256(numbers.tobytes()).hexdigest()}


def weight_norms(model: Any) -> list[float]:
    """Sum and norm of every tensor of a model, in the order of their names."""
    import torch

    state = {name: tensor for name, tensor in sorted(model.state_dict().items()) if torch.is_floating_point(tensor)}
    return [float(number) for tensor in state.values() for number in (tensor.double().sum(), tensor.double().norm())]


def importances() -> Iterator[str]:
    """Every importance in every variant."""
    from headcount.core.options import options_of
    from headcount.core.registry import IMPORTANCES

    for name in IMPORTANCES.names():
        variants = [option.choices for option in options_of(IMPORTANCES.get(name)) if option.name == "variant"]
        yield from (f"{name}:{variant}" for variant in variants[0]) if variants else [name]


def pruners() -> Iterator[str]:
    """Every pruner in every variant, and ranking with its options."""
    from headcount.core.options import options_of
    from headcount.core.registry import PRUNERS

    for name in (name for name in PRUNERS.names() if name != "plan"):  # a plan names heads of one model
        positional = [declared for declared in options_of(PRUNERS.get(name)) if declared.is_positional]
        variants = [f"{name}:{variant}" for declared in positional for variant in declared.choices] or [name]
        yield from (text.removesuffix(":global") for text in variants)
    yield from ("fisher(tune=false)", "ablation", "rank(by=gradient;scope=layer)", "rank(by=gradient;again=true;step=0.25)")


def measure_model(name: str, task_name: str, n_examples: int) -> Iterator[tuple[str, Callable[[], Any]]]:
    """The results of one model, each as a name and a function that computes it."""
    from transformers import AutoTokenizer

    import headcount as hc
    from headcount.data.open_task import open_task
    from headcount.pruning.recipe import Recipe
    from headcount.surgery.source import local_folder

    folder = local_folder(f"demo/{name}")
    model = hc.load(folder).double().eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    task = open_task(task_name, model, tokenizer, limit=n_examples, seed=1)
    texts = open_task(task_name, model, tokenizer, limit=10 * n_examples, seed=1)  # a role needs more of them
    n_heads, recipe = len(hc.HeadMap.of(model)), Recipe(steps=STEPS, train_batch=8)

    for method in importances():
        yield f"score {method}", lambda method=method: hc.score(model, task, by=method, normalise="none", seed=3).values
    yield "score gradient published", lambda: hc.score(model, task, by="gradient").values
    yield "race", lambda: hc.score(model, task, by="ablation", adaptive=n_heads // 4).values
    yield "roles", lambda: [row.bias for row in hc.roles(model, texts, tokenizer).rows]
    yield "excess mass", lambda: [row.excess for row in hc.roles(model, texts, tokenizer, swaps=0).rows if row.excess is not None]
    yield "evaluation", lambda: [float(loss) for loss in evaluation(model, task)]
    if name not in PRUNED:
        return
    plan = hc.Plan.keep_top(hc.score(model, task, by="gradient"), n_heads // 2)
    yield "repair", lambda: weight_norms(hc.repair(model, plan, task))
    for method in pruners():
        pruned: list[Any] = []

        def names(method: str = method, pruned: list[Any] = pruned) -> list[str]:
            data, options = (texts, f"(tokenizer={folder})") if method.startswith("role") else (task, "")
            pruned.append(hc.prune(model, data, method + options, keep=n_heads // 2, recipe=recipe, seed=5))
            return [str(head) for head in pruned[0].plan.removed]

        yield f"prune {method} plan", names
        yield f"prune {method} weights", lambda pruned=pruned: weight_norms(pruned[0].model)
    recovered: Callable[[], Any] = lambda: hc.prune(model, task, "gradient", keep=n_heads // 2, recover="4steps", recipe=recipe, seed=5)  # noqa: E731
    yield "prune gradient recovered weights", lambda: weight_norms(recovered().model)


def evaluation(model: Any, task: Any) -> Any:
    """Losses of the report split, one by one."""
    from headcount.data.evaluate import evaluate

    return evaluate(model, task).losses


def collect(
    models: Iterable[str] = tuple(MODELS), *, n_examples: int = EXAMPLES, select: Callable[[str], bool] = lambda name: True
) -> Results:
    """Returns the selected results of this checkout. A method that refuses a model is recorded by its error."""
    import torch
    import transformers

    from headcount.core.errors import HeadcountError

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    results: Results = {}
    for model in models:
        for label, compute in measure_model(model, MODELS[model], n_examples):
            name = f"{model} {label}"
            if not select(name):
                continue
            started = time.process_time()
            try:
                results[name] = record(compute())
            except (HeadcountError, IndexError) as error:  # IndexError: the plan of these weights was refused
                results[name] = {"refused": type(error).__name__}
            print(f"{time.process_time() - started:6.2f} s  {name}", file=sys.stderr)
    return results


def is_in_reference(name: str) -> bool:
    """Whether the reference holds the result of that name."""
    model, kind = name.split()[:2]
    return model in REFERENCE_MODELS and (model == REFERENCE_MODELS[0] or kind != "prune")


def write_reference(results: Results) -> None:
    """Writes the stored results: no bits, which other machines do not reproduce, and numbers to ten digits."""
    stored = {
        name: {"numbers": [float(f"{number:.10g}") for number in result["numbers"]]} if "numbers" in result else result
        for name, result in results.items()
    }
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(result)}" for name, result in stored.items())
    REFERENCE.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")


def compare_bits(base: Results, here: Results) -> list[str]:
    """What differs between two sets of results that were made on one machine."""
    lines = [f"{name}: only in {'the base' if name in base else 'this checkout'}" for name in sorted(base.keys() ^ here.keys())]
    return lines + [f"{name}: differs" for name in sorted(base.keys() & here.keys()) if base[name] != here[name]]


def compare_values(stored: Results, here: Results) -> list[str]:
    """What differs from stored results by more than a share of the largest number, or in names; other machines round differently."""
    lines = [f"{name}: only {'stored' if name in stored else 'here'}" for name in sorted(stored.keys() ^ here.keys())]
    for name in sorted(stored.keys() & here.keys()):
        before, now = stored[name], here[name]
        if "numbers" not in before or "numbers" not in now:
            lines += [f"{name}: {before} became {now}"] if before != now else []
            continue
        expected, actual = np.array(before["numbers"]), np.array(now["numbers"])
        tolerance = TOLERANCES.get(name, TOLERANCE)
        if expected.shape != actual.shape:
            lines.append(f"{name}: {expected.shape} numbers became {actual.shape}")
        elif len(expected) and not np.allclose(actual, expected, rtol=tolerance, atol=tolerance * np.abs(expected).max(), equal_nan=True):
            lines.append(f"{name}: differs by up to {np.nanmax(np.abs(actual - expected)):.3g}")
    return lines


def run_checkout(folder: Path, target: Path) -> Results:
    """Runs the snapshot script of a checkout in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(folder / "src"), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, str(folder / "tools" / "snapshot.py"), "--write", str(target)], env=environment, check=True)
    return json.loads(target.read_text(encoding="utf-8"))


def compare_with_base(base: str) -> int:
    """Runs the commit `base` and this checkout and prints what differs."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "base"
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", str(tree), base], cwd=ROOT, check=True)
        try:
            before = run_checkout(tree, Path(folder) / "base.json")
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(tree)], cwd=ROOT, check=True)
        here = run_checkout(ROOT, Path(folder) / "here.json")
    differences = compare_bits(before, here)
    print("\n".join([*differences, f"{len(here)} results, {len(differences)} differ from {base}"]))
    return 1 if differences else 0


def main() -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", nargs="?", help="commit to compare with")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the results of this checkout")
    parser.add_argument("--reference", action="store_true", help=f"rewrite {REFERENCE.relative_to(ROOT)}")
    parser.add_argument("--only", default="", metavar="TEXT", help="only results whose name holds this text")
    arguments = parser.parse_args()
    if arguments.base:
        return compare_with_base(arguments.base)
    if arguments.reference:
        results = collect(
            REFERENCE_MODELS, n_examples=REFERENCE_EXAMPLES, select=lambda name: is_in_reference(name) and arguments.only in name
        )
        write_reference({**json.loads(REFERENCE.read_text(encoding="utf-8")), **results} if arguments.only else results)
    else:
        results = collect(select=lambda name: arguments.only in name)
    if arguments.write:
        arguments.write.write_text(json.dumps(results, indent=1), encoding="utf-8")
    print(f"{len(results)} results")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
