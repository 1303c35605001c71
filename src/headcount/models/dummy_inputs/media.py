"""Probe inputs that are not text: images, spectrograms, waveforms, time series."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from headcount.models.dummy_inputs.request import InputMaker, Probe

# An image of patches has this many to each side.
GRID = 4
_FRAMES = 64
_CODEC_SAMPLES = 3840


def images(probe: Probe) -> Tensor:
    """Images in the layout that the other arguments of the forward pass give away."""
    if probe.takes_any_of("image_grid_thw", "grid_thw"):
        padded = type(probe.model).__name__.endswith("ForRetrieval")  # [batch, patches, …] instead of all patches in a row
        return _flat_patches(probe).unflatten(0, (probe.batch, -1)) if padded else _flat_patches(probe)
    if probe.takes_any_of("spatial_shapes"):
        return _flat_patches(probe).unflatten(0, (probe.batch, -1))
    pixels = pixel_values(probe)
    if probe.takes_any_of("aspect_ratio_ids"):  # [batch, images, tiles, channels, height, width]
        return pixels[:, None, None].repeat(1, 1, probe.first_config_value("max_num_tiles"), 1, 1, 1)
    if probe.takes_any_of("image_attention_mask") and probe.takes_any_of(
        "perceiver_embeddings"
    ):  # IDEFICS: [batch, images, channels, height, width]
        return pixels.unsqueeze(1)
    matches = (
        type(probe.model).__name__.endswith("ForKeypointMatching") or probe.first_config_value("coarse_matching_threshold") is not None
    )
    if matches:  # pairs of images
        return torch.stack([pixels, pixels.flip(-1)], dim=1)
    if probe.model_type == "instructblipvideo" and probe.takes_any_of("qformer_input_ids"):  # clips of frames
        return pixels.unsqueeze(1).repeat(1, 2, 1, 1, 1)
    if probe.first_config_value("image_grid_pinpoints"):
        (height, width), side = probe.first_config_value("image_grid_pinpoints")[0], _image_height_and_width(probe)
        n_tiles = (height // side[0]) * (width // side[1])
        return pixels.unsqueeze(1).repeat(1, 1 + n_tiles, 1, 1, 1)
    return pixels.unsqueeze(1) if probe.takes_any_of("pixel_attention_mask") and probe.takes_any_of("input_ids") else pixels


def pixel_values(probe: Probe) -> Tensor:
    """Images, or clips where the configuration counts frames."""
    frames = probe.first_config_value("num_frames", "frames_per_clip")
    return probe.normal_floats(probe.batch, *([frames] if frames else []), _n_image_channels(probe), *_image_height_and_width(probe))


def _n_image_channels(probe: Probe) -> int:
    channels = probe.first_config_value("num_channels", "in_channels", "in_chans", default=3)
    return channels if isinstance(channels, int) else 3


def _image_height_and_width(probe: Probe) -> tuple[int, int]:
    square = probe.first_config_value("input_size") if probe.first_config_value("patch_size") else None
    return _parse_height_and_width(probe.first_config_value("image_size", "img_size", "crop_size", default=square or 64))


def aspect_ratio_mask(probe: Probe) -> Tensor:
    """Ones for every tile of the single image of each example."""
    return probe.ones(probe.batch, 1, probe.first_config_value("max_num_tiles"))


def _parse_height_and_width(value: Any) -> tuple[int, int]:
    if isinstance(value, dict):
        return value["height"], value["width"]
    return (value[-2], value[-1]) if isinstance(value, (list, tuple)) else (value, value)


def high_resolution_images(probe: Probe) -> Tensor:
    """The images once more, at the size of the second tower."""
    return probe.normal_floats(
        probe.batch, _n_image_channels(probe), *_parse_height_and_width(probe.config.high_res_vision_config.image_size)
    )


def _flat_patches(probe: Probe) -> Tensor:
    """Flattened patches of one image for each example, as the Qwen-VL processors lay them out."""
    height, width = _parse_height_and_width(probe.first_config_value("patch_size", default=14))
    frames = probe.first_config_value("temporal_patch_size", "patch_temporal", default=1)
    return probe.normal_floats(probe.batch * GRID * GRID, _n_image_channels(probe) * frames * height * width)


def time_height_width_in_patches(probe: Probe) -> Tensor:
    """Time, height and width of each image in patches."""
    return torch.tensor([[1, GRID, GRID]] * probe.batch)


def height_width_in_patches(probe: Probe) -> Tensor:
    """Height and width of each image in patches."""
    return torch.tensor([[GRID, GRID]] * probe.batch)


def image_sizes(probe: Probe) -> Tensor | None:
    """The sizes of the images, for models that cannot do without."""
    features = probe.model_method("get_image_features") or probe.model.forward
    parameter = inspect.signature(features).parameters.get("image_sizes")
    if parameter is None or parameter.default is not parameter.empty:
        return None
    tiled = probe.first_config_value("image_grid_pinpoints")
    return torch.tensor([list(tiled[0] if tiled else _image_height_and_width(probe))] * probe.batch)


def pixel_attention_mask(probe: Probe) -> Tensor | None:
    """Ones for every patch, or for every pixel of models that take several images per example."""
    pixels = probe.inputs["pixel_values"]
    if probe.takes_any_of("spatial_shapes"):
        return probe.ones(*pixels.shape[:2])
    return probe.ones(*pixels.shape[:2], *pixels.shape[-2:]) if pixels.ndim == 5 else None


def input_features(probe: Probe) -> Tensor:
    """A log-mel spectrogram: channels first where the model starts with a convolution over time, as Whisper does."""
    if probe.first_config_value("spec_size") is not None:  # CLAP: [batch, channels, frames, bins]
        return probe.normal_floats(probe.batch, 4 if probe.first_config_value("enable_fusion") else 1, _FRAMES, _n_frequency_bins(probe))
    if _is_channels_first(probe):
        return probe.normal_floats(
            probe.batch, _n_frequency_bins(probe), 2 * probe.first_config_value("max_source_positions", default=_FRAMES // 2)
        )
    return probe.normal_floats(probe.batch, _FRAMES, _n_frequency_bins(probe))


def _n_frequency_bins(probe: Probe) -> int:
    if probe.model_type == "pop2piano":  # its spectrogram is projected before the model sees it
        return probe.first_config_value("d_model")
    bins = probe.first_config_value(
        "num_mel_bins", "input_feat_per_channel", "feature_projection_input_dim", "input_dim", "mel_dim", "num_chroma", default=80
    )
    return bins * probe.first_config_value("num_stacked_frames", default=4 if probe.model_type.startswith("granite_speech5") else 1)


def _is_channels_first(probe: Probe) -> bool:
    """Whether the first layer that fits the mel bins is a convolution over time."""
    bins = _n_frequency_bins(probe)
    for module in probe.model.modules():
        if isinstance(module, nn.Conv1d) and module.in_channels == bins:
            return probe.first_config_value("input_feat_per_channel") is None
        if isinstance(module, nn.Linear) and module.in_features == bins:
            return False
    return False


def feature_mask(probe: Probe) -> Tensor:
    """Ones for every frame of the spectrogram."""
    return probe.ones(probe.batch, probe.inputs["input_features"].shape[2 if _is_channels_first(probe) else 1])


def input_values(probe: Probe) -> Tensor:
    """A waveform long enough for 12 frames behind the strided convolutions (more for x-vectors), a codec's signal, or a spectrogram for AST."""
    strides = probe.first_config_value("conv_stride")
    if not isinstance(strides, (list, tuple)):
        if probe.first_config_value("num_mel_bins") is not None:
            return probe.normal_floats(probe.batch, probe.first_config_value("max_length", default=_FRAMES), _n_frequency_bins(probe))
        is_codec = probe.first_config_value("codebook_size", "codebook_dim") is not None
        return probe.normal_floats(
            probe.batch, *([probe.first_config_value("audio_channels", default=1)] if is_codec else []), _CODEC_SAMPLES
        )
    samples = 12
    for kernel, dilation in zip(
        probe.first_config_value("tdnn_kernel", default=()), probe.first_config_value("tdnn_dilation", default=()), strict=True
    ):
        samples += (kernel - 1) * dilation if type(probe.model).__name__.endswith("ForXVector") else 0
    for stride, kernel in zip(reversed(strides), reversed(probe.first_config_value("conv_kernel")), strict=True):
        samples = (samples - 1) * stride + kernel
    return probe.normal_floats(probe.batch, samples)


