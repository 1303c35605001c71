from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headcount.behaviour.base import Corpus, OfferedRoles, Role, RoleInfo, Sieve, View
from headcount.core.options import option


@dataclass(frozen=True)
class Segment(Role):
    """Segment: attends to its own text of a pair, delimiters excluded (the block sieve); pairs only.

    segment:entropy is the role as it was published: the bias times the entropy of the token's attention. A uniform head scores ln N by it, which is
    above 3 for more than 20 tokens, so it is measured only when named, and is never a label.
    """

    weight: Literal["none", "entropy"] = option("none", "Whether the bias is multiplied by the entropy of the attention, as published")
    info = RoleInfo(source="Pande et al. 2021, block heads", needs=frozenset({"pairs"}), positional=True)

    @property
    def is_legacy(self) -> bool:
        """Whether the bias is multiplied by the entropy of the attention."""
        return self.weight == "entropy"

    @classmethod
    def list_offered(cls, corpus: Corpus) -> OfferedRoles:
        """Returns the role if any sentence is a pair of texts."""
        return OfferedRoles((cls(),) if corpus.has_two_text_sentences else ())

    def sieve(self, view: View) -> Sieve:
        """Returns the ordinary tokens of the same segment, in sentences that have two."""
        is_pair = (view.keys.segments == 1).any(-1)
        is_same = view.queries.segments[:, :, None] == view.keys.segments[:, None, :]
        return is_same & is_pair[:, None, None] & view.ordinary
