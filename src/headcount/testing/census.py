"""One row of the census: what headcount proves about one model class, stage by stage.

A stage is proven ("yes"), refused with a typed error ("refused"), does not apply (""), or is a defect: an untyped error ("raw") or a result
that an independent computation contradicts ("wrong").
"""

from __future__ import annotations

import json
import random
import re
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from headcount.core.errors import HeadcountError, VerificationError
from headcount.core.heads import AttentionBlock
from headcount.core.plan import Plan
from headcount.models.attention import eager_attention
from headcount.models.dummy_inputs.request import config_parts
from headcount.models.dummy_inputs.text import probe_inputs
from headcount.models.gates import HeadGates
from headcount.models.head_map import HeadMap
from headcount.models.modules import Batch
from headcount.models.tiny.build import ShrinkError, build_model, tiny_config_of_class
from headcount.models.tiny.build import model_class as natural_class
from headcount.models.tiny.float64 import Float64
from headcount.surgery.cut import cut
from headcount.surgery.verify import forward_outputs, gate_values_of_plan, largest_relative_difference, run_gated
from headcount.testing.laws import (
    DoesNotApply,
    LawBroken,
    Subject,
    gate_zero_is_no_attention,
    generation_options,
    require_equal_reload,
    require_same_generated_tokens,
)

STAGES = ("found", "gated", "zeroed", "cut", "attentions", "generated", "reloaded", "unchanged")
DEFECTS = ("raw", "wrong")
_NOTE_LENGTH = 240
_NO_ATTENTIONS = "the class returns no attentions"
# What transformers sets on a model that is asked for hidden states for the first time, together with hooks of its own.
_INSTALLED = ("_output_capturing_hooks_installed",)
_TEMPORARY = re.compile(rf"{re.escape(tempfile.gettempdir())}/\w+/")
# Reasons that need no remark in a row.
_USUAL = (_NO_ATTENTIONS, "the model does not generate")


@dataclass(slots=True)
class CensusRow:
    """What the census says about one class in one configuration; `stages` maps the names of STAGES to verdicts."""

    name: str
    variant: str = ""
    model_type: str = ""
    family: str = ""
    dtype: str = "float64"
    heads: int = 0
    built: str = "yes"
    stages: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def has_attention(self) -> bool:
        """Whether the class was built and has attention modules, taken in or refused."""
        return self.built == "yes" and self.stages.get("found") != "none"

    @property
    def defects(self) -> list[str]:
        """The stages that end in an untyped error or a wrong result."""
        return [stage for stage, verdict in self.stages.items() if verdict in DEFECTS]

    def to_dict(self) -> dict[str, Any]:
        """The row as JSON data, without empty fields."""
        return {key: value for key, value in asdict(self).items() if value not in ("", [], {}, 0)}

    def attempt(self, stage: str, prove: Callable[[], Any]) -> Any:
        """The result of `prove`, or None; the verdict is entered under the stage."""
        try:
            result = prove()
        except DoesNotApply as error:
            self._enter_verdict(stage, "", error)
        except LawBroken as error:
            self._enter_verdict(stage, "wrong", error)
        except HeadcountError as error:
            self._enter_verdict(stage, "refused", error)
        except Exception as error:  # what the census looks for: any error that is not headcount's own
            self._enter_verdict(stage, "raw", error)
        else:
            self.stages[stage] = "yes"
            return result
        return None

    def _enter_verdict(self, stage: str, verdict: str, error: Exception) -> None:
        self.stages[stage] = verdict
        if str(error) in _USUAL:
            return
        text = " ".join(_TEMPORARY.sub("", str(error)).split())
        self.note(stage, text if isinstance(error, HeadcountError) else f"{type(error).__name__}: {text}")

    def note(self, stage: str, text: str) -> None:
        """Adds a remark about a stage, once."""
        remark = text[:_NOTE_LENGTH]
        if not any(note.endswith(f": {remark}") for note in self.notes):
            self.notes.append(f"{stage}: {remark}")


