"""The groups of ``farmctl`` that have commands of their own, each with its table."""

from __future__ import annotations

import click

from farmd import cli
from farmd.cli.groups import Commands, LazyGroup, group


def _rc_commands() -> Commands:
    return {
        "scale": (lambda: cli.rc_edit.set_replicas, "Set the number of pods (set-replicas)."),
        "set-replicas": (lambda: cli.rc_edit.set_replicas, "The same."),
        "history": (lambda: cli.rollout_show.history, "Past rollouts of a controller."),
    }


rc: click.Group = group("rcs", _rc_commands)


def _rollout_commands() -> Commands:
    return {
        "create": (lambda: cli.rollout_edit.create, "Begin a rollout of a controller."),
        "status": (lambda: cli.rollout_show.status, "The progress of a rollout, and what it is waiting for."),
        "explain": (lambda: cli.rollout_show.explain, "The pods of both versions of a rollout."),
        "pause": (lambda: cli.rollout_edit.pause, "Stop a rollout where it is."),
        "resume": (lambda: cli.rollout_edit.resume, "Continue after a pause or a halt."),
        "approve": (lambda: cli.rollout_edit.approve, "Let the next stage begin."),
        "revert": (lambda: cli.rollout_edit.revert, "Go back to the old version."),
        "abort": (lambda: cli.rollout_edit.abort, "End a rollout where it is; both controllers stay."),
        "scale": (lambda: cli.rollout_edit.scale, "Change the final number of pods."),
        "diff": (lambda: cli.rollout_show.diff, "What a rollout changes in the pod, and its policy."),
        "list": (lambda: cli.rollout_ksvc.list_, "All rollouts, of controllers or of Knative Services."),
        "plan": (
            lambda: cli.rollout_ksvc.plan,
            "The stages that a file of a Knative Service would go through.",
        ),
        "promote": (lambda: cli.rollout_ksvc.promote, "Finish a rollout of a Knative Service in one stage."),
        "retry": (lambda: cli.rollout_ksvc.retry, "Retry a reverted revision of a Knative Service."),
        "history": (lambda: cli.rollout_show.history, "Past rollouts of a controller."),
    }


rollout: click.Group = group("rollouts", _rollout_commands, edited=False)


def _deployment_commands() -> Commands:
    return {
        "status": (lambda: cli.deploy.status, "The progress of a deployment, service by service."),
        "pause": (lambda: cli.deploy.pause, "Stop a deployment where it is."),
        "resume": (lambda: cli.deploy.resume, "Continue after a pause or a failure."),
        "rollback": (lambda: cli.deploy.rollback, "Roll the services back to what they were."),
    }


deployment: click.Group = group("deployments", _deployment_commands, edited=False)


def _job_commands() -> Commands:
    return {
        "run": (lambda: cli.job_run.run, "Run a job from a file."),
        "list": (lambda: cli.job_show.list_, "All jobs."),
        "get": (lambda: cli.job_show.get, "One job, also as a file."),
        "describe": (lambda: cli.job_show.describe, "One job with its members, owner and history."),
        "explain": (lambda: cli.job_show.explain, "Why each node does or does not get members of a job."),
        "pods": (lambda: cli.job_show.pods, "The pods of a job."),
        "logs": (lambda: cli.job_run.logs, "The output of a member of a job."),
        "stop": (lambda: cli.job_run.stop, "Remove a job's members until it is resumed."),
        "resume": (lambda: cli.job_run.resume, "Resume a job that was stopped."),
        "delete": (lambda: cli.job_run.delete, "Delete jobs, their members first."),
        "start": (lambda: cli.job_template.start, "Start a job of a template, once per key."),
        "template": (lambda: job_template, "Job templates: list, describe, create, change, delete."),
    }


job: click.Group = group("jobs", _job_commands, edited=False)


def _job_template_commands() -> Commands:
    return {
        "starts": (lambda: cli.job_template.starts, "The starts of a template, and their answers."),
        "explain": (lambda: cli.job_template.explain, "How to start a job of a template."),
    }


job_template: click.Group = group("jobtemplates", _job_template_commands)


def _schedule_commands() -> Commands:
    return {
        "run-now": (lambda: cli.schedule_words.run_now, "Create a job of a schedule now."),
        "pause": (lambda: cli.schedule_words.pause, "Create no more jobs until it is resumed."),
        "resume": (lambda: cli.schedule_words.resume, "Create jobs again."),
        "history": (lambda: cli.schedule_words.history, "The jobs of a schedule, and how they ended."),
        "explain": (lambda: cli.schedule_words.explain, "Why a schedule does or does not create a job."),
    }


schedule: click.Group = group("schedules", _schedule_commands)


