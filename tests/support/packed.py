"""Reading packed arrays as the page does."""

from __future__ import annotations

import base64
import zlib


def unpack_bytes(text: str) -> bytes:
    """Returns the bytes that `deflate_to_base64` compressed, as the page reads them."""
    return zlib.decompressobj(-15).decompress(base64.b64decode(text))
