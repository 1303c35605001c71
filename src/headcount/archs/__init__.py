"""Where architectures keep their heads: detection, and data for what detection cannot see."""
