"""The laws of headcount, checked on a live model: what `headcount check` runs on yours, and the tests on every family.

A law takes a Subject and returns what it measured, or raises LawBroken.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from headcount.core.errors import HeadcountError, PlanError, UnsupportedModel
from headcount.core.heads import AttentionBlock, Head
from headcount.core.plan import Plan
from headcount.models.archs.geometry import family_of
from headcount.models.attention import AttentionTap, eager_attention
from headcount.models.dummy_inputs.text import probe_inputs
from headcount.models.gates import HeadGates, verify_gates
from headcount.models.head_map import HeadMap
from headcount.models.modules import Batch, unwrap
from headcount.models.observe import evaluating
from headcount.models.state import forward_preserving_state, preserve
from headcount.surgery.caches import cross_blocks_sharing_self_cache
from headcount.surgery.config import config_behind_view
from headcount.surgery.cut import count_removed_parameters, cut
from headcount.surgery.load import load
from headcount.surgery.save import save
from headcount.surgery.verify import (
    TOLERANCE,
    forward_outputs,
    gate_values_of_plan,
    largest_relative_difference,
    lowest_float_dtype,
    run_gated,
)


class LawBroken(HeadcountError, AssertionError):
    """A law that does not hold for a model, with the numbers."""


class DoesNotApply(HeadcountError):
    """A law that says nothing about a model, with the reason: it cannot be cut, it does not generate."""


class _Interruption(Exception):
    """Raised inside a context to leave it the hard way."""


MeasuredDetail = str
"""What was measured where a law holds; a broken law raises."""


@dataclass(frozen=True, slots=True)
class LawResult:
    """The outcome of one law; one that does not `apply` to the model neither holds nor fails."""

    law: str
    passed: bool
    detail: str
    applies: bool = True


@dataclass(frozen=True, slots=True)
class Subject:
    """A model under test, its heads and a batch that reaches them."""

    model: nn.Module
    heads: HeadMap
    batch: dict[str, Any] = field(repr=False)

    @classmethod
    def of(cls, model: nn.Module, inputs: Batch | None = None) -> Subject:
        """Returns a subject with a batch that is made for the model, unless inputs are passed."""
        inner = unwrap(model)
        return cls(inner, HeadMap.of(inner), dict(inputs) if inputs is not None else probe_inputs(inner))

    @property
    def cuttable(self) -> list[AttentionBlock]:
        """The blocks that can be cut; raises DoesNotApply if there are none."""
        blocks = [block for block in self.heads.blocks if block.can_cut and block.n_heads]
        if not blocks:
            raise DoesNotApply(f"no block can be cut: {self.heads.blocks[0].gate_only or 'no head is left'}")
        return blocks

    @property
    def tolerance(self) -> float:
        """The difference that rounding may make in this model's dtype."""
        return TOLERANCE[lowest_float_dtype(self.model)]


def list_heads(model: nn.Module) -> list[Head]:
    """Returns the heads that a model has now."""
    return list(HeadMap.of(model))


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise LawBroken(message)


def _all_equal(first: Sequence[Tensor], second: Sequence[Tensor]) -> bool:
    return len(first) == len(second) and all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def uneven_plan(blocks: Sequence[AttentionBlock]) -> Plan:
    """Returns a plan that leaves different head counts in neighbouring blocks: whole KV groups, or single heads of the only group.

    Blocks that share keys and values lose the same groups.
    """
    going: list[Head] = []
    sources = list(dict.fromkeys(block.kv_source or block.path for block in blocks))
    for number, block in enumerate(blocks):
        groups = block.groups()
        order = number if len(groups) == 1 else sources.index(block.kv_source or block.path)
        if len(groups) == 1:
            going += groups[0][: min(1 + order % 3, len(groups[0]) - 1)]
        else:
            n_groups = min(1 + order % 2, len(groups) - 1)
            chosen = groups[:n_groups] if order % 2 else groups[-n_groups:]
            going += [head for group in chosen for head in group]
    return Plan.removing(going)