def examine_model(model: nn.Module, row: CensusRow) -> CensusRow:
    """The row, filled in by proofs on a model in eval mode; public functions are called as a user would, without inputs."""
    before = dict(_settings_by_path(model))
    heads = row.attempt("found", lambda: HeadMap.of(model))
    if heads is None:
        if "no attention modules" in " ".join(row.notes):
            row.stages["found"], row.notes[:] = "none", []
        return row
    row.heads = len(heads)
    if heads.refused:
        row.stages["found"] = "part"
        for reason in sorted({f"{refusal.class_name}: {refusal.reason}" for refusal in heads.refused}):
            row.note("found", reason)
    row.attempt("gated", lambda: heads.verify(model))
    batch = _batch_with_finite_outputs(model)
    if batch is None:
        row.attempt("cut", lambda: cut(model, random_plan(list(heads.blocks), row.name)))
        row.attempt("unchanged", lambda: _require_unchanged(model, before))
        return row
    subject = Subject(model, heads, batch)
    gate_only = sorted({block.gate_only for block in heads.blocks if block.gate_only})
    row.attempt("zeroed", lambda: _require_same_as_zeroed_attention(subject, gate_only))
    for reason in gate_only:
        row.note("cut", f"gate only: {reason}")
    plan = row.attempt("cut", lambda: random_plan(_blocks_that_run(subject), row.name))
    small = row.attempt("cut", lambda: _cut_and_require_same_outputs(subject, plan)) if plan is not None else None
    row.attempt("unchanged", lambda: _require_unchanged(model, before))
    if plan is not None and small is not None:
        _examine_cut_model(subject, plan, small, row)
    return row


def _batch_with_finite_outputs(model: nn.Module) -> dict[str, Any] | None:
    """Inputs other than those that `cut` is verified on; None where the dense model gives nothing finite on dummy inputs."""
    try:
        batch = probe_inputs(model, batch=3, seed=7)
        outputs = forward_outputs(model, batch)
    except Exception:  # the verdict on this error is that of `verify`, which meets it too
        return None
    return batch if any(bool(output.isfinite().any()) for output in outputs) else None


def _require_same_as_zeroed_attention(subject: Subject, gate_only_reasons: list[str]) -> None:
    try:
        gate_zero_is_no_attention(subject)
    except LawBroken as error:
        if gate_only_reasons:  # what makes a cut impossible, such as a norm over all heads, also stands between attention and the gate
            raise DoesNotApply(str(error)) from error
        with Float64():
            gate_zero_is_no_attention(subject)


def _examine_cut_model(subject: Subject, plan: Plan, cut_model: nn.Module, row: CensusRow) -> None:
    row.attempt("attentions", lambda: _require_same_attentions_up_to_rounding(subject, plan, cut_model))
    options = row.attempt("generated", lambda: generation_options(subject))
    if options is not None:
        row.attempt("generated", lambda: require_same_generated_tokens(subject, plan, cut_model, options))
    row.attempt("reloaded", lambda: require_equal_reload(cut_model, subject.batch))


def random_plan(blocks: list[AttentionBlock], seed: str) -> Plan:
    """A random plan that a cut can carry out: whole KV groups, or heads of a single group; some blocks may keep all their heads."""
    generator = random.Random(zlib.crc32(seed.encode()))
    cuttable = [block for block in blocks if block.can_cut and block.n_heads > 1]
    if not cuttable:
        raise DoesNotApply("no block that runs can be cut")
    plan = Plan.removing([])
    while not plan.removed:
        removed = []
        for block in cuttable:
            groups = block.groups() if block.n_kv_heads > 1 else [(head,) for head in block.heads]
            number = generator.randrange(len(groups))
            removed += [head for group in generator.sample(groups, number) for head in group]
        plan = Plan.removing(removed)
    return plan


def _blocks_that_run(subject: Subject) -> list[AttentionBlock]:
    """The blocks whose output projection runs on the dummy inputs."""
    paths: set[str] = set()
    with ExitStack() as stack:
        for block in subject.heads.blocks:
            layer = subject.model.get_submodule(block.o.path)
            stack.callback(layer.register_forward_pre_hook(lambda *_, path=block.path: paths.add(path)).remove)
        forward_outputs(subject.model, subject.batch)
    return [block for block in subject.heads.blocks if block.path in paths]


