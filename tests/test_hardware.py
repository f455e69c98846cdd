"""Hardware specs: every shipped file, the facts they carry, what a missing format is computed in, and messages."""

import csv
import math
import re

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from roofline import units
from roofline.calibrated import calibrated
from roofline.errors import InputError, RooflineError, SpecError, UnknownNameError
from roofline.kernels.gemm import GemmConstants
from roofline.specs import library, prices, yaml_file
from roofline.specs.hardware import BLOCK_SCALED, COMPUTES_IN, Accelerator

NAMES = library.names("hardware")
GIB = 2**30


# Every shipped file.


@pytest.mark.parametrize("name", NAMES)
def test_every_file_is_sound(name):
    a = library.hardware(name)
    assert a.name == name == library.locate("hardware", name).stem
    assert all(block.source for block in a.blocks().values())
    assert all(len(text) > 3 for text in a.sources.values())
    assert 0.1 < a.ridge_point() < 2000  # FLOP/B: from a wafer of SRAM to a laptop-memory chip with matrix units
    assert 0.5 * a.memory.capacity <= a.usable_bytes <= 1.1 * a.memory.capacity
    for fmt in COMPUTES_IN:
        if not fmt.startswith("fp64"):
            assert a.peak_flops_per_s(fmt) > 0
    if a.confidence == "C":
        assert a.unverified, "a partly recalled row says which fields are"


@pytest.mark.parametrize("name", NAMES)
def test_aliases_at_the_head_are_those_of_the_file(name):
    a = library.hardware(name)
    assert tuple(library.head_aliases(library.locate("hardware", name))) == a.aliases
    for alias in a.aliases:
        assert alias == library.canonical(alias)
        assert library.hardware(alias) is a


def test_names_and_aliases_are_unique():
    aliases = library.aliases("hardware")  # raises where one alias stands for two names
    assert not set(aliases) & set(NAMES)
    assert len(NAMES) == 68


def test_block_scaled_formats_have_an_element_rate():
    for name in NAMES:
        compute = library.hardware(name).compute
        assert all(BLOCK_SCALED[f] in compute.dense for f in compute.block_scaled)


# The facts, against the table they come from (where it is at hand).

COLUMNS = {
    "peak_fp64_flops": lambda a: a.compute.dense.get("fp64"),
    "peak_fp64_matrix_flops": lambda a: a.compute.dense.get("fp64_matrix"),
    "peak_fp32_flops": lambda a: a.compute.dense.get("fp32"),
    "peak_tf32_flops": lambda a: a.compute.dense.get("tf32"),
    "peak_bf16_flops": lambda a: a.compute.dense.get("bf16"),
    "peak_fp16_flops": lambda a: a.compute.dense.get("fp16"),
    "peak_fp8_flops": lambda a: a.compute.dense.get("fp8"),
    "peak_int8_ops": lambda a: a.compute.dense.get("int8"),
    "peak_fp6_flops": lambda a: a.compute.dense.get("fp6"),
    "peak_fp4_flops": lambda a: a.compute.dense.get("fp4"),
    "mem_bw_bytes_per_s": lambda a: a.bandwidth_bytes_per_s,
    "mem_bw_alt_bytes_per_s": lambda a: a.memory.bandwidth_rival,
    "l2_bytes": lambda a: a.compute.l2,
    "llc_bytes": lambda a: a.compute.llc,
    "sram_bytes_per_core": lambda a: a.compute.sram_per_core,
    "cores": lambda a: a.sms,
    "boost_clock_hz": lambda a: a.compute.clock,
    "scaleup_bw_bytes_per_s_per_dir": lambda a: a.scale_up and a.scale_up.bandwidth,
    "scaleup_domain_size": lambda a: a.domain,
    "host_bw_bytes_per_s_per_dir": lambda a: a.host_bytes_per_s,
    "tdp_w": lambda a: a.tdp_w,
    "price_usd_per_h": prices.usd_per_hour,
    "mamf_bf16_flops": lambda a: a.compute.best_matmul.get("bf16"),
    "mamf_fp8_flops": lambda a: a.compute.best_matmul.get("fp8"),
}


