"""Progressive rollouts of Knative Services: stages that move replicas and traffic."""

from __future__ import annotations

from typing import TYPE_CHECKING

import farmd
from farmd import submodules
from farmd.declaration import KindOfWork

if TYPE_CHECKING:
    import farmd.kubernetes.knative.faults
    import farmd.kubernetes.knative.kind
else:
    __getattr__ = submodules(__name__)

DECLARATION = KindOfWork(
    family="progressive",
    one="rollout of a Knative Service",
    many="rollouts of Knative Services",
    outside="kubernetes",
    shown="farmctl rollout explain",
    selectable=True,
    guarded=True,
    health_matters=False,  # of pods on nodes; it says nothing of those in Kubernetes
    runs=lambda: farmd.kubernetes.knative.kind.Progressive,
    examined=lambda: farmd.kubernetes.knative.faults.examine,
)
