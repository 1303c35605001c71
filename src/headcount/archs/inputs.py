"""A small valid batch for any transformers model, made from its configuration and the signature of its forward pass."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

N_PADDED = 2
_TOKEN = re.compile(r"(token_ids?|token_index|_start_id|_end_id|bos_id|eos_id)$")


class ProbeError(ValueError):
    """A model whose inputs cannot be worked out from its configuration."""


@dataclass
class Probe:
    """What the makers read: the model, the sizes asked for, and the inputs made so far."""

    model: nn.Module
    batch: int
    length: int
    generator: torch.Generator
    arguments: dict[str, inspect.Parameter]
    made: dict[str, Any] = field(default_factory=dict)

    @property
    def config(self) -> Any:
        return self.model.config

    def find(self, *names: str, default: Any = None) -> Any:
        """The first of the attributes that some part of the configuration sets, outermost part first."""
        for name in names:
            for part in parts(self.config):
                value = getattr(part, name, None)
                if value is not None:
                    return value
        return default

    def floats(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator, dtype=torch.float64)

    def integers(self, low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, max(high, low + 1), shape, generator=self.generator)

    def takes(self, name: str) -> bool:
        return name in self.arguments


Maker = Callable[[Probe], Any]


def probe_inputs(model: nn.Module, *, batch: int = 2, length: int = 9, seed: int = 0) -> dict[str, Any]:
    """Keyword arguments for ``model(**inputs)`` that run every attention block where that is possible.

    The second example ends in 2 padded positions where the model takes an attention mask. Multimodal models get a longer
    sequence: one placeholder token for each feature of the image or the audio.
    """
    arguments = dict(inspect.signature(model.forward).parameters)
    probe = Probe(model, batch, length, torch.Generator().manual_seed(seed), arguments)
    makers = _makers(probe)
    try:
        with torch.no_grad():
            for name, maker in makers.items():
                value = maker(probe)
                if value is not None:
                    probe.made[name] = _place(value, model)
    except ProbeError:
        raise
    except Exception as error:
        raise ProbeError(f"{_type(model)}: no inputs could be made ({type(error).__name__}: {error}); {_REMEDY}") from error
    return probe.made


_REMEDY = "pass your own inputs, a dict of the forward pass's keyword arguments"


def _type(model: nn.Module) -> str:
    return str(getattr(getattr(model, "config", None), "model_type", type(model).__name__))


def _makers(probe: Probe) -> dict[str, Maker]:
    if not hasattr(probe.model, "config"):
        raise ProbeError(f"{type(probe.model).__name__} has no config; {_REMEDY}")
    special = SPECIAL.get(_type(probe.model), {})
    rules = {**MAKERS, **special}
    required = [n for n, p in probe.arguments.items() if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
    unknown = [n for n in required if n not in rules and n not in ON_DEMAND]
    if unknown:
        raise ProbeError(f"{_type(probe.model)}: no rule makes the required input {', '.join(unknown)}; {_REMEDY}")
    wanted = {n: m for n, m in rules.items() if n in probe.arguments}
    return {**{n: m for n, m in ON_DEMAND.items() if n in required and n not in special}, **wanted}


def _place(value: Any, model: nn.Module) -> Any:
    """The value on the model's device, floating point in the model's precision."""
    if isinstance(value, (list, tuple)):
        return type(value)(_place(v, model) for v in value)
    if not isinstance(value, Tensor):
        return value
    reference = next((p for p in model.parameters() if p.is_floating_point()), torch.empty(0))
    return value.to(reference.device, reference.dtype if value.is_floating_point() else None)


def parts(config: Any) -> Iterator[Any]:
    """The configuration and its sub-configurations, outermost first."""
    queue = [config]
    while queue:
        part = queue.pop(0)
        yield part
        queue += [v for v in vars(part).values() if hasattr(v, "to_dict") and hasattr(v, "model_type")]


def special_tokens(config: Any) -> set[int]:
    found: set[int] = set()
    for part in parts(config):
        for name, value in vars(part).items():
            if _TOKEN.search(name):
                found |= {v for v in (value if isinstance(value, (list, tuple)) else [value]) if isinstance(v, int)}
    return found


def _words(probe: Probe, vocab: int, *shape: int) -> Tensor:
    """Ordinary token ids: none that the configuration gives a meaning."""
    taken = special_tokens(probe.config)
    ordinary = torch.tensor([t for t in range(min(vocab, 1000)) if t not in taken])
    return ordinary[probe.integers(0, len(ordinary), *shape)]


def _vocab(probe: Probe) -> int:
    sizes = [probe.find("vocab_size", "text_vocab_size", "src_vocab_size", default=2)]
    try:
        sizes.append(probe.model.get_input_embeddings().num_embeddings)
    except (AttributeError, NotImplementedError):
        pass
    return min(sizes)


def input_ids(probe: Probe) -> Tensor:
    """Ordinary tokens, behind one placeholder for each image, video or audio feature."""
    ids = _words(probe, _vocab(probe), probe.batch, probe.length)
    ids[1:, -N_PADDED:] = _pad_token(probe)
    if _pools_at_end(probe):
        end = _end_token(probe)
        ids[0, -1] = end
        ids[1:, -N_PADDED - 1] = end
    for token, count in _placeholders(probe):
        ids = torch.cat([ids[:, :1], torch.full((probe.batch, count), token), ids[:, 1:]], dim=1)
    return ids


def _pad_token(probe: Probe) -> int:
    token = probe.find("pad_token_id", default=0)
    return token if isinstance(token, int) and 0 <= token < _vocab(probe) else 0


def _is_contrastive(probe: Probe) -> bool:
    return hasattr(probe.model, "get_text_features") or type(probe.model).__name__.endswith(("TextModel", "TextModelWithProjection"))


def _pools_at_end(probe: Probe) -> bool:
    """Whether the model reads a sequence at its end-of-text token, as contrastive text towers do."""
    classifies = type(probe.model).__name__.endswith("ForSequenceClassification") and probe.config.is_encoder_decoder
    return probe.find("eos_token_id") is not None and (_is_contrastive(probe) or bool(classifies))


def _end_token(probe: Probe) -> int:
    # CLIP configurations that say 2 are wrong by convention: the tower then looks for the highest id.
    token = probe.find("eos_token_id")
    token = token[0] if isinstance(token, list) else token
    return _vocab(probe) - 1 if token == 2 and _is_contrastive(probe) else token


PLACEHOLDERS = (
    ("get_image_features", "pixel_values", ("image_token_id", "image_token_index")),
    ("get_audio_features", "input_features", ("audio_token_id", "audio_token_index")),
)


def _placeholders(probe: Probe) -> Iterator[tuple[int, int]]:
    """(token id, count per example) for each kind of feature that the model writes over its input embeddings."""
    for method, source, tokens in PLACEHOLDERS:
        token = probe.find(*tokens)
        features = _method(probe.model, method)
        if source in probe.made and token is not None and features is not None:
            yield token, _rows(_call(features, probe)) // probe.batch


def _method(model: nn.Module, name: str) -> Callable[..., Any] | None:
    """The method of the innermost owner: the wrappers around it hide its signature."""
    for owner in (getattr(model, "model", None), getattr(model, "base_model", None), model):
        if hasattr(owner, name):
            return getattr(owner, name)
    return None


def _call(function: Callable[..., Any], probe: Probe) -> Any:
    """The function's result on what was made so far, with its other arguments as the configuration has them."""
    accepted = inspect.signature(function).parameters
    settings = {k: getattr(probe.config, k) for k in accepted if hasattr(probe.config, k)}
    return function(**settings, **{k: v for k, v in probe.made.items() if k in accepted})


