"""Names, labels and owner references of what a job creates in Kubernetes (Kubeflow's forms).

A name is fixed by the slot, so that a second creation of the same member meets the first one (409).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from farmd.jobs.facts import Slot
from farmd.kubernetes.jobs.protocols import ControllerInterface
from farmd.kubernetes.objects import Owned, OwnerReference

LONGEST_NAME = 63
ATTEMPT_ANNOTATION = "farmd.io/attempt"
TEMPLATE_ANNOTATION = "farmd.io/template"


def gen_general_name(job_name: str, replica_type: str, index: str) -> str:
    """The name of a slot's pod and service: ``bert-worker-1``."""
    return f"{job_name}-{replica_type.lower()}-{index}".replace("/", "-")


def gen_labels(controller: ControllerInterface, job_name: str) -> dict[str, str]:
    """The labels that all objects of a job bear: the selector of its members."""
    return {
        controller.get_group_name_label_key(): controller.get_group_name_label_value(),
        **job_selector(controller, job_name),
    }


def job_selector(controller: ControllerInterface, job_name: str) -> dict[str, str]:
    """What selects the pods of a job by its name alone."""
    return {controller.get_job_name_label_key(): job_name.replace("/", "-")}


def slot_labels(controller: ControllerInterface, job_name: str, slot: Slot) -> dict[str, str]:
    """The labels of one slot's objects."""
    return {
        **gen_labels(controller, job_name),
        controller.get_replica_type_label_key(): slot.type.lower(),
        controller.get_replica_index_label_key(): str(slot.index),
    }


def gen_owner_reference(controller: ControllerInterface, job: Owned) -> OwnerReference:
    """The reference by which the API server deletes an object with its job."""
    return OwnerReference(
        api_version=str(controller.get_api_group_version()),
        kind=controller.get_api_group_version_kind().kind,
        name=job.metadata.name,
        uid=job.metadata.uid,
        controller=True,
        block_owner_deletion=True,
    )


def job_key(job: Owned) -> str:
    """``namespace/name``; the name alone where there is no namespace."""
    namespace = job.metadata.namespace
    return f"{namespace}/{job.metadata.name}" if namespace else job.metadata.name


def too_long(job_name: str, types: dict[str, int]) -> str:
    """Why the names of a job's members would be refused; empty: they are not. ``types``: replicas by type."""
    for name, replicas in types.items():
        found = gen_general_name(job_name, name, str(max(0, replicas - 1)))
        if len(found) > LONGEST_NAME:
            room = LONGEST_NAME - (len(found) - len(job_name))
            expected = f"expected at most {room} beside type {name!r}"
            return f"metadata.name: found {len(job_name)} characters, {expected}"
    return ""


# The objects of a job by type and index, from their labels.

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