def emptying_plan(block: AttentionBlock) -> Plan:
    """Returns the plan that removes every head of a block."""
    return Plan.removing(block.heads)


def thinning_plan(blocks: Sequence[AttentionBlock]) -> Plan | None:
    """Returns a plan that removes one query head of every KV group in the first block where groups have several; None where none do."""
    block = next((block for block in blocks if block.group_size > 1 and block.n_kv_heads > 1), None)
    return Plan.removing([group[-1] for group in block.groups()]) if block else None


def every_gate_acts(subject: Subject) -> MeasuredDetail:
    """The gate of every head changes the output."""
    verify_gates(subject.model, subject.heads, subject.batch)
    return f"{len(subject.heads)} gates"


def gate_one_is_identity(subject: Subject) -> MeasuredDetail:
    """Gates of one change no bit."""
    plain = forward_outputs(subject.model, subject.batch)
    with HeadGates(subject.model, torch.ones(len(subject.heads), dtype=torch.float64), heads=subject.heads):
        _require(_all_equal(plain, forward_outputs(subject.model, subject.batch)), "gates of one changed the output")
    return "bit-identical"


def _hooks_gradients_and_kernel(model: nn.Module) -> tuple[Any, ...]:
    hooks = [(len(m._forward_hooks), len(m._forward_pre_hooks), len(m._backward_hooks), m.training) for m in model.modules()]
    gradients = [(p.requires_grad, p.grad is None) for p in model.parameters()]
    return hooks, gradients, getattr(model.config, "_attn_implementation", None)


def leaving_restores(subject: Subject) -> MeasuredDetail:
    """Leaving a context, also by an exception, leaves hooks, gradients, modes, random state and attention implementation as they were."""
    model, batch = subject.model, subject.batch
    before, plain = _hooks_gradients_and_kernel(model), forward_outputs(model, batch)
    seed = torch.get_rng_state()
    with HeadGates(model, torch.zeros(len(subject.heads)), heads=subject.heads):
        pass
    _require(torch.equal(seed, torch.get_rng_state()), "the random state changed")
    for intervention in ("zero", "uniform"):
        try:
            with HeadGates(model, torch.zeros(len(subject.heads)), how=intervention, heads=subject.heads):
                forward_outputs(model, batch)
                raise _Interruption
        except _Interruption:
            pass
        except UnsupportedModel:
            if intervention == "zero":
                raise
    _require(_hooks_gradients_and_kernel(model) == before, "the model was not left as it was found")
    _require(_all_equal(plain, forward_outputs(model, batch)), "the output changed after leaving")
    return "hooks, gradients, modes, random state, attention implementation"


def gate_zero_is_no_attention(subject: Subject) -> MeasuredDetail:
    """A gate of zero equals attention probabilities of zero: the old head_mask, by an independent way."""
    for block in subject.heads.blocks:
        reason = family_of(subject.model.get_submodule(block.path)).beside_attention
        if reason:
            raise DoesNotApply(f"{reason}, so a head with attention probabilities of zero is not yet silent")
    values = torch.ones(len(subject.heads), dtype=torch.float64)
    values[::3] = 0.0
    with HeadGates(subject.model, values, heads=subject.heads), eager_attention(subject.model):
        gated = forward_outputs(subject.model, subject.batch)

    def zero_probabilities_of_gated_heads(block: AttentionBlock, probabilities: Tensor, _visible: Tensor) -> Tensor:
        return probabilities * values[subject.heads.positions(block)].to(probabilities).view(1, -1, 1, 1)

    try:
        with AttentionTap(subject.model, subject.heads.blocks, zero_probabilities_of_gated_heads):
            masked = forward_outputs(subject.model, subject.batch)
    except UnsupportedModel as error:
        raise DoesNotApply(f"attention probabilities cannot be replaced: {error}") from error
    gap = largest_relative_difference(gated, masked)
    _require(gap <= subject.tolerance, f"gating and zeroing probabilities differ by {gap:.3g}")
    return f"difference {gap:.1e}"


