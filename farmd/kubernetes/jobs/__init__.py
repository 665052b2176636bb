"""Jobs in Kubernetes: custom resources that farms work off as pods and services (Kubeflow's job controller).

``controller.py`` is the engine, with ``names.py`` and ``adoption.py``. ``kindfile.py`` and ``resource.py``
read kinds and resources, ``facts.py`` and ``pods.py`` their objects; ``bodies.py`` and ``podgroups.py``
make new ones, ``report.py`` the status. The plan is that of ``farmd.jobs``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from farmd.declaration import KindOfWork

if TYPE_CHECKING:
    from farmd.work.kind import Kind


class KubeJobKind(KindOfWork):
    """Jobs in Kubernetes."""

    family = "kubejobs"
    one, many = "job in Kubernetes", "jobs in Kubernetes"
    outside = "kubernetes"
    guarded = True
    health_matters = False  # of pods on nodes; it says nothing of those in Kubernetes

    def runs(self) -> type[Kind]:
        from farmd.kubernetes.jobs.kind import KubeJobs

        return KubeJobs
