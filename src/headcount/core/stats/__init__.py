"""Statistics on plain arrays: sums of samples that stream by, paired tests, confidence intervals, resampling, ranks and
agreement of rankings. It knows no models and no files.
"""
