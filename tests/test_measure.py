"""The measuring harness on a fake device with a fake clock, and, where torch is at hand, on the real CPU."""

from __future__ import annotations

import importlib.util
import json
import sys
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roofline.errors import InfeasibleError, InputError, UnknownNameError, UnsupportedError
from roofline.measure import Log, measure, read_measurements
from roofline.measure.cases import OPS, Case, cases, op_of, scope
from roofline.measure.ceilings import utilisation
from roofline.measure.device import Device, busy, open_device
from roofline.measure.identify import NAMES, accelerator_of, empirical_spec, hardware_name, is_empirical
from roofline.measure.kernels import KERNELS, Work, copies
from roofline.measure.nvml import Sampler, throttle_reasons
from roofline.measure.records import read_records
from roofline.measure.run import check
from roofline.measure.timing import Timing, summary, time_calls
from roofline.measure.transformer import supported, truncated
from roofline.specs.library import hardware, names
from roofline.specs.refs import load_model

HAS_TORCH = importlib.util.find_spec("torch") is not None
needs_torch = pytest.mark.skipif(not HAS_TORCH, reason="torch is not installed")


class FakeTorch:
    """As much of torch as facts need."""

    __version__ = "0.0"


class FakeDevice(Device):
    """A device whose clock is told what each call takes, and which counts evictions."""

    kind = "cuda"
    name = "NVIDIA H100 80GB HBM3"
    cache_bytes = 50e6
    cores = 132
    memory_bytes = 85e9

    def __init__(self, seconds=lambda call: 1e-3):
        super().__init__(FakeTorch())
        self.seconds, self.evictions, self.calls = seconds, 0, 0

    def evict(self):
        self.evictions += 1

    def samples(self, calls, *, cold):
        out = []
        for call in calls:
            if cold:
                self.evict()
            self.calls += 1
            call()
            out.append(self.seconds(call))
        return out

    def facts(self):
        return {"device": self.name, "kind": self.kind, "cores": self.cores, "cache_bytes": self.cache_bytes,
                "memory_bytes": self.memory_bytes, "versions": {}, "load_1min": 0.0, "host_cores": 8}  # fmt: skip


GEMM = [Case("gemm", {"dtype": "bf16", "m": m, "n": 4096, "k": 4096}) for m in (1, 16, 256)]


@pytest.fixture
def fake_kernels(monkeypatch):
    """Kernels that do nothing; the case with m = 16 cannot run, as on a device without it."""

    def gemm(device, shape):
        if shape["m"] == 16:
            raise RuntimeError("no such\nkernel here")
        return Work([lambda: None])

    monkeypatch.setitem(KERNELS, "gemm", gemm)
    monkeypatch.setattr("roofline.measure.run.devices", lambda where: 1)
    monkeypatch.setattr("roofline.measure.interruptions._involuntary", lambda: 0)  # a busy machine disturbs nothing


# Timing


def test_median_and_spread():
    t = summary([5.0, 1.0, 3.0, 2.0, 4.0])
    assert t.time_s == 3.0 and t.p10_s == pytest.approx(1.4) and t.p90_s == pytest.approx(4.6) and t.samples == 5


@given(st.lists(st.floats(1e-7, 1e3), min_size=1, max_size=50), st.floats(1, 100))
def test_quantiles_are_ordered_and_scale(samples, per):
    t, one = summary(samples, per), summary(samples)
    assert t.p10_s <= t.time_s <= t.p90_s
    assert t.time_s == pytest.approx(one.time_s / per)


@pytest.mark.parametrize("bad", [[], [0.0], [1.0, -1.0], [float("nan")]])
def test_no_time_is_an_error(bad):
    with pytest.raises(InputError, match="measurable"):
        summary(bad)


def test_sampling_stops_at_the_budget_and_evicts_caches():
    device = FakeDevice(lambda call: 0.01)
    t = time_calls(device, [lambda: None], budget_s=0.2)
    assert t.samples == 20 and device.evictions == 20 and t.time_s == 0.01
    warm = FakeDevice(lambda call: 1.0)
    assert time_calls(warm, [lambda: None], budget_s=0.1, cold=False).samples == 5  # never fewer
    assert warm.evictions == 0


