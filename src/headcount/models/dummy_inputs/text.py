"""A small valid batch for any transformers model, made from its configuration and the signature of its forward pass."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from headcount.core.errors import HeadcountError, OutOfMemory, ProbeError, is_out_of_memory
from headcount.models.dummy_inputs import codebooks, media
from headcount.models.dummy_inputs.lengths import probe_length
from headcount.models.dummy_inputs.request import N_PADDED, InputMaker, Probe
from headcount.models.modules import device_of
from headcount.models.state import preserve

# Arguments of forward passes that carry no input.
_OPTIONS = re.compile(
    r"^(self|args|kwargs|labels|\w*_labels|use_cache|cache_position|\w*past_key_values?|return_\w+|output_\w+|\w*head_mask)$"
)
_N_NAMED = 8
# Where configurations count the tokens that have a position.
POSITIONS = ("max_position_embeddings", "n_positions", "max_encoder_position_embeddings", "max_decoder_position_embeddings", "n_ctx")
N_CHOICES = 2


def probe_inputs(model: nn.Module, *, batch: int = 2, length: int | None = None, seed: int = 0) -> dict[str, Any]:
    """Keyword arguments for ``model(**inputs)`` that run every attention block where that is possible.

    Without a `length`, texts are as long as the mechanism of the model's attention needs. Every example but the first ends in 2
    padded positions where the model takes an attention mask. Multimodal models get a longer sequence: one placeholder token for
    each feature of the image or the audio. Counting these runs the vision or audio tower once.
    """
    model = _unwrap_peft(model)
    is_fixed, length = length is not None, probe_length(model) if length is None else length
    generator = torch.Generator().manual_seed(seed)
    probe = Probe(model, batch, length, generator, dict(inspect.signature(model.forward).parameters))
    makers = _choose_input_makers(probe)
    reference = next((p for p in model.parameters() if p.is_floating_point()), torch.empty(0))
    try:
        _fit_batch_and_length(probe, keep_length=is_fixed)
        with torch.no_grad(), preserve(model):
            for name, maker in makers.items():
                value = maker(probe)
                if value is not None:
                    probe.inputs[name] = value.to(device_of(model), reference.dtype if value.is_floating_point() else value.dtype)
    except Exception as error:  # a maker may call the model's own code, which fails in its own ways
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise ProbeError(
            f"{probe.model_type}: the configuration does not tell what the inputs are ({reason}); {_explain_inputs_to_pass(model)}"
        ) from error
    if not _is_multiple_choice(model):
        return probe.inputs
    return {  # [batch, choices, …] for text, one image or page per question
        name: value[::N_CHOICES] if value.is_floating_point() else value.unflatten(0, (-1, N_CHOICES))
        for name, value in probe.inputs.items()
    }


def _fit_batch_and_length(probe: Probe, *, keep_length: bool) -> None:
    """Adapts length and batch to what the model can take: its positions, the choices of a question, a single example."""
    positions = [n for name in POSITIONS if isinstance(n := probe.first_config_value(name), int) and n > 0]
    if positions and not keep_length:
        probe.length = max(N_PADDED + 1, min(probe.length, min(positions) - _count_unused_positions(probe.model)))
    if _is_multiple_choice(probe.model):
        probe.batch *= N_CHOICES
    elif type(probe.model).__name__.endswith("ForSequenceClassification") and probe.first_config_value("pad_token_id") is None:
        probe.batch = 1  # decoders refuse to look for the last token of several examples without a padding token


def _count_unused_positions(model: nn.Module) -> int:
    """Rows of the position table that no token uses: RoBERTa and its relatives count from the padding token's id on."""
    tables = (m for name, m in model.named_modules() if name.endswith("position_embeddings") and isinstance(m, nn.Embedding))
    return max((table.padding_idx + 1 for table in tables if table.padding_idx is not None), default=0)


def _is_multiple_choice(model: nn.Module) -> bool:
    return type(model).__name__.endswith("ForMultipleChoice")


