"""`mask`: a context in which some heads of a model are gone."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from headcount.core.errors import GateError
from headcount.core.heads import Head
from headcount.data.task import Data, batches
from headcount.models.gates import HeadGates, How
from headcount.models.head_map import HeadMap
from headcount.models.modules import pad_id, unwrap
from headcount.models.observe import mean_outputs


def mask(model: nn.Module, heads: str | Head | Iterable[str | Head], how: How = "zero", *, data: Data = None) -> HeadGates:
    """A context in which the named heads are gone: their output is zero, their mean over `data`, or made by uniform attention.

    `data` are batches, or a task or dataset; of a task it is the calibration split.
    """
    means = None
    if how == "mean":
        if data is None:
            raise GateError("how='mean' needs data=, a task or the batches over which the mean output of each head is taken")
        means = mean_outputs(model, batches(data, pad_id=pad_id(unwrap(model))))
    found = HeadMap.of(model)
    values = torch.ones(len(found), dtype=torch.float64)
    for head in [heads] if isinstance(heads, str | Head) else heads:
        values[found.position(head)] = 0.0
    return HeadGates(model, values, how=how, means=means)
