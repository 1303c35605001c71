"""Whether another model that a study names can be compared with its own, before any work. No torch here."""

from __future__ import annotations

from headcount.core.errors import ArtifactError
from headcount.studies._base import StudyContext


def check_same_heads_as_other_model(context: StudyContext, other_model: str) -> None:
    """Raises ArtifactError unless the model of that name has the same heads as the model of a study, of the same kind and size."""
    own, other_heads = context.loaded.heads, context.sources.read_heads(other_model)
    if own.heads != other_heads.heads:
        raise ArtifactError(
            f"{context.model_name} and {other_model} have different heads ({len(own)} and {len(other_heads)}); "
            "compare a model with its fine-tuned self"
        )
    for block, counterpart in zip(own.blocks, other_heads.blocks, strict=False):
        first, second = (f"{each.kind} attention with {each.n_kv_heads} KV heads of size {each.head_dim}" for each in (block, counterpart))
        if first != second:
            raise ArtifactError(
                f"{block.name} of {context.model_name} is {first}, that of {other_model} is {second}; compare a model with its fine-tuned self"
            )


def check_same_kinds(context: StudyContext, other_model: str) -> None:
    """Raises ArtifactError unless the model of that name has the same kinds of attention as the model of a study."""
    own, other = (
        list(dict.fromkeys(block.kind for block in heads.blocks))
        for heads in (context.loaded.heads, context.sources.read_heads(other_model))
    )
    if own != other:
        raise ArtifactError(
            f"{context.model_name} has {' and '.join(own)} attention and {other_model} has {' and '.join(other)}, so that their layers cannot be "
            "compared; name a model of the same kind"
        )
