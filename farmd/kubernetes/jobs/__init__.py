"""Jobs in Kubernetes: custom resources that farms work off as pods and services (Kubeflow's job controller).

``controller.py`` is the engine, with ``names.py`` and ``adoption.py``. ``kindfile.py`` and ``resource.py``
read kinds and resources, ``facts.py`` and ``pods.py`` their objects; ``bodies.py`` and ``podgroups.py``
make new ones, ``report.py`` the status. The plan is that of ``farmd.jobs``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import farmd
from farmd import submodules
from farmd.declaration import KindOfWork

if TYPE_CHECKING:
    import farmd.kubernetes.jobs.kind
else:
    __getattr__ = submodules(__name__)

DECLARATION = KindOfWork(
    family="kubejobs",
    one="job in Kubernetes",
    many="jobs in Kubernetes",
    outside="kubernetes",
    guarded=True,
    health_matters=False,  # of pods on nodes; it says nothing of those in Kubernetes
    runs=lambda: farmd.kubernetes.jobs.kind.KubeJobs,
)
