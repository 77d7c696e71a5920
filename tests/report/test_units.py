import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.report.reading import ACCURACY
from manyhands.report.units import (
    bytes_scale,
    bytes_text,
    count_text,
    counted,
    energy_scale,
    energy_text,
    memory_text,
    percent_text,
    seconds_scale,
    seconds_text,
)


@pytest.mark.parametrize(
    ("function", "value", "text"),
    [
        (seconds_text, 0, "0 s"),
        (seconds_text, 0.25, "250 ms"),
        (seconds_text, 12.34, "12.3 s"),
        (seconds_text, 99.96, "1 min 40 s"),
        (seconds_text, 3599.7, "1 h 00 min"),
        (seconds_text, 7300, "2 h 02 min"),
        (seconds_text, 1e6, "11.6 days"),
        (bytes_text, 0, "0 B"),
        (bytes_text, 999, "999 B"),
        (bytes_text, 999_900, "1.00 MB"),
        (bytes_text, 1_234_000, "1.23 MB"),
        (memory_text, 1024, "1.00 KiB"),
        (memory_text, 312 * 2**20, "312 MiB"),
        (energy_text, 999.9, "1.00 kJ"),
        (energy_text, 4_560, "4.56 kJ"),
        (energy_text, 1.8e6, "500 Wh"),
        (energy_text, 3.6e7, "10.0 kWh"),
        (count_text, 512, "512"),
        (count_text, 1_626_442, "1.63 M"),
        (percent_text, 0.9412, "94.1 %"),
    ],
)
def test_figures_read_well(function, value, text):
    assert function(value) == text


@pytest.mark.parametrize(
    ("alone", "together", "text"),
    [
        (0.7125, 0.8704, "+15.8"),
        (0.7126, 0.8704, "+15.7"),
        (0.91003, 0.90997, "+0.0"),
        (0.5, 0.25, "-25.0"),
        (None, 0.5, "–"),
    ],
)
def test_a_gain_is_the_difference_of_what_is_printed(alone, together, text):
    assert ACCURACY.gain_text(alone, together) == text


@given(alone=st.floats(0, 1), together=st.floats(0, 1))
def test_printed_figures_add_up(alone, together):
    before, after = (float(percent_text(value).split()[0]) for value in (alone, together))
    assert before + ACCURACY.gain(alone, together) == pytest.approx(after)


def test_one_has_no_s():
    assert (counted(1, "round"), counted(0, "round"), counted(20, "round")) == (
        "1 round",
        "0 rounds",
        "20 rounds",
    )


@pytest.mark.parametrize(
    "function", [seconds_text, bytes_text, memory_text, energy_text, count_text, percent_text]
)
@pytest.mark.parametrize("value", [None, float("nan"), float("inf")])
def test_what_is_missing_is_a_dash(function, value):
    assert function(value) == "–"


@pytest.mark.parametrize("scale", [seconds_scale, bytes_scale, energy_scale])
@given(value=st.floats(0, 1e15))
def test_an_axis_always_has_a_unit(scale, value):
    factor, unit = scale(value)
    assert factor > 0
    assert unit


def test_an_axis_takes_the_unit_of_its_largest_value():
    assert seconds_scale(0.9) == (1e-3, "ms")
    assert seconds_scale(1.07) == (1, "s")
    assert seconds_scale(100) == (1, "s")
    assert seconds_scale(600) == (60, "min")
    assert bytes_scale(2.5e6) == (1e6, "MB")
    assert energy_scale(4000) == (1e3, "kJ")
