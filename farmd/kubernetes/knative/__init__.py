"""Progressive rollouts of Knative Services: stages that move replicas and traffic."""

from __future__ import annotations

from typing import TYPE_CHECKING

from farmd.declaration import KindOfWork

if TYPE_CHECKING:
    from farmd.declaration import Examine
    from farmd.work.kind import Kind


class KnativeKind(KindOfWork):
    """Rollouts of Knative Services."""

    family = "progressive"
    one, many = "rollout of a Knative Service", "rollouts of Knative Services"
    outside = "kubernetes"
    shown = "farmctl rollout explain"
    selectable = guarded = True
    health_matters = False  # of pods on nodes; it says nothing of those in Kubernetes

    def runs(self) -> type[Kind]:
        from farmd.kubernetes.knative.kind import Progressive

        return Progressive

    def examined(self) -> Examine:
        from farmd.kubernetes.knative.faults import examine

        return examine