def _rows(features: Any) -> int:
    features = getattr(features, "pooler_output", features)
    if isinstance(features, (list, tuple)):
        return sum(_rows(f) for f in features)
    return math.prod(features.shape[:-1])


def attention_mask(probe: Probe) -> Tensor | None:
    """Ones, but for the padded end of every example after the first."""
    ids = probe.made.get("input_ids")
    if ids is None:
        return None
    mask = torch.ones(ids.shape, dtype=torch.long)
    mask[1:, -N_PADDED:] = 0
    return mask


def decoder_input_ids(probe: Probe) -> Tensor | None:
    name = type(probe.model).__name__
    # These heads read the encoder's tokens off the decoder, which must then see the same tokens.
    if not probe.config.is_encoder_decoder or name.endswith(("ForSequenceClassification", "ForQuestionAnswering")):
        return None
    vocab = min(_vocab(probe), probe.find("decoder_vocab_size", "tgt_vocab_size", default=_vocab(probe)))
    return _words(probe, vocab, probe.batch, max(2, probe.length - N_PADDED))


def _side(value: Any) -> tuple[int, int]:
    if isinstance(value, dict):
        value = [value["height"], value["width"]]
    return (value[-2], value[-1]) if isinstance(value, (list, tuple)) else (value, value)


def pixel_values(probe: Probe) -> Tensor:
    channels = probe.find("num_channels", "in_channels", "in_chans", default=3)
    side = _side(probe.find("image_size", "img_size", "crop_size", default=64))
    frames = probe.find("num_frames", "frames_per_clip")
    return probe.floats(probe.batch, *([frames] if frames else []), channels if isinstance(channels, int) else 3, *side)


