"""Verdicts on single heads: they err as seldom as they say also where harm is rare, and harmless heads get them."""

from __future__ import annotations

import numpy as np
import pytest
from drawn import rng

from headcount.core.damage import Damage, examples_needed_for_harmless_head, judge_damage
from headcount.core.errors import DataError, OptionError
from headcount.core.heads import Head
from headcount.core.stats.betting import fewest_zeros_to_refute, p_value_of_mean_at_least
from headcount.core.stats.significance import benjamini_hochberg
from headcount.core.tolerance import Tolerance


def heads(number: int) -> list[Head]:
    return [Head("", 0, index) for index in range(number)]


def rare_harm(n: int, number: int, seed: int) -> np.ndarray:
    """1 % of the examples lose 2 nats, the others nothing: the mean is the tolerance."""
    return (rng(seed).random((n, number)) < 0.01) * 2.0


@pytest.mark.parametrize("n", [64, 256, 1024])
def test_rare_harm_is_called_safe_in_at_most_5_percent(n: int) -> None:
    p = p_value_of_mean_at_least(rare_harm(n, 600, n), 0.02, 2.0)
    assert (p <= 0.05).mean() <= 0.05
    families = [benjamini_hochberg(part).min() <= 0.05 for part in p.reshape(60, 10)]
    assert np.mean(families) <= 0.1, "of ten heads that all do harm, one that is called safe is an error of the whole family"
    verdicts = judge_damage(heads(10), Damage(rare_harm(n, 10, 0)), tolerance=0.02)
    assert verdicts.safe_heads == ()


def test_a_head_without_damage_on_1500_examples_is_safe_among_harmful_ones() -> None:
    damage = np.column_stack([np.zeros(1500), rare_harm(1500, 31, 0) + 0.05])
    verdicts = judge_damage(heads(32), Damage(damage), tolerance=0.02, method="ablation")
    assert verdicts.safe_heads == (Head("", 0, 0),) and verdicts.reason == "" and verdicts.n_missing_for_harmless_head == 0
    assert verdicts["L0H0"].bound < 0.0061 and verdicts["L0H0"].cost == 0


def test_verdict_bound_and_correction_come_from_one_bet() -> None:
    damage = rng(1).normal(0.0, 0.1, (900, 8)) + np.linspace(0, 0.04, 8)
    verdicts = judge_damage(heads(8), Damage(damage), tolerance=0.02)
    p = p_value_of_mean_at_least(damage, 0.02, 2.0)
    np.testing.assert_allclose([row.p for row in verdicts.rows], p)
    np.testing.assert_allclose([row.q for row in verdicts.rows], benjamini_hochberg(p))
    for row in verdicts.rows:
        assert (row.bound < 0.02) == (row.p < 0.05) and row.safe == (row.q <= 0.05)
        assert not row.safe or row.bound < 0.02


def test_damage_beyond_the_clip_counts_as_the_clip() -> None:
    damage = np.zeros((600, 1))
    damage[::10] = 50.0
    assert judge_damage(heads(1), Damage(damage), tolerance=0.02).rows[0].cost == pytest.approx(0.2)


def test_too_few_examples_give_no_verdict_and_say_how_many_are_missing() -> None:
    fewest = fewest_zeros_to_refute(0.02, 2.0, 0.05)
    assert (
        p_value_of_mean_at_least(np.zeros((fewest, 1)), 0.02, 2.0)[0]
        <= 0.05
        < p_value_of_mean_at_least(np.zeros((fewest - 1, 1)), 0.02, 2.0)[0]
    )
    assert np.log(0.05) / np.log(1 - 0.02 / 2) < fewest < 500
    few = judge_damage(heads(4), Damage(np.zeros((fewest - 1, 4))), tolerance=0.02)
    assert few.reason == f"a verdict needs at least {fewest} examples; there are {fewest - 1}" and {row.safe for row in few.rows} == {None}
    assert all(0 < row.bound < 0.03 for row in few.rows), "the bound exists whatever the number of examples"
    assert few.n_missing_for_harmless_head == examples_needed_for_harmless_head(4) - (fewest - 1)
    enough = np.column_stack([np.zeros(examples_needed_for_harmless_head(4)), np.ones((examples_needed_for_harmless_head(4), 3))])
    assert judge_damage(heads(4), Damage(enough), tolerance=0.02).safe_heads == (Head("", 0, 0),)
    assert not judge_damage(heads(4), Damage(enough[1:]), tolerance=0.02).safe_heads, "one example fewer is not enough"


