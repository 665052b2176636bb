"""The objects of a job by type and index, from their labels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from farmd.jobs.objects import Owned
from farmd.jobs.ports import ControllerInterface

O = TypeVar("O", bound=Owned)  # noqa: E741
# No job has as many slots; a label above it is a mistake, and must not make a list of that length.
HIGHEST_INDEX = 100_000


def filter_for_replica_type(
    controller: ControllerInterface, found: Iterable[O], replica_type: str
) -> list[O]:
    """The objects of one type, in their order."""
    key = controller.get_replica_type_label_key()
    return [each for each in found if each.metadata.labels.get(key) == replica_type.lower()]


def index_of(controller: ControllerInterface, each: Owned) -> int | None:
    """The index of an object; None: its label is missing, no number, or above every index."""
    text = each.metadata.labels.get(controller.get_replica_index_label_key(), "")
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal()) or len(digits) > 6 or int(digits) > HIGHEST_INDEX:
        return None
    return int(text)


def slice_size(indexes: Iterable[int], replicas: int) -> int:
    """How many slices there are: one for each replica, and for each index beyond them up to the last."""
    return max([replicas, *(index + 1 for index in indexes)])


def get_slices(controller: ControllerInterface, found: Sequence[O], replicas: int) -> list[list[O]]:
    """The objects of one type by index; those with a negative index, or none that is usable, are left out."""
    indexed = [(index_of(controller, each), each) for each in found]
    usable = [(index, each) for index, each in indexed if index is not None and index >= 0]
    slices: list[list[O]] = [[] for _ in range(slice_size((index for index, _ in usable), replicas))]
    for index, each in usable:
        slices[index].append(each)
    return slices
