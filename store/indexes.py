"""Sets of indexes as text, ``0-41,44``: the cost of one grows with its gaps, not with what it contains."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import chain


class Indexes:
    """Indexes from 0, kept as ranges in order, with a gap between any two."""

    __slots__ = ("_spans",)

    def __init__(self, *texts: str) -> None:
        """All indexes of these texts.

        Raises:
            ValueError: one is no such text.
        """
        self._spans = _joined(_span(part) for text in texts if text for part in text.split(","))

    def add(self, index: int) -> None:
        """Add one index."""
        after = bisect_right(self._spans, index, key=_first)
        beside = slice(max(after - 1, 0), after + 1)
        self._spans[beside] = _joined((*self._spans[beside], range(index, index + 1)))

    def count(self, among: range) -> int:
        """How many of these indexes are in a range."""
        spans = (range(max(each.start, among.start), min(each.stop, among.stop)) for each in self._spans)
        return sum(map(len, spans))

    def gaps(self, stop: int) -> Iterator[int]:
        """The indexes below ``stop`` that it does not contain, in order."""
        start = 0
        for span in self._spans:
            yield from range(start, min(span.start, stop))
            start = span.stop
        yield from range(start, stop)

    def __contains__(self, index: int) -> bool:
        after = bisect_right(self._spans, index, key=_first)
        return after > 0 and index < self._spans[after - 1].stop

    def __iter__(self) -> Iterator[int]:
        return chain.from_iterable(self._spans)

    def __len__(self) -> int:
        return sum(map(len, self._spans))

    def __str__(self) -> str:
        return ",".join(
            f"{each.start}-{each.stop - 1}" if len(each) > 1 else str(each.start) for each in self._spans
        )


def _joined(spans: Iterable[range]) -> list[range]:
    found: list[range] = []
    for span in sorted(spans, key=_first):
        if found and found[-1].stop >= span.start:
            found[-1] = range(found[-1].start, max(found[-1].stop, span.stop))
        else:
            found.append(span)
    return found


def _first(span: range) -> int:
    return span.start


def _span(text: str) -> range:
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)
