"""The mode that keeps float64 in float64 catches every way in which models write a cast to float32."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from headcount.models.tiny.float64 import Float64

CASTS = {
    "float": lambda x: x.float(),
    "to": lambda x: x.to(torch.float32),
    "to by name": lambda x: x.to(dtype=torch.float32),
    "to device and dtype": lambda x: x.to("cpu", torch.float32),
    "to device and dtype by name": lambda x: x.to(device="cpu", dtype=torch.float),
    "type": lambda x: x.type(torch.float32),
    "softmax": lambda x: F.softmax(x, dim=-1, dtype=torch.float32),
    "torch.softmax": lambda x: torch.softmax(x, -1, dtype=torch.float32),
    "log_softmax": lambda x: x.log_softmax(-1, dtype=torch.float32),
}


@pytest.mark.parametrize("name", CASTS)
def test_float64_stays(name: str) -> None:
    x = torch.randn(3, 5, dtype=torch.float64)
    with Float64():
        remaining = CASTS[name](x)
    assert CASTS[name](x).dtype == torch.float32
    assert remaining.dtype == torch.float64
    torch.testing.assert_close(remaining, CASTS[name](x).double(), rtol=1e-5, atol=1e-6)


def test_other_types_are_cast_as_ever() -> None:
    with Float64():
        assert torch.ones(2).float().dtype == torch.float32
        assert torch.ones(2, dtype=torch.bfloat16).to(torch.float32).dtype == torch.float32
        assert torch.ones(2, dtype=torch.float64).to(torch.bfloat16).dtype == torch.bfloat16