def test_buffers_are_rotated():
    seen = []
    time_calls(FakeDevice(), [lambda i=i: seen.append(i) for i in range(3)], budget_s=0.0, cold=False)
    assert seen[3:] == [0, 1, 2, 0, 1]  # after one warm-up of each


def test_copies_exceed_the_cache():
    device = FakeDevice()
    assert copies(device, 40e6) == 3 and copies(device, 1e9) == 1 and copies(device, 1e3) == 8


# Ceilings (U-bench_pitfalls-02: a report of 303 % of peak HBM bandwidth on MI300X, the peak being of one die of eight)


def test_more_than_a_ceiling_is_refused():
    with pytest.raises(InputError, match=r"2\.022 TB/s is 304% of the peak 665\.6 GB/s of mi300x.*one die"):
        utilisation(2021.97e9, 665.6e9, "B/s", "copy", "mi300x")
    assert utilisation(2021.97e9, 8 * 665.6e9, "B/s", "copy", "mi300x") == pytest.approx(0.3797, abs=1e-4)


@pytest.mark.parametrize(("seconds", "reason"), [(1e-9, "FLOP/s"), (5e-6, "B/s")])
def test_impossible_rows_are_refused(seconds, reason):
    case = Case("gemm", {"dtype": "bf16", "m": 1, "n": 20480, "k": 20480})  # 839 MB: 250 us at 3.35 TB/s
    with pytest.raises(InputError, match=reason):
        check(case, dict(case.shape), Timing(seconds, seconds, seconds, 5), hardware("h100-sxm"), 50e6)
    check(case, dict(case.shape), Timing(3e-4, 3e-4, 3e-4, 5), hardware("h100-sxm"), 50e6)


def test_bytes_that_fit_the_cache_have_no_bandwidth_ceiling():
    case = Case("gemm", {"dtype": "bf16", "m": 1, "n": 4096, "k": 4096})
    check(case, dict(case.shape), Timing(5e-6, 5e-6, 5e-6, 5), hardware("h100-sxm"), 50e6)


# The run and its file


def test_rows_and_skipped_cases_are_on_file(tmp_path, fake_kernels):
    out = measure(FakeDevice(), out=tmp_path / "m.jsonl", todo=GEMM)
    records = read_records(out)
    assert [r["record"] for r in records] == ["session", "row", "skipped", "row"]
    assert records[0]["hardware"] == "h100-sxm" and records[0]["busy"] is None
    assert records[2]["reason"] == "no such kernel here"
    frame = read_measurements(out)
    assert list(frame["m"]) == [1, 256] and (frame["time_s"] == 1e-3).all() and (frame["samples"] >= 5).all()


def test_impossible_times_are_not_rows(tmp_path, fake_kernels):
    out = measure(FakeDevice(lambda call: 1e-9), out=tmp_path / "m.jsonl", todo=GEMM[2:])
    reasons = [r["reason"] for r in read_records(out) if r["record"] == "skipped"]
    assert len(reasons) == 1 and "% of the peak" in reasons[0]


def test_a_broken_run_loses_nothing_and_is_resumed(tmp_path, fake_kernels):
    path = tmp_path / "m.jsonl"

    def break_off(done, total, what):
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure(FakeDevice(), out=path, todo=GEMM, progress=break_off)
    assert len(read_measurements(path)) == 1
    device = FakeDevice()
    steps = []
    measure(device, out=path, todo=GEMM, resume=True, progress=lambda *step: steps.append(step))
    assert steps[0][:2] == (2, 3)  # one measured, one found impossible: neither again
    assert [r["case"] for r in read_records(path) if r["record"] == "row"] == [GEMM[0].key, GEMM[2].key]
    assert [r["session"] for r in read_records(path) if r["record"] == "session"] == [0, 1]
    again = FakeDevice()
    measure(again, out=path, todo=GEMM, resume=True)
    assert again.calls == 0


def test_files_are_not_overwritten_nor_mixed(tmp_path, fake_kernels):
    path = measure(FakeDevice(), out=tmp_path / "m.jsonl", todo=GEMM)
    with pytest.raises(InputError, match="--resume"):
        measure(FakeDevice(), out=path, todo=GEMM)
    other = FakeDevice()
    other.name = "NVIDIA A100-SXM4-80GB"
    with pytest.raises(InputError, match="holds measurements of NVIDIA H100"):
        measure(other, out=path, todo=GEMM, resume=True)


