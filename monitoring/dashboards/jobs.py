"""Jobs and apps: do jobs come to their end, are bundles as their files say, and does Kubernetes answer."""

from __future__ import annotations

from monitoring.dashboards import common
from monitoring.dashboards.common import INSTANCE
from monitoring.dashboards.layout import dashboard
from monitoring.dashboards.panels import (
    NONE_IS_GOOD,
    RED,
    REQUESTS,
    SECONDS,
    YELLOW,
    Json,
    graph,
    query,
    stat,
    steps,
)

KINDS = ("jobs", "kubejobs", "schedules", "apps")


def jobs() -> Json:
    return dashboard(
        "farmd-jobs",
        "Jobs and apps",
        "Jobs in Consul and in Kubernetes, apps with their objects, and the API server that they need.",
        KINDS,
        ("Does a person have to act?", _now()),
        ("Do jobs complete?", (_job_states(), _restarts())),
        ("Do schedules create their jobs?", (_schedule_states(), _schedule_times())),
        ("Do apps match their files?", (_app_states(), _objects(), _waves(), common.cycle_time())),
        (
            "What is not converged, and why?",
            (common.blocked(), common.frozen(), common.cycles(), common.owned()),
        ),
        ("Is Kubernetes the cause? Empty without a cluster", (_answers(), _known(), _staleness())),
    )


def _now() -> tuple[Json, ...]:
    return (
        stat(
            "Jobs that failed",
            "Did a job give up? `farmctl job list` names it, `farmctl job logs NAME` shows why.",
            common.number("farmd_jobs", 'state="failed"'),
            thresholds=NONE_IS_GOOD,
            runbook="FarmdJobFailed",
        ),
        stat(
            "Waiting jobs",
            "Is capacity missing? `farmctl job explain NAME` shows each node's reason.",
            common.number("farmd_jobs", 'state="waiting"'),
            thresholds=steps((1, YELLOW)),
            runbook="FarmdJobWaits",
        ),
        stat(
            "Running jobs",
            "How many are in progress?",
            common.number("farmd_jobs", 'state=~"running|restarting"'),
        ),
        stat(
            "Apps whose revision failed",
            "Which bundle was not applied? `farmctl app list` shows why.",
            common.number("farmd_apps", 'state="failed"'),
            thresholds=NONE_IS_GOOD,
            runbook="FarmdAppFailed",
        ),
        stat(
            "Blocked apps",
            "Does an app need objects that it may not adopt? `farmctl app explain REF` names the owner.",
            common.number("farmd_apps", 'state="blocked"'),
            thresholds=NONE_IS_GOOD,
            runbook="FarmdBlocked",
        ),
        stat(
            "Apps in progress",
            "How many bundles are being applied or pruned?",
            common.number("farmd_apps", 'state=~"applying|sweeping|deleting"'),
        ),
    )


def _job_states() -> Json:
    return graph(
        "Jobs, by state",
        "Where are they? `farmctl job list -A` names each.",
        query(f"sum by (state) (farmd_jobs{{{INSTANCE}}})", "{{state}}"),
        stacked=True,
        runbook="FarmdJobFailed",
    )


def _restarts() -> Json:
    return graph(
        "Retried members, by cause",
        "Why do members end? `exit`: the program. `oom`: its memory limit. `lost`, `evicted`: the node.",
        query(common.increase("farmd_job_restarts_total", "cause"), "{{cause}}"),
        runbook="FarmdJobFailed",
    )


def _schedule_states() -> Json:
    return graph(
        "Schedules, by state",
        "Do jobs fail, run for too long, or were times missed? `farmctl schedule list` names each.",
        query(f"sum by (state) (farmd_schedules{{{INSTANCE}}})", "{{state}}"),
        stacked=True,
        runbook="FarmdScheduleFailing",
    )


def _schedule_times() -> Json:
    return graph(
        "Times of schedules, by result",
        "`start`: a job was created. `skip`: the previous one was still running. `miss`: no job was created.",
        query(common.increase("farmd_schedule_times_total", "result"), "{{result}}"),
        runbook="FarmdScheduleMissed",
    )


def _app_states() -> Json:
    return graph(
        "Apps, by state",
        "Where are they? `farmctl app list` names each.",
        query(f"sum by (state) (farmd_apps{{{INSTANCE}}})", "{{state}}"),
        stacked=True,
        runbook="FarmdAppFailed",
    )


def _objects() -> Json:
    return graph(
        "Changes of apps' objects",
        "What changed? Much `repair`: somebody else writes the same fields.",
        query(
            common.some(common.increase("farmd_app_objects_total", "backend, act"), "act"),
            "{{backend}} {{act}}",
        ),
        runbook="FarmdAppFailed",
    )


def _waves() -> Json:
    return graph(
        "Time until the objects of a wave were ready, median",
        "Do apps take longer than before?",
        query(common.quantile(0.5, "farmd_app_wave_duration_seconds", "result", INSTANCE), "{{result}}"),
        unit=SECONDS,
        runbook="FarmdAppFailed",
    )


def _answers() -> Json:
    return graph(
        "Answers of the API server",
        "Does Kubernetes refuse? 401 and 403: rights; 409: others write the same objects; 429 and 5xx: "
        "overload; none: no answer.",
        query(
            common.rate("farmd_kubernetes_requests_total", "code"),
            "{{code}}",
        ),
        unit=REQUESTS,
        runbook="FarmdKubernetesErrors",
    )


def _known() -> Json:
    return graph(
        "Objects that farms know, by resource",
        "Do farms see the cluster? A sudden fall to 0 means a lost permission or another cluster.",
        query(f"max by (resource) (farmd_informer_objects{{{INSTANCE}}})", "{{resource}}"),
        runbook="FarmdKubernetesSilent",
    )


def _staleness() -> Json:
    return graph(
        "Age of what farms know of Kubernetes",
        "Is a watch silent? `farmctl kubernetes status` and `farmctl doctor` show why.",
        query(
            f'max by (instance, watch) (farmd_watch_staleness_seconds{{{INSTANCE}, watch=~"kubernetes_.+"}})',
            "{{instance}} {{watch}}",
        ),
        unit=SECONDS,
        marks=True,
        thresholds=steps((120, YELLOW), (180, RED)),
        runbook="FarmdKubernetesSilent",
    )
