"""Settings of Knative under which a stage cannot reach its goal, or takes more pods than it says: pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from farmd.kubernetes.progressive.objects import KnativeService
from farmd.kubernetes.progressive.settings import DURATION, NETWORK, NO_DURATION
from store.mistakes import shown

AUTOSCALER = "config-autoscaler"
_SERVING, _SCALING = "serving.knative.dev/", "autoscaling.knative.dev/"
_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001, "us": 1e-6, "ns": 1e-9}
_PART = r"(\d+(?:\.\d*)?|\.\d+)(h|ms|us|ns|m|s)"
_LONGEST = 64
"""A duration is much shorter, and a text that people wrote may be a megabyte."""
_SHIFTS = "Knative moves traffic by itself, before the pods of a stage are there"
_MORE = "a new revision begins with so many pods, whatever its stage says"
_LONG = "the last pod of a revision that shrinks stays longer than a stage may take"


class Defeat(NamedTuple):
    """A key with what was found, what is expected in its place, and why."""

    key: str
    found: str
    expected: str
    why: str


def seconds(text: str) -> float:
    """A duration as Knative writes it, such as ``1h30m``; 0 where it is none."""
    if len(text) > _LONGEST or re.fullmatch(f"({_PART})+", text) is None:
        return 0.0
    return sum(float(count) * _UNITS[unit] for count, unit in re.findall(_PART, text))


def of_cluster(
    autoscaler: Mapping[str, str], network: Mapping[str, str], longest: float
) -> Iterator[tuple[str, Defeat]]:
    """Of the ConfigMaps, each with its name; ``longest``: seconds that a stage may make no progress."""
    key = "enable-scale-to-zero"
    if (found := autoscaler.get(key, "true")).strip().lower() == "false":
        why = "the last pod of a revision that shrinks never goes, so the last stage never ends"
        yield AUTOSCALER, Defeat(key, found, "true", why)
    key = "min-scale"
    if _number(found := autoscaler.get(key, "0")) > 0:
        why = "revisions without an annotation keep so many pods, which no stage lowers"
        yield AUTOSCALER, Defeat(key, found, "0, and the annotation of that name on templates", why)
    yield from ((AUTOSCALER, each) for each in _alike(autoscaler, "", longest))
    if (found := network.get(DURATION, NO_DURATION)).strip() != NO_DURATION:
        yield NETWORK, Defeat(DURATION, found, NO_DURATION, _SHIFTS)


def of_service(service: KnativeService, longest: float) -> Iterator[Defeat]:
    """Of one service's own annotations."""
    yield from _alike(service.spec.template.metadata.annotations, _SCALING, longest)
    found = service.metadata.annotations.get(_SERVING + DURATION, NO_DURATION)
    if found.strip() != NO_DURATION:
        yield Defeat(_SERVING + DURATION, found, NO_DURATION, _SHIFTS)


def _alike(texts: Mapping[str, str], prefix: str, longest: float) -> Iterator[Defeat]:
    """What a ConfigMap and a template say by keys of the same name."""
    key = f"{prefix}initial-scale"
    if _number(found := texts.get(key, "1")) > 1:
        yield Defeat(key, found, "1", _MORE)
    key = f"{prefix}scale-to-zero-pod-retention-period"
    if seconds(found := texts.get(key, "0s")) >= longest:
        yield Defeat(key, found, f"less than {longest:g}s", _LONG)


def told(defeat: Defeat) -> str:
    """For people."""
    return f"{defeat.key}: found {shown(defeat.found)}, expected {defeat.expected}: {defeat.why}"


def _number(text: str) -> int:
    return int(text) if len(text) <= _LONGEST and text.strip().isdecimal() else 0
