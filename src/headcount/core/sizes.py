"""The smallest certified size, by testing kept_counts in a fixed order: from large to small, each at 5 %, up to the first that fails.

A size is tested only after all larger ones were certified. So the first size that truly loses the margin or more is either never reached, or it is
certified in error with a probability of 5 % at most; a smaller one can only be certified in error after it. The family-wise error is 5 % as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from headcount.core.certificate import TaskCertificate, TestedSize


@dataclass(frozen=True, slots=True)
class SizeTest:
    """One size that was tested: how many heads stay, and the certificate of the model that the selection split chose for it."""

    n_kept: int
    certificate: TaskCertificate

    @property
    def is_certified(self) -> bool:
        """Whether the model holds its margin."""
        return self.certificate.verdict == "certified"

    def to_record(self) -> TestedSize:
        """Returns what a certificate records of the test."""
        quality = self.certificate.quality
        return TestedSize(self.n_kept, quality.bound, quality.p, self.certificate.verdict)


def certify_until_a_size_fails(kept_counts: Iterable[int], certify: Callable[[int], TaskCertificate]) -> list[SizeTest]:
    """Returns the tests of sizes from large to small, up to the first that is not certified; smaller sizes are not tested.

    Args:
        kept_counts: How many heads stay, in any order.
        certify: Returns the certificate of the model of a size on the report split. That model must have been chosen on other data.
    """
    tests: list[SizeTest] = []
    for n_kept in sorted(set(kept_counts), reverse=True):
        tests.append(SizeTest(n_kept, certify(n_kept)))
        if not tests[-1].is_certified:
            break
    return tests


def smallest_certified(tests: Sequence[SizeTest]) -> SizeTest | None:
    """Returns the last size that was certified; None if the first one failed."""
    return next((test for test in reversed(tests) if test.is_certified), None)
