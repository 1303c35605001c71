"""`mask`: a context in which some heads of a model are removed."""

from __future__ import annotations

import torch
from torch import nn

from headcount.core.arguments import check_arguments
from headcount.core.errors import GateError
from headcount.core.heads import Heads, parse_heads
from headcount.data.chunks import batches
from headcount.data.task import Data
from headcount.models.gates import HeadGates, Replacement
from headcount.models.head_map import HeadMap
from headcount.models.modules import pad_id, unwrap
from headcount.models.observe import mean_outputs


@check_arguments
def mask(model: nn.Module, heads: Heads, how: Replacement = "zero", *, data: Data = None) -> HeadGates:
    """Returns a context in which some heads of a model are replaced.

    Args:
        model: The model; it is not changed, and the hooks are removed when the context ends.
        heads: An address ("L3H7"), several, or a mapping of layers to indices ({3: [7]}, for models with one stack).
        how: What replaces a head: "zero" output, the "mean" of its output over `data`, or the output of "uniform" attention.
        data: A task (its calibration split), a dataset or batches; how="mean" needs it, other values ignore it.

    Returns:
        The gates, to be opened by `with`.

    Raises:
        GateError: how="mean" without data, or a replacement that the model cannot have.
        HeadNameError: a head that the model does not have.

    Example:
        >>> with hc.mask(model, ["L0H1", "L2H3"]):  # doctest: +SKIP
        ...     output = model(**batch)
    """
    head_map = HeadMap.of(model)
    values = torch.ones(len(head_map), dtype=torch.float64)
    for head in parse_heads(heads):
        values[head_map.position(head)] = 0.0
    means = None
    if how == "mean":
        if data is None:
            raise GateError("how='mean' needs data=, a task or the batches over which the mean output of each head is taken")
        means = mean_outputs(model, batches(data, pad_id=pad_id(unwrap(model))), blocks=head_map.blocks)
    return HeadGates(model, values, how=how, means=means, heads=head_map)
