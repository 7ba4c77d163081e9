"""What a person reads and types: sizes, durations, money, batch sizes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whichgpu import catalogue, text
from whichgpu.errors import InputError

GIB = 1 << 30


@pytest.mark.parametrize(
    ("expected", "count"),
    [
        ("-", None),
        ("0 B", 0),
        ("512 B", 512),
        ("1 KiB", 1024),
        ("640 MiB", 640 << 20),
        ("1.0 GiB", GIB),
        ("1.0 GiB", GIB - 1),
        ("1 MiB", (1 << 20) - 1),
        ("7.6 GiB", 8_160_437_862),
        ("139.8 GiB", 150_110_000_000),
        ("1,024.0 GiB", 1 << 40),
    ],
)
def test_bytes_are_shown_in_the_largest_fitting_binary_unit(expected: str, count: int | None) -> None:
    """A size is shown in the largest binary unit that gives at least 1."""
    assert expected == text.format_bytes(count)


@given(st.integers(min_value=0, max_value=1 << 50))
def test_no_size_is_shown_as_1024_of_the_unit_below(count: int) -> None:
    """A size never reads "1024 MiB" or "1,024 KiB"."""
    assert not text.format_bytes(count).startswith(("1,024 ", "1024 "))


@pytest.mark.parametrize(
    ("expected", "count"),
    [
        ("24 GB", 24564 << 20),
        ("24 GB", 24 * GIB),
        ("8 GB", 7 * GIB + GIB // 2),
        ("141 GB", 143771 << 20),
        ("1 GB", 512 << 20),
        ("52 GB", 52 * GIB),
        ("500 GB", 500 * GIB),
    ],
)
def test_memory_class_is_the_size_on_the_box(expected: str, count: int) -> None:
    """Cards whose drivers report slightly different memory fall into the class that they are sold under."""
    assert expected == text.format_memory_class(count)


def test_every_card_of_the_catalogue_is_shown_as_sold() -> None:
    """What the driver shows of a card is enough to name the size that it is sold under."""
    for card in catalogue.load().gpus:
        if card.cuda:
            shown = text.format_memory_class(card.memory_bytes)
            assert (card.name, f"{card.memory_gib:g} GB") == (card.name, shown)
            named = text.format_memory_class(card.memory_bytes, card.name)
            assert named.replace(" ", "") in card.name or named == shown


@given(st.integers(min_value=1 << 20, max_value=1 << 40), st.integers(min_value=0, max_value=1 << 34))
def test_memory_classes_keep_the_order(count: int, more: int) -> None:
    """A card with more memory is never shown as a smaller one."""
    assert text.memory_class_gb(count) <= text.memory_class_gb(count + more)


@pytest.mark.parametrize(
    ("expected", "counts"),
    [("24 GB", [24 * GIB]), ("24 GB", [24 * GIB, 24564 << 20]), ("10-12 GB", [12 * GIB, 10 * GIB, 11 * GIB])],
)
def test_memory_classes_of_several_cards(expected: str, counts: list[int]) -> None:
    """One size where all have the same, else the smallest and the largest."""
    assert expected == text.format_memory_classes((count, "RTX 4090") for count in counts)


def test_a_name_that_says_its_size_is_believed() -> None:
    """A GH200 144GB is not shown as sold with the 141 GB that its driver shows."""
    assert "144 GB" == text.format_memory_class(catalogue.load().find("GH200 144GB").memory_bytes, "GH200 144GB")


@pytest.mark.parametrize(
    ("expected", "seconds"),
    [
        ("-", None),
        ("80 ms", 0.08),
        ("1.0 s", 0.9996),
        ("1.5 s", 1.5),
        ("10 s", 9.96),
        ("42 s", 42.2),
        ("2 min 5 s", 125.0),
        ("1 min 0 s", 59.7),
    ],
)
def test_durations_get_two_figures(expected: str, seconds: float | None) -> None:
    """A duration is shown in the unit a person would use."""
    assert expected == text.format_seconds(seconds)


@pytest.mark.parametrize(
    ("expected", "usd", "unit"),
    [
        ("-", None, "once"),
        ("1,599 USD", 1599.4, "once"),
        ("9.50 USD", 9.5, "once"),
        ("0.34 USD/h", 0.34, "hour"),
        ("12.29 USD/h", 12.2904, "hour"),
    ],
)
def test_money_says_its_currency_and_unit(expected: str, usd: float | None, unit: str) -> None:
    """A price carries its currency, and a rent its unit of time."""
    assert expected == text.format_usd(usd, unit)


def test_months_are_a_span_only_when_they_differ() -> None:
    """Two dates of one month are shown once."""
    assert "2026-05" == text.format_months("2026-05-01", "2026-05-24")
    assert "2025-11 to 2026-05" == text.format_months("2025-11", "2026-05-24")


@pytest.mark.parametrize(("expected", "part"), [("0 %", 0), ("<1 %", 1), ("50 %", 500), ("100 %", 1000)])
def test_shares_are_whole_percent(expected: str, part: int) -> None:
    """A share is in whole percent, and something is never shown as nothing."""
    assert expected == text.format_share(part, 1000)


def test_a_share_of_nothing_is_unknown() -> None:
    """There is no share of zero bytes."""
    assert "-" == text.format_share(0, 0)


@pytest.mark.parametrize(
    ("expected", "figure"),
    [("-", None), ("1,008", 1008.4), ("82.6", 82.58), ("312", 312.0), ("1,000", 999.7)],
)
def test_figures_drop_what_says_nothing(expected: str, figure: float | None) -> None:
    """A data-sheet rate has a decimal only where it has one and is not large."""
    assert expected == text.format_figure(figure)


def test_counts_separate_thousands() -> None:
    """Large counts are readable."""
    assert ("2,048", "-") == (text.format_count(2048), text.format_count(None))


@pytest.mark.parametrize(
    ("expected", "words"),
    [
        (8 * GIB, "8GiB"),
        (8 * 10**9, "8 GB"),
        (11 * GIB, "11g"),
        (8 * GIB, "8589934592"),
        (8 * GIB, " 8589934592 b "),
        (15 * GIB // 2, "7.5 GiB"),
        (GIB // 2, ".5g"),
        (640 << 20, "640MiB"),
        (640_000_000, "640mb"),
        (3 << 20, "3072k"),
        (1 << 40, "1TiB"),
    ],
)
def test_sizes_are_understood(expected: int, words: str) -> None:
    """GiB and a single letter are binary, GB is decimal, no unit is bytes."""
    assert expected == text.parse_bytes(words)


@pytest.mark.parametrize(
    "words",
    [
        *("", "NaN", "nan GiB", "inf", "-8GiB", "0", "0GiB", "8 giraffes", "GiB", "8", "1e9", "8GiB8"),
        *("8,5GiB", "0x10g", "٨GiB", "9" * 5000, "9999TiB", "1" + "0" * 400 + ".0"),
    ],
)
def test_nonsense_sizes_are_refused_with_the_cure(words: str) -> None:
    """What is not a memory size a GPU could have is refused in one line that shows how to write one."""
    with pytest.raises(InputError, match="8GiB") as caught:
        text.parse_bytes(words)
    assert 1 == len(str(caught.value).splitlines())


def test_a_forgotten_unit_is_named() -> None:
    """A bare 8 is far more likely to lack its unit than to mean eight bytes."""
    with pytest.raises(InputError, match="forget the unit"):
        text.parse_bytes("8")


@pytest.mark.parametrize(("expected", "words"), [(1, "1"), (32, " 32 "), (2**31 - 1, "2147483647")])
def test_batch_sizes_are_understood(expected: int, words: str) -> None:
    """A batch size is a whole number of at least 1."""
    assert expected == text.parse_batch_size(words)


def test_a_batch_size_beyond_the_limit_names_it() -> None:
    """A whole number that is too large is not told that it is none."""
    for words in ("2147483648", "9" * 5000):
        with pytest.raises(InputError, match="is more than 2,147,483,647, the limit"):
            text.parse_batch_size(words)


@pytest.mark.parametrize("words", ["0", "-1", "eight", "", "1.5", "nan", "1e3", "9" * 5000, "2147483648"])
def test_nonsense_batch_sizes_are_refused(words: str) -> None:
    """Anything but a whole number of at least 1 is refused with an example."""
    with pytest.raises(InputError, match="write for example 32"):
        text.parse_batch_size(words)


@pytest.mark.parametrize(
    ("expected", "count"),
    [
        ("-", None),
        ("999", 999),
        ("125 k", 125_000),
        ("25.6 M", 25_557_032),
        ("8.03 B", 8_030_261_248),
        ("1.00 B", 10**9 - 1),
    ],
)
def test_parameters_have_three_figures(expected: str, count: int | None) -> None:
    """Numbers of weights are shown with three figures, as the field writes them."""
    assert expected == text.format_parameters(count)


@pytest.mark.parametrize(("expected", "count"), [("-", None), ("24.3 G", 24_299_077_632), ("51.2 T", 51_200 * 10**9)])
def test_operations_have_three_figures(expected: str, count: int | None) -> None:
    """Numbers of operations are shown with three figures and an SI prefix."""
    assert expected == text.format_operations(count)


@pytest.mark.parametrize(
    ("weeks", "words"), [(0.0123, "0.012"), (0.6, "0.6"), (3.04, "3"), (17.2, "17"), (1234.0, "1,200")]
)
def test_weeks_have_two_digits(weeks: float, words: str) -> None:
    """No digit says more than is known."""
    assert f"{words} weeks" == text.format_weeks(weeks)


@pytest.mark.parametrize(
    ("words", "hours"), [("90min", 1.5), ("48h", 48.0), ("2 days", 48.0), ("1.5 hours", 1.5), ("1w", 168.0)]
)
def test_a_duration_is_read_as_people_write_it(words: str, hours: float) -> None:
    """A number and a unit, with or without a blank."""
    assert hours == text.parse_hours(words)


@pytest.mark.parametrize("words", ["", "48", "h", "0h", "1 moon", "20000d", "-3h"])
def test_what_is_no_duration_is_refused(words: str) -> None:
    """One line with an example."""
    with pytest.raises(InputError, match="48h"):
        text.parse_hours(words)
