from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from headcount.behaviour.base import Corpus, OfferedRoles, Role, RoleInfo, Sieve, View
from headcount.behaviour.word_sieves import link_words
from headcount.core.options import option


@dataclass(frozen=True)
class Alignment(Role):
    """Alignment: in cross-attention, attends to the source words that the target word is aligned with, where alignments are given.

    The query at position t of a decoder holds target token t − 1 and predicts token t: alignment:current is about the former, alignment:next about
    the latter.
    """

    token: Literal["current", "next"] = option(help="The target token that counts: the one just read (current) or the one to come (next)")
    info = RoleInfo(source="Voita et al. 2019; word alignment", attention=frozenset({"cross"}), needs=frozenset({"links"}), is_content=True)

    @classmethod
    def list_offered(cls, corpus: Corpus) -> OfferedRoles:
        """Returns both roles if any sentence has alignments."""
        has_links = any(s.annotated.links for s in corpus.sentences)
        return OfferedRoles((cls("current"), cls("next")) if has_links else ())

    def sieve(self, view: View) -> Sieve:
        """Returns the pieces of the aligned source words."""
        links = [[(target, source) for source, target in sentence.annotated.links] for sentence in view.keys.sentences]
        of_read_token = link_words(view, links)
        if self.token == "current":
            return of_read_token
        return torch.cat([of_read_token[:, 1:], torch.zeros_like(of_read_token[:, :1])], dim=1)