def _test_plans(subject: Subject) -> dict[str, Plan]:
    blocks = subject.cuttable
    plans = {"uneven": uneven_plan(blocks), "first block empty": emptying_plan(blocks[0]), "last block empty": emptying_plan(blocks[-1])}
    thin = thinning_plan(blocks)
    return plans | ({"thinner groups": thin} if thin else {})


def cut_equals_gate(subject: Subject) -> MeasuredDetail:
    """A cut gives what the gates give: uneven counts, an empty block at either end, thinner KV groups."""
    worst = 0.0
    for name, plan in _test_plans(subject).items():
        small = cut(subject.model, plan, inputs=subject.batch)
        gap = largest_relative_difference(
            forward_outputs(small, subject.batch), run_gated(subject.model, plan, subject.batch, subject.heads)
        )
        _require(gap <= subject.tolerance, f"{name}: the cut differs from the gates by {gap:.3g}")
        worst = max(worst, gap)
    return f"difference {worst:.1e} over {len(_test_plans(subject))} plans"


ATTENTIONS = {
    "encoder_attentions": ("encoder-self",),
    "decoder_attentions": ("decoder-self",),
    "cross_attentions": ("cross",),
    "attentions": ("encoder-self", "decoder-self"),
}
"""Outputs that hold attention maps, with the kinds of blocks that they come from."""


def _attention_maps_by_output(model: nn.Module, batch: Batch) -> dict[str, tuple[Tensor, ...]]:
    with evaluating(model), eager_attention(model):
        output = forward_preserving_state(model, {**batch, "output_attentions": True})
    fields = {name: output.get(name) for name in ATTENTIONS} if hasattr(output, "get") else {}
    return {name: maps for name, maps in fields.items() if isinstance(maps, tuple) and all(isinstance(tensor, Tensor) for tensor in maps)}


def attention_maps_follow_the_cut(subject: Subject) -> MeasuredDetail:
    """A cut model returns the attention maps of the heads that stay, as the gated model has them."""
    plan = uneven_plan(subject.cuttable)
    small = cut(subject.model, plan, inputs=subject.batch)
    with HeadGates(subject.model, gate_values_of_plan(subject.heads, plan), heads=subject.heads):
        dense = _attention_maps_by_output(subject.model, subject.batch)
    cut_maps, compared = _attention_maps_by_output(small, subject.batch), 0
    for name, maps in dense.items():
        blocks = [block for block in subject.heads.blocks if block.kind in ATTENTIONS[name] and block.n_heads]
        blocks = blocks * len(maps) if len(blocks) == 1 else blocks  # one block may run as several layers
        if len(maps) != len(blocks) or any(a.ndim < 4 or a.shape[1] != b.n_heads for a, b in zip(maps, blocks, strict=True)):
            continue
        for block, dense_map, cut_map in zip(blocks, maps, cut_maps[name], strict=True):
            gap = largest_relative_difference([cut_map], [dense_map[:, list(plan.kept_positions(block))]])
            _require(gap <= subject.tolerance, f"{name} of block '{block.path}' differ by {gap:.3g} from those of the heads that stay")
            compared += 1
    if not compared:
        raise DoesNotApply("the model returns no attention map for each of its blocks")
    return f"{compared} maps"


def parameters_fall_as_predicted(subject: Subject) -> MeasuredDetail:
    """A cut removes exactly the predicted number of parameters, and the head map shows just the heads that stay."""
    total = 0
    for name, plan in _test_plans(subject).items():
        small = cut(subject.model, plan, inputs=subject.batch)
        n_removed = sum(p.numel() for p in subject.model.parameters()) - sum(p.numel() for p in small.parameters())
        _require(
            n_removed == count_removed_parameters(subject.heads, plan),
            f"{name}: {n_removed} parameters went, {count_removed_parameters(subject.heads, plan)} predicted",
        )
        remaining = [head for head in subject.heads if head not in plan.removed]
        _require(list_heads(small) == remaining, f"{name}: the cut model does not show the heads that stay")
        total += n_removed
    return f"{total} parameters removed and predicted"


