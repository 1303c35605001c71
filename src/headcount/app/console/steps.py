"""The steps of an analysis as sentences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headcount.app.console.format import format_training
from headcount.core.survivors import SurvivingHeads
from headcount.core.tolerance import Tolerance
from headcount.runs.report.plain import format_speed

SHOWN_SAFE = 8
"""The most heads that a sentence names."""
StepNumbers = Mapping[str, Any]
"""The numbers of a step by name, as `workflows.analyze` gives and stores them."""


def format_step(step_name: str, numbers: StepNumbers) -> str:
    """Returns the sentence of a step from its numbers."""
    if "left_out" in numbers:
        return f"left out: {numbers['left_out']}"
    return _SENTENCES[step_name](numbers)


def _format_head_map(numbers: StepNumbers) -> str:
    sizes = ", ".join(map(str, numbers["keeps"]))
    text = (
        f"{numbers['class_name']}: {numbers['heads']}, {numbers['n_kv_heads']} KV heads, {'/'.join(numbers['layouts'])} projections; "
        f"each gate changes the output, {numbers['n_blocks_to_cut']} of {numbers['n_blocks']} blocks can be cut; pruned to {sizes} heads"
    )
    if numbers["shares"] is None:
        return text
    units = "heads" if numbers["largest_unit"] == 1 else f"KV groups of up to {numbers['largest_unit']} heads"
    return f"{text}, the whole {units} nearest to {', '.join(f'{100 * share:g} %' for share in numbers['shares'])}"


def _format_dense_and_without_heads(numbers: StepNumbers) -> str:
    dense, none = numbers["whole"], numbers["none"]
    return f"{numbers['task']}, {dense['n_examples']} examples: {_format_evaluation(dense)}; without any head: {_format_evaluation(none)}"


def _format_evaluation(numbers: StepNumbers) -> str:
    metric = "" if numbers["value"] is None else f", {numbers['metric']} {numbers['value']:.4g}"
    return f"loss {numbers['loss']:.4g} ± {numbers['loss_stderr']:.1g}{metric}"


def _format_scores(numbers: StepNumbers) -> str:
    text = f"on {numbers['n_examples']} calibration examples {numbers['strongest']} matters most by {numbers['by']}"
    agreement = ", ".join(f"{name} {value:.2f}" for name, value in numbers["agreement"].items())
    return f"{text}; Spearman with ablation: {agreement}" if agreement else text


def _format_safe_heads(numbers: StepNumbers) -> str:
    """Returns which heads are safe to remove, each alone; or how many examples are missing."""
    tolerance, safe = Tolerance(**numbers["tolerance"]), numbers["safe"]
    n = numbers["n_examples"] if numbers["n_documents"] is None else numbers["n_documents"]
    unit_name = "examples" if numbers["n_documents"] is None else "documents"
    text = f"{numbers['method']} of single heads on {n} report {unit_name}, up to {tolerance.format_damage(tolerance.clip)} per example: "
    if numbers["reason"]:
        return f"{text}no head is called safe; {numbers['reason']}"
    listed = f"{', '.join(safe[:SHOWN_SAFE])}{' …' if len(safe) > SHOWN_SAFE else ''}"
    text += f"removed alone, each of {listed} costs at most {tolerance}" if safe else f"no head was shown to cost at most {tolerance}"
    text += " (95 %, corrected over heads); of several removed together this says nothing" if safe else " (95 %, corrected over heads)"
    missing = numbers["n_enough"] - n
    return f"{text}; {missing} {unit_name} more would find every head that changes nothing" if missing > 0 else text


def _format_roles(numbers: StepNumbers) -> str:
    counts = numbers["counts"]
    frequent = sorted(counts, key=lambda role: (-counts[role], role))[:5]
    text = f"{numbers['heads']} of {numbers['n_heads']} heads have one of the {numbers['n_roles']} roles tested"
    if not frequent:
        return text
    return (
        f"{text}, {numbers['multifunctional']} more than one kind; most often {', '.join(f'{role} ({counts[role]})' for role in frequent)}"
    )


def _format_profiles(numbers: StepNumbers) -> str:
    text = (
        f"what each head attends to on {numbers['n_sentences']} texts, {numbers['n_shown']} of them whole" if numbers["n_sentences"] else ""
    )
    return ". ".join(filter(None, [text, *(note.rstrip(".") for note in numbers["notes"])]))


def _format_pruning_results(numbers: StepNumbers) -> str:
    bounds = "; ".join(f"{row['keep']} heads by {row['method']} {row['headline']}" for row in numbers["by_size"])
    text = f"{numbers['artifacts']} models by {numbers['methods']} methods"
    text += f"; of each size the best on the selection split: {bounds} (each bound for its model alone)" if bounds else ""
    text += f"; {numbers['outcome']}" if numbers["outcome"] else ""
    return text + (f"; {len(numbers['failed'])} failed" if numbers["failed"] else "")


def _format_survivors(numbers: StepNumbers) -> str:
    """Returns the heads that stay by kind of attention, where there are several, and by layer."""
    survivors = SurvivingHeads(numbers["by_kind"], numbers["by_block"])
    kinds = [f"{number} {kind}" for kind, number in survivors.by_kind.items()] if len(survivors.by_kind) > 1 else []
    return ", ".join([*kinds, f"by layer {survivors.format_layers()}"])


def _format_kept_model(numbers: StepNumbers) -> str:
    before, after = numbers["before"], numbers["after"]
    margin = "" if numbers["verdict"] else f"; the smallest margin that these data certify: {numbers['smallest_margin']}"
    verdict = f", {numbers['verdict']}" if numbers["verdict"] else ""
    text = (
        f"{numbers['method']}, {numbers['keep']} heads ({_format_survivors(numbers['survivors'])}): {numbers['headline']}{verdict}{margin}; "
        f"{before['parameters']:,} → {after['parameters']:,} parameters, "
        f"{before['flops']:,} → {after['flops']:,} FLOPs of a pass over {before['tokens']} tokens"
    )
    if not before["kv_bytes_per_token"]:
        return text
    return f"{text}, {before['kv_bytes_per_token']:,} → {after['kv_bytes_per_token']:,} bytes of KV cache per token"


def _format_reload(numbers: StepNumbers) -> str:
    weights, outputs = ("equal bit for bit" if numbers[name] else "DIFFER" for name in ("equal_weights", "equal_outputs"))
    return f"{numbers['n_tensors']} tensors {weights}, outputs {outputs}, {numbers['n_heads']} heads under their old addresses"


def _format_bench(numbers: StepNumbers) -> str:
    faster = [row for row in numbers["rows"] if row["name"] == "removed"]
    speeds = ", ".join(
        f"{format_speed(row['speedup'], row.get('speedup_low'), row.get('speedup_high'))} at batch {row['batch']}" for row in faster
    )
    return f"the smaller model is {speeds} (length {faster[0]['length']}, median of {faster[0]['rounds']})"


_SENTENCES = {
    "find": _format_head_map,
    "evaluate": _format_dense_and_without_heads,
    "score": _format_scores,
    "judge": _format_safe_heads,
    "roles": _format_roles,
    "profiles": _format_profiles,
    "train": lambda numbers: format_training(*(numbers[name] for name in ("models", "fewest", "most", "shortest", "seconds"))),
    "prune": _format_pruning_results,
    "keep": _format_kept_model,
    "load": _format_reload,
    "verify": lambda numbers: (
        "the cut was proven equal to the gates before it was saved; repair and training move its output by "
        f"{numbers['effect']:.2g} from the masked dense model's"
    ),
    "generate": lambda numbers: (
        f"{numbers['n_tokens']} new tokens with caches, {numbers['same_tokens']} of them those of the dense model under gates"
    ),
    "bench": _format_bench,
    "report": lambda numbers: f"{numbers['path']} ({numbers['bytes'] / 1e6:.1f} MB): open it in a browser",
}
