"""The local server: the same pages as the report, and what only a live model can do. Needs the extra `serve`."""

from __future__ import annotations

from headcount.serve.app import Site, application
from headcount.serve.run import serve

__all__ = ["Site", "application", "serve"]
