"""Steps: pairs, tokens read, and that chunks add up to the whole."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roofline.workload import Sequences, attended_pairs, decode, kv_tokens_read, prefill, verify

LENGTH = st.integers(0, 3000)
WINDOW = st.one_of(st.just(np.inf), st.integers(1, 2000).map(float))


def pairs_by_hand(new: int, past: int, window: float) -> float:
    return float(sum(min(past + i, window) for i in range(1, new + 1)))


@given(st.integers(0, 300), st.integers(0, 300), st.one_of(st.just(np.inf), st.integers(1, 400).map(float)))
def test_pairs_equal_counting(new, past, window):
    assert float(attended_pairs(new, past, window)) == pytest.approx(pairs_by_hand(new, past, window))


@given(st.lists(st.integers(1, 500), min_size=1, max_size=8), st.integers(0, 500), WINDOW)
def test_chunks_sum_to_the_whole_prefill(chunks, past, window):
    total, at = 0.0, past
    for chunk in chunks:
        total += float(attended_pairs(chunk, at, window))
        at += chunk
    assert total == pytest.approx(float(attended_pairs(sum(chunks), past, window)))


@given(LENGTH, LENGTH)
def test_wide_window_is_full_attention(new, past):
    assert float(attended_pairs(new, past, float(new + past + 1))) == float(attended_pairs(new, past))
    assert float(kv_tokens_read(new, past, float(new + past + 1))) == float(kv_tokens_read(new, past))


@given(LENGTH, LENGTH, WINDOW)
def test_scalar_equals_array(new, past, window):
    array = attended_pairs(np.array([new, new + 1]), np.array([past, past]), window)
    assert array[0] == pytest.approx(float(attended_pairs(new, past, window)), rel=1e-12)


def test_one_description_for_every_kind_of_step():
    assert prefill(2, 100, 40) == Sequences(2, 60, 40)
    assert decode(3, 100).tokens == 3
    assert verify(1, 100, 4) == Sequences(1, 5.0, 100, 5.0)
    # U-prefill_flops-02 of the user cases: no mask, 64 query and key positions
    assert float(attended_pairs(64, 0, causal=False)) == 64 * 64
