"""`roofline simulate`: what it is asked, what it prints and writes, and how it stops."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

from roofline.cli import cli
from roofline.cli.simulate import LENGTHS, knobs_of, trace_of
from roofline.deployment import deployment
from roofline.errors import InputError, RooflineError, UnknownNameError
from roofline.simulation import Trace, deployed, poisson, simulate, write_trace

SMALL = ["simulate", "llama-3.2-1b", "--hw", "l40s", "--osl", "20"]


def run(*args: str):
    """The command in this process; an error of ours comes back as `exception`."""
    return CliRunner().invoke(cli, [*SMALL, *args], standalone_mode=False)


def answer(*args: str) -> dict:
    found = run("--json", *args)
    assert found.exception is None, found.exception
    return json.loads(found.stdout)


def asked(**changes) -> Trace:
    given = {
        "path": None, "scale": 1.0, "rate": None, "bursty": None, "concurrency": None, "turns": None, "think": 10.0,
        "shared_prefix": 0.0, "isl": 100.0, "osl": 20.0, "requests": 50, "seed": 0,
    }  # fmt: skip
    return trace_of(**(given | changes))


# -- what is asked


def test_lengths_have_three_forms():
    rng = np.random.default_rng(0)
    assert LENGTHS.convert("2k", None, None) == 2000
    assert LENGTHS.convert("500-4000", None, None) == (500, 4000)
    drawn = LENGTHS.convert("1000~0.8", None, None)(rng, 200_000)
    assert drawn.mean() == pytest.approx(1000, rel=0.02)  # mean and variation are those that were asked for
    assert drawn.std() / drawn.mean() == pytest.approx(0.8, rel=0.02)


@pytest.mark.parametrize(
    "text", ["", "0", "-5", "nan", "inf", "abc", "4000-500", "100-", "1000~", "1000~x", "1000~-1", "1000~nan", "1e30"]
)
def test_lengths_refuse(text):
    with pytest.raises(InputError):
        LENGTHS.convert(text, None, None)


def test_same_seed_same_trace():
    first, again, other = (asked(rate=2.0, bursty=3.0, seed=s) for s in (4, 4, 5))
    assert np.array_equal(first.arrived_s, again.arrived_s)
    assert not np.array_equal(first.arrived_s, other.arrived_s)


def test_a_rate_is_kept_and_bursts_are_burstier():
    calm, bursty = (asked(rate=5.0, requests=20_000, bursty=cv) for cv in (None, 3.0))
    gaps = np.diff(calm.arrived_s), np.diff(bursty.arrived_s)
    assert [1.0 / g.mean() for g in gaps] == pytest.approx([5.0, 5.0], rel=0.06)  # mean of 20,000 gaps, cv 3
    assert gaps[0].std() / gaps[0].mean() == pytest.approx(1.0, rel=0.05)  # Poisson
    assert gaps[1].std() / gaps[1].mean() == pytest.approx(3.0, rel=0.1)


def test_conversations_have_about_as_many_requests_as_asked():
    trace = asked(rate=2.0, turns=(2, 6), requests=4000, shared_prefix=1100.0)
    assert len(trace) == pytest.approx(4000, rel=0.1)
    assert trace.rate_req_per_s == pytest.approx(2.0, rel=0.15)
    assert all(ids[:2] == [0, 1] for ids in trace.block_ids)  # 1100 tokens hold two whole blocks of 512


def test_a_file_is_cut_and_hurried(tmp_path):
    whole = poisson(2.0, 100, 50, 10, seed=3)
    write_trace(whole, tmp_path / "t.csv")
    part = asked(path=str(tmp_path / "t.csv"), requests=30, scale=4.0)
    expected = (whole.arrived_s[:30] - whole.arrived_s[0]) / 4.0
    assert part.arrived_s == pytest.approx(expected)


@pytest.mark.parametrize(
    "changes",
    [
        {"rate": 1.0, "concurrency": 4}, {"rate": 1.0, "path": "x.csv"}, {"bursty": 2.0}, {"turns": 3.0},
        {"rate": 1.0, "bursty": 2.0, "turns": 3.0}, {"rate": 0.0}, {"rate": math.nan}, {"rate": 1.0, "bursty": 0.0},
        {"scale": 2.0}, {"concurrency": 0}, {"concurrency": -3}, {"requests": 0}, {"requests": 10**9}, {"seed": -1},
        {"path": "no-such-file.csv"}, {"rate": 1.0, "turns": 3.0, "think": math.inf},
        {"rate": 1.0, "turns": 1e6}, {"rate": 1.0, "turns": 900.0, "isl": 1e6},
    ],
)  # fmt: skip
def test_contradictions_are_refused(changes):
    with pytest.raises(InputError):
        asked(**changes)


def test_knobs_are_typed_and_named():
    assert knobs_of(("chunked=no", "hold-ratio=0.5", "preempt=shortest"), max_seqs=8, kv_blocks=None) == {
        "max_seqs": 8, "chunked": False, "hold_ratio": 0.5, "preempt": "shortest",
    }  # fmt: skip
    with pytest.raises(UnknownNameError, match="did you mean 'hold_steps'"):
        knobs_of(("hold_step=3",))
    for text in ("hold_steps", "hold_steps=1.5", "chunked=maybe", "front_end_s=soon"):
        with pytest.raises(InputError):
            knobs_of((text,))
    with pytest.raises(InputError):
        knobs_of((), kv_blocks=math.nan)


# -- what comes out


def test_it_is_the_library_s_simulation():
    """The command adds nothing of its own to the numbers."""
    told = answer("--rate", "3", "--isl", "200-900", "--requests", "200", "--seed", "7", "--max-seqs", "32")
    trace = poisson(3.0, 200, (200, 900), 20.0, seed=7)
    expected = simulate(trace, deployed(deployment("llama-3.2-1b", "l40s"), trace, max_seqs=32)).summary()
    for name in ("ttft_p90_s", "tpot_mean_s", "itl_p99_s", "e2e_p50_s", "output_tok_per_s", "preemptions"):
        assert told[name] == pytest.approx(expected[name], rel=1e-12), name
    assert told["complete"] is True


def test_tables_name_all_percentiles():
    text = run("--requests", "100", "--ttft", "200 ms", "--timeline", "40").stdout
    assert re.search(r"mean\s+p50\s+p90\s+p99", text)
    for row in ("TTFT", "TPOT", "ITL", "E2E", "queueing", "output", "prefix hits", "preemptions", "goodput"):
        assert re.search(rf"^{row}\s", text, re.MULTILINE), row
    assert "life of request 40" in text
    assert re.search(r"^decode\s.*━", text, re.MULTILINE)


def test_more_replicas_and_a_router_that_looks_shorten_the_tail():
    load = ("--rate", "60", "--bursty", "3", "--isl", "100-8000", "--requests", "600")
    one = answer(*load)
    in_turn = answer(*load, "--replicas", "3")
    looking = answer(*load, "--replicas", "3", "--router", "least-tokens")
    assert one["ttft_p99_s"] > in_turn["ttft_p99_s"] > looking["ttft_p99_s"]


def test_prefix_caching_hits_what_conversations_repeat():
    load = ("--rate", "2", "--turns", "4", "--isl", "700", "--shared-prefix", "2048", "--requests", "200")
    cold, warm = answer(*load), answer(*load, "--prefix-caching")
    assert cold["hit_rate"] == 0.0
    assert 0.5 < warm["hit_rate"] < 1.0  # three of four turns repeat all before them, but for the last block
    assert warm["ttft_mean_s"] < cold["ttft_mean_s"]


def test_a_small_pool_preempts():
    told = answer("--concurrency", "32", "--isl", "600", "--osl", "300", "--kv-blocks", "700", "--requests", "100")
    assert told["preemptions"] > 0
    assert answer("--concurrency", "32", "--isl", "600", "--osl", "300", "--requests", "100")["preemptions"] == 0


def test_pools_apart_have_calm_gaps():
    """A decode pool never waits for prompts: its longest gaps are shorter than those of mixed steps."""
    load = ("--rate", "8", "--isl", "6000", "--osl", "100", "--requests", "150")
    together, apart = answer(*load, "--replicas", "2"), answer(*load, "--decode-replicas", "1")
    assert apart["itl_p99_s"] < together["itl_p99_s"]
    assert apart["pools"] == "1 prefill and 1 decode replicas"


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_one_row_a_request(tmp_path, ending):
    if ending == "parquet":
        pytest.importorskip("pyarrow")
    out = tmp_path / f"run.{ending}"
    told = answer("--requests", "40", "--out", str(out))
    read = {"csv": pd.read_csv, "parquet": pd.read_parquet, "jsonl": lambda p: pd.read_json(p, lines=True)}[ending]
    frame = read(out)
    assert list(frame["request"]) == list(range(40))
    assert frame["ttft_s"].mean() == pytest.approx(told["ttft_mean_s"], rel=1e-6)
    assert [p.name for p in tmp_path.iterdir()] == [out.name]  # no half-written file is left


def test_no_parquet_without_its_package(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    out = tmp_path / "run.parquet"
    found = run("--requests", "5", "--out", str(out))
    assert isinstance(found.exception, RooflineError)
    assert "roofline[parquet]" in str(found.exception)
    assert not out.exists()


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("--out", "run.txt"), "must end in"),
        (("--out", "/no/such/folder/run.csv"), "not a folder"),
        (("--timeline", "9999"), "the trace has 0 to 999"),
        (("--prefix-caching",), "block ids"),
        (("--router", "cache-aware"), "prefix_caching"),
        (("--replicas", "0"), "replicas"),
        (("--decode-replicas", "-1"), "decode_replicas"),
        (("--max-seqs", "0"), "max_seqs"),
        (("--kv-blocks", "1"), "KV blocks"),
        (("--ttft", "soon"), "is not a time"),
        (("--trace", "nothing.csv"), "no such file"),
        (("--knob", "preempt=nobody"), "preempt"),
    ],
)
def test_one_clear_message(args, says):
    found = run(*args)
    assert isinstance(found.exception, RooflineError), found.exception
    assert says in str(found.exception)
    assert "\n" not in str(found.exception)


# -- how it stops


def test_an_interrupt_keeps_what_was_done(monkeypatch, tmp_path):
    from roofline import simulation

    whole = simulation.simulate

    def interrupted(trace, pool, *, progress, **more):
        def stop(done, total):
            progress(done, total)
            if done >= 0.4 * total:
                raise KeyboardInterrupt

        return whole(trace, pool, progress=stop, **more)

    monkeypatch.setattr(simulation, "simulate", interrupted)
    out = tmp_path / "part.csv"
    found = CliRunner().invoke(cli, [*SMALL, "--requests", "500", "--out", str(out)], standalone_mode=False)
    assert found.return_value == 130  # as a shell reports an interrupted program
    assert "stopped early" in found.stdout
    assert re.search(r"2\d\d of 500 requests answered", found.stdout)
    assert 200 <= pd.read_csv(out)["finish_s"].notna().sum() < 300


def interrupted(after_s: float) -> str:
    """What a run prints that is interrupted so long after it began."""
    command = [sys.executable, "-m", "roofline", *SMALL, "--requests", "2000000", "--json"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a test run in the background ignores it
    )  # fmt: skip
    assert "simulating" in process.stderr.readline()
    time.sleep(after_s)
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=120)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    return out


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_ctrl_c_on_a_real_process():
    """Into the run, which would take tens of seconds; a busy machine may still be getting ready, nothing to keep."""
    told = json.loads(next(out for out in map(interrupted, (2.5, 8.0, 20.0)) if out))
    assert told["complete"] is False
    assert told["finished"] < 2_000_000
