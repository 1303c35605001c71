"""Statistics on plain arrays: samples summed up as they stream by, paired tests, intervals, resampling, ranks and
agreement. Knows no models and no files.
"""