@pytest.mark.parametrize(
    ("text", "words"),
    [("{", "line 1"), ('{"record": "else"}', "line 1"), ('{"record": "row"}', "no session"), ("", "no session"),
     ('{"record": "session", "version": 99}', "version 99")],
)  # fmt: skip
def test_other_files_are_refused(tmp_path, text, words):
    path = tmp_path / "x.jsonl"
    path.write_text(text)
    with pytest.raises(InputError, match=words):
        read_records(path)


def test_the_file_is_whole_after_every_record(tmp_path):
    log = Log(tmp_path / "m.jsonl")
    log.start({"device": "x", "date": "2026-01-01"})
    for i in range(3):
        log.add("skipped", {"case": str(i), "op": "gemm", "session": 0, "reason": ""})
        lines = (tmp_path / "m.jsonl").read_text().splitlines()
        assert len([json.loads(line) for line in lines]) == i + 2
    assert [p.name for p in tmp_path.iterdir()] == ["m.jsonl"]  # nothing temporary is left


# What is measured


@pytest.mark.parametrize("kind", ["cuda", "cpu", "mps"])
@pytest.mark.parametrize("quick", [True, False])
def test_cases_fit_the_scope_and_are_distinct(kind, quick):
    limit = scope(kind, 80e9, quick=quick)
    made = cases(kind, 80e9, quick=quick, devices=8 if kind == "cuda" else 1)
    assert len({c.key for c in made}) == len(made)
    assert {c.op for c in made} == set(OPS) - (set() if kind == "cuda" else {"collective"})
    for case in made:
        op = op_of(case.op, case.shape)
        assert op is None or (0 < op.bytes + op.wire_bytes and op.bytes <= limit.bytes and op.flops <= limit.flops)


def test_only_named_ops():
    assert {c.op for c in cases("cpu", 16e9, quick=True, devices=1, only=("gemm", "moe"))} == {"gemm", "moe"}
    with pytest.raises(UnknownNameError, match="gemm"):
        cases("cpu", 16e9, quick=True, devices=1, only=("gem",))


def test_ops_count_the_work_of_their_case():
    gemm = op_of("gemm", {"dtype": "bf16", "m": 3, "n": 5, "k": 7})
    assert gemm.flops == 2 * 3 * 5 * 7 and gemm.bytes == 2 * (5 * 7 + 3 * 7 + 3 * 5)
    layout = {"kv_dtype": "bf16", "heads": 8, "kv_heads": 2, "head_dim": 64, "window": 0, "batch": 2}
    decode = op_of("decode_attention", layout | {"context": 100})
    assert decode.flops == 2 * 2 * 8 * 128 * 100  # 2 (dk + dv) per head, sequence and key
    prefill = op_of("prefill_attention", layout | {"seq": 4, "attn_dtype": "bf16"})
    assert prefill.flops == 2 * 2 * 8 * 128 * 10  # 1 + 2 + 3 + 4 pairs
    assert op_of("bandwidth", {"kernel": "copy", "bytes": 10.0}).bytes == 20.0


# Which device


@pytest.mark.parametrize(
    ("text", "name"),
    [("NVIDIA H100 80GB HBM3", "h100-sxm"), ("NVIDIA H100 PCIe", "h100-pcie"), ("NVIDIA H200", "h200-sxm"),
     ("NVIDIA A100-SXM4-80GB", "a100-sxm"), ("NVIDIA A100 80GB PCIe", "a100-pcie"), ("NVIDIA L40S", "l40s"),
     ("NVIDIA L4", "l4"), ("NVIDIA B200", "b200-sxm"), ("NVIDIA GeForce RTX 4090", "rtx-4090"),
     ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000-server"), ("NVIDIA GB10", "gb10"),
     ("AMD Instinct MI300X", "mi300x"), ("Apple M2 Ultra", "m2-ultra"), ("Tesla T4", "t4"), ("Quadro", None)],
)  # fmt: skip
def test_devices_are_recognised(text, name):
    assert hardware_name(text) == name