def _explain_inputs_to_pass(model: nn.Module) -> str:
    """The end of every message: which inputs to pass."""
    names = [name for name in inspect.signature(_unwrap_peft(model).forward).parameters if not _OPTIONS.match(name)]
    listing = ", ".join(names[:_N_NAMED]) + (", …" if len(names) > _N_NAMED else "")
    return f"pass inputs=, a dict of the keyword arguments of its forward pass: {listing}"


@contextmanager
def naming_inputs_in_errors(model: nn.Module, batch: Mapping[str, object], *, is_dummy: bool) -> Iterator[None]:
    """Turns whatever the model's own code raises on a batch into a ProbeError that names the batch and the inputs to pass instead."""
    try:
        yield
    except HeadcountError:
        raise
    except Exception as error:  # the model's own code fails in its own ways on inputs that it does not expect
        shapes = [f"{name} {tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__}" for name, value in batch.items()]
        origin = "dummy inputs" if is_dummy else "the inputs"
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        text = f"{type(_unwrap_peft(model)).__name__} does not run on {origin} ({', '.join(shapes)}): {reason}; {_explain_inputs_to_pass(model)}"
        if is_out_of_memory(error):
            raise OutOfMemory(text) from error
        raise ProbeError(text) from error


def _unwrap_peft(model: nn.Module) -> nn.Module:
    """The model inside a peft wrapper, whose own forward pass names no arguments."""
    unwrap = getattr(model, "get_base_model", None)
    return unwrap() if callable(unwrap) else model  # pyright: ignore[reportReturnType]