def patches(probe: Probe) -> Tensor:
    """Flattened patches of one 4 x 4 image for each example, as the Qwen-VL processors lay them out."""
    channels = probe.find("num_channels", "in_channels", "in_chans", default=3)
    size = _side(probe.find("patch_size", default=14))
    return probe.floats(probe.batch * 16, channels * probe.find("temporal_patch_size", "patch_temporal", default=1) * size[0] * size[1])


def grid(probe: Probe) -> Tensor:
    return torch.tensor([[1, 4, 4]] * probe.batch)


def images(probe: Probe) -> Tensor:
    """Images in the layout that the other arguments of the forward pass give away."""
    if probe.takes("image_grid_thw") or probe.takes("grid_thw"):
        return patches(probe)
    if probe.takes("spatial_shapes"):
        return patches(probe).unflatten(0, (probe.batch, -1))
    pixels = pixel_values(probe)
    if probe.find("image_grid_pinpoints"):
        return pixels.unsqueeze(1).repeat(1, 1 + _n_tiles(probe), 1, 1, 1)
    return pixels.unsqueeze(1) if probe.takes("pixel_attention_mask") and probe.takes("input_ids") else pixels


def _n_tiles(probe: Probe) -> int:
    height, width = probe.find("image_grid_pinpoints")[0]
    side = _side(probe.find("image_size"))
    return (height // side[0]) * (width // side[1])


def image_sizes(probe: Probe) -> Tensor | None:
    """The sizes of the images, for models that cannot do without."""
    features = _method(probe.model, "get_image_features") or probe.model.forward
    size = inspect.signature(features).parameters.get("image_sizes")
    if size is None or size.default is not size.empty:
        return None
    tiled = probe.find("image_grid_pinpoints")
    size = tiled[0] if tiled else _side(probe.find("image_size", default=64))
    return torch.tensor([list(size)] * probe.batch)


def spatial_shapes(probe: Probe) -> Tensor:
    return torch.tensor([[4, 4]] * probe.batch)


def pixel_attention_mask(probe: Probe) -> Tensor | None:
    pixels = probe.made["pixel_values"]
    if probe.takes("spatial_shapes"):
        return torch.ones(pixels.shape[:2], dtype=torch.long)
    return torch.ones((*pixels.shape[:2], *pixels.shape[-2:]), dtype=torch.long) if pixels.ndim == 5 else None


def feature_mask(probe: Probe) -> Tensor:
    features = probe.made["input_features"]
    return torch.ones(probe.batch, features.shape[2 if _is_channels_first(probe) else 1], dtype=torch.long)


def mm_token_type_ids(probe: Probe) -> Tensor | None:
    """1 at image placeholders, 0 at text."""
    ids, token = probe.made.get("input_ids"), probe.find("image_token_id", "image_token_index")
    return None if ids is None or token is None else (ids == token).long()


def input_features(probe: Probe) -> Tensor:
    """A log-mel spectrogram: channels first where the model starts with a convolution over time, as Whisper does."""
    if _is_channels_first(probe):
        return probe.floats(probe.batch, _bins(probe), 2 * probe.find("max_source_positions", default=32))
    return probe.floats(probe.batch, 64, _bins(probe))


def _bins(probe: Probe) -> int:
    return probe.find("num_mel_bins", "input_feat_per_channel", "feature_projection_input_dim", "input_dim", "mel_dim", default=80)


def _is_channels_first(probe: Probe) -> bool:
    """Whether the first layer that fits the mel bins is a convolution over time."""
    bins = _bins(probe)
    for module in probe.model.modules():
        if isinstance(module, nn.Conv1d) and module.in_channels == bins:
            return probe.find("input_feat_per_channel") is None
        if isinstance(module, nn.Linear) and module.in_features == bins:
            return False
    return False


def past_values(probe: Probe) -> Tensor:
    """Time series with the history that the lags need."""
    lags = probe.find("lags_sequence", default=[0])
    length = probe.find("context_length", default=32) + max(lags)
    n_series = probe.find("num_input_channels", "input_size", default=1)
    return probe.floats(probe.batch, length, *([n_series] if n_series > 1 or probe.takes("observed_mask") or not probe.takes("past_time_features") else []))


def future_values(probe: Probe) -> Tensor | None:
    if not probe.takes("past_time_features"):
        return None
    return probe.floats(probe.batch, probe.find("prediction_length", default=1))


def _time_features(source: str) -> Maker:
    return lambda probe: probe.floats(probe.batch, probe.made[source].shape[1], probe.find("num_time_features", default=0))


def input_values(probe: Probe) -> Tensor:
    """A waveform long enough for 12 frames behind the strided convolutions, or a spectrogram for AST."""
    if probe.find("conv_stride") is None and probe.find("num_mel_bins") is not None:
        return probe.floats(probe.batch, probe.find("max_length", default=64), probe.find("num_mel_bins"))
    if probe.find("conv_stride") is None and probe.find("codebook_size", "codebook_dim") is not None:
        return probe.floats(probe.batch, probe.find("audio_channels", default=1), 3840)
    strides, kernels = probe.find("conv_stride", default=(320,)), probe.find("conv_kernel", default=(400,))
    strides = strides if isinstance(strides, (list, tuple)) else (320,)
    samples = 12
    for stride, kernel in zip(reversed(strides), reversed(kernels), strict=True):
        samples = (samples - 1) * stride + kernel
    return probe.floats(probe.batch, samples)


def encoder_hidden_states(probe: Probe) -> Tensor | None:
    """States for decoders with cross-attention that run without their encoder."""
    if not getattr(probe.config, "add_cross_attention", False):
        return None
    width = probe.find("cross_attention_hidden_size", "encoder_hidden_size", "hidden_size", "d_model", "n_embd")
    return probe.floats(probe.batch, probe.length, width)


def bbox(probe: Probe) -> Tensor:
    corner = probe.integers(0, 50, probe.batch, probe.length, 2)
    return torch.cat([corner, corner + 10], dim=-1)


# In the order in which they are made: later makers read earlier inputs.
MAKERS: dict[str, Maker] = {
    "image_grid_thw": grid,
    "grid_thw": grid,
    "spatial_shapes": spatial_shapes,
    "image_sizes": image_sizes,
    "pixel_values": images,
    "pixel_attention_mask": pixel_attention_mask,
    "input_features": input_features,
    "input_features_mask": feature_mask,
    "feature_attention_mask": feature_mask,
    "past_values": past_values,
    "past_time_features": _time_features("past_values"),
    "past_observed_mask": lambda probe: torch.ones_like(probe.made["past_values"]),
    "future_values": future_values,
    "future_time_features": _time_features("future_values"),
    "input_values": input_values,
    "qformer_input_ids": lambda probe: _words(probe, probe.config.qformer_config.vocab_size, probe.batch, probe.length),
    "input_points": lambda probe: probe.integers(0, 16, probe.batch, 1, 2, 2).double(),
    "visual_feats": lambda probe: probe.floats(probe.batch, 4, probe.config.visual_feat_dim),
    "visual_pos": lambda probe: probe.floats(probe.batch, 4, probe.config.visual_pos_dim),
    "visual_embeds": lambda probe: probe.floats(probe.batch, 4, probe.config.visual_embedding_dim),
    "flattened_patches": lambda probe: probe.integers(0, 4, probe.batch, 16, 2 + probe.find("patch_embed_hidden_size")).double(),
    "merge_sizes": lambda probe: torch.ones(probe.batch, dtype=torch.long),
    "image_merge_sizes": lambda probe: torch.ones(probe.batch, dtype=torch.long),
    "input_ids": input_ids,
    "attention_mask": attention_mask,
    "mm_token_type_ids": mm_token_type_ids,
    "decoder_input_ids": decoder_input_ids,
    "encoder_hidden_states": encoder_hidden_states,
    "bbox": bbox,
}

# Made only for models that cannot run without them.
ON_DEMAND: dict[str, Maker] = {
    "hidden_states": images,
    "pixel_values_videos": pixel_values,
    "query_embeds": lambda probe: probe.floats(probe.batch, probe.length, probe.config.hidden_size),
    "inputs_embeds": lambda probe: probe.floats(probe.batch, probe.length, probe.find("hidden_size")),
    "latents": lambda probe: probe.floats(probe.batch, probe.find("hidden_size"), probe.length),
}

SPECIAL: dict[str, dict[str, Maker]] = {}