def test_every_recognised_name_is_in_the_library():
    assert {name for _, name in NAMES} <= set(names("hardware"))


def test_a_slice_of_a_server_cpu_is_not_that_cpu():
    assert hardware_name("AMD EPYC 9654 96-Core Processor", cores=2) is None
    assert hardware_name("AMD EPYC 9654 96-Core Processor", cores=96) == "epyc-9654"


SESSION = {"device": "Some CPU", "kind": "cpu", "cores": 4, "cache_bytes": 32e6, "memory_bytes": 16e9,
           "date": "2026-01-01", "hardware": None}  # fmt: skip


def test_a_spec_of_measured_peaks():
    spec = accelerator_of(empirical_spec(SESSION, 20e9, {"bf16": 2e11}))
    assert spec.bandwidth_bytes_per_s == 20e9 and spec.peak_flops_per_s("bf16") == 2e11 and spec.kind == "cpu"
    assert is_empirical(spec) and not is_empirical(hardware("h100-sxm"))
    assert spec.usable_bytes == 16e9 and "not a datasheet" in spec.sources["measured"]
    with pytest.raises(InputError, match="no matmul"):
        empirical_spec(SESSION, 20e9, {})


def test_a_busy_machine_is_said():
    assert busy({"load_1min": 0.2, "host_cores": 8}) is None and busy({"load_1min": None, "host_cores": 8}) is None
    assert "load 7.0 on 8 cores" in busy({"load_1min": 7.0, "host_cores": 8})


# NVML


def test_sensors_are_sampled_in_the_background():
    readings = iter([{"sm_clock_hz": 1.98e9, "power_w": 300.0, "throttle": []},
                     {"sm_clock_hz": 1.4e9, "power_w": 699.0, "throttle": ["power cap"]}])  # fmt: skip
    two = threading.Event()

    def probe():
        reading = next(readings, None)
        if reading is None:
            two.set()
            return {"sm_clock_hz": 1.4e9, "power_w": 650.0, "throttle": []}
        return reading

    with Sampler(probe, interval_s=0.001) as sampler:
        assert two.wait(5.0)
    s = sampler.summary()
    assert s["sm_clock_max_hz"] == 1.98e9 and s["sm_clock_min_hz"] == 1.4e9 and s["power_max_w"] == 699.0
    assert s["throttle"] == ["power cap"]


def test_no_sensors_no_summary():
    with Sampler(None) as sampler:
        pass
    assert sampler.summary() == {}


