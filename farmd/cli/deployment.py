"""``farmctl deployment``: the commands of every noun that is read, and what people say while one lasts."""

from __future__ import annotations

from farmd.cli.groups import group

_WORDS = "farmd.cli.deploy"

deployment = group(
    "deployments",
    {
        "status": (f"{_WORDS}:status", "The progress of a deployment, service by service."),
        "pause": (f"{_WORDS}:pause", "Stop a deployment where it is."),
        "resume": (f"{_WORDS}:resume", "Continue after a pause or a failure."),
        "rollback": (f"{_WORDS}:rollback", "Roll the services back to what they were."),
    },
    edited=False,
)
