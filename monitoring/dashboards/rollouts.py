"""Rollouts and deployments: which are under way, what they wait for, and whether versions fail."""

from __future__ import annotations

from monitoring.dashboards import common
from monitoring.dashboards.common import INSTANCE
from monitoring.dashboards.layout import dashboard
from monitoring.dashboards.panels import (
    NONE_IS_GOOD,
    RED,
    SECONDS,
    SHARE,
    YELLOW,
    Json,
    graph,
    query,
    stat,
    steps,
)

KINDS = ("rollouts", "deployments", "progressive")


def rollouts() -> Json:
    return dashboard(
        "farmd-rollouts",
        "Rollouts and deployments",
        "New versions in progress: rollouts of controllers and of Knative Services, and deployments of "
        "services.",
        KINDS,
        ("Does a person have to act?", _now()),
        ("What is under way?", (_phases(), _states(), _moves(), _operations())),
        ("Do versions fail?", (_steps(), _endings(), _gates(), _silence())),
        (
            "What is not converged, and why?",
            (common.blocked(), common.frozen(), common.cycles(), common.owned()),
        ),
    )


def _now() -> tuple[Json, ...]:
    return (
        stat(
            "Halted rollouts",
            "Did a version fail, or does its floor hold it? `farmctl rollout list` shows why; resume, "
            "revert or abort.",
            common.number("farmd_rollouts", 'phase="halted"'),
            thresholds=NONE_IS_GOOD,
            runbook="FarmdRolloutHalted",
        ),
        stat(
            "Reverting rollouts",
            "Is a bad version being reverted? `farmctl rollout status NAME` shows the reason.",
            common.number("farmd_rollouts", 'phase="back"'),
            thresholds=steps((1, YELLOW)),
            runbook="FarmdRolloutHalted",
        ),
        stat(
            "Waiting rollouts",
            "Is one between stages, or unapproved? `farmctl rollout approve NAME` lets the next stage begin.",
            common.number("farmd_rollouts", 'phase=~"pending|baking|paused"'),
            thresholds=steps((1, YELLOW)),
            runbook="FarmdRolloutWaits",
        ),
        stat(
            "Halted deployments",
            "Did a service fail? `farmctl deployment status ID` shows why; resume or roll back.",
            common.number("farmd_deployments", 'state="halted"'),
            thresholds=NONE_IS_GOOD,
            runbook="FarmdDeploymentHalted",
        ),
        stat(
            "Deployments rolling back",
            "Is a release being rolled back? `farmctl service history NAME` shows the reason.",
            common.number("farmd_deployments", 'state="back"'),
            thresholds=steps((1, YELLOW)),
            runbook="FarmdDeploymentHalted",
        ),
        stat(
            "Waiting deployments",
            "Is one paused, or not begun? `farmctl deployment list` shows them.",
            common.number("farmd_deployments", 'state=~"draft|pending|paused"'),
            thresholds=steps((1, YELLOW)),
            runbook="FarmdDeploymentWaits",
        ),
    )


def _phases() -> Json:
    return graph(
        "Rollouts, by target and phase",
        "Where are they? `rc`: of controllers, `ksvc`: of Knative Services. `farmctl rollout list` "
        "names each.",
        query(
            common.some(f"sum by (target, phase) (farmd_rollouts{{{INSTANCE}}})", "phase"),
            "{{target}} {{phase}}",
        ),
        stacked=True,
        runbook="FarmdRolloutHalted",
    )


def _states() -> Json:
    return graph(
        "Deployments, by state",
        "Where are they? `farmctl deployment list` names each with its services.",
        query(f"sum by (state) (farmd_deployments{{{INSTANCE}}})", "{{state}}"),
        stacked=True,
        runbook="FarmdDeploymentHalted",
    )


def _moves() -> Json:
    return graph(
        "Pods that rollouts moved",
        "Do rollouts get on? `grow` and `drop` go forward; much `refill` or `restore`: pods die while "
        "they roll.",
        query(common.increase("farmd_rollout_moves_total", "way"), "{{way}}"),
        runbook="FarmdRolloutHalted",
    )


def _operations() -> Json:
    return graph(
        "Steps of deployments",
        "Do deployments make progress? `refused`: planned again, because something had changed.",
        query(
            common.some(common.increase("farmd_deployment_operations_total", "op, result"), "op"),
            "{{op}} {{result}}",
        ),
        runbook="FarmdDeploymentHalted",
    )


def _steps() -> Json:
    return graph(
        "Stages of rollouts, by how they ended",
        "Do versions pass? `reverted` and `failed` name versions that did not; the audit log shows which.",
        query(
            common.increase("farmd_rollout_step_duration_seconds_count", "result"),
            "{{result}}",
        ),
        runbook="FarmdRolloutHalted",
    )


def _endings() -> Json:
    return graph(
        "Time from the submission of a deployment to its end, median",
        "Do deployments take longer than before?",
        query(common.quantile(0.5, "farmd_deployment_duration_seconds", "result", INSTANCE), "{{result}}"),
        unit=SECONDS,
        runbook="FarmdDeploymentHalted",
    )


def _gates() -> Json:
    return graph(
        "Answers of gates",
        "What holds a rollout up? `fail`: the version is bad. `none`: the gate's server does not answer.",
        query(common.increase("farmd_rollout_gate_answers_total", "type, result"), "{{type}} {{result}}"),
        runbook="FarmdGatesSilent",
    )


def _silence() -> Json:
    none = common.increase("farmd_rollout_gate_answers_total", "type", f'{INSTANCE}, result="none"')
    return graph(
        "Share of gates' answers without data",
        "Do gates have data at all? A rollout waits for a gate without data, and halts at its deadline.",
        query(
            f"{none} / ({common.increase('farmd_rollout_gate_answers_total', 'type')} > 0) "
            f"or sum by (type) (farmd_rollout_gate_answers_total) * 0",
            "{{type}}",
        ),
        unit=SHARE,
        marks=True,
        thresholds=steps((0.2, YELLOW), (0.5, RED)),
        runbook="FarmdGatesSilent",
    )
