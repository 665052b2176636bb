"""Amounts, times and shares of people: the texts that are accepted, and one clear line for all others."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from store import codec, quantities
from store.errors import InputInvalid


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0),
        ("90", 90),
        ("0.5", 0.5),
        ("500ms", 0.5),
        ("5m", 300),
        ("1.5h", 5400),
        ("1h30m", 5400),
        ("1d2h3m4s5ms", 93784.005),
    ],
)
def test_a_time_is_a_sum_of_units_or_a_number_of_seconds(text: str, seconds: float) -> None:
    assert quantities.seconds(text) == seconds


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("2", 2),
        ("500m", 0.5),
        ("100m", 0.1),
        ("64Mi", 64 * 1024**2),
        ("1.5Gi", 1610612736),
        ("2k", 2000),
        ("3G", 3 * 1000**3),
    ],
)
def test_an_amount_has_a_decimal_or_binary_suffix(text: str, amount: float) -> None:
    assert quantities.amount(text) == amount


class Counted(msgspec.Struct):
    count: int | str | None = None


@pytest.mark.parametrize(("found", "count"), [(3.0, 3), (1e9, 10**9), (5, 5), ("5%", "5%")])
def test_a_whole_number_may_be_written_with_a_point_or_an_exponent(found: object, count: int | str) -> None:
    told = codec.parse_input(Counted, {"count": found}, "a.yaml").count
    assert (told, type(told)) == (count, type(count))


def test_a_part_of_a_byte_of_memory_is_refused() -> None:
    with pytest.raises(InputInvalid, match=r"^pod.memory: found 0.064, expected whole bytes, such as 64Mi$"):
        quantities.check_bytes({"cpu": 0.5, "memory": quantities.amount("64m")}, "pod")
    quantities.check_bytes({"cpu": 0.5, "memory": quantities.amount("64Mi")}, "pod")
    quantities.check_bytes({"cpu": 0.5}, "pod")


def test_a_whole_number_keeps_all_its_digits() -> None:
    assert quantities.whole(str(2**63 - 1)) == 2**63 - 1
    assert quantities.whole("1.5Ki") == 1536


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        *((quantities.seconds, text) for text in ("", "-1", "1w", "s", "5 m", "1:30", "5m5m", "5s1m", "1e3")),
        *(
            (quantities.amount, text)
            for text in ("", "-1", "64MiB", "64 Mi", "1K", "Mi", "nan", "inf", "0x10")
        ),
        *((quantities.whole, text) for text in ("500m", "0.5", "1.0001Ki")),
        *((quantities.percent, text) for text in ("", "0%", "101%", "2.5%", "-1%", "25", "25 %", "%")),
    ],
)
def test_any_other_text_is_refused_with_what_was_expected(parse: Callable[[str], float], text: str) -> None:
    with pytest.raises(InputInvalid) as caught:
        parse(text)
    assert caught.value.message.startswith(f"found {text!r}, expected a")
