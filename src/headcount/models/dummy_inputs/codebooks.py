"""Probe inputs that are audio codes: several tokens, one of each codebook, stand at every position."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from headcount.models.dummy_inputs.request import Probe

CodebookLayout = Literal["rows", "columns", "text and columns", "positions"]
"""Codebooks as rows [batch * codebooks, length], as a last axis [batch, length, codebooks] (behind a text token), or as positions."""

LAYOUTS: dict[str, CodebookLayout] = {
    "csm": "columns",
    "csm_depth_decoder_model": "positions",
    "dia": "columns",
    "dia_decoder": "columns",
    "kyutai_speech_to_text": "text and columns",
    "musicgen": "rows",
    "musicgen_decoder": "rows",
    "musicgen_melody": "rows",
    "musicgen_melody_decoder": "rows",
}


def audio_codes(probe: Probe, n_positions: int, vocabulary_size: int) -> Tensor | None:
    """Audio codes in the layout of the model type; None for models without codebooks."""
    layout = LAYOUTS.get(probe.model_type)
    decoder = getattr(probe.config, "decoder_config", None) or getattr(probe.config, "decoder", None) or probe.config
    number = getattr(decoder, "num_codebooks", None) or getattr(decoder, "num_channels", None)
    if layout is None or not isinstance(number, int):
        return None
    shapes: dict[CodebookLayout, tuple[int, ...]] = {
        "rows": (probe.batch * number, n_positions),
        "columns": (probe.batch, n_positions, number),
        "text and columns": (probe.batch, n_positions, number + 1),
        "positions": (probe.batch, number),
    }
    limits = [getattr(decoder, name, None) for name in ("vocab_size", "codebook_vocab_size", "codebook_size")]
    return probe.ordinary_ids(min([vocabulary_size, *(limit for limit in limits if isinstance(limit, int))]), *shapes[layout])


def parallel_audio_codes(probe: Probe) -> Tensor:
    """Audio codes [batch, codebooks, length] that accompany a text of the same length, as in Moshi."""
    return probe.ordinary_ids(
        probe.first_config_value("audio_vocab_size"), probe.batch, probe.first_config_value("num_codebooks"), probe.length
    )