def _cut_and_require_same_outputs(subject: Subject, plan: Plan) -> nn.Module:
    try:
        small = cut(subject.model, plan)
    except VerificationError as error:  # a bug, unless it is the rounding of what the model's code does in float32
        try:
            with Float64():
                small = cut(subject.model, plan)
        except HeadcountError:
            raise error from None
    gap = largest_relative_difference(forward_outputs(small, subject.batch), run_gated(subject.model, plan, subject.batch, subject.heads))
    if not gap <= subject.tolerance:
        with Float64():
            gap = largest_relative_difference(
                forward_outputs(small, subject.batch), run_gated(subject.model, plan, subject.batch, subject.heads)
            )
    if not gap <= subject.tolerance:
        raise LawBroken(f"the cut differs from the gates by {gap:.3g} on inputs that it was not verified on")
    return small


def _find_attention_maps(value: Any, is_under_attentions_key: bool = False) -> Iterator[Tensor]:
    """Every tensor [batch, heads, q, k] under a key that names attentions."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _find_attention_maps(inner, is_under_attentions_key or "attentions" in name)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _find_attention_maps(inner, is_under_attentions_key)
    elif is_under_attentions_key and isinstance(value, Tensor) and value.ndim == 4 and value.is_floating_point():
        yield value


def _observe_attentions(model: nn.Module, batch: Batch) -> list[Tensor]:
    with eager_attention(model), torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return list(_find_attention_maps(model(**batch, output_attentions=True)))


def _require_same_attentions_up_to_rounding(subject: Subject, plan: Plan, cut_model: nn.Module) -> None:
    try:
        _require_same_attentions(subject, plan, cut_model)
    except LawBroken:
        with Float64():
            _require_same_attentions(subject, plan, cut_model)


def _require_same_attentions(subject: Subject, plan: Plan, cut_model: nn.Module) -> None:
    """Raises LawBroken unless the attention maps of the cut model are those of the kept heads in the gated one."""
    try:
        with HeadGates(subject.model, gate_values_of_plan(subject.heads, plan), heads=subject.heads):
            gated = _observe_attentions(subject.model, subject.batch)
    except Exception as error:  # the class has no such argument, or fails with it by itself
        raise DoesNotApply(_NO_ATTENTIONS) from error
    kept_positions = [(block.n_heads, list(plan.kept_positions(block))) for block in subject.heads.blocks]
    pairs = _pair_attention_maps(gated, _observe_attentions(cut_model, subject.batch), {n_heads for n_heads, _ in kept_positions})
    for dense_map, cut_map in pairs:
        if subject.heads.refused and largest_relative_difference([dense_map], [cut_map]) <= subject.tolerance:
            continue  # the map of a module that was not taken in, so it was not cut either
        gaps = [
            largest_relative_difference([dense_map[:, positions]], [cut_map])
            for n_heads, positions in kept_positions
            if n_heads == dense_map.shape[1] and len(positions) == cut_map.shape[1]
        ]
        if not gaps:
            raise LawBroken(f"attentions {tuple(cut_map.shape)} of the cut model have as many heads as no block keeps")
        if not min(gaps) <= subject.tolerance:
            raise LawBroken(f"attentions {tuple(cut_map.shape)} of the cut model are not those of the kept heads, gap {min(gaps):.3g}")


def _pair_attention_maps(gated_maps: list[Tensor], cut_maps: list[Tensor], dense_head_counts: set[int]) -> list[tuple[Tensor, Tensor]]:
    """The maps of the gated and of the cut model side by side, without those that have no heads."""
    if len(gated_maps) != len(cut_maps):
        raise LawBroken(f"the dense model returns {len(gated_maps)} attention maps, the cut one {len(cut_maps)}")
    pairs = [pair for pair in zip(gated_maps, cut_maps, strict=True) if pair[0].shape[1] in dense_head_counts]
    if not pairs:
        raise DoesNotApply(_NO_ATTENTIONS)
    return pairs


def _settings_by_path(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Everything about a model that a forward pass may not change: plain attributes of modules and configurations, modes, tensors' identities."""
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            if isinstance(value, bool | int | float | str | type(None)) and name not in _INSTALLED:
                yield f"{path}.{name}", value
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is not None:
                yield f"{path}.{name}", (tuple(tensor.shape), float(tensor.detach().double().sum()) if tensor.numel() else 0.0)
        hooks = (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
        yield f"{path}.hooks", sum(not str(getattr(hook, "__module__", "")).startswith("transformers") for hook in hooks)
    for part in config_parts(model.config):
        yield (
            f"config {part.model_type}",
            repr({name: value for name, value in sorted(vars(part).items()) if not hasattr(value, "to_dict")}),
        )


def _require_unchanged(model: nn.Module, before: Mapping[str, object]) -> None:
    after = dict(_settings_by_path(model))
    changed = sorted(
        name
        for name in before.keys() | after.keys()
        if before.get(name) != after.get(name) and repr(before.get(name)) != repr(after.get(name))
    )
    if changed:
        raise LawBroken(f"verify and cut changed the model: {', '.join(changed[:3])}")


# Attributes of configurations that change how attention works -> the values to examine where the configuration has another one.
VARIANTS: dict[str, tuple[Any, ...]] = {
    "add_cross_attention": (True,),
    "alibi": (True,),
    "attention_bias": (True, False),
    "attention_type": ("original_full", "block_sparse"),
    "encoder_attention_type": ("transient-global",),
    "has_relative_attention_bias": (True, False),
    "has_spatial_attention_bias": (True, False),
    "multi_query": (True, False),
    "new_decoder_architecture": (True,),
    "num_key_value_heads": (1, 2, 6),
    "num_kv_heads": (2,),
    "num_kv_shared_layers": (1,),
    "position_embedding_type": ("rotary", "relative_key", "relative_key_query"),
    "position_embeddings_type": ("relative", "rotary"),
    "qkv_bias": (True, False),
    "relative_attention": (True,),
    "use_qk_norm": (True, False),
    "use_relative_position_bias": (True,),
    "use_shared_relative_position_bias": (True,),
    "use_sliding_window": (True,),
}
# What else has to be set for an attribute to take effect.
COMPANIONS: dict[str, dict[str, Any]] = {
    "add_cross_attention": {"is_decoder": True},
    "num_kv_heads": {"new_decoder_architecture": True},
    "relative_attention": {"pos_att_type": ["c2p", "p2c"]},
}


def variants_of(model_class: type[PreTrainedModel]) -> list[str]:
    """The variants in which a class is examined besides its default configuration, such as "multi_query=false".

    Only one class of each model type has any: the most natural one with logits.
    """
    config_class = model_class.config_class
    try:
        if config_class is None or natural_class(config_class.model_type) is not model_class:
            return []
        config = tiny_config_of_class(model_class)
    except ShrinkError:
        return []
    declared = config.to_dict()
    return [
        f"{name}={json.dumps(value)}"
        for name, values in VARIANTS.items()
        for value in values
        if name in declared and value != declared[name] and (declared[name] is not None or isinstance(value, bool))
    ]


def examine_class(model_class: type[PreTrainedModel], variant: str = "") -> CensusRow:
    """The row of a class in its shrunk default configuration, or in a variant of it; in float32 where it does not run in float64."""
    config_class = model_class.config_class
    assert config_class is not None
    row = CensusRow(model_class.__name__, variant, config_class.model_type, model_class.__module__.rpartition(".")[0].rpartition(".")[2])

    def build_variant(dtype: torch.dtype) -> nn.Module:
        config = tiny_config_of_class(model_class)
        name, _, value = variant.partition("=")
        if name:
            companions = {key: setting for key, setting in COMPANIONS.get(name, {}).items() if hasattr(config, key)}
            config = tiny_config_of_class(model_class, {**companions, name: json.loads(value)})
        return build_model(model_class, config, dtype=dtype)

    try:
        if _batch_with_finite_outputs(build_variant(torch.float64)) is None:
            if _batch_with_finite_outputs(build_variant(torch.float32)) is not None:
                row.dtype = "float32"
            elif (
                variant
                and _batch_with_finite_outputs(build_model(model_class, tiny_config_of_class(model_class), dtype=torch.float32)) is not None
            ):
                row.built = f"{config_class.model_type}: {model_class.__name__} does not run in this configuration"
                return row
        model = build_variant(getattr(torch, row.dtype))  # a fresh one: some models change themselves on their first pass
    except ShrinkError as error:
        row.built = " ".join(str(error).split())[:_NOTE_LENGTH]
        return row
    return examine_model(model, row)
