"""The object that stands for a gang where a scheduler reads disruption budgets (kube-batch's first form)."""

from __future__ import annotations

from typing import Any

import msgspec

from farmd.jobs.names import gen_labels, gen_owner_reference, job_selector
from farmd.jobs.objects import Budget, Owned
from farmd.jobs.ports import BudgetControl, ControllerInterface


async def sync_pdb(
    controller: ControllerInterface, control: BudgetControl, job: Owned, min_available: int
) -> Budget:
    """The budget of a job's gang, created if it is not there; an existing one is returned as it is.

    Raises:
        ApiFailed: the API server did not tell, or refused.
    """
    namespace, name = job.metadata.namespace, job.metadata.name
    found = await control.get_budget(namespace, name)
    if found is not None:
        return found
    return await control.create_budget(namespace, budget_body(controller, job, min_available))


async def delete_pdb(control: BudgetControl, job: Owned) -> None:
    """Delete the budget of a job's gang; none is fine.

    Raises:
        ApiFailed: the API server did not tell, or refused.
    """
    if await control.get_budget(job.metadata.namespace, job.metadata.name) is not None:
        await control.delete_budget(job.metadata.namespace, job.metadata.name)


def budget_body(controller: ControllerInterface, job: Owned, min_available: int) -> dict[str, Any]:
    """The budget that keeps that many members of a job; it selects them by the job's name alone."""
    owner = gen_owner_reference(controller, job)
    selector = job_selector(controller, job.metadata.name)
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {
            "name": job.metadata.name,
            "labels": gen_labels(controller, job.metadata.name),
            "ownerReferences": [msgspec.to_builtins(owner)],
        },
        "spec": {"minAvailable": min_available, "selector": {"matchLabels": selector}},
    }
