"""Models that come with the package, and the demonstration on them."""
