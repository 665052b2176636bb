"""``farmctl rollout``: the commands of every noun that is read, and what people say while one lasts."""

from __future__ import annotations

from farmd.cli.groups import group

_EDIT = "farmd.cli.rollout_edit"
_SHOW = "farmd.cli.rollout_show"
_KSVC = "farmd.cli.rollout_ksvc"

rollout = group(
    "rollouts",
    {
        "create": (f"{_EDIT}:create", "Begin a rollout of a controller."),
        "status": (f"{_SHOW}:status", "The progress of a rollout, and what it is waiting for."),
        "explain": (f"{_SHOW}:explain", "The pods of both versions of a rollout."),
        "pause": (f"{_EDIT}:pause", "Stop a rollout where it is."),
        "resume": (f"{_EDIT}:resume", "Continue after a pause or a halt."),
        "approve": (f"{_EDIT}:approve", "Let the next stage begin."),
        "revert": (f"{_EDIT}:revert", "Go back to the old version."),
        "abort": (f"{_EDIT}:abort", "End a rollout where it is; both controllers stay."),
        "scale": (f"{_EDIT}:scale", "Change the final number of pods."),
        "diff": (f"{_SHOW}:diff", "What a rollout changes in the pod, and its policy."),
        "list": (f"{_KSVC}:list_", "All rollouts, of controllers or of Knative Services."),
        "plan": (f"{_KSVC}:plan", "The stages that a file of a Knative Service would go through."),
        "promote": (f"{_KSVC}:promote", "Finish a rollout of a Knative Service in one stage."),
        "retry": (f"{_KSVC}:retry", "Retry a reverted revision of a Knative Service."),
        "history": (f"{_SHOW}:history", "Past rollouts of a controller."),
    },
    edited=False,
)
