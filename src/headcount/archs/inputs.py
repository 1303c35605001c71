"""A small valid batch for any transformers model, made from its configuration and the signature of its forward pass."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from headcount.archs import media
from headcount.archs.lengths import probe_length
from headcount.archs.modules import device_of
from headcount.archs.probe import N_PADDED, Maker, Probe
from headcount.archs.state import preserve
from headcount.errors import ProbeError

_REMEDY = "pass your own inputs, a dict of the forward pass's keyword arguments"


def probe_inputs(model: nn.Module, *, batch: int = 2, length: int | None = None, seed: int = 0) -> dict[str, Any]:
    """Keyword arguments for ``model(**inputs)`` that run every attention block where that is possible.

    Without a `length`, texts are as long as the mechanism of the model's attention needs. Every example but the first ends in 2
    padded positions where the model takes an attention mask. Multimodal models get a longer sequence: one placeholder token for
    each feature of the image or the audio. Counting these runs the vision or audio tower once.
    """
    model = _unwrapped(model)
    length = probe_length(model) if length is None else length
    probe = Probe(model, batch, length, torch.Generator().manual_seed(seed), dict(inspect.signature(model.forward).parameters))
    makers = _makers(probe)
    try:
        with torch.no_grad(), preserve(model):
            for name, maker in makers.items():
                value = maker(probe)
                if value is not None:
                    probe.made[name] = _place(value, model)
    except Exception as error:  # a maker may call the model's own code, which fails in its own ways
        reason = f"{type(error).__name__}: {error}"
        raise ProbeError(f"{probe.model_type}: the configuration does not tell what the inputs are ({reason}); {_REMEDY}") from error
    return probe.made


def _unwrapped(model: nn.Module) -> nn.Module:
    """The model inside a peft wrapper, whose own forward pass names no arguments."""
    unwrap = getattr(model, "get_base_model", None)
    return unwrap() if callable(unwrap) else model  # pyright: ignore[reportReturnType]


def _makers(probe: Probe) -> dict[str, Maker]:
    if not hasattr(probe.model, "config"):
        raise ProbeError(f"{probe.model_type} has no config to read the inputs from; {_REMEDY}")
    needed = [n for n, p in probe.arguments.items() if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
    unknown = [n for n in needed if n not in MAKERS and n not in ON_DEMAND]
    if unknown:
        raise ProbeError(f"{probe.model_type}: no rule makes the required input {', '.join(unknown)}; {_REMEDY}")
    makers = {n: m for n, m in {**ON_DEMAND, **MAKERS}.items() if n in (needed if n in ON_DEMAND else probe.arguments)}
    if not makers:
        raise ProbeError(f"{probe.model_type}: the forward pass of {type(probe.model).__name__} has no input that a rule makes; {_REMEDY}")
    return makers


def _place(value: Tensor, model: nn.Module) -> Tensor:
    """The tensor on the model's device, floating point in the model's precision."""
    reference = next((p for p in model.parameters() if p.is_floating_point()), torch.empty(0))
    return value.to(device_of(model), reference.dtype if value.is_floating_point() else value.dtype)


def input_ids(probe: Probe) -> Tensor:
    """Ordinary tokens behind one placeholder for each image or audio feature, padded at the end."""
    ids = probe.words(_vocab(probe), probe.batch, probe.length)
    ids[1:, -N_PADDED:] = _pad_token(probe)
    if _reads_end(probe):
        ids[0, -1] = ids[1:, -N_PADDED - 1] = _end_token(probe)
    for token, count in _placeholders(probe):
        ids = torch.cat([ids[:, :1], torch.full((probe.batch, count), token), ids[:, 1:]], dim=1)
    return ids


def _vocab(probe: Probe) -> int:
    vocab = probe.find("vocab_size", "text_vocab_size", "src_vocab_size", default=2)
    try:
        return min(vocab, probe.model.get_input_embeddings().num_embeddings)  # pyright: ignore[reportCallIssue]
    except (AttributeError, NotImplementedError):
        return vocab


def _pad_token(probe: Probe) -> int:
    token = probe.find("pad_token_id", default=0)
    return token if isinstance(token, int) and 0 <= token < _vocab(probe) else 0


def _is_text_tower(probe: Probe) -> bool:
    return hasattr(probe.model, "get_text_features") or type(probe.model).__name__.endswith(("TextModel", "TextModelWithProjection"))


def _reads_end(probe: Probe) -> bool:
    """Whether the model reads a sequence off its end-of-text token, as contrastive text towers and BART classifiers do."""
    classifies = type(probe.model).__name__.endswith("ForSequenceClassification") and probe.config.is_encoder_decoder
    return probe.find("eos_token_id") is not None and (_is_text_tower(probe) or bool(classifies))


def _end_token(probe: Probe) -> int:
    token = probe.find("eos_token_id")
    token = token[0] if isinstance(token, list) else token
    # Old CLIP configurations say 2, which their tokenizer never produces: the tower then looks for the highest id.
    return _vocab(probe) - 1 if token == 2 and _is_text_tower(probe) else token


# Method that makes the features, the input it reads, where the configuration keeps the id of their placeholder.
PLACEHOLDERS = (
    ("get_image_features", "pixel_values", ("image_token_id", "image_token_index")),
    ("get_audio_features", "input_features", ("audio_token_id", "audio_token_index")),
)


def _placeholders(probe: Probe) -> Iterator[tuple[int, int]]:
    """(token id, count per example) for each kind of feature that the model writes over its input embeddings."""
    for name, source, tokens in PLACEHOLDERS:
        token, method = probe.find(*tokens), probe.method(name)
        if source in probe.made and token is not None and method is not None:
            yield token, _n_rows(probe.call(method)) // probe.batch


def _n_rows(features: Any) -> int:
    features = getattr(features, "pooler_output", features)
    if isinstance(features, (list, tuple)):
        return sum(_n_rows(f) for f in features)
    return math.prod(features.shape[:-1])


def attention_mask(probe: Probe) -> Tensor | None:
    """Ones, but for the padded end of every example after the first."""
    if "input_ids" not in probe.made:
        return None
    mask = torch.ones(probe.made["input_ids"].shape, dtype=torch.long)
    mask[1:, -N_PADDED:] = 0
    return mask


def global_attention_mask(probe: Probe) -> Tensor:
    """Global attention at the first token."""
    mask = torch.zeros(probe.made["input_ids"].shape, dtype=torch.long)
    mask[:, 0] = 1
    return mask


def mm_token_type_ids(probe: Probe) -> Tensor | None:
    """1 at image placeholders, 0 at text."""
    token = probe.find("image_token_id", "image_token_index")
    return None if token is None else (probe.made["input_ids"] == token).long()


def decoder_input_ids(probe: Probe) -> Tensor | None:
    """A target two tokens shorter than the source, so that the two lengths cannot be mixed up unseen."""
    # These heads read the source's tokens off the decoder, which must then see the same tokens.
    is_reader = type(probe.model).__name__.endswith(("ForSequenceClassification", "ForQuestionAnswering"))
    if is_reader or not probe.config.is_encoder_decoder:
        return None
    vocab = min(_vocab(probe), probe.find("decoder_vocab_size", "tgt_vocab_size", default=_vocab(probe)))
    return probe.words(vocab, probe.batch, max(2, probe.length - N_PADDED))


# Decoders whose cross-attention no attribute of the configuration announces.
ALWAYS_CROSS = frozenset({"blip_2_qformer", "trocr"})


def encoder_hidden_states(probe: Probe) -> Tensor | None:
    """States for decoders with cross-attention that run without their encoder."""
    crosses = getattr(probe.config, "add_cross_attention", False) or probe.model_type in ALWAYS_CROSS
    if not crosses or probe.takes("decoder_input_ids"):
        return None
    width = probe.find("cross_attention_hidden_size", "encoder_hidden_size", "hidden_size", "d_model", "n_embd")
    return probe.floats(probe.batch, probe.length, width)


def bbox(probe: Probe) -> Tensor:
    """One box (left, top, right, bottom) for each token."""
    corner = probe.integers(0, 50, probe.batch, probe.length, 2)
    return torch.cat([corner, corner + 10], dim=-1)


# In the order in which they are made: later makers read earlier inputs.
MAKERS: dict[str, Maker] = {
    "image_grid_thw": media.grid,
    "grid_thw": media.grid,
    "spatial_shapes": media.spatial_shapes,
    "image_sizes": media.image_sizes,
    "merge_sizes": lambda probe: probe.ones(probe.batch),
    "image_merge_sizes": lambda probe: probe.ones(probe.batch),
    "pixel_values": media.images,
    "pixel_attention_mask": media.pixel_attention_mask,
    "flattened_patches": media.flattened_patches,
    "input_points": lambda probe: probe.integers(0, 16, probe.batch, 1, 2, 2).double(),
    "visual_feats": lambda probe: probe.floats(probe.batch, 4, probe.config.visual_feat_dim),
    "visual_pos": lambda probe: probe.floats(probe.batch, 4, probe.config.visual_pos_dim),
    "visual_embeds": lambda probe: probe.floats(probe.batch, 4, probe.config.visual_embedding_dim),
    "input_features": media.input_features,
    "input_features_mask": media.feature_mask,
    "feature_attention_mask": media.feature_mask,
    "input_values": media.input_values,
    "past_values": media.past_values,
    "past_time_features": media.time_features("past_values"),
    "past_observed_mask": lambda probe: torch.ones_like(probe.made["past_values"]),
    "future_values": media.future_values,
    "future_time_features": media.time_features("future_values"),
    "qformer_input_ids": lambda probe: probe.words(probe.config.qformer_config.vocab_size, probe.batch, probe.length),
    "entity_ids": lambda probe: probe.integers(3, probe.config.entity_vocab_size, probe.batch, 3),
    "entity_position_ids": lambda probe: probe.integers(0, probe.length - N_PADDED, probe.batch, 3, 2),
    "input_ids": input_ids,
    "attention_mask": attention_mask,
    "global_attention_mask": global_attention_mask,
    "mm_token_type_ids": mm_token_type_ids,
    "bbox": bbox,
    "decoder_input_ids": decoder_input_ids,
    "encoder_hidden_states": encoder_hidden_states,
}

# Made only for models that cannot run without them.
ON_DEMAND: dict[str, Maker] = {
    "hidden_states": media.images,
    "pixel_values_videos": media.pixel_values,
    "query_embeds": lambda probe: probe.floats(probe.batch, probe.length, probe.config.hidden_size),
    "inputs_embeds": lambda probe: probe.floats(probe.batch, probe.length, probe.find("hidden_size")),
    "latents": lambda probe: probe.floats(probe.batch, probe.find("hidden_size"), probe.length),
}