def past_values(probe: Probe) -> Tensor:
    """Time series with the history that the lags need; the lag models drop the axis of a single series."""
    length = probe.first_config_value("context_length", default=32) + max(probe.first_config_value("lags_sequence", default=[0]))
    n_series = probe.first_config_value("num_input_channels", "input_size", default=1)
    is_flat = (probe.takes_any_of("past_time_features") and n_series == 1) or probe.model_type.startswith("timesfm")
    return probe.normal_floats(probe.batch, length, *([] if is_flat else [n_series]))


def future_values(probe: Probe) -> Tensor | None:
    """The series to decode, for models with a decoder over time."""
    if not probe.takes_any_of("past_time_features"):
        return None
    return probe.normal_floats(probe.batch, probe.first_config_value("prediction_length", default=1))


def time_features_maker(series_name: str) -> InputMaker:
    """A maker of the time features that go with the series ``series_name``."""
    return lambda probe: probe.normal_floats(
        probe.batch, probe.inputs[series_name].shape[1], probe.first_config_value("num_time_features", default=0)
    )


def flattened_patches(probe: Probe) -> Tensor:
    """Pix2Struct patches: row, column, then the pixels."""
    positions = probe.integers(1, GRID, probe.batch, GRID * GRID, 2)
    return torch.cat(
        [positions, probe.normal_floats(probe.batch, GRID * GRID, probe.first_config_value("patch_embed_hidden_size"))], dim=-1
    )
