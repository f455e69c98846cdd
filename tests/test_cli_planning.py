"""`roofline sweep`, `plan`, `levers`, `compare` as commands."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from roofline.cli import cli
from roofline.cli.plan import limit
from roofline.cli.sweep import values
from roofline.errors import InputError
from roofline.sweeps import sweep

SMALL = ("llama-3.1-8b", "--hw", "l40s,h100-sxm", "--isl", "1000", "--osl", "100")


def output(*args: str) -> str:
    result = CliRunner().invoke(cli, args, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("8", 8.0), ("1,2,4", [1.0, 2.0, 4.0]), ("1:4", [1.0, 2.0, 3.0, 4.0]), ("512:1024:512", [512.0, 1024.0]),
        ("1:8*2", [1.0, 2.0, 4.0, 8.0]), ("1k,2Ki", [1000.0, 2048.0]), ("1:3,10", [1.0, 2.0, 3.0, 10.0]),
    ],
)  # fmt: skip
def test_values(text, expected):
    assert values("isl", text) == expected


@pytest.mark.parametrize("text", ["4:1", "1:8*1", "1:2:0", "1:1e12", "a:b", "1:2:3:4"])
def test_ranges_that_are_none(text):
    with pytest.raises(InputError, match="range"):
        values("batch", text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("500 ms@p99", (0.5, 0.99)), ("2s", (2.0, 0.9)), ("50ms@mean", (0.05, None)), ("1.5 s @ p99.9", (1.5, 0.999))],
)
def test_limits(text, expected):
    assert limit("ttft", text) == expected


def test_limit_that_is_none():
    with pytest.raises(InputError, match="is not a time"):
        limit("ttft", "fast")


def test_sweep_best_is_that_of_python():
    found = json.loads(output("sweep", *SMALL, "--batch", "1:64*2", "--best", "usd_per_mtok_output", "--json"))[0]
    s = sweep("llama-3.1-8b", ["l40s", "h100-sxm"], isl=1000, osl=100, batch=[1, 2, 4, 8, 16, 32, 64])
    assert found["usd_per_mtok_output"] == s.best("usd_per_mtok_output")["usd_per_mtok_output"]


def test_sweep_where_and_pareto():
    text = output(
        "sweep", *SMALL, "--concurrency", "1:64*2", "--where", "tpot_s<0.02", "--pareto", "tpot_s,tokens_per_s_gpu"
    )
    rows = text.splitlines()
    assert rows[0].startswith("Sweep of 14 points") and "excluded" in rows[0]
    assert len(rows) > 3 and all("tpot_s 0.0" in row for row in rows[1:])


def test_sweep_files(tmp_path):
    output("sweep", *SMALL, "--batch", "1,2", "--out", str(tmp_path / "points.csv"))
    assert (tmp_path / "points.csv").read_text().splitlines()[0].startswith("hw,batch,ttft_s")
    pytest.importorskip("pyarrow")
    assert "4 points in 1 files" in output("sweep", *SMALL, "--batch", "1,2", "--out", str(tmp_path / "points"))


def test_plan_json_and_prices():
    args = ("plan", *SMALL, "--rate", "5", "--tpot", "40 ms", "--max-gpus", "1", "--no-mix", "--json")
    dear, cheap = (json.loads(output(*args, *more)) for more in ((), ("--price", "l40s=0.01")))
    assert cheap["usd_per_h"] < dear["usd_per_h"]
    assert {m["hardware"] for m in cheap["fleet"]["members"]} == {"l40s"}
    assert cheap["prices"]["l40s"] == {"usd_per_h": 0.01, "source": "as given"}


def test_plan_emits():
    text = output("plan", *SMALL, "--rate", "1", "--max-gpus", "1", "--emit", "vllm", "--no-disaggregation")
    assert "vllm serve meta-llama/Llama-3.1-8B" in text and "GPU KV cache size" in text


def test_plan_of_cards():
    text = output("plan", "mistral-7b-v0.1", "--cards", "rtx-3090:23.58GiB, rtx-3090:7.79GiB")
    assert text.startswith("pipeline by size")


def test_levers_json():
    found = json.loads(output("levers", "llama-3.1-8b", "--hw", "l40s", "--concurrency", "4", "--json"))
    assert {"levers", "elasticities", "conflicts", "base"} <= set(found)


def test_compare(tmp_path):
    path = tmp_path / "bench.json"
    path.write_text(json.dumps({
        "mean_ttft_ms": 100.0, "mean_tpot_ms": 10.0, "completed": 10, "total_input_tokens": 10_000,
        "total_output_tokens": 1_000, "max_concurrency": 4, "request_rate": "inf", "output_throughput": 300.0,
    }))  # fmt: skip
    rows = json.loads(output("compare", "llama-3.1-8b", str(path), "--hw", "h100-sxm", "--json"))[0]["rows"]
    assert {r["quantity"] for r in rows} == {"TTFT mean", "TPOT mean", "output tokens/s"}
    assert all(r["ratio"] == pytest.approx(r["measured"] / r["predicted"]) for r in rows)