# What the table leaves blank and a spec has from a source of its own.
ADDED = {("groq-lpu", "scaleup_bw_bytes_per_s_per_dir"), ("groq-lpu", "host_bw_bytes_per_s_per_dir")}
# The row of the table is a pair with the bridge that is sold apart; a card by itself has no such link.
BRIDGED = {"RTX 3090": "rtx-3090-nvlink"}


def test_all_64_devices_of_the_facts_are_carried_over(shared):
    rows = list(csv.DictReader((shared / "facts" / "hardware.csv").open()))
    assert len(rows) == 64
    for row in rows:
        a = library.hardware(row["device"])  # the name in the data is an alias
        assert (a.vendor, a.kind, a.year, a.confidence) == (
            row["vendor"], row["class"], int(row["launch_year"]), row["confidence"])  # fmt: skip
        for column, of in COLUMNS.items():
            if row["device"].startswith("DGX Spark") and column.startswith("host"):
                continue  # its C2C link leads to the same memory
            linked = library.hardware(BRIDGED.get(row["device"], a.name)) if column.startswith("scaleup") else a
            given_value, carried = row[column], of(linked)
            if given_value:
                assert carried == pytest.approx(float(given_value), rel=1e-6), (row["device"], column)
            elif column not in ("scaleup_domain_size", "price_usd_per_h", "mamf_bf16_flops"):  # H20: measured elsewhere
                assert carried is None or (a.name, column) in ADDED, (row["device"], column)
        if row["mem_bytes_usable"]:
            # the total of the driver; what a process sees is up to 9 % less (T4, A10: ECC)
            assert 0.91 <= a.usable_bytes / float(row["mem_bytes_usable"]) <= 1.001, row["device"]


def test_names_used_in_the_data_are_understood():
    for data_name, name in {
        "h100_sxm": "h100-sxm", "h200_sxm": "h200-sxm", "b200_sxm": "b200-sxm", "b300_sxm": "b300-sxm",
        "gb200": "gb200", "gb300": "gb300", "a100_sxm": "a100-sxm", "l40s": "l40s",
        "rtx_pro_6000_server": "rtx-pro-6000-server",
        "H100-SXM5-80GB": "h100-sxm", "H100 80GB": "h100-sxm", "H100 SXM": "h100-sxm", "DGX Spark": "gb10",
        "TPU v6e (Trillium)": "tpu-v6e", "RTX 3090": "rtx-3090", "M3": "m3",
    }.items():  # fmt: skip
        assert library.hardware(data_name).name == name


# Published numbers, each with its origin.


@pytest.mark.parametrize(
    "name, fmt, ridge",  # FLOP/B, datasheet peak over bandwidth by hand; H100 is also seed figure A09
    [("h100-sxm", "bf16", 295), ("h200-sxm", "bf16", 206), ("b200-sxm", "bf16", 293), ("gb200", "bf16", 312),
     ("mi300x", "bf16", 247), ("mi325x", "bf16", 218), ("mi355x", "bf16", 315), ("a100-sxm", "bf16", 153),
     ("l4", "bf16", 403), ("l40s", "bf16", 419), ("t4", "fp16", 203), ("rtx-4090", "bf16", 164),
     ("tpu-v5e", "bf16", 241), ("gaudi-3", "bf16", 457), ("h20", "bf16", 37)],
)  # fmt: skip
def test_ridge_points(name, fmt, ridge):
    assert library.hardware(name).ridge_point(fmt) == pytest.approx(ridge, abs=0.55)


@pytest.mark.parametrize(
    "name, fmt, flop_per_clk, tol",  # cores x FLOP/clk x clock, vendor microarchitecture papers
    [("v100-sxm-32gb", "fp16", 1024, 0.005), ("a100-sxm", "bf16", 2048, 0.001), ("h100-sxm", "bf16", 4096, 0.001),
     ("a40", "bf16", 1024, 0.001), ("l4", "bf16", 1024, 0.005), ("l40s", "bf16", 1024, 0.015),
     ("rtx-4090", "bf16", 512, 0.001), ("rtx-5090", "bf16", 512, 0.001), ("mi300x", "bf16", 2048, 0.001),
     ("mi355x", "bf16", 4096, 0.001), ("mi210", "bf16", 1024, 0.001), ("rtx-pro-6000-server", "bf16", 1024, 0.001)],
)  # fmt: skip
def test_peaks_are_cores_times_clock(name, fmt, flop_per_clk, tol):
    a = library.hardware(name)
    assert a.sms * flop_per_clk * a.compute.clock == pytest.approx(a.compute.dense[fmt], rel=tol)


