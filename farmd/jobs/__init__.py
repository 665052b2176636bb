"""Jobs: indexed members that each end well once, on the nodes of farmd or in Kubernetes (Kubeflow's job
controller).

Both backends share the plan, which is pure: ``plan.py`` with ``members.py`` and ``progress.py``, over the
types of ``facts.py``. Jobs on nodes stand on the frame: ``reader.py``, ``placing.py``, ``writes.py`` and
``worker.py`` are theirs. Jobs in Kubernetes are in ``farmd.kubernetes.jobs``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from farmd.declaration import KindOfWork

if TYPE_CHECKING:
    from collections.abc import Mapping

    import click

    from farmd.commands.noun import Noun
    from farmd.declaration import Act, Besides, Ended, Requests
    from farmd.observe.metrics import Metric
    from farmd.work.kind import Kind


class JobKind(KindOfWork):
    """Jobs on nodes."""

    family = "jobs"
    one, many, noun = "job", "jobs", "job"
    title = "Jobs: run members to completion, in arrays or gangs, with retries."
    first = "farmctl job run -f FILE"
    bundle_order = 3
    runbooks = (("FarmdJob", "FarmdJobWaits"),)
    features = ("jobs.1",)
    owns_pods = selectable = guarded = True

    def runs(self) -> type[Kind]:
        from farmd.jobs.kind import Jobs

        return Jobs

    def asked(self) -> Noun[Any, Any]:
        from farmd.jobs.commands import JOB

        return JOB

    def group(self) -> click.Group:
        from farmd.cli.nouns import job

        return job

    def acts(self) -> Mapping[str, Act]:
        from farmd.jobs.commands import resume, stop

        return {"stop": stop, "resume": resume}

    def besides(self) -> Besides:
        from farmd.tables.jobs import besides

        return besides

    def requests(self) -> Requests:
        from farmd.jobs.placing import requests

        return requests

    def ended(self) -> Ended:
        from farmd.jobs.waiting import end

        return end

    def metrics(self) -> tuple[Metric, ...]:
        from farmd.jobs.metrics import METRICS

        return METRICS