def test_right_and_wrong_answers_count_as_points() -> None:
    answers = np.zeros((1500, 2), dtype=np.int8)
    answers[::20, 1] = 1
    damage = Damage(np.ones((1500, 2)), answers)
    verdicts = judge_damage(heads(2), damage, tolerance="0.5pt")
    assert verdicts.tolerance == Tolerance(0.005, "points") and verdicts.safe_heads == (Head("", 0, 0),)
    assert verdicts["L0H1"].cost == pytest.approx(0.05)
    with pytest.raises(OptionError, match="right or wrong"):
        judge_damage(heads(2), Damage(np.ones((9, 2))), tolerance="0.5pt")


def test_documents_are_bet_on_as_means() -> None:
    """Documents of 8 examples that share their damage: as single examples they would be called safe far too often."""
    wrong = []
    for seed in range(60):
        shared = (rng(seed).random((600, 1)) < 0.05) * 0.4
        documents = np.repeat(np.arange(600), 8)
        verdicts = judge_damage(heads(1), Damage(np.repeat(shared, 8, axis=0), None, documents), tolerance=0.02)
        wrong.append(bool(verdicts.rows[0].safe))
        assert verdicts.n_examples_or_documents == verdicts.n_documents == 600 and verdicts.n_examples == 4800
    assert np.mean(wrong) <= 0.05
    few = Damage(np.zeros((4000, 1)), None, np.arange(4000) % 29)
    assert "documents; there are 29" in judge_damage(heads(1), few, tolerance="1.9").reason
    assert judge_damage(heads(1), few, tolerance="1.9").rows[0].safe is None
    mean = Damage(np.array([[3.0], [1.0], [0.5]]), None, np.array([7, 7, 2])).clipped_damage(Tolerance(0.02))
    assert mean.tolist() == [[1.5], [0.5]], "each example is clipped before its document's mean, in the order of the first examples"


def test_the_cost_of_a_head_is_a_mean_over_examples_also_of_documents_that_differ_in_size() -> None:
    """40 documents of 51 examples that lose 0.2 nats, and 2,000 of one example that lose nothing: half of all examples lose."""
    losses = np.where(np.arange(4040) < 2040, 0.2, 0.0)[:, None]
    documents = np.concatenate([np.repeat(np.arange(40), 51), np.arange(40, 2040)])
    order = rng(0).permutation(4040)
    damage = Damage(losses[order], None, documents[order])
    row = judge_damage(heads(1), damage, tolerance=0.02).rows[0]
    assert row.cost == pytest.approx(losses.mean()) and row.bound > row.cost and row.safe is False


def test_so_many_documents_as_are_said_are_enough_whatever_their_sizes() -> None:
    few = np.repeat(np.arange(60), np.tile([1, 1, 6], 20))
    verdicts = judge_damage(heads(1), Damage(np.zeros((160, 1)), None, few), tolerance=0.02)
    n = verdicts.n_enough + -verdicts.n_enough % 3
    many = np.repeat(np.arange(n), np.tile([1, 1, 6], n // 3))
    assert judge_damage(heads(1), Damage(np.zeros((len(many), 1)), None, many), tolerance=0.02).rows[0].safe is True


def test_examples_stand_in_the_order_of_their_hashes() -> None:
    damage = Damage.in_hash_order([b"c", b"a", b"b"], [[3.0], [1.0], [2.0]], [[1], [0], [-1]], [5, 5, 6])
    assert damage.losses.dtype == np.float32 and damage.losses.ravel().tolist() == [1, 2, 3]
    assert damage.answers is not None and damage.documents is not None
    assert damage.answers.ravel().tolist() == [0, -1, 1] and damage.documents.tolist() == [5, 6, 5]
    with pytest.raises(DataError, match="of 3 examples"):
        Damage(np.zeros((3, 1)), None, np.zeros(2))


@pytest.mark.parametrize("wrong", ["0", "-1", "2", "100pt", "0.5%", "", "nan", True, "1e400"])
def test_a_tolerance_that_makes_no_sense_is_refused(wrong: object) -> None:
    with pytest.raises(OptionError, match="tolerance must be"):
        Tolerance.parse(wrong)  # type: ignore[arg-type]


def test_tolerances_are_read_with_their_units() -> None:
    assert Tolerance.parse(0.02) == Tolerance.parse("0.02") == Tolerance.parse("0.02 nats") == Tolerance(0.02)
    assert Tolerance.parse("0.5pt") == Tolerance(0.005, "points") and str(Tolerance.parse("0.5pt")) == "0.5 points"