def test_user_case_units_capacity_01_visible_memory_of_an_h100():
    # U-units_capacity-01: 79.18 to 79.22 GiB (vLLM logs; vllm-project/vllm PR 10511), neither 80e9 B nor 80 GiB
    assert 79.18 <= library.hardware("H100 80GB").usable_bytes / GIB <= 79.22


def test_inline_ecc_is_where_the_driver_misses_a_sixteenth():
    """GDDR6 cards with ECC on report 15/16 of their memory (T4: 15360 of 16384 MiB); with ECC off all of it."""
    seen = set()
    for name in NAMES:
        a = library.hardware(name)
        if a.vendor == "NVIDIA" and a.memory.driver_total and a.memory.type.startswith("GDDR"):
            of_label = a.memory.driver_total / (a.memory.capacity / 1e9 * 2**30)
            assert a.memory.inline_ecc == (of_label < 0.97), (name, of_label)
            assert not a.memory.inline_ecc or of_label == pytest.approx(15 / 16, abs=0.001)
            seen.add(a.memory.inline_ecc)
        elif a.memory.inline_ecc:
            raise AssertionError(f"{name}: nothing shows it")
    assert seen == {True, False}


def test_carried_over_bandwidth_is_freed_of_codes():
    """RTX 4090 takes the constants of the L40S, which reads its codes too; an L4 reads them itself."""
    share = {
        name: calibrated(library.hardware(name), "gemm", "bf16", "vllm", GemmConstants()).constants.memory_fraction
        for name in ("l40s", "rtx-4090", "rtx-6000-ada", "l4")
    }
    assert share["rtx-4090"] == share["rtx-6000-ada"] == pytest.approx(share["l40s"] * 16 / 15)
    assert share["l4"] == share["l40s"]


def test_user_case_units_capacity_02_gpu_share_of_unified_memory():
    # U-units_capacity-02: AlexsJones/llmfit PR 754 prints 11.84 of 16.00 for an M3; both are GiB (12713.12 MB by Metal)
    assert library.hardware("m3").usable_bytes / GIB == pytest.approx(11.84, rel=0.02)
    assert library.hardware("m3").usable_bytes == pytest.approx(12713.12e6, rel=0.001)
    # 24 GB M4 Pro: Metal says 19069.67 MB
    assert library.hardware("m4-pro").usable_bytes == pytest.approx(19069.67e6, rel=0.001)
    # the user's figure wins, and so does another size of memory
    assert library.hardware("m3", overrides={"memory.usable": "14 GB"}).usable_bytes == 14e9
    assert library.hardware("m3", overrides={"memory.capacity": "24 GiB"}).usable_bytes == 0.74 * 24 * GIB


def test_user_case_peak_specs_01_dense_peak_of_an_h100():
    # U-peak_specs-01: 989.5 TFLOP/s within 0.1 %, not 1979 (2:4 sparsity); seed figure A01: 989 within 0.5
    peak = library.hardware("h100-sxm").peak_flops_per_s("bf16")
    assert peak == pytest.approx(989.5e12, rel=1e-3)
    assert peak / 1e12 == pytest.approx(989, abs=0.5)


def test_user_case_peak_specs_02_bandwidth_of_a_b200():
    # U-peak_specs-02: 7680 bit / 8 x 2 x 3996 MHz = 7.672 TB/s (pytorch/ao PR 4002), within 0.2 %
    assert library.hardware("b200").bandwidth_bytes_per_s == pytest.approx(7680 / 8 * 2 * 3996e6, rel=2e-3)


def test_user_case_peak_specs_03_nvlink_per_direction():
    # U-peak_specs-03: 450 GB/s per direction, 900 is the sum of both (NVIDIA/nccl-tests issue 326)
    h100 = library.hardware("h100-sxm")
    assert h100.link_bytes_per_s == h100.pair_bytes_per_s == 450e9
    assert h100.scale_up.topology == "switch" and h100.domain == 8


