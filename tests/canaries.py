"""Every input of farmd that may hold a secret, each with a text of its own that must show up nowhere.

A canary is a secret that means nothing. ``CONFIGURATION`` has a row for each setting, ``SECRET_FIELDS`` and
``SHOWN_FIELDS`` each field of what people write, so that a new one without a row fails a test.
"""

from __future__ import annotations

from typing import Any

import msgspec

from store.manifests import File, Manifest, Secret
from store.services import Hook

PLAIN = ""
"""An input that holds no secret: everybody may see it."""


def canary(word: str) -> str:
    """A secret that is found by its beginning, whatever else is cut or added."""
    return f"canary{word}4x7q9z"


ADDRESS, FILE, VALUE, PEM = "address", "file", "value", "pem"
"""Where the secret lies: in the credentials of an address, a file that is named, the value, a private key."""

CONFIGURATION: dict[str, str] = {
    **dict.fromkeys(("farm.name", "farm.kinds", "farm.selector", "farm.ttl", "farm.lost_after"), PLAIN),
    **dict.fromkeys(
        ("farm.max_transfers", "farm.follow", "farm.drain", "scheduler.timeout", "scheduler.pause"), PLAIN
    ),
    "scheduler.url": ADDRESS,
    "scheduler.fallback": PLAIN,
    "scheduler.token_file": FILE,
    "rollouts.prometheus_url": ADDRESS,
    "rollouts.prometheus_token_file": FILE,
    "kubernetes.kubeconfig": FILE,
    **dict.fromkeys(("kubernetes.context", "kubernetes.name", "kubernetes.namespaces"), PLAIN),
    **dict.fromkeys(("kubernetes.jobs", "kubernetes.gang"), PLAIN),
    **dict.fromkeys(("kubernetes.init_image", "kubernetes.knative_namespace", "kubernetes.resync"), PLAIN),
    **dict.fromkeys(("housekeeping.interval", "housekeeping.manifest_age"), PLAIN),
    **dict.fromkeys(("housekeeping.audit_retention", "services.catalog"), PLAIN),
    **dict.fromkeys(("agent.node", "agent.state_dir", "agent.labels", "agent.port_range"), PLAIN),
    **dict.fromkeys(("agent.stop_workloads_on_exit", "agent.ttl", "agent.systemd"), PLAIN),
    "agent.engine": ADDRESS,
    "agent.registry_auth": FILE,
    **dict.fromkeys(("agent.image_retention", "agent.allow", "agent.signatures", "agent.trust"), PLAIN),
    **dict.fromkeys(("agent.artifact_max", "agent.artifact_max_unpacked", "agent.artifact_timeout"), PLAIN),
    **dict.fromkeys(("agent.artifact_retention", "agent.artifact_hosts", "agent.artifact_registries"), PLAIN),
    "agent.artifact_auth": FILE,
    "agent.artifact_ca": PLAIN,
    "agent.farm_ca": PLAIN,
    "agent.artifact_proxy": ADDRESS,
    "agent.secrets_dir": FILE,
    **dict.fromkeys(("agent.cgroup", "agent.pod_metrics", "agent.owner_metrics"), PLAIN),
    **dict.fromkeys(("agent.log_to", "agent.log_hosts", "agent.log_ca"), PLAIN),
    **dict.fromkeys(("agent.exec", "agent.exec_unsigned"), PLAIN),
    **dict.fromkeys(("agent.secret_identities", "agent.secret_folder"), PLAIN),  # the names of files
    **dict.fromkeys(("agent.user", "agent.share_user", "agent.deny_users"), PLAIN),
    **dict.fromkeys(("services.catalog", "services.register_members"), PLAIN),
    **dict.fromkeys(("store.address", "store.prefix"), PLAIN),  # an address with credentials is refused
    "store.session_node": PLAIN,
    "store.token_file": FILE,
    **dict.fromkeys(("log.level", "log.format"), PLAIN),
    **dict.fromkeys(("web.bind", "web.farm_port", "web.agent_port", "web.advertise", "web.read"), PLAIN),
    "web.metrics": PLAIN,
    "alerts.page": PLAIN,
    **dict.fromkeys(("web.tls_cert", "web.client_ca", "web.port_file"), PLAIN),
    "web.tls_key": PEM,
    "web.tokens": FILE,
    **dict.fromkeys(
        ("sinks.type", "sinks.name", "sinks.urgencies", "sinks.selector", "sinks.timeout"), PLAIN
    ),
    "alerts.sinks": PLAIN,  # its own keys have rows
    "sinks.url": ADDRESS,
    "sinks.secret": VALUE,
    "sinks.secret_file": FILE,
    "sinks.secret_env": VALUE,
}
"""Each key of the configuration; ``sinks.`` are those of ``[[alerts.sinks]]``."""

SECRET_FIELDS: dict[type, set[str]] = {
    Manifest: {"env"},
    Hook: {"env"},
    File: {"content", "template"},
    Secret: set(),
}
"""Of what people write, the fields whose values nobody is shown who only reads what farmd tells."""

SHOWN_FIELDS: dict[type, set[str]] = {
    Manifest: {
        *("artifacts", "sources", "secret_env", "sealed"),
        *("id", "runtime", "command", "args", "working_directory", "user", "ulimits", "ports", "health"),
        *("restart", "stop", "logs", "stop_after", "resources", "placement", "system", "container"),
        *("mounts", "volumes", "files", "secrets", "limits", "init", "after_stop", "sidecars"),
    },
    Hook: {"command", "privileged", "user", "timeout"},
    File: {"path", "uid", "gid", "mode", "encoding", "on_change", "splay"},
    Secret: {"name", "path", "uid", "gid", "mode", "secret"},
}


def fields(record: type[Any]) -> set[str]:
    """The names of a record's fields."""
    return {each.name for each in msgspec.structs.fields(record)}
