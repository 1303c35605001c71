"""What detection cannot see, one row per family: the layout of fused projections, causality, why a cut is impossible."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

Fusion = Literal["stacked", "interleaved", "grouped", "blocked"]


@dataclass(frozen=True, slots=True)
class Family:
    """Facts about one attention class, found by its name, or by its file and name where many share one."""

    fusion: Fusion | Callable[[Any], Fusion] | None = None
    gate_only: str = ""
    refuse: str | Callable[[Any], str] = ""
    masked_below: float | None = None
    time_first: bool = False
    input_width: bool = False
    """Whether the code takes the width of all heads from its input, so that a cut block needs its reshapes fitted."""
    head_arguments: tuple[str, ...] = ()
    """Forward arguments that may have a head axis although their name does not say so."""
    headless_arguments: tuple[str, ...] = ()
    """Forward arguments without a head axis although their name says so."""
    twins: tuple[tuple[str, str], ...] = ()
    """(role, path from the module's parent) of further projections of the same heads."""
    beside_attention: str = ""
    """What a head writes besides the values that it attends to: a gate takes it away, attention probabilities of zero do not."""


def _falcon_fusion(module: Any) -> Fusion:
    if module.new_decoder_architecture:
        return "grouped"
    return "stacked" if module.multi_query else "interleaved"


def _gpt_bigcode_fusion(module: Any) -> Fusion:
    return "stacked" if module.multi_query else "interleaved"


def _reason_to_refuse_bloom(module: Any) -> str:
    sliced = module.pretraining_tp > 1 and module.slow_but_exact
    return "the output projection is used functionally (slow_but_exact with pretraining_tp > 1), so no hook on it fires" if sliced else ""


FULL_WIDTH_NORM = "queries and keys are normalised over all heads at once, so removing a head changes the others"
SUB_NORM = "the concatenated heads are normalised together before the output projection, so removing a head changes the others"

MASK_WITH_HEADS = Family(head_arguments=("attention_mask",))
BLOCK_BIAS = Family(gate_only="the position bias that layers share is laid out in blocks of tokens for the dense number of heads")
DENSE_MASK = Family(gate_only="the model makes its attention masks and n-gram position buckets for the dense number of heads")
SHIFTED_WINDOW = Family(masked_below=-50.0)  # shifted windows are masked by -100, not by a huge number
SMALL_MASK = Family(masked_below=-5000.0)  # masked by -10000

INPUT_WIDTH = (
    "LongformerSelfAttention", "LEDEncoderSelfAttention", "LEDDecoderAttention", "BlipAttention", "Blip2Attention", "InstructBlipAttention",
    "InstructBlipVideoAttention", "MgpstrAttention", "TimesformerSelfAttention", "GroupViTAttention", "TableTransformerAttention",
    "TrOCRAttention", "PvtV2SelfAttention", "PegasusXGlobalLocalAttention", "LxmertAttention",
    "Mask2FormerAttention",
)  # fmt: skip
"""Classes whose code takes the width of all heads from its input."""

FAMILIES: dict[str, Family] = {
    "GPTNeoXAttention": Family(fusion="interleaved"),
    "GPTNeoXJapaneseAttention": Family(fusion="interleaved"),
    "BloomAttention": Family(fusion="interleaved", refuse=_reason_to_refuse_bloom),
    "PersimmonAttention": Family(fusion="interleaved"),
    "FalconAttention": Family(fusion=_falcon_fusion),
    "FalconFlashAttention2": Family(fusion=_falcon_fusion),
    "GPTBigCodeAttention": Family(fusion=_gpt_bigcode_fusion),
    "BeitAttention": MASK_WITH_HEADS,  # the relative position bias is added to the mask
    "GroundingDinoMultiheadAttention": MASK_WITH_HEADS,
    "MMGroundingDinoMultiheadAttention": MASK_WITH_HEADS,
    "SpeechT5Attention": Family(headless_arguments=("position_bias",)),
    "DogeAttention": Family(
        gate_only="the dynamic mask of each head is made from the values of all heads, so removing a head changes the others"
    ),
    "IBertSelfAttention": Family(
        gate_only="projections take and return the scaling factors of integer arithmetic, which an empty block has not"
    ),
    "LongT5LocalAttention": BLOCK_BIAS,
    "LongT5TransientGlobalAttention": BLOCK_BIAS,
    "ProphetNetAttention": DENSE_MASK,
    "ProphetNetNgramSelfAttention": DENSE_MASK,
    "CodeGenAttention": Family(fusion="blocked", gate_only="queries, keys and values are sharded in four blocks, so head counts must stay"),
    "NystromformerSelfAttention": Family(beside_attention="each head adds a convolution of its values to what it attends to"),
    "BitNetAttention": Family(gate_only=SUB_NORM),
    "KosmosTextAttention": Family(gate_only=SUB_NORM),
    "ConvBertSelfAttention": Family(refuse="half of the output comes from span convolutions, which have no heads"),
    "WavLMAttention": Family(refuse="the output projection is used functionally (multi_head_attention_forward), so no hook on it fires"),
    "xLSTMLayer": Family(refuse="matrix memory (mLSTM), a recurrent mixer without attention over positions"),
    "SqueezeBertSelfAttention": Family(refuse="grouped convolutions instead of linear projections"),
    "SwinSelfAttention": SHIFTED_WINDOW,
    "SwinAttention": SHIFTED_WINDOW,
    "Swinv2SelfAttention": SHIFTED_WINDOW,
    "DonutSwinSelfAttention": SHIFTED_WINDOW,
    "MaskFormerSwinSelfAttention": SHIFTED_WINDOW,
    "ClapAudioSelfAttention": SHIFTED_WINDOW,
    "Swin2SRSelfAttention": SHIFTED_WINDOW,
    "modeling_openai.Attention": SMALL_MASK,
    "modeling_ctrl.MultiHeadAttention": SMALL_MASK,
    "MarkupLMSelfAttention": SMALL_MASK,
    "modeling_fsmt.Attention": Family(time_first=True, input_width=True),
    "MLCDAttention": Family(time_first=True),
    "FunnelRelMultiheadAttention": Family(masked_below=-5e5),
    **dict.fromkeys(INPUT_WIDTH, Family(input_width=True)),
    "LiltSelfAttention": Family(
        twins=(("q", "self.layout_query"), ("k", "self.layout_key"), ("v", "self.layout_value"), ("o", "layout_output.dense"))
    ),
    "DiffLlamaAttention": Family(gate_only="two attention maps are subtracted per pair of heads"),
}

DEFAULT_FUSION: dict[str, Fusion] = {"query_key_value": "interleaved", "in_proj": "interleaved"}
"""The layout of a fused projection by its name, where no row says otherwise; every other name is stacked."""