def test_user_case_peak_specs_04_highest_read_of_a_3090():
    # U-peak_specs-04: 854.2 GB/s of 936.2 (ashalliants/ninfer-3090 PR 50), within 2 %
    memory = library.hardware("RTX 3090").memory
    assert memory.best_read == pytest.approx(854.2e9, rel=0.02)
    assert memory.bandwidth == pytest.approx(936.2e9, rel=0.001)


def test_seed_figure_a02_bandwidth_of_an_h100():
    assert library.hardware("h100-sxm").bandwidth_bytes_per_s / 1e12 == pytest.approx(3.35, abs=0.005)


@pytest.mark.parametrize(
    "name, fmt, headline",  # marketing figures with 2:4 sparsity or per superchip
    [("h100-sxm", "bf16", 1979e12), ("h100-sxm", "fp8", 3958e12), ("l4", "bf16", 242e12), ("l40s", "bf16", 733e12),
     ("b200-sxm", "bf16", 4500e12), ("b200-sxm", "fp8", 9000e12), ("b200-sxm", "fp4", 18000e12),
     ("rtx-4090", "fp16", 330e12), ("gb10", "fp4", 1000e12), ("jetson-thor", "fp4", 2070e12),
     ("trainium2", "fp8", 2563e12)],
)  # fmt: skip
def test_peaks_are_dense(name, fmt, headline):
    assert library.hardware(name).peak_flops_per_s(fmt) < 0.52 * headline


def test_a_mesh_is_not_a_switch():
    mi300x = library.hardware("mi300x")  # 64 GB/s to one peer, 448 to all seven; stas00/ml-engineering network
    assert (mi300x.pair_bytes_per_s, mi300x.link_bytes_per_s) == (64e9, 448e9)
    assert mi300x.scale_up.topology == "mesh"
    assert library.hardware("v100-sxm-32gb").pair_bytes_per_s < library.hardware("v100-sxm-32gb").link_bytes_per_s
    l40s = library.hardware("l40s")  # no links: PCIe is the way to a peer
    assert l40s.domain == 1 and l40s.link_bytes_per_s == l40s.host_bytes_per_s == 31.5e9


# What is computed in.


@pytest.mark.parametrize(
    "name, fmt, runs_in",
    [("h100-sxm", "fp8", "fp8"), ("h100-sxm", "mxfp4", "bf16"), ("h100-sxm", "nvfp4", "bf16"),
     ("h100-sxm", "int4", "bf16"), ("h100-sxm", "mxfp8", "bf16"), ("a100-sxm", "fp8", "bf16"),
     ("a100-sxm", "int8", "int8"), ("t4", "bf16", "fp16"),
     ("v100-sxm-32gb", "fp8", "fp16"), ("b200-sxm", "nvfp4", "fp4"), ("b200-sxm", "mxfp4", "fp4"),
     ("b200-sxm", "mxfp8", "fp8"),
     ("mi355x", "mxfp4", "fp4"), ("mi355x", "nvfp4", "bf16"), ("mi300x", "fp8", "fp8"), ("mi300x", "mxfp4", "bf16"),
     ("trainium3", "mxfp4", "fp4"), ("trainium3", "nvfp4", "bf16"), ("m2-max", "bf16", "fp16"),
     ("tpu-v5e", "fp16", "bf16"),
     ("tpu-v5e", "fp8", "bf16"), ("epyc-9654", "fp8", "bf16"), ("groq-lpu", "bf16", "fp16"),
     ("h100-sxm", "fp64", "fp64_matrix")],
)  # fmt: skip
def test_a_missing_format_is_widened(name, fmt, runs_in):
    a = library.hardware(name)
    assert a.compute_format(fmt) == runs_in
    assert a.peak_flops_per_s(fmt) == a.compute.dense[runs_in]
    assert a.is_native(fmt) == (fmt == runs_in or BLOCK_SCALED.get(fmt) == runs_in or fmt in a.compute.dense)


