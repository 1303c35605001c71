from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headcount.core.errors import HeadcountError, HeadNameError
from headcount.core.heads import Head, Rows
from headcount.models.archs.geometry import fused_query_key_value_rows


@given(st.sampled_from(["", "enc", "dec", "cross", "text", "vision_2"]), st.integers(0, 10**5), st.integers(0, 10**5))
def test_an_address_survives_printing(stack: str, layer: int, index: int) -> None:
    head = Head(stack, layer, index)
    assert Head.parse(str(head)) == head
    assert Head.parse(head) is head


@pytest.mark.parametrize(
    "text", ["", "L3", "H7", "L3H", "l3h7", "L-1H0", "L3H7 ", "enc.", "enc.L3", ".L1H1", "L1.H1", "L٣H٧", "L1H1\n", 3, None]
)
def test_what_is_no_address_is_refused(text: object) -> None:
    with pytest.raises(HeadNameError, match="no head address") as error:
        Head.parse(text)  # type: ignore[arg-type]
    assert isinstance(error.value, HeadcountError)


@given(st.integers(1, 12), st.integers(1, 8), st.integers(0, 50), st.data())
def test_rows_of_units_never_overlap(count: int, size: int, offset: int, data: st.DataObject) -> None:
    per = data.draw(st.integers(1, count))
    stride = per * size + data.draw(st.integers(0, 20))
    rows = Rows(count, size, offset, per, stride)
    entries = rows.keep(range(count))
    assert len(entries) == len(set(entries)) == count * size
    assert min(entries) == offset
    assert max(entries) + 1 == rows.stop


@pytest.mark.parametrize("kind", ["stacked", "interleaved", "grouped"])
@given(group=st.integers(1, 4), n_kv=st.integers(1, 5), dim=st.integers(1, 6))
def test_a_fused_projection_is_partitioned(kind: str, group: int, n_kv: int, dim: int) -> None:
    group = 1 if kind == "interleaved" else group
    q, k, v = fused_query_key_value_rows(kind, group * n_kv, n_kv, dim)  # type: ignore[arg-type]
    entries = [*q.keep(range(group * n_kv)), *k.keep(range(n_kv)), *v.keep(range(n_kv))]
    assert sorted(entries) == list(range((group + 2) * n_kv * dim))


@pytest.mark.parametrize("kind", ["stacked", "interleaved", "grouped"])
@given(data=st.data(), group=st.integers(1, 3), n_kv=st.integers(2, 5), dim=st.integers(1, 4))
def test_removing_units_keeps_the_layout(kind: str, data: st.DataObject, group: int, n_kv: int, dim: int) -> None:
    """Kept entries in ascending order are again a fused projection of the same kind with fewer heads."""
    group = 1 if kind == "interleaved" else group
    left = sorted(data.draw(st.sets(st.integers(0, n_kv - 1), min_size=1)))
    big = fused_query_key_value_rows(kind, group * n_kv, n_kv, dim)  # type: ignore[arg-type]
    small = fused_query_key_value_rows(kind, group * len(left), len(left), dim)  # type: ignore[arg-type]
    heads = [g * group + i for g in left for i in range(group)]
    remaining = sorted([*big[0].keep(heads), *big[1].keep(left), *big[2].keep(left)])
    for role, units in ((0, heads), (1, left), (2, left)):
        for new, old in enumerate(units):
            assert [remaining[entry] for entry in small[role].of(new)] == list(big[role].of(old))
