"""Jobs: indexed members that each end well once, on the nodes of farmd or in Kubernetes (Kubeflow's job
controller).

Both backends share the plan, which is pure: ``plan.py`` with ``members.py`` and ``progress.py``, over the
types of ``facts.py``. Jobs on nodes stand on the frame: ``reader.py``, ``placing.py``, ``writes.py`` and
``worker.py`` are theirs. Jobs in Kubernetes are in ``farmd.kubernetes.jobs``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import farmd
from farmd import submodules
from farmd.declaration import KindOfWork

if TYPE_CHECKING:
    import farmd.cli.nouns
    import farmd.jobs.commands
    import farmd.jobs.kind
    import farmd.jobs.metrics
    import farmd.jobs.placing
    import farmd.jobs.waiting
    import farmd.tables.jobs
else:
    __getattr__ = submodules(__name__)

DECLARATION = KindOfWork(
    family="jobs",
    one="job",
    many="jobs",
    noun="job",
    title="Jobs: run members to completion, in arrays or gangs, with retries.",
    first="farmctl job run -f FILE",
    instead="run it under another name (--name), or delete the existing one first",
    bundle_order=3,
    runbooks=(("FarmdJob", "FarmdJobWaits"),),
    features=("jobs.1",),
    owns_pods=True,
    selectable=True,
    guarded=True,
    runs=lambda: farmd.jobs.kind.Jobs,
    asked=lambda: farmd.jobs.commands.JOB,
    group=lambda: farmd.cli.nouns.job,
    acts=lambda: {"stop": farmd.jobs.commands.stop, "resume": farmd.jobs.commands.resume},
    besides=lambda: farmd.tables.jobs.besides,
    requests=lambda: farmd.jobs.placing.requests,
    ended=lambda: farmd.jobs.waiting.end,
    metrics=lambda: farmd.jobs.metrics.METRICS,
)