def test_no_format_is_narrowed_or_unknown():
    bits = {"fp64": 64, "fp64_matrix": 64, "fp32": 32, "tf32": 19, "bf16": 16, "fp16": 16, "fp8": 8, "int8": 8,
            "fp6": 6, "fp4": 4, "int4": 4, "nvfp4": 4, "mxfp4": 4, "mxfp6": 6, "mxfp8": 8}  # fmt: skip
    for fmt, chain in COMPUTES_IN.items():
        # fp32 and tf32 may be emulated by passes of 16 bits (TPU); everything else goes to as many bits or more
        assert fmt in ("fp32", "tf32") or all(bits[c] >= bits[fmt] for c in chain)
    with pytest.raises(SpecError, match="unknown compute format 'q4_k'"):
        library.hardware("h100-sxm").peak_flops_per_s("q4_k")
    with pytest.raises(SpecError, match="has no rate for 'fp64'"):
        library.hardware("l4").peak_flops_per_s("fp64")


# Names.


@pytest.mark.parametrize("spelled", ["h100-sxm", "H100_SXM", "H100-SXM", " h100 sxm ", "h100__sxm", "H100"])
def test_case_and_separators_do_not_matter(spelled):
    assert library.hardware(spelled).name == "h100-sxm"


def test_an_unknown_name_suggests_the_nearest():
    with pytest.raises(
        UnknownNameError, match=r"unknown hardware 'h100sxm'; did you mean 'h100-sxm'.*roofline list hardware"
    ):
        library.hardware("h100sxm")
    with pytest.raises(InputError):
        library.locate("hardware", 100)
    with pytest.raises(InputError, match="unknown kind of spec 'gpu'"):
        library.names("gpu")


def test_one_spec_is_parsed_not_all(monkeypatch):
    read = []
    monkeypatch.setattr(library, "read_yaml", lambda path, real=library.read_yaml: read.append(path) or real(path))
    library._loaded.cache_clear()
    library._alias_table.cache_clear()
    assert library.hardware("dgx-spark").name == "gb10"
    assert len(read) == 1


# The schema.


def h100() -> dict:
    return library.find("hardware", "h100-sxm")


def change(data: dict, path: str, value) -> dict:
    *parents, last = path.split(".")
    inner = data
    for parent in parents:
        inner = inner[parent]
    if value is ...:
        del inner[last]
    else:
        inner[last] = value
    return data


@pytest.mark.parametrize(
    "path, value, says",
    [
        (
            "memory.bandwidth",
            "3.35 Tbit/s",
            r"memory\.bandwidth: '3\.35 Tbit/s' is not a quantity in B/s; e\.g\. '3\.35 TB/s'",
        ),
        ("memory.bandwidth", 3.35e12, r"memory\.bandwidth: 3350000000000\.0 has no unit"),
        ("memory.capacity", 80, r"memory\.capacity: 80 has no unit"),
        ("memory.usable", "80 GB/s", r"memory\.usable: '80 GB/s' is not a quantity in B"),
        ("memory.usable", "700 GB", "does not go with capacity"),
        ("memory.bandwidth", ..., r"memory\.bandwidth: is required"),
        ("memory.bandwith", "3 TB/s", r"unknown field 'bandwith'; did you mean 'bandwidth'"),
        ("memory.gpu_fraction", 0.75, "unified memory only"),
        ("compute.dense.bf16", 989.4e12, r"compute\.dense\.bf16: .* has no unit"),
        ("compute.dense.bf16", "nan TFLOP/s", r"compute\.dense\.bf16: 'nan TFLOP/s' is not a quantity"),
        ("compute.dense.bf16", "-1 TFLOP/s", "finite and not negative"),
        ("compute.dense.fp7", "1 TFLOP/s", r"compute\.dense\.fp7.*fp8"),
        ("compute.dense", {}, "at least 1"),
        ("compute.best_matmul.bf16", "1979 TFLOP/s", "best_matmul.bf16 is above dense.bf16"),
        ("compute.block_scaled", ["mxfp4"], r"dense\.fp4 is missing"),
        ("compute.cores", "132", r"compute\.cores: .*integer"),
        ("compute.cores", -1, r"compute\.cores: .*greater than 0"),
        ("compute.cores", True, r"compute\.cores: .*integer"),
        ("scale_up.topology", "star", r"scale_up\.topology: .*'switch', 'mesh'.*not 'star'"),
        ("scale_up.pair_bandwidth", "900 GB/s", "pair_bandwidth is above bandwidth"),
        ("kind", "gpu", r"kind: .*'gpu-datacentre'.*not 'gpu'"),
        ("power.tdp", 700, r"power\.tdp: 700 has no unit"),
        ("power.source", [], r"power\.source"),
        ("power.source", "nowhere", "source 'nowhere' is not among sources"),
        ("unverified", ["power.idle"], "unverified names 'power.idle', which is not given"),
        ("name", "H100 SXM", r"name: .*pattern"),
        ("memory", None, "memory"),
        ("memory", "80 GB", "memory"),
    ],
)
def test_a_wrong_field_is_named_with_what_is_allowed(path, value, says):
    with pytest.raises(SpecError, match=says):
        library.build(Accelerator, change(h100(), path, value), where="test.yaml")


