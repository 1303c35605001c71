"""The headers of safetensors files, checked without reading the tensors."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path

from headcount.core.errors import ArtifactError
from headcount.core.files import MAX_JSON, fields_without_duplicates

MAX_TENSORS = 100_000
BITS = {"BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32,
        "F32": 32, "I64": 64, "U64": 64, "F64": 64, "C64": 64}  # fmt: skip
"""Bits per element of the dtypes of safetensors."""


def read_tensor_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Returns the tensor shapes that a safetensors file declares; raises ArtifactError if it is truncated or its header is inconsistent."""
    try:
        if not path.is_file():
            raise ArtifactError(f"{path} is no regular file; put the weights themselves there")
        size = path.stat().st_size
        with path.open("rb") as file:
            start = file.read(8)
            length = struct.unpack("<Q", start)[0] if len(start) == 8 else -1
            if not 0 < length <= size - 8:
                raise ArtifactError(
                    f"{path} is no complete safetensors file: its {size} bytes do not hold the header that they announce; fetch it again"
                )
            if length > MAX_JSON:
                raise ArtifactError(f"{path} has a header of {length} bytes; at most {MAX_JSON} are read. Split the model into shards")
            text = file.read(length)
    except OSError as error:
        raise ArtifactError(f"{path} cannot be read: {error.strerror or error}. Check its permissions and links") from error
    try:
        tensors = {
            name: entry for name, entry in json.loads(text, object_pairs_hook=fields_without_duplicates).items() if name != "__metadata__"
        }
        if len(tensors) > MAX_TENSORS:
            raise ArtifactError(f"{path} declares {len(tensors)} tensors; at most {MAX_TENSORS} are read. Split the model into shards")
        shapes = {name: tuple(int(n) for n in entry["shape"]) for name, entry in tensors.items()}
        ranges = sorted((int(entry["data_offsets"][0]), int(entry["data_offsets"][1]), name) for name, entry in tensors.items())
        end = _end_of_gapless_ranges(path, ranges)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError, OverflowError) as error:
        if isinstance(error, ArtifactError):
            raise
        raise ArtifactError(f"{path} has a damaged safetensors header: {error}; fetch the file again") from error
    if 8 + length + end != size:
        raise ArtifactError(f"{path} is damaged: its header promises {8 + length + end} bytes, it has {size}; fetch it again")
    for begin, last, name in ranges:
        shape, bits = shapes[name], BITS.get(tensors[name].get("dtype"))
        if min(shape, default=0) < 0 or (bits is not None and (math.prod(shape) * bits + 7) // 8 != last - begin):
            raise ArtifactError(
                f"{path} is damaged: tensor {name!r:.80} has the shape {shape!s:.80} and {last - begin} bytes; fetch the file again"
            )
    return shapes


def _end_of_gapless_ranges(path: Path, ranges: list[tuple[int, int, str]]) -> int:
    """Returns the byte after the last tensor; raises ArtifactError unless tensors follow each other without a gap."""
    last = 0
    for begin, end, name in ranges:
        if begin != last or end < begin:
            raise ArtifactError(
                f"{path} is damaged: tensor {name!r:.80} lies at bytes {begin} to {end}, the one before ends at {last}; fetch it again"
            )
        last = end
    return last
