"""``farmctl schedule``: the commands of every noun that people create, and those of times."""

from __future__ import annotations

from farmd.cli.groups import group

_WORDS = "farmd.cli.schedule_words"

schedule = group(
    "schedules",
    {
        "run-now": (f"{_WORDS}:run_now", "Create a job of a schedule now."),
        "pause": (f"{_WORDS}:pause", "Create no more jobs until it is resumed."),
        "resume": (f"{_WORDS}:resume", "Create jobs again."),
        "history": (f"{_WORDS}:history", "The jobs of a schedule, and how they ended."),
        "explain": (f"{_WORDS}:explain", "Why a schedule does or does not create a job."),
    },
)
