"""How sure a score, a ranking or a difference is: numbers in, numbers with their uncertainty out. Knows no model and no torch.

A score is a ratio mean over examples, Σ w v / Σ w, kept as sums per group of examples (`Samples`); a group is one example up to 256 examples, and
example i of a longer stream goes to group i mod 256. What is resampled, left out or split are groups, so the cost does not grow with the data.
Examples count as independent: sentences of one document that stand side by side fall into different groups, and their likeness is not seen.
All randomness is numpy's Philox under the caller's seed.
"""

from headcount.stats.away import away_from_zero
from headcount.stats.calibration import Stability, reliability, stability
from headcount.stats.cheap import Agreement, agreement
from headcount.stats.corrections import Adjust, adjust, benjamini_hochberg, bonferroni
from headcount.stats.correlation import Correlated, correlate, kendall, pearson, spearman
from headcount.stats.hall import Skewness, bent, straightened
from headcount.stats.paired import Difference, McNemar, mcnemar, paired_bootstrap, paired_t, sign_flip, tango
from headcount.stats.ranks import Overlap, lowest, overlap, rank_intervals, ranks
from headcount.stats.resampling import bootstrap, intervals, pseudovalues
from headcount.stats.safe import Safety, safe_to_remove
from headcount.stats.samples import GROUPS, Estimate, Intervals, Samples, StatisticsError
from headcount.stats.totals import Totals

__all__ = [
    "GROUPS",
    "Adjust",
    "Agreement",
    "Correlated",
    "Difference",
    "Estimate",
    "Intervals",
    "McNemar",
    "Overlap",
    "Safety",
    "Samples",
    "Skewness",
    "Stability",
    "StatisticsError",
    "Totals",
    "adjust",
    "agreement",
    "away_from_zero",
    "benjamini_hochberg",
    "bent",
    "bonferroni",
    "bootstrap",
    "correlate",
    "intervals",
    "kendall",
    "lowest",
    "mcnemar",
    "overlap",
    "paired_bootstrap",
    "paired_t",
    "pearson",
    "pseudovalues",
    "rank_intervals",
    "ranks",
    "reliability",
    "safe_to_remove",
    "sign_flip",
    "spearman",
    "stability",
    "straightened",
    "tango",
]
