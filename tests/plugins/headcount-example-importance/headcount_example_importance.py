from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from torch import Tensor

from headcount.core.options import option
from headcount.importance.base import BlockImportance, ImportanceInfo, per_token
from headcount.models.observe import Observation


@dataclass(frozen=True)
class TopShare(BlockImportance):
    """Share of attention on the k strongest keys, averaged over queries.

    s_h = mean_t Σ_{j in top-k} α_tj
    """

    _: KW_ONLY
    k: int = option(1, "How many keys count as the strongest", minimum=1)
    info = ImportanceInfo(
        needs=frozenset({"attention"}),
        higher_is_keep=True,
        cost="one forward pass",
        source="an example",
        sees_projection=False,
    )

    def of_block(self, observation: Observation) -> tuple[Tensor, Tensor]:
        """Returns the share of each head's attention on its strongest keys, averaged over the tokens of each example."""
        assert observation.attention is not None
        shares = observation.attention.topk(self.k, dim=-1).values.sum(-1)  # [batch, heads, q]
        return per_token(shares.transpose(1, 2), observation.queries)
