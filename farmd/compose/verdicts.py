"""What becomes of each key of a compose file: supported, changed, warned of or refused, and why.

The keys are those of the specification's JSON schema; a test walks it and finds a verdict for each. A key
that it does not have is refused with the nearest one that it has. ``*`` stands for people's own names, ``[]``
for the entries of a list. Where the names in a mapping are people's, as in ``environment``, the walk ends.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from typing import Any, Literal

from farmd.commands.heads import APPLY
from store.errors import InputInvalid
from store.mistakes import nearest, shown

Kind = Literal["supported", "changed", "warned", "refused"]

_SUPPORTED = """
name services.* volumes.* networks.* configs.* secrets.*
volumes.*.name volumes.*.driver volumes.*.driver_opts volumes.*.external.name volumes.*.labels
networks.*.name networks.*.driver networks.*.external.name networks.*.internal
configs.*.content configs.*.environment configs.*.file configs.*.name configs.*.external.name
secrets.*.name secrets.*.external.name x-farmd.together x-farmd.prefix
image command entrypoint environment env_file env_file.[].path env_file.[].required env_file.[].format
tmpfs configs.[].source configs.[].target configs.[].uid configs.[].gid configs.[].mode
secrets.[].source secrets.[].target secrets.[].uid secrets.[].gid secrets.[].mode
volumes.[].type volumes.[].source volumes.[].target volumes.[].read_only volumes.[].bind.create_host_path
volumes.[].bind.propagation volumes.[].volume.nocopy volumes.[].volume.subpath
volumes.[].volume.labels volumes.[].tmpfs.size volumes.[].tmpfs.mode
healthcheck.disable healthcheck.test healthcheck.interval healthcheck.timeout healthcheck.retries
healthcheck.start_period depends_on.*.condition depends_on.*.required
networks.*.aliases network_mode dns dns_opt dns_search extra_hosts hostname user group_add working_dir init
privileged pid cap_add cap_drop sysctls devices.[].source devices.[].target devices.[].permissions
gpus.[].capabilities gpus.[].count gpus.[].device_ids gpus.[].driver gpus.[].options
ulimits.*.soft ulimits.*.hard read_only security_opt shm_size stop_signal stop_grace_period restart scale
cpus mem_limit mem_reservation pids_limit platform pull_policy labels logging.driver logging.options
profiles extends.file extends.service
deploy.mode deploy.replicas deploy.labels deploy.resources.limits.cpus deploy.resources.limits.memory
deploy.resources.limits.pids deploy.resources.reservations.cpus deploy.resources.reservations.memory
deploy.resources.reservations.devices.[].capabilities deploy.resources.reservations.devices.[].count
deploy.resources.reservations.devices.[].device_ids deploy.resources.reservations.devices.[].driver
deploy.resources.reservations.devices.[].options
deploy.restart_policy.condition deploy.restart_policy.delay
deploy.update_config.parallelism deploy.update_config.delay deploy.update_config.order
deploy.update_config.monitor deploy.update_config.failure_action
deploy.placement.constraints deploy.placement.preferences.[].spread deploy.placement.max_replicas_per_node
x-machines x-ports x-pre_deploy.command x-pre_deploy.environment x-pre_deploy.privileged x-pre_deploy.timeout
x-pre_deploy.user x-farmd.on_lost x-farmd.min_healthy_time x-farmd.unhealthy_after x-farmd.deadline
x-farmd.tolerations x-consul.name x-consul.tags x-consul.meta x-consul.canary_tags
"""
_CHANGED = {
    "ports.[].target": "published on each machine that runs a pod; unpublished: one of the agent's ports",
    "ports.[].published": "a port of each machine that runs a pod",
    "ports.[].host_ip": "an address of each machine that runs a pod, such as 127.0.0.1",
    "ports.[].protocol": "tcp or udp",
    "ports.[].mode": "host and ingress mean the same: on each machine that runs a pod",
    "top.networks.*.external": "a network of that name, created on each machine that lacks it;"
    " agent.allow must allow one that somebody else created",
    "top.secrets.*.file": "stored in Consul with the service, and only with --with-files",
    "top.secrets.*.environment": "stored in Consul with the service, and only with --with-files",
}
ENDLESS = "restarts are not limited; the time between them grows"
_WARNED = {
    "version": "no longer has a meaning",
    "container_name": "pods are named after their service",
    "build": "images are not built here; the image is pulled",
    "links": "names always work between the services of one project on one machine",
    "external_links": "names work only between the services of one project on one machine",
    "expose": "services of one network always reach each other's ports",
    "tty": "pods have no terminal",
    "stdin_open": "pods have no terminal",
    "attach": "the output is kept on the machine; farmctl service logs shows it",
    "mem_swappiness": "swap is configured on the machine",
    "memswap_limit": "swap is configured on the machine",
    "storage_opt": "the size of a container's layer is configured in the engine",
    "develop": "watching sources is a development feature",
    "annotations": "the engines here have labels",
    "cgroup_parent": "limits are set on each container",
    "label_file": "write the labels into the file",
    "pull_refresh_after": "each deploy asks the registry",
    "oom_score_adj": "set mem_limit",
    "oom_kill_disable": "set mem_limit",
    "cpu_shares": "set cpus",
    "cpu_quota": "set cpus",
    "cpu_period": "set cpus",
    "cpu_count": "set cpus",
    "cpu_percent": "set cpus",
    "cpu_rt_period": "set cpus",
    "cpu_rt_runtime": "set cpus",
    "cpuset": "set cpus",
    "blkio_config": "there are no limits for block devices",
    "isolation": "Linux has only one isolation",
    "umask": "set it in the command",
    "volumes.[].consistency": "has no meaning on Linux",
    "volumes.[].bind.recursive": "mounts below the folder are visible, too",
    "volumes.[].bind.selinux": "label the folder on the machine",
    "ports.[].name": "ports are named after their number",
    "ports.[].app_protocol": "has no meaning here",
    "depends_on.*.restart": "services heal on their own",
    "healthcheck.start_interval": "interval counts from the start",
    "networks.*.priority": "there is one network per project and machine",
    "networks.*.gw_priority": "there is one network per project and machine",
    "networks.*.interface_name": "there is one network per project and machine",
    "networks.*.driver_opts": "there is one network per project and machine",
    "networks.*.use_service_name_alias": "the service's name is always an alias",
    "deploy.endpoint_mode": "there is no virtual address",
    "deploy.rollback_config": "a rollback uses the settings of the update",
    "deploy.restart_policy.max_attempts": ENDLESS,
    "deploy.restart_policy.window": ENDLESS,
    "deploy.update_config.max_failure_ratio": "each failed pod counts",
    "top.networks.*.driver_opts": "there is one network per project and machine",
    "top.networks.*.ipam": "the engine chooses the addresses",
    "top.networks.*.enable_ipv4": "the network is the engine's",
    "top.networks.*.enable_ipv6": "the network is the engine's",
    "top.networks.*.attachable": "the network is the engine's",
    "top.networks.*.labels": "the network is the engine's",
    "top.configs.*.labels": "a config is a file of each service that lists it",
    "top.secrets.*.labels": "a secret is a file of the machine",
    "top.configs.*.template_driver": "the content is taken as it is",
    "top.secrets.*.template_driver": "the content is taken as it is",
}
_SECRET = "farmctl secret set NAME, and declare it external: true with name: secrets/NAME"
_REFUSED = {
    "provider": "a provider would run on the machine of the person who deploys",
    "models": "run the model as a service",
    "volumes_from": "name a volume that both mount",
    "ipc": "containers share no memory here",
    "uts": "containers have their own host name; set hostname",
    "userns_mode": "user namespaces are configured in the engine",
    "cgroup": "containers have their own control group",
    "credential_spec": "there are no Windows containers",
    "device_cgroup_rules": "list the devices under devices",
    "domainname": "put the domain into hostname",
    "mac_address": "addresses are assigned by the engine",
    "networks.*.ipv4_address": "addresses are assigned by the engine; use the service's name",
    "networks.*.ipv6_address": "addresses are assigned by the engine; use the service's name",
    "networks.*.link_local_ips": "addresses are assigned by the engine; use the service's name",
    "networks.*.mac_address": "addresses are assigned by the engine; use the service's name",
    "runtime": "the engine's runtime is configured on the machine",
    "use_api_socket": "a container does not get the engine's socket",
    "post_start": "run it in the image's own start, or in x-pre_deploy",
    "pre_start": "run it in the image's own start, or in x-pre_deploy",
    "pre_stop": "handle the stop signal in the image",
    "volumes.[].image": "copy the files into the image",
    "deploy.resources.reservations.generic_resources": "set a capacity of the machine, and reserve devices",
    "x-caddy": "a separate proxy serves host names",
    "x-farmd.together": "it applies to the whole file; set it in x-farmd at the top",
    "x-farmd.prefix": "it applies to the whole file; set it in x-farmd at the top",
    **{
        f"top.x-farmd.{key}": "it applies to one service; set it in the x-farmd of each"
        for key in ("on_lost", "min_healthy_time", "unhealthy_after", "deadline", "tolerations")
    },
    "top.include": "pass each file with -f",
    "top.models": "run the model as a service",
    "top.jobs": "services run for as long as they are deployed",
    "top.secrets.*.driver": _SECRET,
    "top.secrets.*.driver_opts": _SECRET,
}
EXTENSIONS = ("x-machines", "x-ports", "x-pre_deploy", "x-consul", "x-farmd")


@dataclass(slots=True)
class KeyRule:
    """A key: what becomes of it, and the keys within it. ``text``: why, and what to do."""

    kind: Kind = "supported"
    text: str = ""
    within: dict[str, KeyRule] = field(default_factory=dict)

    @property
    def ends(self) -> bool:
        """Whether the keys within it are people's own, or share its verdict."""
        return not self.within or self.kind in ("warned", "refused")