def cutting_twice_is_cutting_once(subject: Subject) -> MeasuredDetail:
    """Two cuts, one after the other, equal one cut with both plans."""
    first = uneven_plan(subject.cuttable)
    middle = cut(subject.model, first, inputs=subject.batch)
    middle_heads = HeadMap.of(middle)
    blocks = [block for block in middle_heads.blocks if block.can_cut and block.n_heads > block.group_size]
    if not blocks:
        return "no heads left for a second cut"
    last = blocks[-1].groups()[-1]
    second = Plan.removing(next(unit for unit in middle_heads.units() if last[0] in unit))
    twice = cut(middle, second, inputs=subject.batch)
    once = cut(subject.model, Plan.removing([*first.removed, *second.removed]), inputs=subject.batch)
    gap = largest_relative_difference(forward_outputs(twice, subject.batch), forward_outputs(once, subject.batch))
    _require(gap <= subject.tolerance, f"cutting twice differs from cutting once by {gap:.3g}")
    _require(list_heads(twice) == list_heads(once), "cutting twice leaves other heads than cutting once")
    return f"difference {gap:.1e}"


def _equal_with_nan(first: Tensor, second: Tensor) -> bool:
    return torch.equal(first, second) or torch.equal(torch.nan_to_num(first), torch.nan_to_num(second))


def save_then_load_is_equal(subject: Subject) -> MeasuredDetail:
    """What is saved loads bit for bit: every tensor, every buffer, every output, every address."""
    for plan in _test_plans(subject).values():
        require_equal_reload(cut(subject.model, plan, inputs=subject.batch), subject.batch)
    return "tensors, buffers, outputs and addresses bit-equal"


