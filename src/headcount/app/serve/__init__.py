"""The report with a live model behind it, as a local server."""