def test_several_problems_are_listed_at_once():
    data = change(change(h100(), "memory.bandwidth", 1), "power.tdp", 1)
    with pytest.raises(SpecError, match=r"(?s)test\.yaml: \n  memory\.bandwidth.*\n  power\.tdp"):
        library.build(Accelerator, data, where="test.yaml")


def test_specs_are_immutable():
    a = library.hardware("h100-sxm")
    with pytest.raises(ValueError, match="frozen"):
        a.memory.bandwidth = 1.0


ENTRY = {"format": "fp8", "engine": "vllm", "kernel": "any", "constants": {"compute_fraction": 0.8}, "rows": 812,
         "mape": 0.11, "bias": 0.01, "bands": {"memory": [0.9, 1.1]}, "date": "2026-11-29",
         "source": "kernel tables"}  # fmt: skip


def test_an_achieved_entry_is_checked():
    a = library.build(Accelerator, h100() | {"achieved": {"gemm": [ENTRY]}}, where="test.yaml")
    assert a.achieved["gemm"][0].constants == {"compute_fraction": 0.8}
    assert a.achieved["gemm"][0].bands["memory"] == (0.9, 1.1)
    for key, value, says in [
        ("constants", {"compute_fraction": math.nan}, "finite"), ("constants", ..., "required"),
        ("date", ..., "required"),
        ("bands", {"memory": [1.1, 0.9]}, "ascending"), ("bands", {"memory": [1.0]}, "bands"),
        ("rows", 0, "greater than 0"),
        ("mape", -0.1, "greater than or equal"), ("kernels", "x", "unknown field"), ("source", ..., "required"),
    ]:  # fmt: skip
        with pytest.raises(SpecError, match=says):
            library.build(Accelerator, h100() | {"achieved": {"gemm": [change(dict(ENTRY), key, value)]}}, where="t")
    with pytest.raises(SpecError, match="achieved"):
        library.build(Accelerator, h100() | {"achieved": {"GEMM!": [ENTRY]}}, where="t")


# The files and folders.


@pytest.mark.parametrize(
    "text, says",
    [
        ("", "no mapping"),
        ("[]", "no mapping"),
        ("a: 1\na: 2\n", "field 'a' stands twice, again at line 2"),
        ("a: {b: 1, b: 2}", "field 'b' stands twice"),
        ("a: &a [*a]", "refers to itself"),
        ("[" * 40 + "]" * 40, "nested more than 32 levels"),
        ("a: " + "[" * 900 + "]" * 900, "nested|not readable"),
        ("a: " + "[" * 100_000, "not YAML|not readable"),
        ("a0: &x0 [1,1,1,1,1,1,1,1,1]\n"
         + "\n".join(f"a{i}: &x{i} [{','.join([f'*x{i - 1}'] * 9)}]" for i in range(1, 12)), "unfolds to more than"),
        ("a: !!python/object/apply:os.system [ls]", "not YAML"),
        ("a: 2024-99-99", "not readable"),
        ("a: " + "9" * 5000, "not readable"),
        ("? [1, 2]\n: 3", "field name must be text"),
        ("a: 'open", "not YAML"),
        ("a: \x00", "not YAML"),
        ("--- a: 1\n--- b: 2", "not YAML"),
    ],
)  # fmt: skip
def test_yaml_that_no_spec_needs_is_refused(text, says):
    with pytest.raises(SpecError, match=says):
        yaml_file.parse_yaml(text, where="test.yaml")


