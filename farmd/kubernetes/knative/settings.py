"""How fast a rollout goes, by ConfigMaps of Knative's namespace and annotations of the service: pure.

The settings are values, read anew for each service and each cycle, so that those of one service never reach
another one. A bad value in a ConfigMap blocks, because it is everybody's; a bad annotation is told to people,
and the ConfigMap's value stands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from farmd.kubernetes.knative.objects import KnativeService
from farmd.rollout.steps import AVAILABILITY_STRATEGY, RESOURCE_UTIL_STRATEGY
from store.errors import InputInvalid
from store.mistakes import shown

CONFIG, NETWORK = "config-rolloutorchestrator", "config-network"
DURATION = "rollout-duration"
NO_DURATION = "0"


@dataclass(frozen=True, slots=True)
class Settings:
    """``ratio`` percent of replicas and traffic move in a stage, which is overdue after ``timeout_minutes``.

    Not ``enabled``: all moves in one stage. A ``duration`` other than ``"0"`` lets Knative shift traffic by
    itself. A newcomer that makes no progress for ``progress_deadline`` seconds fails.
    """

    ratio: int = 10
    enabled: bool = True
    timeout_minutes: int = 2
    duration: str = NO_DURATION
    strategy: str = AVAILABILITY_STRATEGY
    progress_deadline: float = 600.0
    on_failure: Literal["revert", "pause"] = "revert"

    @property
    def timeout(self) -> float:
        """Seconds after which a stage is overdue."""
        return self.timeout_minutes * 60.0


def _whole(lowest: int, highest: int | None = None) -> Callable[[str], int]:
    def read(text: str) -> int:
        digits = text.strip()
        if not digits.isascii() or not digits.isdecimal() or int(digits) < lowest:
            raise ValueError(f"{lowest} to {highest}" if highest else f"a whole number of at least {lowest}")
        if highest is not None and int(digits) > highest:
            raise ValueError(f"{lowest} to {highest}")
        return int(digits)

    return read


def _flag(text: str) -> bool:
    words = {"1": True, "t": True, "true": True, "0": False, "f": False, "false": False}
    if (found := words.get(text.strip().lower())) is None:
        raise ValueError("true or false")
    return found


def _one_of(*words: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if (found := text.strip().lower()) not in words:
            raise ValueError(" or ".join(words))
        return found

    return read


# Keys of the ConfigMap, which are annotations of the template, too; and annotations that are farmd's own.
_KEYS: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "over-consumption-ratio": ("ratio", _whole(1, 100)),
    "progressive-rollout-enabled": ("enabled", _flag),
    "stage-rollout-timeout-minutes": ("timeout_minutes", _whole(1)),
    "progressive-rollout-strategy": ("strategy", _one_of(AVAILABILITY_STRATEGY, RESOURCE_UTIL_STRATEGY)),
}
_ANNOTATIONS = {f"rollout.knative.dev/{key}": reading for key, reading in _KEYS.items()} | {
    "rollout.farmd.io/progress-deadline": ("progress_deadline", _whole(1)),
    "rollout.farmd.io/on-failure": ("on_failure", _one_of("revert", "pause")),
}


def new_config(data: Mapping[str, str] | None, network: Mapping[str, str] | None = None) -> Settings:
    """The settings of all services (seed ``NewConfigFromConfigMapFunc``); None: there is no such ConfigMap.

    Raises:
        InputInvalid: a value is none, by its key.
    """
    found: dict[str, Any] = {}
    for key, (field, read) in _KEYS.items():
        if (text := (data or {}).get(key)) is None:
            continue
        try:
            found[field] = read(text)
        except ValueError as error:
            told = f"{CONFIG}: {key}: found {shown(text)}, expected {error}"
            raise InputInvalid(told, field=key) from error
    return Settings(**found, duration=(network or {}).get(DURATION, NO_DURATION).strip())


def load_config_from_service(base: Settings, service: KnativeService) -> tuple[Settings, tuple[str, ...]]:
    """The settings of one service, and what is wrong with its annotations.

    A service cannot opt out of a strategy that takes no more than there is today.
    """
    found, wrong = _annotated(service)
    if base.strategy == RESOURCE_UTIL_STRATEGY:
        found["strategy"] = RESOURCE_UTIL_STRATEGY
    duration = service.metadata.annotations.get(f"serving.knative.dev/{DURATION}", base.duration)
    told = tuple(f"{text}; {getattr(base, field)} stays in effect" for field, text in wrong.items())
    return replace(base, **found, duration=duration), told


def _annotated(service: KnativeService) -> tuple[dict[str, Any], dict[str, str]]:
    """What the template's annotations say, and what is wrong with the others, by the fields of settings."""
    found, wrong = dict[str, Any](), dict[str, str]()
    annotations = service.spec.template.metadata.annotations
    for key, (field, read) in _ANNOTATIONS.items():
        if (text := annotations.get(key)) is None:
            continue
        try:
            found[field] = read(text)
        except ValueError as error:
            wrong[field] = f"{key}: found {shown(text)}, expected {error}"
    return found, wrong


def misspelt(service: KnativeService) -> str:
    """The first thing that is wrong with a service's annotations; empty: nothing is."""
    _, wrong = _annotated(service)
    return next(iter(wrong.values()), "")