def _choose_input_makers(probe: Probe) -> dict[str, InputMaker]:
    if not hasattr(probe.model, "config"):
        raise ProbeError(f"{probe.model_type} has no config to read the inputs from; {_explain_inputs_to_pass(probe.model)}")
    if type(probe.model).forward is nn.Module.forward:
        parts = ", ".join(f"model.{name}" for name, _ in probe.model.named_children())
        raise ProbeError(f"{type(probe.model).__name__} has no forward pass of its own; pass one of its parts instead of it: {parts}")
    needed = [n for n, p in probe.arguments.items() if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
    unknown = [n for n in needed if n not in MAKERS and n not in ON_DEMAND]
    if unknown:
        raise ProbeError(
            f"{probe.model_type}: no rule makes the required input {', '.join(unknown)}; {_explain_inputs_to_pass(probe.model)}"
        )
    makers = {n: m for n, m in {**ON_DEMAND, **MAKERS}.items() if n in (needed if n in ON_DEMAND else probe.arguments)}
    for tower, names in TOWERS.items():
        if getattr(probe.config, tower, probe) is None:  # the class has a place for the tower, this model has none
            makers = {n: m for n, m in makers.items() if n not in names}
    if not makers:
        raise ProbeError(
            f"{probe.model_type}: the forward pass of {type(probe.model).__name__} has no input that a rule makes; "
            f"{_explain_inputs_to_pass(probe.model)}"
        )
    return makers


# Encoder-decoders that take either audio features or text, not both.
FEATURES_OR_TEXT = frozenset({"pop2piano"})


def input_ids(probe: Probe) -> Tensor | None:
    """Ordinary tokens behind one placeholder for each image or audio feature, padded at the end; audio codes for codec models."""
    if "input_features" in probe.inputs and probe.takes_any_of("decoder_input_ids") and probe.model_type in FEATURES_OR_TEXT:
        return None
    if not probe.config.is_encoder_decoder and not probe.takes_any_of("decoder_input_ids"):
        codes = codebooks.audio_codes(probe, probe.length, _vocabulary_size(probe))
        if codes is not None:
            return codes
    ids = probe.ordinary_ids(_vocabulary_size(probe), probe.batch, probe.length)
    ids[1:, -N_PADDED:] = _pad_token_id(probe)
    if _reads_end_token(probe):
        ids[0, -1] = ids[1:, -N_PADDED - 1] = _end_token_id(probe)
    if probe.takes_any_of("image_embeds_position_mask"):
        ids = torch.cat([probe.ordinary_ids(_vocabulary_size(probe), probe.batch, _n_image_latents(probe)), ids], dim=1)
    for token, count in _placeholder_ids_and_counts(probe):
        ids = torch.cat([ids[:, :1], torch.full((probe.batch, count), token), ids[:, 1:]], dim=1)
    return ids


def _n_image_latents(probe: Probe) -> int:
    return probe.first_config_value("latent_query_num", default=0)


def image_embeds_position_mask(probe: Probe) -> Tensor:
    """Ones at the leading tokens, in whose place Kosmos-2 puts its image."""
    mask = torch.zeros(probe.inputs["input_ids"].shape, dtype=torch.long)
    mask[:, : _n_image_latents(probe)] = 1
    return mask


def image_attention_mask(probe: Probe) -> Tensor | None:
    """Ones: every token sees the single image of its example, in IDEFICS; elsewhere the mask is of patches, and none is masked."""
    if not probe.takes_any_of("perceiver_embeddings"):
        return None
    return probe.ones(*probe.inputs["input_ids"].shape, 1)


def cross_attention_mask(probe: Probe) -> Tensor | None:
    """Ones: every token sees every tile of the single image of its example."""
    if "pixel_values" not in probe.inputs:
        return None
    return probe.ones(*probe.inputs["input_ids"].shape, 1, probe.first_config_value("max_num_tiles"))


def _vocabulary_size(probe: Probe) -> int:
    vocab = probe.first_config_value("vocab_size", "text_vocab_size", "src_vocab_size", "num_hash_buckets", default=2)
    try:
        return min(vocab, probe.model.get_input_embeddings().num_embeddings)  # pyright: ignore[reportCallIssue]
    except (AttributeError, NotImplementedError):
        return vocab


def _pad_token_id(probe: Probe) -> int:
    token = probe.first_config_value("pad_token_id", default=0)
    return token if isinstance(token, int) and 0 <= token < _vocabulary_size(probe) else 0


def _is_text_tower(probe: Probe) -> bool:
    return hasattr(probe.model, "get_text_features") or type(probe.model).__name__.endswith(("TextModel", "TextModelWithProjection"))


def _reads_end_token(probe: Probe) -> bool:
    """Whether the model reads a sequence off its end-of-text token, as contrastive text towers and BART classifiers do."""
    classifies = type(probe.model).__name__.endswith("ForSequenceClassification") and probe.config.is_encoder_decoder
    return probe.first_config_value("eos_token_id") is not None and (_is_text_tower(probe) or bool(classifies))


def _end_token_id(probe: Probe) -> int:
    token = probe.first_config_value("eos_token_id")
    token = token[0] if isinstance(token, list) else token
    if not 0 <= token < _vocabulary_size(probe):
        return _vocabulary_size(probe) - 1  # a configuration whose special tokens belong to another vocabulary
    # Old CLIP configurations say 2, which their tokenizer never produces: the tower then looks for the highest id.
    return _vocabulary_size(probe) - 1 if token == 2 and _is_text_tower(probe) else token


# Method that makes the features, the input it reads, where the configuration keeps the id of their placeholder.
PLACEHOLDERS = (
    ("get_image_features", "pixel_values", ("image_token_id", "image_token_index")),
    ("get_audio_features", "input_features", ("audio_token_id", "audio_token_index")),
)


def _placeholder_ids_and_counts(probe: Probe) -> Iterator[tuple[int, int]]:
    """(token id, count per example) for each kind of feature that the model writes over its input embeddings."""
    for name, source, tokens in PLACEHOLDERS:
        token, method = probe.first_config_value(*tokens), probe.model_method(name)
        if source in probe.inputs and token is not None and method is not None:
            yield token, _count_feature_vectors(probe.call_with_inputs(method)) // probe.batch


def _count_feature_vectors(features: Any) -> int:
    features = getattr(features, "pooler_output", features)
    if isinstance(features, (list, tuple)):
        return sum(_count_feature_vectors(f) for f in features)
    return math.prod(features.shape[:-1])


def attention_mask(probe: Probe) -> Tensor | None:
    """Ones, but for the padded end of every example after the first."""
    if "states" in probe.inputs:
        return probe.ones(probe.batch, probe.length)
    if "input_ids" not in probe.inputs:
        return None
    shape = probe.inputs["input_ids"].shape
    rows_of_codes = codebooks.LAYOUTS.get(probe.model_type) == "rows" and not probe.takes_any_of("decoder_input_ids")
    mask = torch.ones((probe.batch if rows_of_codes else shape[0], shape[1]), dtype=torch.long)
    mask[1:, -N_PADDED:] = 0
    return mask


def global_attention_mask(probe: Probe) -> Tensor:
    """Global attention at the first token."""
    mask = torch.zeros(probe.inputs["input_ids"].shape, dtype=torch.long)
    mask[:, 0] = 1
    return mask


def mm_token_type_ids(probe: Probe) -> Tensor | None:
    """1 at image placeholders, 0 at text."""
    token = probe.first_config_value("image_token_id", "image_token_index")
    return None if token is None else (probe.inputs["input_ids"] == token).long()


def decoder_input_ids(probe: Probe) -> Tensor | None:
    """A target two tokens shorter than the source, so that the two lengths cannot be mixed up unseen."""
    # These heads read the source's tokens off the decoder, which must then see the same tokens.
    is_reader = type(probe.model).__name__.endswith(("ForSequenceClassification", "ForQuestionAnswering"))
    if is_reader and probe.config.is_encoder_decoder:
        return None
    if not (probe.config.is_encoder_decoder or hasattr(probe.model, "text_decoder")):
        return None
    vocab = min(_vocabulary_size(probe), probe.first_config_value("decoder_vocab_size", "tgt_vocab_size", default=_vocabulary_size(probe)))
    length = max(2, probe.length - N_PADDED)
    codes = codebooks.audio_codes(probe, length, vocab)
    return codes if codes is not None else probe.ordinary_ids(vocab, probe.batch, length)


# Names of modules that attend to an encoder.
CROSS = re.compile(r"(^|\.)(encoder_attn|crossattention|cross_attn)$")


def encoder_hidden_states(probe: Probe) -> Tensor | None:
    """States for decoders with cross-attention that run without their encoder."""
    if probe.takes_any_of("decoder_input_ids") or not any(CROSS.search(name) for name, _ in probe.model.named_modules()):
        return None
    width = probe.first_config_value("cross_attention_hidden_size", "encoder_hidden_size", "hidden_size", "d_model", "n_embd")
    return probe.normal_floats(probe.batch, probe.length + N_PADDED, width)


def bbox(probe: Probe) -> Tensor:
    """One box (left, top, right, bottom) for each token."""
    corner = probe.integers(0, 50, probe.batch, probe.length, 2)
    return torch.cat([corner, corner + 10], dim=-1)


# In the order in which they are made: later makers read earlier inputs.
MAKERS: dict[str, InputMaker] = {
    "image_grid_thw": media.time_height_width_in_patches,
    "grid_thw": media.time_height_width_in_patches,
    "spatial_shapes": media.height_width_in_patches,
    "image_sizes": media.image_sizes,
    "merge_sizes": lambda probe: probe.ones(probe.batch),
    "image_merge_sizes": lambda probe: probe.ones(probe.batch),
    "pixel_values": media.images,
    "high_res_pixel_values": media.high_resolution_images,
    "aspect_ratio_ids": lambda probe: probe.ones(probe.batch, 1),
    "aspect_ratio_mask": media.aspect_ratio_mask,
    "pixel_attention_mask": media.pixel_attention_mask,
    "flattened_patches": media.flattened_patches,
    "input_points": lambda probe: probe.integers(0, 16, probe.batch, 1, 2, 2).double(),
    "visual_feats": lambda probe: probe.normal_floats(probe.batch, 4, probe.config.visual_feat_dim),
    "visual_pos": lambda probe: probe.normal_floats(probe.batch, 4, probe.config.visual_pos_dim),
    "visual_embeds": lambda probe: probe.normal_floats(probe.batch, 4, probe.config.visual_embedding_dim),
    "input_features": media.input_features,
    "input_features_mask": media.feature_mask,
    "feature_attention_mask": media.feature_mask,
    "input_values": media.input_values,
    "past_values": media.past_values,
    "past_time_features": media.time_features_maker("past_values"),
    "past_observed_mask": lambda probe: torch.ones_like(probe.inputs["past_values"]),
    "future_values": media.future_values,
    "future_time_features": media.time_features_maker("future_values"),
    "qformer_input_ids": lambda probe: probe.ordinary_ids(probe.config.qformer_config.vocab_size, probe.batch, probe.length),
    "entity_ids": lambda probe: probe.integers(3, probe.config.entity_vocab_size, probe.batch, 3),
    "entity_start_positions": lambda probe: probe.integers(0, probe.length - N_PADDED, probe.batch, 3),
    "entity_end_positions": lambda probe: probe.integers(0, probe.length - N_PADDED, probe.batch, 3),
    "entity_position_ids": lambda probe: probe.integers(0, probe.length - N_PADDED, probe.batch, 3, 2),
    "states": lambda probe: probe.normal_floats(probe.batch, probe.length, probe.first_config_value("state_dim")),
    "actions": lambda probe: probe.normal_floats(probe.batch, probe.length, probe.first_config_value("act_dim")),
    "rewards": lambda probe: probe.normal_floats(probe.batch, probe.length, 1),
    "returns_to_go": lambda probe: probe.normal_floats(probe.batch, probe.length, 1),
    "timesteps": lambda probe: torch.arange(probe.length).expand(probe.batch, probe.length),
    "user_audio_codes": codebooks.parallel_audio_codes,
    "moshi_audio_codes": codebooks.parallel_audio_codes,
    "past_values_padding": lambda probe: torch.zeros_like(probe.inputs["past_values"]).long(),
    "freq": lambda probe: torch.zeros((probe.batch, 1), dtype=torch.long),
    "input_ids": input_ids,
    "image_embeds_position_mask": image_embeds_position_mask,
    "image_attention_mask": image_attention_mask,
    "cross_attention_mask": cross_attention_mask,
    "attention_mask": attention_mask,
    "global_attention_mask": global_attention_mask,
    "mm_token_type_ids": mm_token_type_ids,
    "bbox": bbox,
    "decoder_input_ids": decoder_input_ids,
    "encoder_hidden_states": encoder_hidden_states,
}

# The part of a configuration that builds a tower -> the inputs that only this tower reads.
TOWERS = {
    "vision_config": ("pixel_values", "pixel_attention_mask", "image_sizes", "image_grid_thw", "high_res_pixel_values"),
    "audio_config": ("input_features", "input_features_mask", "feature_attention_mask"),
}

# Made only for models that cannot run without them.
ON_DEMAND: dict[str, InputMaker] = {
    "hidden_states": media.images,
    "audio_mel": lambda probe: probe.normal_floats(probe.batch, 64, probe.first_config_value("input_feat_size")),
    "audio_mel_mask": lambda probe: torch.zeros((probe.batch, 64), dtype=torch.bool),
    "pixel_values_videos": media.pixel_values,
    "query_embeds": lambda probe: probe.normal_floats(probe.batch, probe.length, probe.config.hidden_size),
    "inputs_embeds": lambda probe: probe.normal_floats(probe.batch, probe.length, probe.first_config_value("hidden_size")),
    "latents": lambda probe: probe.normal_floats(probe.batch, probe.first_config_value("hidden_size"), probe.length),
}