def test_anchors_are_fine():
    data = yaml_file.parse_yaml("layers: [{attention: &a {kind: gqa, heads: 8}}, {attention: *a}]", where="m.yaml")
    assert data["layers"][1]["attention"] == {"kind": "gqa", "heads": 8}


def test_values_are_those_of_yaml():
    text = "a: &x {p: 1, q: 0x1f, r: 010, s: 1e5, t: .inf, u: 1_000.5, v: 1:30.5, d: 2024-05-06, n: ~, y: yes}\n"
    text += "b: {<<: *x, p: 3}\non: [5., 'yes', !!str 7, !!int '8']\n3: *x"
    assert repr(yaml_file.parse_yaml(text, where="test.yaml")) == repr(yaml.safe_load(text))


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(SpecError, match="there is no file"):
        library.hardware(tmp_path / "none.yaml")
    with pytest.raises(SpecError, match="is a folder"):
        yaml_file.read_yaml(tmp_path)
    for unreadable in ("\0.yaml", "a" * 5000 + ".yaml"):
        with pytest.raises(SpecError, match="cannot read"):
            library.hardware(unreadable)
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SpecError, match="cannot read"):
        library.hardware(str(tmp_path / "binary.yaml"))
    (tmp_path / "huge.yaml").write_bytes(b"#" * (yaml_file.MAX_FILE_BYTES + 1))
    with pytest.raises(SpecError, match="has at most"):
        library.hardware(tmp_path / "huge.yaml")


def user_spec(folder, stem="my-gpu", **changes):
    data = h100() | {"name": stem, "aliases": []} | changes
    path = folder / "hardware_specs" / "mine" / f"{stem}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(data, sort_keys=False))
    return path


def test_a_users_folder_is_searched_first(tmp_path, monkeypatch):
    user_spec(tmp_path, aliases=["mine"])
    user_spec(tmp_path, "h100-sxm", title="my H100")
    assert library.hardware("my_gpu", specs=tmp_path).name == "my-gpu"
    assert library.hardware("mine", specs=tmp_path).name == "my-gpu"
    assert library.hardware("h100-sxm", specs=tmp_path).title == "my H100"
    assert library.hardware("h100-sxm").title != "my H100"
    with pytest.raises(UnknownNameError):
        library.hardware("my-gpu")
    monkeypatch.setenv("ROOFLINE_SPECS", str(tmp_path))
    assert "my-gpu" in library.names("hardware")
    assert library.hardware("mine").name == "my-gpu"
    assert library.hardware("a100").name == "a100-sxm"
    user_spec(tmp_path, "new-gpu")  # seen at once
    assert library.hardware("new-gpu").name == "new-gpu"


def test_a_known_name_is_looked_up_in_microseconds():
    import timeit

    for name in ("h100-sxm", "h100"):  # 8 us measured on one core; one estimate has 1 ms for everything
        library.hardware(name)
        assert min(timeit.repeat(lambda n=name: library.hardware(n), number=50, repeat=5)) / 50 < 1e-4


def test_an_edited_file_is_read_again(tmp_path):
    path = user_spec(tmp_path, title="before")
    assert library.hardware(path).title == "before"
    library.os.utime(user_spec(tmp_path, title="after"), ns=(1, 1))
    assert library.hardware(path).title == "after"


def test_a_wrong_specs_folder_is_said(tmp_path):
    with pytest.raises(SpecError, match="is not a folder"):
        library.names("hardware", specs=tmp_path / "none")
    with pytest.raises(SpecError, match="holds neither hardware_specs/ nor model_specs/"):
        library.names("hardware", specs=tmp_path)


def test_specs_are_found_in_a_wheel_and_in_a_checkout(tmp_path, monkeypatch, root):
    package = tmp_path / "src" / "roofline"
    package.mkdir(parents=True)
    monkeypatch.setattr(library, "PACKAGE", package)
    assert library.spec_root("hardware") == tmp_path / "hardware_specs"
    (package / "hardware_specs").mkdir()
    assert library.spec_root("hardware") == package / "hardware_specs"


