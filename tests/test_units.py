"""units: parsing agrees with pint, refuses what is not a quantity, and prints what it can read again."""

import math

import pint
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from roofline import units
from roofline.errors import InputError

PINT = pint.UnitRegistry()
for definition in ("FLOP = [operation]", "OP = FLOP", "FLOPS = FLOP / second", "OPS = OP / second", "USD = [money]"):
    PINT.define(definition)
BASE = {"B": "byte", "B/s": "byte/second", "FLOP": "FLOP", "FLOP/s": "FLOP/second", "s": "second", "Hz": "1/second",
        "W": "watt", "J": "joule", "USD": "USD", "USD/h": "USD/hour"}  # fmt: skip


def spellings():
    for dimension, rule in units._DIMENSIONS.items():
        if dimension != "params":  # pint has no short scale (70 B = 70 billion)
            yield from ((dimension, spelled) for spelled in rule.units)


@pytest.mark.parametrize("dimension, spelled", list(spellings()))
def test_prefixes_agree_with_pint(dimension, spelled):
    # pint writes kilo only as 'k'; 'KB' is our second spelling of 'kB'
    known = "k" + spelled[1:] if spelled.startswith("K") and not spelled.startswith("Ki") else spelled
    expected = PINT.Quantity(1.5, known).to(BASE[dimension]).magnitude
    assert units.parse(f"1.5 {spelled}", dimension) == pytest.approx(expected, rel=1e-12)
    assert units.scale(spelled) == pytest.approx(expected / 1.5, rel=1e-12)


@pytest.mark.parametrize(
    "text, unit, value",
    [
        ("80 GB", "B", 80e9),
        ("80GB", "B", 80e9),
        (" 80 GiB ", "B", 85899345920.0),  # 80 * 2**30
        ("81559 MiB", "B", 85520809984.0),  # 81559 * 2**20, nvidia-smi total of an H100
        ("3.35 TB/s", "B/s", 3.35e12),
        ("820 GiB/s", "B/s", 880468295680.0),  # 820 * 2**30
        ("989.4 TFLOP/s", "FLOP/s", 9.894e14),
        ("1.9789 PFLOPS", "FLOP/s", 1.9789e15),
        ("1978.9 TOPS", "FLOP/s", 1.9789e15),
        ("3 us", "s", 3e-6),
        ("3 µs", "s", 3e-6),
        ("2 min", "s", 120.0),
        ("1.83 GHz", "Hz", 1.83e9),
        ("700 W", "W", 700.0),
        ("0.7 kW", "W", 700.0),
        ("2.95 USD/h", "USD/h", 2.95),
        ("70.6 B", "params", 70.6e9),
        ("1e3 MB", "B", 1e9),
        (".5 GB", "B", 5e8),
    ],
)
def test_parse_is_exact(text, unit, value):
    assert units.parse(text, unit) == value


@pytest.mark.parametrize(
    "value",
    [3.35e12, 80, True, None, [], "3.35", "3350000000000", "", "TB/s", "3.35 Tbit/s", "3.35 Tb/s", "3.35 TB",
     "400 Gbps", "-3 TB/s", "nan TB/s", "inf TB/s", "1e400 B/s", "3,35 TB/s", "3.35 tb/s", "3.35 TB/s extra",
     "0x10 B/s", "1_000 B/s",
     "٣ TB/s"],
)  # fmt: skip
def test_what_is_not_a_bandwidth_is_refused(value):
    with pytest.raises(InputError):
        units.parse(value, "B/s")


def test_messages_say_what_to_write():
    with pytest.raises(InputError, match=r"^'3.35 Tbit/s' is not a quantity in B/s; e.g. '3.35 TB/s'$"):
        units.parse("3.35 Tbit/s", "B/s")
    with pytest.raises(InputError, match=r"3350000000000.0 has no unit; .* e.g. '3.35 TB/s'"):
        units.parse(3.35e12, "B/s")
    with pytest.raises(InputError, match="a bare number has no unit"):
        units.parse("80", "B")


def test_a_field_type_reads_text_and_refuses_numbers_and_zero():
    bandwidth = TypeAdapter(units.BytesPerS)
    assert bandwidth.validate_python("3.35 TB/s") == 3.35e12
    for bad in (3.35e12, "3.35", "0 TB/s", "-1 B/s"):
        with pytest.raises(ValidationError):
            bandwidth.validate_python(bad)
    assert TypeAdapter(units.Seconds).validate_python("0 s") == 0.0


@pytest.mark.parametrize(
    "value, unit, text",
    [
        (3.35e12, "B/s", "3.35 TB/s"),
        (999.96e9, "B", "1 TB"),  # rounding carries into the next prefix
        (999.94e9, "B", "999.9 GB"),
        (0.0273, "s", "27.3 ms"),
        (3e-6, "s", "3 us"),
        (0.0, "B", "0 B"),
        (math.inf, "s", "inf s"),
        (85.03e9, "GiB", "79.19 GiB"),
        (1234567.0, "USD", "1235000 USD"),
        (671e9, "params", "671 B"),
        (12.0, "params", "12"),
    ],
)
def test_format_for_people(value, unit, text):
    assert units.format(value, unit) == text


@given(st.floats(1e-9, 1e18), st.sampled_from(["B", "B/s", "FLOP", "FLOP/s", "s", "Hz", "W", "J"]))
def test_what_is_printed_reads_back(value, unit):
    assert units.parse(units.format(value, unit, digits=12), unit) == pytest.approx(value, rel=1e-9)


@given(st.text(max_size=40), st.sampled_from(list(units._DIMENSIONS)))
def test_any_text_is_a_number_or_an_input_error(text, unit):
    try:
        assert 0 <= units.parse(text, unit) < math.inf
    except InputError as error:
        assert len(str(error)) < 250
