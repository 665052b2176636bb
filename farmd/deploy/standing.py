"""The services that stand and their pods, as a plan of a deployment sees them."""

from __future__ import annotations

from dataclasses import dataclass

from farmd.deploy.model import ServiceSpec
from store.pods import Place
from store.services import Mode


@dataclass(frozen=True, slots=True, kw_only=True)
class ServicePod:
    """One pod of a service. ``spec``: what it was placed for; None if nobody can read that.

    ``running``: nobody says that it ended, or it is ``done`` for good and well. ``failing``: it runs and does
    not pass. ``available``: as ``farmd.pods.state`` has it. ``mine``: placed by the deployment that plans,
    on its present turn; then it is ``proven``, has ``failed`` for a reason, or has yet to show which
    (``farmd.deploy.gate``); ``refused`` is why its agent does not start it.
    """

    place: Place
    spec: ServiceSpec | None
    running: bool = True
    done: bool = False
    failing: bool = False
    mine: bool = False
    available: bool = False
    proven: bool = False
    failed: str = ""
    refused: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StandingService:
    """A service that stands, and all of its pods."""

    id: str
    name: str
    mode: Mode = "replicated"
    containers: tuple[ServicePod, ...] = ()