def _app_commands() -> Commands:
    return {
        "list": (lambda: cli.app_show.list_, "All apps."),
        "get": (lambda: cli.app_show.get, "The documents of an app's revision, as a file."),
        "describe": (lambda: cli.app_show.describe, "One app with its objects."),
        "history": (lambda: cli.app_show.history, "The revisions that are kept, newest first."),
        "explain": (lambda: cli.app_show.explain, "Which app owns an object, and its state."),
        "rollback": (lambda: cli.app_edit.rollback, "Go back to an earlier revision."),
        "pause": (lambda: cli.app_edit.pause, "Keep the farms from touching an app's objects."),
        "resume": (lambda: cli.app_edit.resume, "Let the farms continue."),
        "release": (
            lambda: cli.app_edit.release,
            "Keep objects that are no longer in the files, without an owner.",
        ),
        "delete": (lambda: cli.app_edit.delete, "Delete an app with its objects."),
    }


app: click.Group = LazyGroup(
    "app", help="Apps: bundles of objects that farms apply, keep and prune together.", lazy=_app_commands
)


def _node_commands() -> Commands:
    return {
        "list": (lambda: cli.node_show.list_, "All nodes."),
        "describe": (lambda: cli.node_show.describe, "One node with its pods."),
        "register": (lambda: cli.node.register, "Register nodes before their agents start."),
        "label": (lambda: cli.node.label, "Set and remove labels."),
        "taint": (lambda: cli.node.taint, "Keep new pods off a node unless they tolerate it."),
        "untaint": (lambda: cli.node.untaint, "Remove taints of a node."),
        "capacity": (lambda: cli.node.capacity, "Set what the pods of a node may request in total."),
        "set": (lambda: cli.node.set_, "Set the address and the signature policy of a node."),
        "cordon": (lambda: cli.node.cordon, "Keep new pods away from a node."),
        "uncordon": (lambda: cli.node.uncordon, "Allow pods on a node again; ends its drain."),
        "drain": (lambda: cli.node.drain, "Move all pods off a node."),
        "undrain": (lambda: cli.node.undrain, "End a drain."),
        "token": (
            lambda: cli.token.node_token,
            "Create the Consul policy and token of a node's agent.",
        ),
        "forget": (lambda: cli.node.forget, "Forget nodes that are gone for good."),
    }


node: click.Group = LazyGroup(
    "node", help="Nodes: list, register, label, taint, cordon, drain, forget, tokens.", lazy=_node_commands
)


def _service_commands() -> Commands:
    return {
        "run": (lambda: cli.service_edit.run, "Deploy one service from an image."),
        "edit": (lambda: cli.service_edit.edit, "Change a deployed service in an editor."),
        "scale": (lambda: cli.service_edit.scale, "Change how many pods a service has."),
        "rollback": (lambda: cli.service_edit.rollback, "Roll a service back to a revision."),
        "create": (lambda: cli.service_edit.create, "Create a name for the pods that serve."),
        "catalog": (
            lambda: cli.service_edit.catalog,
            "Publish the pods in Consul's catalogue and DNS, or stop it.",
        ),
        "list": (lambda: cli.service_show.list_, "All services."),
        "get": (lambda: cli.service_show.get, "One service; -o yaml prints the file that apply takes."),
        "describe": (lambda: cli.service_show.describe, "One service with its endpoints and history."),
        "endpoints": (lambda: cli.service_show.endpoints, "Address and port of each pod that serves."),
        "pods": (lambda: cli.service_show.pods, "The pods of a service."),
        "history": (lambda: cli.service_show.history, "The revisions of a service."),
        "logs": (lambda: cli.service_show.logs, "The output of the pods of a service."),
        "explain": (lambda: cli.service_show.explain, "Why each node does or does not get its pods."),
        "delete": (
            lambda: cli.service_edit.delete,
            "Delete services; deployed ones together with their pods.",
        ),
    }


service: click.Group = LazyGroup(
    "service",
    help="Services: what was deployed, and names for the pods that serve, whichever controllers own them.",
    lazy=_service_commands,
)


def _pod_commands() -> Commands:
    return {
        "list": (lambda: cli.pod.list_, "Pods by labels or node."),
        "describe": (lambda: cli.pod.describe, "One pod, what it runs, and how its last starts ended."),
        "top": (lambda: cli.usage.top, "What pods use, those first that use most."),
        "logs": (lambda: cli.pod.logs, "The output of a pod."),
        "exec": (lambda: cli.pod_exec.exec_, "Run a command in a pod."),
        "cp": (lambda: cli.pod_copy.cp, "Copy files and folders to and from a pod."),
        "port-forward": (
            lambda: cli.pod_forward.port_forward,
            "A port of this machine that leads to a port of a pod.",
        ),
        "restart": (lambda: cli.pod.restart, "Restart pods where they are."),
    }


pod: click.Group = LazyGroup(
    "pod",
    help="Pods: list and describe them, read their logs, run commands in them, restart them.",
    lazy=_pod_commands,
)


def _volume_commands() -> Commands:
    return {
        "list": (lambda: cli.volumes.list_, "All volumes, and the nodes that have them."),
        "create": (lambda: cli.volumes.create, "Record that a node has a volume."),
        "delete": (lambda: cli.volumes.delete, "Forget volumes; their data is kept."),
    }


volume: click.Group = LazyGroup(
    "volume", help="Volumes: which node has the data of which volume.", lazy=_volume_commands
)
