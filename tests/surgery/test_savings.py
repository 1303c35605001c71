"""What removing half of the heads saves at most, against the costs of a model that was cut so."""

from __future__ import annotations

import pytest

import headcount as hc
from headcount.surgery.cost import cost
from headcount.surgery.savings import largest_savings


@pytest.mark.parametrize("name", ["entailment", "decoder", "translator"])
def test_half_of_the_heads_saves_what_a_cut_of_them_saves(name: str) -> None:
    model = hc.load(f"demo/{name}")
    heads = hc.HeadMap.of(model)
    savings = largest_savings(model, heads)
    assert savings.n_removed == len(heads) // 2 and savings.n_heads == len(heads)
    removed = [head for block in heads.blocks for group in block.groups()[: block.n_kv_heads // 2] for head in group]
    before, after = cost(model), cost(hc.cut(model, hc.Plan.removing(removed)))
    assert before.parameters - after.parameters <= savings.parameters <= 1.001 * (before.parameters - after.parameters)
    assert savings.all_flops == before.flops and savings.flops == pytest.approx(before.flops - after.flops, rel=0.1)
    expected = (before.kv_bytes_per_token - after.kv_bytes_per_token, before.kv_bytes_per_token) if name == "decoder" else None
    assert expected is None or (savings.kv_bytes, savings.all_kv_bytes) == expected
