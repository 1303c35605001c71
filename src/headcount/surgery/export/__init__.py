"""Export targets: files that other tools and engines load."""