def _table() -> KeyRule:
    root = KeyRule()
    words = _SUPPORTED.split()
    top = words.index("image")
    for at, word in enumerate(words):
        _place(root, word if at < top else f"services.*.{word}", "supported", "")
    tables: list[tuple[Kind, dict[str, str]]] = [
        ("changed", _CHANGED),
        ("warned", {**_WARNED, "top.version": _WARNED["version"]}),
        ("refused", _REFUSED),
    ]
    for kind, keys in tables:
        for key, text in keys.items():
            if key != "version":
                path = key.removeprefix("top.") if key.startswith("top.") else f"services.*.{key}"
                _place(root, path, kind, text)
    return root


def _place(root: KeyRule, path: str, kind: Kind, text: str) -> None:
    node = root
    for part in path.split("."):
        node = node.within.setdefault(part, KeyRule())
    node.kind, node.text = kind, text


TABLE = _table()


def verdict(path: str) -> KeyRule | None:
    """The verdict of a key such as ``services.*.image``; None: there is no such key."""
    node = TABLE
    for part in path.split("."):
        if node is not TABLE and node.ends:
            return node
        if part == "[]" and "[]" not in node.within and "*" in node.within:
            continue  # a list of names stands for a mapping
        found = node.within.get(part)
        if found is None:
            return None
        node = found
    return node


