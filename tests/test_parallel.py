"""How a replica is cut, and what cannot be cut."""

from __future__ import annotations

import pytest

from roofline.errors import InfeasibleError, InputError
from roofline.parallel import Plan, heads_per_rank, kv_heads_per_rank, padded_vocab


def test_ranks_multiply():
    plan = Plan(tp=4, dp=2, ep=8, pp=2)
    assert (plan.gpus, plan.stage_gpus, plan.moe_tp) == (16, 8, 1)
    assert str(plan) == "TP4 PP2 DP2 EP8"


def test_kv_heads_are_replicated_past_tp():
    assert [kv_heads_per_rank(8, tp) for tp in (1, 4, 8, 16)] == [8, 2, 1, 1]
    with pytest.raises(InfeasibleError, match="3 and 8 KV heads"):
        kv_heads_per_rank(8, 3)


@pytest.mark.parametrize("value", [0, -1, 1.5, float("nan"), True, "four"])
def test_absurd_degrees_are_refused(value):
    with pytest.raises(InputError, match="tp"):
        Plan(tp=value)


def test_what_does_not_divide_is_said():
    with pytest.raises(InfeasibleError, match=r"allowed: 1, 2, 4, 5"):
        heads_per_rank(40, 3)
    with pytest.raises(InfeasibleError, match="ep: 3 does not divide the 4 ranks"):
        Plan(tp=4, ep=3)
    # U-config_parsing-03 of the user cases: 40 heads divide by 5, 151,936 vocabulary rows do not
    assert heads_per_rank(40, 5) == 8
    with pytest.raises(InfeasibleError, match="vocabulary of 151936 rows"):
        padded_vocab(151936, 5)
