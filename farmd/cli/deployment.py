"""``farmctl deployment``: the commands of every noun that is read, and what people say while one lasts."""

from __future__ import annotations

from farmd.cli.groups import group

_WORDS = "farmd.cli.deploy"

deployment = group(
    "deployments",
    {
        "status": (f"{_WORDS}:status", "How far a deployment is, service by service."),
        "pause": (f"{_WORDS}:pause", "Stop a deployment where it is."),
        "resume": (f"{_WORDS}:resume", "Go on after a pause or a failure."),
        "rollback": (f"{_WORDS}:rollback", "Turn back to what the services were."),
    },
    edited=False,
)
