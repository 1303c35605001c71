"""For tests: tiny models of every family, and the laws that every supported model obeys."""
