"""Machines of cards that differ."""

from __future__ import annotations

import pytest

from roofline.deployment import deployment
from roofline.errors import InfeasibleError, InputError
from roofline.planner.unequal import Card, by_size, over_cards, tensor_parallel
from roofline.precision import precision_named
from roofline.specs.engine import engine_named
from roofline.specs.library import hardware
from roofline.specs.refs import load_model

GIB = 2.0**30
BF16, VLLM = precision_named("bf16"), engine_named("vllm")


@pytest.fixture(scope="module")
def mistral():
    return load_model("mistral-7b-v0.1").model


def cards(*sizes):
    return [Card(hardware("rtx-3090"), size * GIB) for size in sizes]


def test_equal_shards_do_not_fit_the_small_card(mistral):
    """user_cases U-heterogeneous-01 (vllm-project/vllm 2317): 7.24B bf16 on 24 + 8 GB leave 0.26 GiB: refuse TP."""
    split = tensor_parallel(mistral, cards(23.58, 7.79), BF16, VLLM)
    assert not split.fits
    assert split.weight_bytes[0] / GIB == pytest.approx(6.75, abs=0.01)
    assert "leaves 0.25" in split.why or "leaves 0.26" in split.why


def test_a_pipeline_by_size_is_suggested(mistral):
    ways = over_cards(mistral, cards(23.58, 7.79), BF16, VLLM)
    assert ways[0].kind == "pipeline by size" and ways[0].fits and not ways[1].fits
    assert sum(ways[0].layers) == 32 and ways[0].layers[0] > 2 * ways[0].layers[1]
    assert ways[0].kv_tokens > 10_000
    assert "pipeline by size" in str(ways[0])


def test_equal_cards_get_equal_layers_and_the_time_of_one(mistral):
    split = by_size(mistral, cards(24, 24), BF16, VLLM)
    assert abs(split.layers[0] - split.layers[1]) <= 1
    one = deployment(mistral, "rtx-3090", weights="bf16").decode_step(1.0, 2048.0).total_s
    assert split.tpot_s == pytest.approx(float(one), rel=0.02)


def test_the_slow_card_holds_tensor_parallelism_up(mistral):
    mixed = [Card(hardware("rtx-3090")), Card(hardware("rtx-4090"))]
    slow = tensor_parallel(mistral, [Card(hardware("rtx-3090"))] * 2, BF16, VLLM)
    assert tensor_parallel(mistral, mixed, BF16, VLLM).tpot_s == pytest.approx(slow.tpot_s)


def test_refusals(mistral):
    with pytest.raises(InfeasibleError, match="does not fit"):
        over_cards(load_model("llama-3.1-70b").model, cards(24, 8), BF16, VLLM)
    with pytest.raises(InputError, match="at least two"):
        over_cards(mistral, cards(24), BF16, VLLM)


def test_three_cards_that_heads_do_not_divide_over(mistral):
    split = tensor_parallel(mistral, cards(24, 24, 24), BF16, VLLM)
    assert not split.fits and "does not divide" in split.why
    assert by_size(mistral, cards(24, 24, 8), BF16, VLLM).fits
