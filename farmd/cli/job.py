"""``farmctl job``: the commands of every noun that is read, and those of what runs to its end."""

from __future__ import annotations

from farmd.cli.groups import group

_RUN, _SHOW = "farmd.cli.job_run", "farmd.cli.job_show"

job = group(
    "jobs",
    {
        "run": (f"{_RUN}:run", "Run a job from a file."),
        "list": (f"{_SHOW}:list_", "All jobs."),
        "get": (f"{_SHOW}:get", "One job, also as a file."),
        "describe": (f"{_SHOW}:describe", "One job with its members, owner and history."),
        "explain": (f"{_SHOW}:explain", "Why each node does or does not get members of a job."),
        "pods": (f"{_SHOW}:pods", "The pods of a job."),
        "logs": ("farmd.cli.job_run:logs", "The output of a member of a job."),
        "stop": (f"{_RUN}:stop", "Remove a job's members until it is resumed."),
        "resume": (f"{_RUN}:resume", "Resume a job that was stopped."),
        "delete": (f"{_RUN}:delete", "Delete jobs, their members first."),
    },
    edited=False,
)
