"""What a soak took: the slope tells a leak from noise, and the picture has a line for each process."""

from __future__ import annotations

import random
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest

from tests.soak import picture
from tests.soak.record import Sample, Taken

HOUR = 3600.0


def points(rise: float, *, noise: float = 2.0) -> list[tuple[float, float]]:
    """Five hours of a line that rises by so much per hour, with noise of which neighbours are alike."""
    dice, drift, found = random.Random(7), 0.0, []
    for at in range(0, int(5 * HOUR), 10):
        drift = 0.99 * drift + dice.gauss(0, noise / 10)
        found.append((float(at), 60.0 + rise * at / HOUR + drift))
    return found


@pytest.mark.parametrize("rise", [0.0, -3.0])
def test_what_does_not_rise_is_flat(rise: float) -> None:
    assert picture.slope(points(rise)).flat


@pytest.mark.parametrize("rise", [2.0, 20.0])
def test_a_leak_is_no_noise(rise: float) -> None:
    found = picture.slope(points(rise))
    assert not found.flat
    assert abs(found.per_hour - rise) < 2 * found.noise + 0.5


def test_of_two_points_no_slope_is_known() -> None:
    assert picture.slope([(0.0, 1.0), (10.0, 5.0)]).flat


def test_the_picture_has_a_line_for_each_process_and_the_table_a_row(tmp_path: Path) -> None:
    samples = [
        Sample(
            at=10.0 * number,
            processes={name: Taken(1, 61_440, 30) for name in ("farm-1", "farm-2", "n1", "consul-1")},
            keys=500 + number,
            bytes=10_000,
            audits=100 + number,
            round=number // 30 if number % 30 == 0 else 0,
            files=12,
        )
        for number in range(1, 200)
    ]
    source, out = tmp_path / "record.jsonl", tmp_path / "picture.svg"
    source.write_bytes(b"".join(msgspec.json.encode(each) + b"\n" for each in samples))
    assert picture.read(source) == samples
    picture.main(source, out)
    lines = ElementTree.parse(out).getroot().findall("{http://www.w3.org/2000/svg}polyline")
    assert len(lines) == 3 + 3 + 3 + 1
    table = picture.table(samples)
    assert "| memory, MiB: farm-1 | 60.0 | 60.0 | +0.0 ± 0.0 |" in table
    assert "| keys in Consul: others | 400.0 | 400.0 | +0.0 ± 0.0 |" in table
