"""What a rollout's policy must say whatever the number of pods: each refusal is one line.

It is checked where a person writes it, in the file of a controller, and once more where a rollout begins.
"""

from __future__ import annotations

from itertools import pairwise

from farmd.commands.specs import check_seconds
from store.errors import refuse
from store.policies import Policy, check_gates, staged

MOST_STAGES = 20
_TIMES = ("progress_deadline", "deadline", "keep_old")


def check_policy(policy: Policy, path: str) -> None:
    """Refuse a policy that no rollout could go by; ``path`` is the field that has it.

    Raises:
        InputInvalid: naming the field, what was found and what was expected.
    """
    for name in _TIMES:
        check_seconds(getattr(policy, name), f"{path}.{name}")
    if policy.min_healthy_time is not None:
        check_seconds(policy.min_healthy_time, f"{path}.min_healthy_time")
    if policy.health_deadline is not None and policy.health_deadline > policy.progress_deadline:
        expected = f"at most progress_deadline, which is {policy.progress_deadline:g} s"
        refuse(f"{path}.health_deadline", f"{policy.health_deadline:g} s", expected)
    if policy.ratio is not None and policy.stages:
        refuse(f"{path}.ratio", f"{policy.ratio} beside stages", "one of both")
    _check_stages(policy, path)
    check_gates(policy, path)


def _check_stages(policy: Policy, path: str) -> None:
    stages = [staged(stage) for stage in policy.stages]
    if len(stages) > MOST_STAGES:
        refuse(f"{path}.stages", f"{len(stages)}", f"at most {MOST_STAGES}")
    for number, stage in enumerate(stages):
        check_seconds(stage.bake, f"{path}.stages[{number}].bake")
    for number, (before, after) in enumerate(pairwise(stage.to for stage in stages), 1):
        if type(before) is type(after) and _size(after) < _size(before):
            refuse(f"{path}.stages[{number}].to", f"{after} after {before}", "a rising number of replicas")
    if stages and isinstance(stages[-1].to, str) and stages[-1].to != "100%":
        refuse(f"{path}.stages[{len(stages) - 1}].to", stages[-1].to, "100%, which is all")
    rests = sum(stage.bake for stage in stages) + policy.keep_old * (policy.strategy == "blue-green")
    if 0 < policy.deadline < rests:
        found = f"{policy.deadline:g} s, and {rests:g} s of rests"
        refuse(f"{path}.deadline", found, "more than all rests together")


def _size(part: int | str) -> int:
    return part if isinstance(part, int) else int(part.removesuffix("%"))
