"""A job's record in Consul as the plan sees it, which knows no manifests and no labels."""

from __future__ import annotations

from farmd.jobs.model import JobSpec, ReplicaType
from store.jobs import Job


def described(job: Job) -> JobSpec:
    """A job's record in Consul as the plan sees it."""
    types = (
        ReplicaType(
            name=each.name, replicas=each.replicas, parallelism=each.parallelism, restart=each.restart
        )
        for each in job.types
    )
    return JobSpec(
        id=job.id,
        name=job.name,
        types=tuple(types),
        gang=job.gang,
        peers=job.peers,
        success=job.success,
        rules=tuple(job.rules),
        backoff_limit=job.backoff_limit,
        active_deadline=job.active_deadline,
        ttl=job.ttl,
        clean=job.clean,
        restart_scope=job.restart_scope,
        on_lost=job.on_lost,
        gang_timeout=job.gang_timeout,
        suspend=job.suspend,
        deleting=job.deleting,
    )