def cast_with_padding_rows(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Returns a copy of a model that was cast by `.to` and whose padding rows are not zero: transformers restores neither."""
    result = copy.deepcopy(model).to(dtype)
    with torch.no_grad():
        for module in result.modules():
            if isinstance(module, nn.Embedding) and module.padding_idx is not None and module.weight.numel():
                module.weight[module.padding_idx] = 0.5
    return result


def casts_survive_saving(subject: Subject) -> MeasuredDetail:
    """A model cast to bfloat16 by `.to`, with padding rows that are not zero, loads bit for bit."""
    model = cast_with_padding_rows(subject.model, torch.bfloat16)
    batch = {k: v.bfloat16() if isinstance(v, Tensor) and v.is_floating_point() else v for k, v in subject.batch.items()}
    try:
        forward_outputs(model, batch)
    except Exception as error:  # complex rotations and other code that has no bfloat16
        raise DoesNotApply(f"the model does not run in bfloat16: {type(error).__name__}: {error}") from error
    require_equal_reload(model, batch)
    return "tensors, buffers and outputs bit-equal"


def require_equal_reload(model: nn.Module, batch: Batch) -> None:
    """Raises LawBroken unless a model, saved and loaded, has the same tensors, buffers, outputs and head addresses, bit for bit."""
    # A configuration file does not keep the kernels that a model runs with; sdpa is the default of the classes that have it.
    names = ("_attn_implementation", "_experts_implementation")
    attention, experts = (value if value != "sdpa" else None for value in (getattr(model.config, name, None) for name in names))
    with tempfile.TemporaryDirectory() as scratch:
        again = load(
            save(model, Path(scratch) / "model"),
            attn_implementation=attention,
            model_kwargs={"experts_implementation": experts} if experts is not None else None,
        )
    require_same_model(model, again, batch)


def require_same_model(model: nn.Module, again: nn.Module, batch: Batch) -> None:
    """Raises LawBroken unless a model and its reload have the same tensors, buffers, outputs and head addresses, bit for bit."""
    for ours, theirs in zip(model.modules(), again.modules(), strict=True):  # parts of a model may run other kernels than the whole
        kernel = getattr(getattr(ours, "config", None), "_attn_implementation_internal", None)
        if kernel is not None:
            config_behind_view(theirs.config)._attn_implementation_internal = kernel
    for kind, ours, theirs in (
        ("tensor", model.state_dict(), again.state_dict()),
        ("buffer", dict(model.named_buffers()), dict(again.named_buffers())),
    ):
        _require(ours.keys() == theirs.keys(), f"the {kind}s changed between save and load: {sorted(ours.keys() ^ theirs.keys())[:3]}")
        changed = [name for name in ours if ours[name].dtype != theirs[name].dtype or not _equal_with_nan(ours[name], theirs[name])]
        _require(not changed, f"a {kind} changed between save and load: {', '.join(changed[:3])}")
    before, after = forward_outputs(model, batch), forward_outputs(again, batch)
    same = len(before) == len(after) and all(a.dtype == b.dtype and _equal_with_nan(a, b) for a, b in zip(before, after, strict=True))
    _require(same, "the output changed between save and load")
    _require(list_heads(model) == list_heads(again), "the addresses changed between save and load")


def impossible_plans_raise(subject: Subject) -> MeasuredDetail:
    """Unknown heads and uneven KV groups raise PlanError and change nothing, also in place."""
    last = subject.heads.blocks[-1]
    wrong = [Plan.removing([Head(last.stack, last.layer, last.n_original)]), Plan.removing([Head(last.stack, 10**5, 0)])]
    grouped = next((b for b in subject.heads.blocks if b.can_cut and b.group_size > 1 and b.n_kv_heads > 1), None)
    wrong += [Plan.removing(grouped.heads[:1])] if grouped else []
    before, plain = copy.deepcopy(subject.model.state_dict()), forward_outputs(subject.model, subject.batch)
    for plan in wrong:
        try:
            cut(subject.model, plan, in_place=True, inputs=subject.batch)
        except PlanError:
            continue
        raise LawBroken(f"an impossible plan ({plan.removed[0]}) was carried out")
    _require(_all_equal(list(before.values()), list(subject.model.state_dict().values())), "an impossible plan changed a tensor")
    _require(_all_equal(plain, forward_outputs(subject.model, subject.batch)), "an impossible plan changed the output")
    return f"{len(wrong)} plans refused"


def _inputs_of_generate(subject: Subject) -> dict[str, Any]:
    skip = ("decoder_input_ids", "decoder_attention_mask", "labels")
    skip += () if cross_blocks_sharing_self_cache(subject.model, subject.heads) else ("encoder_hidden_states",)
    prompt = {name: value for name, value in subject.batch.items() if name not in skip}
    if isinstance(prompt.get("attention_mask"), Tensor) and "input_ids" in prompt:
        prompt["attention_mask"] = torch.ones_like(prompt["attention_mask"])
    return prompt


def generation_options(subject: Subject) -> dict[str, Any]:
    """Returns arguments of a greedy `generate` of 5 tokens that the model itself accepts; raises DoesNotApply where it does not generate."""
    model = subject.model
    if not (hasattr(model, "can_generate") and model.can_generate()):  # pyright: ignore[reportCallIssue]
        raise DoesNotApply("the model does not generate")
    options = {"max_new_tokens": 5, "min_new_tokens": 5, "do_sample": False, "use_cache": True, **_inputs_of_generate(subject)}
    if getattr(model.config, "is_encoder_decoder", False) and model.generation_config.decoder_start_token_id is None:  # pyright: ignore
        options["decoder_start_token_id"] = getattr(model.config, "pad_token_id", None) or 0
    try:
        _generate(model, options)  # with a cache, whatever its keys: some models of transformers cannot make one
    except Exception as error:  # a decoder that waits for an encoder, a prompt of another kind: nothing to compare
        raise DoesNotApply(f"the model itself does not generate from a probe prompt: {type(error).__name__}: {error}") from error
    return options


def _generate(model: nn.Module, options: Batch) -> Tensor:
    with preserve(model), torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        generated = model.generate(**options)  # pyright: ignore[reportCallIssue]
    return generated if isinstance(generated, Tensor) else generated.sequences


def require_same_generated_tokens(subject: Subject, plan: Plan, small: nn.Module, generate_arguments: Batch) -> None:
    """Raises LawBroken unless the cut model generates what the gated one generates.

    The gated one has no cache where it would mix the keys of self- and cross-attention in one.
    """
    shares_cache = bool(cross_blocks_sharing_self_cache(subject.model, subject.heads))
    with HeadGates(subject.model, gate_values_of_plan(subject.heads, plan), heads=subject.heads):
        expected = _generate(subject.model, {**generate_arguments, "use_cache": False} if shares_cache else generate_arguments)
    agree = torch.equal(expected, _generate(small, generate_arguments))
    _require(agree, f"removing {len(plan.removed)} heads, {plan.removed[0]} first: the generated tokens differ")


def generation_agrees(subject: Subject) -> MeasuredDetail:
    """With caches, a cut model generates the tokens that the gated one generates, also when the first block lost all its heads."""
    options = generation_options(subject)
    decoders = [block for block in subject.cuttable if block.kind == "decoder-self"]
    plans = [uneven_plan(subject.cuttable)] + ([emptying_plan(decoders[0])] if decoders else [])
    for plan in plans:
        require_same_generated_tokens(subject, plan, cut(subject.model, plan, inputs=subject.batch), options)
    return f"{len(plans)} plans, 5 tokens each"


LAWS: dict[str, Callable[[Subject], str]] = {
    "every gate acts": every_gate_acts,
    "gate 1 is the identity": gate_one_is_identity,
    "leaving restores everything": leaving_restores,
    "gate 0 is no attention": gate_zero_is_no_attention,
    "cut equals gate": cut_equals_gate,
    "attention maps follow the cut": attention_maps_follow_the_cut,
    "parameters fall as predicted": parameters_fall_as_predicted,
    "cutting twice is cutting once": cutting_twice_is_cutting_once,
    "save then load is equal": save_then_load_is_equal,
    "casts survive saving": casts_survive_saving,
    "impossible plans raise": impossible_plans_raise,
    "generation agrees": generation_agrees,
}


def check_model(model: nn.Module, inputs: Batch | None = None, *, further_plan: Plan | None = None) -> Iterator[LawResult]:
    """Tries every law of gates, cuts, saving and loading on a model.

    Args:
        model: A transformers model; it is left as it was.
        inputs: The keyword arguments of a forward pass that reaches all heads; None for a batch that is made for the model.
        further_plan: Heads whose cut is tried beside those of the laws.

    Yields:
        The result of each law in turn: whether it applies, whether it holds, and what was measured. A law that raises is a law that fails.

    Example:
        >>> failed = [result for result in check_model(model) if not result.passed]
    """
    subject = Subject.of(model, inputs)

    def further_plan_can_be_cut(subject: Subject) -> MeasuredDetail:
        small = cut(subject.model, further_plan or Plan.removing([]), inputs=subject.batch)
        return f"{sum(p.numel() for p in small.parameters()):,} parameters left"

    laws = LAWS | ({f"cut equals gate for {', '.join(map(str, further_plan.removed))}": further_plan_can_be_cut} if further_plan else {})
    for name, law in laws.items():
        with evaluating(subject.model):
            result = _try_law(name, law, subject)
        yield result


def _try_law(name: str, law: Callable[[Subject], MeasuredDetail], subject: Subject) -> LawResult:
    try:
        return LawResult(name, True, law(subject))
    except DoesNotApply as error:
        return LawResult(name, True, str(error), applies=False)
    except Exception as error:  # whatever a model's code raises under a law, the law does not hold
        return LawResult(name, False, f"{type(error).__name__}: {error}")
