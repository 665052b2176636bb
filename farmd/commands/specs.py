"""What files of all kinds that place pods have in common: checked whole before anything is written.

Each refusal is one line that names the file, the field, what was found and what was expected.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

from farmd import documents
from scheduler.constraints import check_placement
from scheduler.errors import PlacementInvalid
from store import manifest_check, selectors
from store.errors import InputInvalid
from store.families import reserved_labels
from store.keys import valid_name, valid_segment
from store.manifests import Manifest

MAX_REPLICAS = 100_000
MAX_SECONDS = 31 * 86_400.0


class Named(Protocol):
    """Any document of such a file."""

    @property
    def name(self) -> str:
        """What people call it."""


class Placing(Named, Protocol):
    """A document that places pods."""

    @property
    def pod(self) -> Manifest:
        """What to run."""

    @property
    def node_selector(self) -> str:
        """Where."""

    @property
    def labels(self) -> Mapping[str, str]:
        """Its own labels."""

    @property
    def pod_labels(self) -> Mapping[str, str]:
        """Labels of its pods."""

    @property
    def needs(self) -> list[str]:
        """Features that a farm must know."""


T = TypeVar("T", bound=Named)


def parse_all(text: str, source: str, parse: Callable[[Any, str], T]) -> list[tuple[str, T]]:
    """All documents of one file: (where each came from, the spec).

    Raises:
        InputInvalid: anything that does not fit, in any document; also one name twice.
    """
    found = [(where, parse(data, where)) for where, data in documents.parse(text, source)]
    names: dict[str, str] = {}
    for where, spec in found:
        if spec.name in names:
            raise InputInvalid(
                f"{where}: name: found {spec.name!r} again, expected each name once in a file", field="name"
            )
        names[spec.name] = where
    return found


def check_common(spec: Placing, source: str) -> None:
    """Check what types cannot say of the fields that all of them have.

    Raises:
        InputInvalid: naming the file, the field, what was found and what was expected.
    """
    valid_name(spec.name, f"{source}: name")
    manifest_check.check(spec.pod, source, "pod.")
    check_placement_of(spec.pod, source)
    selectors.valid_labels(spec.labels, f"{source}: labels")
    selectors.valid_labels(spec.pod_labels, f"{source}: pod_labels")
    if taken := reserved_labels() & spec.pod_labels.keys():
        raise InputInvalid(
            f"{source}: pod_labels: found {min(taken)!r}, expected labels other than farmd's own",
            field="pod_labels",
        )
    for feature in spec.needs:
        valid_segment(feature, f"{source}: needs")
    canonical_selector(spec.node_selector, f"{source}: node_selector")


def check_placement_of(pod: Manifest, source: str) -> None:
    """Check what the scheduler will make of the pod's placement block.

    Raises:
        InputInvalid: it cannot work; names the field.
    """
    try:
        check_placement(pod.placement, f"{source}: pod.placement")
    except PlacementInvalid as error:
        raise InputInvalid(error.message, **error.fields) from error


def check_count(value: int, field: str, lowest: int = 0) -> int:
    """Return a count that makes sense.

    Raises:
        InputInvalid: below ``lowest`` or absurdly high.
    """
    if not lowest <= value <= MAX_REPLICAS:
        raise InputInvalid(
            f"{field}: found {value}, expected a whole number from {lowest} to {MAX_REPLICAS}", field=field
        )
    return value


def check_seconds(value: float, field: str, lowest: float = 0.0) -> float:
    """Return a time that makes sense.

    Raises:
        InputInvalid: below ``lowest``, or longer than a month.
    """
    if not lowest <= value <= MAX_SECONDS:
        raise InputInvalid(
            f"{field}: found {value:g}, expected {lowest:g} to {MAX_SECONDS:g} seconds", field=field
        )
    return value


def canonical_selector(text: str, field: str) -> str:
    """A selector in its canonical form, so that equal ones are equal text.

    Raises:
        InputInvalid: naming the field and what the parser met.
    """
    try:
        return str(selectors.parse(text))
    except InputInvalid as error:
        raise InputInvalid(f"{field}: {error.message}", field=field) from error
