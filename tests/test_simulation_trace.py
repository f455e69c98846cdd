"""Traces: every format in, clear errors, round trips, and the shape of what the generators draw."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from roofline.errors import InputError
from roofline.simulation.trace import (
    Trace,
    bursty,
    closed_loop,
    constant,
    lengths,
    lognormal,
    multi_turn,
    poisson,
    read_trace,
    write_trace,
)

FILES = {
    "azure.csv": "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n",
    "processed.csv": "arrived_at,num_prefill_tokens,num_decode_tokens\n0.0,374,44\n4.314579,396,109\n",
    "burst.csv": "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5,ChatGPT,374,44,418,Conversation log\n7,GPT-4,100,0,100,API log\n9.314579,ChatGPT,396,109,505,API log\n",
    "generic.csv": "arrived_s,isl,osl\n9.314579,396,109\n5,374,44\n",
    "mooncake.jsonl": '{"timestamp": 1000, "input_length": 374, "output_length": 44, "hash_ids": [7]}\n'
    '{"timestamp": 5314.579, "input_length": 396, "output_length": 109, "hash_ids": [7]}\n',
    "generic.jsonl": '{"arrived_s": 0, "isl": 374, "osl": 44}\n\n{"arrived_s": 4.314579, "isl": 396, "osl": 109}\n',
}


@pytest.mark.parametrize("name", FILES)
def test_one_trace_in_every_format(tmp_path, name):
    """The first two requests of the Azure 2023 conversation trace, written six ways."""
    path = tmp_path / name
    path.write_text(FILES[name])
    trace = read_trace(path)
    assert trace.isl.tolist() == [374, 396]
    assert trace.osl.tolist() == [44, 109]
    np.testing.assert_allclose(trace.arrived_s, [0.0, 4.314579], atol=1e-6)
    assert (trace.block_ids == [[7], [7]]) == (name == "mooncake.jsonl")
    assert ("1 rows" in trace.notes) == (name == "burst.csv")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "arrived_s,isl\n0,1\n", "no column for osl; one of osl, num_decode_tokens"),
        ("a.csv", "arrived_s,isl,osl\n0,x,1\n", "request 0: isl is 'x', not a number"),
        ("a.csv", "arrived_s,isl,osl\n0,1.5,1\n", "isl is 1.5, not a whole number"),
        ("a.csv", "arrived_s,isl,osl\nsoon,1,1\n", "arrived_s is 'soon'"),
        ("a.csv", "arrived_s,isl,osl\n", "no requests"),
        ("a.csv", "arrived_s,isl,osl\n0,5,0\n", "no request generated anything"),
        ("a.csv", "arrived_s,isl,osl\n0,0,1\n", "isl of request 0 is 0"),
        ("a.csv", "arrived_s,isl,osl,cached\n0,5,1,6\n", "cached of request 0 exceeds"),
        ("a.jsonl", '{"isl": 1\n', "line 1: not JSON"),
        ("a.jsonl", "[1]\n", "line 1: not a JSON object"),
        ("a.jsonl", '{"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": [1]}\n', "one block per"),
        ("a.txt", "", "'.txt' is not known"),
    ],
)
def test_errors_say_where(tmp_path, name, text, message):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        read_trace(path)


def test_missing_file(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        read_trace(tmp_path / "none.csv")


@pytest.mark.parametrize("name", ["t.csv", "t.jsonl"])
def test_round_trip(tmp_path, name):
    trace = poisson(3.0, 50, (10, 900), (1, 90), seed=1, cached=(1, 500))
    trace = dataclasses.replace(trace, arrived_s=trace.arrived_s - trace.arrived_s[0])
    write_trace(trace, tmp_path / name)
    again = read_trace(tmp_path / name)
    for column in ("isl", "osl", "cached", "arrived_s"):
        np.testing.assert_array_equal(getattr(again, column), getattr(trace, column))


def test_round_trip_of_block_ids(tmp_path):
    trace = multi_turn(1.0, 5, 3, 700, 100, 50, 5.0, seed=2)
    write_trace(trace, tmp_path / "t.jsonl")
    again = read_trace(tmp_path / "t.jsonl")
    assert again.block_ids == trace.block_ids
    with pytest.raises(InputError, match="CSV cannot hold block ids"):
        write_trace(trace, tmp_path / "t.csv")
    with pytest.raises(InputError, match="no arrival times"):
        write_trace(closed_loop(2, 10, 10), tmp_path / "c.csv")


@pytest.mark.parametrize(("draw", "cv"), [(poisson, 1.0), (bursty, 2.0), (constant, 0.0)])
def test_gaps(draw, cv):
    """Mean 1/rate; coefficient of variation 1, the one asked for (2 by default), 0."""
    trace = draw(5.0, 40_000, 100, 10, seed=3)
    gaps = np.diff(trace.arrived_s)
    assert gaps.mean() == pytest.approx(0.2, rel=0.03)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, abs=0.05)
    assert trace.rate_req_per_s == pytest.approx(5.0, rel=0.03)
    assert np.array_equal(draw(5.0, 100, 100, 10, seed=3).arrived_s, draw(5.0, 100, 100, 10, seed=3).arrived_s)


def test_closed_loop_protocol():
    """InferenceX: 10 x C prompts, uniform whole lengths in [0.8, 1] x max, independent."""
    trace = closed_loop(64, 1000, 500)
    assert len(trace) == 640
    assert (trace.isl.min(), trace.isl.max()) == (800, 1000)
    assert (trace.osl.min(), trace.osl.max()) == (400, 500)
    assert abs(np.corrcoef(trace.isl, trace.osl)[0, 1]) < 0.1
    assert set(closed_loop(3, 1000, 500, low=1.0).isl.tolist()) == {1000}


def test_lengths():
    rng = np.random.default_rng(0)
    assert set(lengths((3, 5), 300, rng).tolist()) == {3, 4, 5}
    assert set(lengths([7, 9], 50, rng).tolist()) == {7, 9}
    drawn = lengths(lognormal(500, 1.0), 50_000, rng)
    assert drawn.mean() == pytest.approx(500, rel=0.03)
    assert drawn.std() == pytest.approx(500, rel=0.1)
    with pytest.raises(InputError, match="must not exceed"):
        lengths((5, 3), 1, rng)


def test_multi_turn_repeats_what_was_said():
    trace = multi_turn(1.0, 20, (2, 5), 1000, (50, 100), (10, 60), 10.0, shared_prefix=1024, seed=4)
    assert all(ids[:2] == [0, 1] for ids in trace.block_ids)
    assert all(len(ids) == -(-isl // 512) for ids, isl in zip(trace.block_ids, trace.isl.tolist()))
    third = {ids[2] for ids in trace.block_ids}
    assert len(third) == 20  # the third block starts each conversation's own part: one per session


def test_stages_and_cuts():
    first, second = constant(8.0, 16, 100, 10), constant(20.0, 20, 100, 10)
    both = first.followed_by(second, at_s=2.0)
    assert len(both) == 36
    assert both.arrived_s[16] == pytest.approx(2.05)
    assert len(both.head(3)) == 3
    assert both.at_rate(2.0).arrived_s[-1] == pytest.approx(both.arrived_s[-1] / 2)
    with pytest.raises(InputError, match="sort by arrival"):
        second.followed_by(first, at_s=0.0)
    with pytest.raises(InputError, match="either arrival times"):
        Trace(np.array([1]), np.array([1]))


@pytest.mark.parametrize(("name", "rows"), [("azure_2023_conversation.csv", 19_366), ("azure_2023_code.csv", 8_819)])
def test_real_traces(shared, name, rows):
    """Row counts of data/traces/README.md."""
    trace = read_trace(shared / "data" / "traces" / name)
    assert len(trace) == rows
    assert trace.arrived_s[-1] > 3000