def test_overrides_are_read_like_the_file():
    a = library.hardware("h100", overrides={"memory.bandwidth": "3.0 TB/s", "scale_up.latency": "2 us"})
    assert a.bandwidth_bytes_per_s == 3.0e12 and a.scale_up.latency == 2e-6
    assert library.hardware("h100").bandwidth_bytes_per_s == 3.35e12  # the shared one is untouched
    with pytest.raises(SpecError, match=r"h100-sxm\.yaml with overrides: memory\.bandwidth: 3\.0 has no unit"):
        library.hardware("h100", overrides={"memory.bandwidth": 3.0})
    with pytest.raises(SpecError, match="'name' holds no fields"):
        library.hardware("h100", overrides={"name.x": 1})


# Prices.


def test_prices_name_known_devices_and_are_dated():
    listed = prices._price_list(library.spec_root("hardware") / "prices.yaml", 0)
    assert set(listed.prices) <= set(NAMES)
    assert all(re.match(r"20\d\d", q.date) for quotes in listed.prices.values() for q in quotes)


def test_price_of_a_device_hour():
    assert prices.usd_per_hour("h100-sxm") == 2.95  # Nebius on demand
    assert prices.usd_per_hour("h100-sxm", provider="crusoe") == 3.90
    assert prices.usd_per_hour("h100-sxm", tier="long-tail") == (1.99 + 2.50) / 2  # index of May 2026
    assert prices.usd_per_hour("gb300") is None  # nobody's list was read: not guessed
    assert prices.usd_per_hour("gb300", 10.0) == 10.0
    assert prices.usd_per_hour("h100-sxm", "2.50 USD/h") == 2.5
    assert prices.usd_per_hour("h100-sxm", 0) == 0.0
    assert str(prices.quote("h100-sxm")) == "2.95 USD/h (nebius, on-demand, 2025-26)"
    for bad in ("2.50", -1.0, math.nan, "2.50 EUR/h"):
        with pytest.raises(InputError):
            prices.usd_per_hour("h100-sxm", bad)
    with pytest.raises(InputError, match="hyperscaler, specialist, long-tail"):
        prices.usd_per_hour("h100-sxm", tier="cheap")


def test_a_users_prices_go_first(tmp_path):
    (tmp_path / "hardware_specs").mkdir()
    (tmp_path / "hardware_specs" / "prices.yaml").write_text(
        "sources: {me: my contract}\nprices: {gb300: [{price: 9 USD/h, tier: specialist, date: 2026-11, source: me}]}\n"
    )
    assert prices.usd_per_hour("gb300", specs=tmp_path) == 9.0
    assert prices.usd_per_hour("h100-sxm", specs=tmp_path) == 2.95


# Whatever is written, there is an answer or a message.

JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


def paths(data: dict, prefix: str = ""):
    for key, value in data.items():
        yield prefix + key
        if isinstance(value, dict):
            yield from paths(value, f"{prefix}{key}.")


@settings(max_examples=60)
@given(st.sampled_from([p for p in paths(h100()) if not p.startswith("sources.")]), JUNK)
def test_junk_in_any_field_is_an_accelerator_or_a_spec_error(path, junk):
    try:
        library.build(Accelerator, change(h100(), path, junk), where="test.yaml")
    except SpecError as error:
        assert len(str(error)) < 3000


@settings(max_examples=150)
@given(st.text(max_size=200))
def test_any_text_is_a_mapping_or_a_spec_error(text):
    try:
        assert isinstance(yaml_file.parse_yaml(text, where="test.yaml"), dict)
    except SpecError:
        pass


@settings(max_examples=50)
@given(st.text(max_size=60))
def test_any_name_is_found_or_a_roofline_error(name):
    try:
        library.hardware(name)
    except RooflineError as error:
        assert str(error)


def test_doctests():
    import doctest

    for module in (units, library, prices):
        assert doctest.testmod(module).failed == 0


def test_the_example_of_the_docs_is_a_spec(root):
    example = re.search(r"```yaml\n(.*?)```", (root / "docs" / "adding-a-gpu.md").read_text(), re.DOTALL)[1]
    a = library.build(Accelerator, yaml_file.parse_yaml(example, where="docs"), where="docs")
    assert a.name == "my-gpu" and a.unverified == ("compute.l2",)