def judge(document: dict[str, Any]) -> tuple[list[str], dict[str, Any]]:
    """The warnings of a document in its long forms, one line each, and the document without the keys that are
    ignored or have no value.

    Raises:
        InputInvalid: the first key that is refused or unknown.
    """
    services = document.get("services")
    if not isinstance(services, dict) or not services:
        others = {"pod", "types", "apiVersion"} & document.keys()
        hint = f"this is not a compose file: {APPLY}" if others else ""
        raise InputInvalid(f"services: found {shown(services)}, expected at least one service", hint=hint)
    warnings: list[str] = []
    judged = _judged(document, TABLE, "", warnings)
    for name, service in judged["services"].items():
        if "image" not in service:
            where = f"services.{name}.image"
            raise InputInvalid(f"{where}: missing, expected an image: farmd builds none", field=where)
    return warnings, judged


def _judged(value: Any, node: KeyRule, path: str, warnings: list[str]) -> Any:
    if isinstance(value, list) and "[]" in node.within:
        inner = node.within["[]"]
        return [_judged(each, inner, f"{path}[{at}]", warnings) for at, each in enumerate(value)]
    if not isinstance(value, dict) or (node is not TABLE and node.ends):
        return value
    if node.within.keys() == {"[]"}:
        raise InputInvalid(f"{path}: found a mapping, expected a list", field=path)
    kept = {}
    for key, each in value.items():
        here = f"{path}.{key}".lstrip(".")
        child = node.within.get(key) or node.within.get("*")
        if child is None and key.startswith("x-"):
            warnings += _extension(key, here)
        elif child is None:
            known = sorted(name for name in node.within if name not in ("*", "[]"))
            raise InputInvalid(f"{here}: unknown key{nearest(key, known)}", field=here)
        elif each is None and key in node.within:
            continue
        elif child.kind == "refused":
            if each is not False:
                raise InputInvalid(f"{here}: is not supported: {child.text}", field=here)
        elif child.kind == "warned":
            warnings.append(f"{here} is ignored: {child.text}")
        else:
            kept[key] = _judged(each, child, here, warnings)
    return kept


def _extension(key: str, here: str) -> list[str]:
    """What to say of an extension that has no meaning where it stands: others than ours are people's own."""
    if key in EXTENSIONS:
        raise InputInvalid(f"{here}: found it here, expected it in a service", field=here)
    near = difflib.get_close_matches(key, EXTENSIONS, n=1, cutoff=0.8)
    return [f"{here} is ignored: did you mean {near[0]!r}?"] if near else []
