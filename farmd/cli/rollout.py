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
        "status": (f"{_SHOW}:status", "How far a rollout is, and what it waits for."),
        "explain": (f"{_SHOW}:explain", "The pods of both versions of a rollout."),
        "pause": (f"{_EDIT}:pause", "Stop a rollout where it is."),
        "resume": (f"{_EDIT}:resume", "Go on after a pause or a halt."),
        "approve": (f"{_EDIT}:approve", "Let the next stage begin."),
        "revert": (f"{_EDIT}:revert", "Go back to the old version."),
        "abort": (f"{_EDIT}:abort", "End a rollout where it is; both controllers stay."),
        "scale": (f"{_EDIT}:scale", "Change how many pods there are to be in the end."),
        "diff": (f"{_SHOW}:diff", "What a rollout changes: the pod, and by which policy."),
        "list": (f"{_KSVC}:list_", "All rollouts, of controllers or of Knative Services."),
        "plan": (f"{_KSVC}:plan", "The stages that a file of a Knative Service would go through."),
        "promote": (f"{_KSVC}:promote", "Bring a rollout of a Knative Service to its end in one stage."),
        "retry": (f"{_KSVC}:retry", "Try a revision of a Knative Service again that was reverted."),
        "history": (f"{_SHOW}:history", "The rollouts of a controller that are over."),
    },
    edited=False,
)