def test_nvml_reads_a_board(monkeypatch):
    """The adapter against a stand-in for pynvml; a sensor that the board lacks is left out."""
    from types import SimpleNamespace

    from roofline.measure import nvml

    class NVMLError(Exception):
        pass

    def lacking(*_):
        raise NVMLError

    fake = SimpleNamespace(
        NVMLError=NVMLError, NVML_CLOCK_SM=0, NVML_CLOCK_MEM=1, NVML_TEMPERATURE_GPU=0, nvmlInit=lambda: None,
        nvmlDeviceGetHandleByIndex=lambda i: i, nvmlDeviceGetClockInfo=lambda h, kind: (1980, 2619)[kind],
        nvmlDeviceGetPowerUsage=lambda h: 512_345, nvmlDeviceGetTemperature=lacking,
        nvmlDeviceGetUtilizationRates=lambda h: SimpleNamespace(gpu=100, memory=37),
        nvmlDeviceGetCurrentClocksThrottleReasons=lambda h: 0x04, nvmlSystemGetDriverVersion=lambda: "570.0",
        nvmlDeviceGetEnforcedPowerLimit=lambda h: 700_000,
        nvmlDeviceGetMemoryInfo=lambda h: SimpleNamespace(total=85_520_809_984),
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    assert nvml.nvml_probe(0)() == {
        "sm_clock_hz": 1.98e9, "memory_clock_hz": 2.619e9, "power_w": pytest.approx(512.345), "gpu_utilisation": 1.0,
        "memory_utilisation": pytest.approx(0.37), "throttle": ["power cap"],
    }  # fmt: skip
    assert nvml.driver_facts() == {"driver": "570.0", "power_limit_w": 700.0, "memory_bytes": 85_520_809_984}
    monkeypatch.setitem(sys.modules, "pynvml", None)  # as if it were not installed
    assert nvml.nvml_probe() is None and nvml.driver_facts() == {}


def test_throttle_bits():
    assert throttle_reasons(0) == [] and throttle_reasons(0x01) == []  # idle is no throttle
    assert throttle_reasons(0x08 | 0x80) == ["hardware slowdown", "power brake"]


# Whole models


def test_models_that_cannot_be_built_say_so():
    supported(load_model("llama-3.1-8b").model)
    supported(load_model("mixtral-8x7b").model)
    with pytest.raises(UnsupportedError, match="plain full attention"):
        supported(load_model("deepseek-v3").model)


def test_truncated_models_keep_embedding_and_head():
    whole = load_model("llama-3.1-8b").model
    assert whole.stage_runs()[0].count == 32  # worked out before the model is cut: the cut one must not remember
    two = truncated(whole, 2)
    assert two.stored_layers == 2 and two.stage_runs()[0].count == 2
    per_layer = (whole.params - two.params) / 30
    assert per_layer == pytest.approx(218_112_000)  # 4096 (4096 + 2 x 1024 + 4096) + 3 x 4096 x 14336 + 2 x 4096
    mixed = truncated(load_model("deepseek-v3").model, 5)
    assert [r.count for r in mixed.layer_runs] == [3, 2]  # three dense layers come first


# Without torch


def test_without_torch_a_clear_message(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(InputError, match=r"pip install 'roofline\[measure\]'"):
        open_device("cpu")


def test_unknown_kind_of_device():
    with pytest.raises(InputError, match="auto, cuda, rocm, mps, cpu"):
        open_device("gpu")


# With torch


@needs_torch
def test_devices_that_are_not_there():
    import torch

    if not torch.cuda.is_available():
        with pytest.raises(InputError, match="finds no cuda device"):
            open_device("cuda")
    assert open_device("cpu").kind == "cpu"


@needs_torch
@pytest.mark.parametrize("op", sorted(set(KERNELS) - {"launch"}))
def test_kernels_do_the_work_of_their_op(op):
    """Each kernel runs, and what it returns has the shape that its op record counts."""
    device = open_device("cpu")
    case = next(c for c in cases("cpu", 8e9, quick=True, devices=1, only=(op,)))
    out = KERNELS[op](device, case.shape).calls[-1]()
    s = case.shape
    expected = {
        "gemm": lambda: (s["m"], s["n"]),
        "batched_gemm": lambda: (s["batch"], s["m"], s["n"]),
        "decode_attention": lambda: (s["batch"], s["heads"], 1, s["head_dim"]),
        "prefill_attention": lambda: (s["batch"], s["heads"], s["seq"], s["head_dim"]),
        "moe": lambda: (s["tokens"], s["hidden"]),
        "bandwidth": lambda: (),
    }[op]()
    assert tuple(out.shape) == expected and bool(out.isfinite().all())


@needs_torch
def test_grouped_experts_equal_a_plain_loop():
    from roofline.measure.kernels import Routed, random

    device = open_device("cpu")
    torch = device.torch
    x, up, down = (random(device, s, "fp32") for s in ((5, 8), (3, 12, 8), (3, 8, 6)))
    got = Routed(device, 5, 3, 2)(x, up, down)
    want = torch.zeros_like(x)
    for pair in range(10):
        token, expert = pair // 2, pair % 3
        gate, value = (up[expert] @ x[token]).chunk(2)
        want[token] += down[expert] @ (torch.nn.functional.silu(gate) * value) / 2
    assert torch.allclose(got, want, atol=1e-4)


@needs_torch
def test_random_data_is_not_zeros():
    """U-bench_pitfalls-01: zeros draw less power and run 13 % faster on A100."""
    from roofline.measure.kernels import random

    device = open_device("cpu")
    for dtype in ("bf16", "fp32", "int8"):
        values = random(device, (64, 64), dtype).float()
        assert float((values == 0).float().mean()) < 0.02 and float(values.std()) > 0.9


@needs_torch
def test_a_decode_step_equals_the_last_row_of_a_prompt():
    """Same weights, same cache: the token after a prompt does not depend on how the prompt was computed."""
    from roofline.measure.transformer import RandomTransformer
    from roofline.specs.model import Model

    layer = {
        "attention": {"kind": "gqa", "heads": 4, "kv_heads": 2, "head_dim": 16},
        "ffn": {"kind": "dense", "width": 96},
    }
    tiny = Model.model_validate({"name": "tiny", "hidden": 64, "vocab": 97, "kinds": {"d": layer}, "layers": "3*d"})
    device = open_device("cpu")
    run = RandomTransformer(tiny, device, batch=2, context=9, dtype="fp32")
    run.prefill()
    whole = run.tokens.clone()
    run.tokens.copy_(run.prompt[:, -1:])  # the last prompt token over the cache of those before it
    run.decode()
    assert (run.tokens == whole).all()
    with pytest.raises(InfeasibleError, match="give fewer layers"):
        RandomTransformer(load_model("llama-3.1-405b").model, device, batch=1, context=8)


@needs_torch
def test_decode_utilization_on_the_cpu():
    from roofline.measure import measure_decode_utilization

    u = measure_decode_utilization("smollm2-135m", seconds=0.3, context=64, layers=4, device="cpu")
    assert u.steps >= 1 and u.layers == 4 and 0 < u.mbu and 0 < u.mfu and set(u.sensors) <= {"interruptions_per_s"}
    assert u.tokens_per_s == pytest.approx(1 / u.step_s) and u.step_p10_s <= u.step_s <= u.step_p90_s
    assert u.predicted_mbu / u.mbu == pytest.approx(u.predicted_tokens_per_s / u.tokens_per_s)
    assert "measured" in str(u) and "MBU" in str(u)


@needs_torch
def test_collectives_run_in_processes_of_their_own():
    from roofline.measure.collectives import time_collectives

    shape = {"collective": "all_reduce", "dtype": "bf16", "ranks": 2, "bytes": 65536.0}
    samples = time_collectives("cpu", [shape, shape | {"collective": "broadcast"}], blocks=1)
    assert len(samples[0]) == 5 and all(s > 0 for s in samples[0])
    assert samples[1] == "collective 'broadcast' is not measured"


@needs_torch
@pytest.mark.parametrize("op", ["gemm", "decode_attention", "launch"])
def test_on_a_gpu(op, tmp_path):
    """Skips itself without one: the same kernels, timed by events and replayed as graphs."""
    import torch

    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    todo = cases("cuda", 40e9, quick=True, devices=1, only=(op,))[:4]
    frame = read_measurements(measure("cuda", out=tmp_path / "m.jsonl", todo=todo, quick=True))
    assert len(frame) and np.isfinite(frame["time_s"]).all()


# Other work on the processor


def test_interruptions_are_counted(monkeypatch):
    from roofline.measure import interruptions

    counts = iter([100, 160])
    monkeypatch.setattr(interruptions, "_involuntary", lambda: next(counts))
    clock = iter([10.0, 12.0])
    monkeypatch.setattr(interruptions.time, "perf_counter", lambda: next(clock))
    with interruptions.Interruptions() as watch:
        pass
    assert watch.summary() == {"interruptions_per_s": 30.0}
    monkeypatch.setattr(interruptions, "_involuntary", lambda: None)
    monkeypatch.setattr(interruptions.time, "perf_counter", lambda: 0.0)
    with interruptions.Interruptions() as watch:
        pass
    assert watch.summary() == {}


def test_disturbed_rows_are_measured_again(tmp_path, fake_kernels):
    class Watched(FakeDevice):
        rate = 400.0

        def watch(self):
            from types import SimpleNamespace

            class Watch(SimpleNamespace):
                def __enter__(self):
                    return self

                def __exit__(self, *_):
                    pass

            return Watch(summary=lambda: {"interruptions_per_s": self.rate})

    path = measure(Watched(lambda call: 2e-3), out=tmp_path / "m.jsonl", todo=GEMM[:1])
    assert read_measurements(path)["disturbed"].all()
    quiet = Watched(lambda call: 1e-3)
    quiet.rate = 3.0
    measure(quiet, out=path, todo=GEMM[:1], resume=True)
    frame = read_measurements(path)
    assert list(frame["time_s"]) == [1e-3] and not frame["disturbed"].any()  # the later row replaces the other
