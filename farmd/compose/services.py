"""A service of a compose document as farmd's own spec.

It reads only the document and the files that the document names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeVar

from farmd.compose import schema
from farmd.compose.files import ProjectContext, configs_of, environment, mounts_of, secrets_of
from farmd.compose.scalars import count, refuse, size, word, words
from farmd.compose.verdicts import ENDLESS
from farmd.deploy import spec as deploy_spec
from farmd.deploy.spec import (
    LOG_DRIVER,
    ContainerSpec,
    LogDriver,
    Placement,
    PortSpec,
    Resources,
    ServiceSpec,
)
from store import log_destinations
from store.catalog import mistake
from store.containers import Device, DeviceReservation, Ulimit
from store.errors import InputInvalid
from store.manifests import Constraint, HealthCheck, Restart, Spread, Stop
from store.mistakes import nearest, shown
from store.services import Catalog, Hook, UpdateConfig

# What a compose service takes of its machines, and which machines it may use.

T = TypeVar("T")
_RULE = re.compile(r"\s*([^\s=!]+)\s*(==|!=)\s*(\S.*?)\s*")
_LABELS = {"node.hostname": "hostname", "node.platform.os": "os", "node.platform.arch": "arch"}


def resources(where: str, said: schema.Service) -> Resources:
    limits, reserved = said.deploy.resources.limits, said.deploy.resources.reservations
    within = "deploy.resources.limits"
    return Resources(
        cpu=one(where, "cpus", said.cpus, f"{within}.cpus", limits.cpus),
        memory=one(where, "mem_limit", said.mem_limit, f"{within}.memory", limits.memory),
        pids=max(0, one(where, "pids_limit", said.pids_limit, f"{within}.pids", limits.pids)),
        shared_memory=said.shm_size,
        cpu_reservation=reserved.cpus,
        memory_reservation=one(
            where, "mem_reservation", said.mem_reservation,
            "deploy.resources.reservations.memory", reserved.memory,
        ),
        devices=[
            Device(host=each.source, container=each.target, permissions=each.permissions)
            for each in said.devices
            if not _is_cdi(each)
        ],
        device_reservations=_reservations(said),
        ulimits={name: Ulimit(each.soft, each.hard) for name, each in said.ulimits.items()},
    )  # fmt: skip


def one(where: str, key: str, value: T, other_key: str, other: T) -> T:
    """The value of two keys with the same meaning; 0 and None are no values."""
    if value and other and value != other:
        refuse(f"{where}.{key}", value, f"as in {other_key} ({word(other)}), or neither")
    return other or value


def _reservations(said: schema.Service) -> list[DeviceReservation]:
    cdi = [each.source for each in said.devices if _is_cdi(each)]
    found = [DeviceReservation(driver="cdi", device_ids=cdi)] if cdi else []
    found += [_reservation(each, [*each.capabilities, "gpu"]) for each in said.gpus]
    return found + [
        _reservation(each, each.capabilities) for each in said.deploy.resources.reservations.devices
    ]


def _reservation(said: schema.Gpu, capabilities: list[str]) -> DeviceReservation:
    ids = [word(each) for each in said.device_ids]
    count = -1 if said.count == "all" or (not said.count and not ids) else int(said.count)
    return DeviceReservation(
        driver=said.driver,
        count=count,
        device_ids=ids,
        capabilities=[capabilities],
        options=words(said.options),
    )


def _is_cdi(device: schema.Device) -> bool:
    return "=" in device.source and not device.source.startswith("/")


def placement(where: str, said: schema.Service) -> Placement:
    constraints = []
    for rule in said.deploy.placement.constraints:
        found = _RULE.fullmatch(rule)
        label = _label(found[1]) if found else ""
        if found is None or not label:
            refuse(
                f"{where}.deploy.placement.constraints", rule,
                "a rule such as node.labels.zone == a, on node.hostname, node.labels or node.platform",
            )  # fmt: skip
        constraints.append(Constraint(label, "=" if found[2] == "==" else "!=", [found[3]]))
    spread = []
    for each in said.deploy.placement.preferences:
        if not (label := _label(each.spread)):
            refuse(f"{where}.deploy.placement.preferences", each.spread, "a label such as node.labels.zone")
        spread.append(Spread(label))
    return Placement(
        machines=said.machines,
        max_per_node=said.deploy.placement.max_replicas_per_node,
        constraints=constraints,
        spread=spread,
        tolerations=said.farmd.tolerations,
    )


def _label(name: str) -> str:
    return name.removeprefix("node.labels.") if name.startswith("node.labels.") else _LABELS.get(name, "")


_PULL = {
    "": "missing",
    "if_not_present": "missing",
    "missing": "missing",
    "always": "always",
    "never": "never",
}
_EVERY = re.compile(r"every_[0-9wdhms]+")
_RESTART = {"": "always", "always": "always", "unless-stopped": "always", "no": "never", "none": "never",
            "any": "always", "on-failure": "on-failure"}  # fmt: skip


def service_spec(name: str, key: str, said: schema.Service, context: ProjectContext) -> ServiceSpec:
    """One service; its containers are known to each other by its ``key`` in the file.

    Raises:
        InputInvalid: naming the key.
    """
    where = f"services.{key}"
    volumes, mounts, travelling = mounts_of(where, said, context)
    configs, config_mounts = configs_of(where, said, context)
    secrets, copies = secrets_of(where, said, context)
    travelling += copies
    configs += [spec for _, spec in travelling]
    config_mounts += [mount for mount, _ in travelling]
    mode = _one_of(where, "deploy.mode", said.deploy.mode, {"": "replicated", "replicated": "replicated",
                                                           "global": "global"})  # fmt: skip
    container = ContainerSpec(
        image=said.image,
        command=[word(each) for each in said.command],
        entrypoint=[word(each) for each in said.entrypoint],
        env=environment(where, said, context),
        user=word(said.user),
        groups=[word(each) for each in said.group_add],
        working_directory=said.working_dir,
        hostname=said.hostname,
        platform=said.platform,
        labels=words(said.labels),
        pull=_pull(where, said.pull_policy, context),
        init=said.init,
        privileged=said.privileged,
        pid=_one_of(where, "pid", said.pid or "", {"": "", "host": "host"}),
        read_only=said.read_only,
        **_network(where, key, said, context),
        cap_add=said.cap_add,
        cap_drop=said.cap_drop,
        sysctls=words(said.sysctls),
        security_options=said.security_opt,
        log=_log(where, said.logging, context),
        health=_health(where, said.healthcheck, context),
        restart=_restart(where, key, said, context),
        stop=Stop(signal=said.stop_signal.removeprefix("SIG") or "TERM", grace=said.stop_grace_period),
        mounts=mounts,
        configs=config_mounts,
        secrets=secrets,
        resources=resources(where, said),
    )
    return ServiceSpec(
        name=name,
        labels=words(said.deploy.labels),
        mode=mode,
        replicas=_replicas(where, said),
        container=container,
        placement=placement(where, said),
        ports=_ports(where, said),
        volumes=volumes,
        configs=configs,
        update=_update(where, said),
        pre_deploy=_hook(said.pre_deploy),
        on_lost=_one_of(
            where, "x-farmd.on_lost", said.farmd.on_lost, {"": "", "replace": "replace", "wait": "wait"}
        ),
        unhealthy_after=said.farmd.unhealthy_after,
        catalog=_catalog(where, name, said),
    )


def _one_of(where: str, key: str, found: str, known: Mapping[str, Any]) -> Any:
    if found not in known:
        names = [name for name in known if name]
        raise InputInvalid(
            f"{where}.{key}: found {shown(found)}{nearest(found, names)}", field=f"{where}.{key}"
        )
    return known[found]


def _pull(where: str, policy: str, context: ProjectContext) -> Any:
    if policy in ("daily", "weekly") or _EVERY.fullmatch(policy):
        context.warnings.append(f"{where}.pull_policy: {policy} is ignored: each deploy asks the registry")
        policy = "missing"
    return _one_of(where, "pull_policy", policy, _PULL)


def _network(where: str, name: str, said: schema.Service, context: ProjectContext) -> dict[str, Any]:
    mode = said.network_mode
    if mode in ("host", "none"):
        if said.networks:
            refuse(f"{where}.networks", said.networks, f"none beside network_mode {mode}")
        networks: dict[str, list[str]] = {}
    elif mode in ("", "bridge"):
        given = said.networks or {"default": None}
        for key in given:
            if key != "default" and key not in context.document.networks:
                known = sorted({*context.document.networks, "default"})
                refuse(f"{where}.networks", key, f"a network of the file ({', '.join(known)})")
        networks = {
            network_name(key, context): sorted({name, *(each.aliases if each is not None else [])})
            for key, each in given.items()
        }
    else:
        refuse(f"{where}.network_mode", mode, "host, none or bridge")
    closed = {network_name(key, context) for key, each in context.document.networks.items() if each.internal}
    return {
        "internal": sorted(closed & networks.keys()),
        "network": mode if mode in ("host", "none") else "",
        "networks": networks,
        "dns": said.dns,
        "dns_search": said.dns_search,
        "dns_options": said.dns_opt,
        "hosts": words(said.extra_hosts),
    }


def network_name(key: str, context: ProjectContext) -> str:
    """The name of a project's network on the machines."""
    declared = context.document.networks.get(key, schema.TopNetwork())
    return declared.name or (key if declared.external else f"{context.project}_{key}")


def _replicas(where: str, said: schema.Service) -> int:
    replicas = said.deploy.replicas
    if said.deploy.mode == "global" and (replicas is not None or said.scale is not None):
        key = "scale" if replicas is None else "deploy.replicas"
        refuse(f"{where}.{key}", said.scale if replicas is None else replicas, "none with mode global")
    if replicas is None:
        return 1 if said.scale is None else said.scale
    return one(where, "scale", said.scale, "deploy.replicas", replicas) or 0


def _health(where: str, said: schema.Healthcheck | None, context: ProjectContext) -> HealthCheck | None:
    if said is None or said.disable or said.test == ["NONE"]:
        return None
    if not said.test:
        context.warnings.append(
            f"{where}.healthcheck is ignored: it has no test, and an image's own is not run"
        )
        return None
    if isinstance(said.test, str):
        command = ["/bin/sh", "-c", said.test]
    else:
        kind, *rest = [word(each) for each in said.test]
        if kind not in ("CMD", "CMD-SHELL") or not rest:
            refuse(
                f"{where}.healthcheck.test", said.test, "text, or a list that begins with CMD or CMD-SHELL"
            )
        command = rest if kind == "CMD" else ["/bin/sh", "-c", " ".join(rest)]
    return HealthCheck(
        type="command",
        command=command,
        interval=said.interval or 30.0,
        timeout=said.timeout or 30.0,
        failures=said.retries or 3,
        start_period=said.start_period,
    )


_KEPT = {"": "", LOG_DRIVER: "", "json-file": ""}
_SYSLOG = {"udp": "syslog+udp", "tcp": "syslog", "tcp+tls": "syslog+tls"}
_ADDRESS = re.compile(r"([a-z+]+)://(\[[^\]]*\]|[^:/]+)(?::([0-9]+))?/?")
_LABELLED = "each line has the pod, its owner and its node"
_BUFFERED = "the files on the machine are the buffer, and no output waits for it"
_UNUSED = {
    **dict.fromkeys(("tag", "labels", "labels-regex", "env", "env-regex"), _LABELLED),
    **dict.fromkeys(("mode", "max-buffer-size"), _BUFFERED),
    "compress": "files of output are not compressed",
    "syslog-format": "messages are those of RFC 5424",
    "syslog-facility": "the facility is user",
}
"""Options of log drivers that change nothing here, and why."""


def _log(where: str, said: schema.Logging, context: ProjectContext) -> LogDriver | None:
    """The sizes of the files in which the agent keeps the output, and where it goes besides."""
    known = {**_KEPT, "journald": "journald", "syslog": "syslog"}
    driver = _one_of(where, "logging.driver", said.driver, known)
    where, options = f"{where}.logging.options", words(said.options)
    if not options and not driver:
        return None
    for name in sorted(options.keys() & _UNUSED.keys()):
        del options[name]
        context.warnings.append(f"{where}.{name} is ignored: {_UNUSED[name]}")
    to = [_syslog(where, options) if driver == "syslog" else driver] if driver else []
    try:
        limits = {
            "max-size": str(size(options.pop("max-size", "10m"))),
            "max-file": str(count(options.pop("max-file", "4"))),
        }
    except InputInvalid as error:
        raise InputInvalid(f"{where}: {error.message}", field=where) from error
    if any(name.startswith("syslog-tls-") for name in options):
        expected = "none: agent.log_ca of the machines names the authorities that they trust"
        refuse(where, min(options), expected)
    if options:
        refuse(where, min(options), f"max-size and max-file{', and syslog-address' * (driver == 'syslog')}")
    return LogDriver(options=limits, to=to)


def _syslog(where: str, options: dict[str, str]) -> str:
    """The destination of ``syslog-address``; the port is 514 unless it has one, as with Docker."""
    address = options.pop("syslog-address", "")
    found = _ADDRESS.fullmatch(address)
    scheme = _SYSLOG.get(found[1], "") if found is not None else ""
    to = f"{scheme}://{found[2]}:{found[3] or 514}" if found is not None else ""
    if not log_destinations.valid(to):
        known = "udp://HOST:PORT, tcp://HOST:PORT or tcp+tls://HOST:PORT"
        refuse(f"{where}.syslog-address", address, f"{known}; for the machine's own log, driver: journald")
    return to


def _restart(where: str, name: str, said: schema.Service, context: ProjectContext) -> Restart:
    """The restart policy: always by default, but not for a service that another one waits for to
    complete.
    """
    awaited = context.awaited.get(name, "")
    policy = said.deploy.restart_policy
    if policy is not None:
        if said.restart:
            context.warnings.append(f"{where}.restart is ignored: deploy.restart_policy is set, too")
        condition = _one_of(where, "deploy.restart_policy.condition", policy.condition, _RESTART)
        found = Restart(initial=policy.delay, policy=condition)
    else:
        found = Restart(policy=_policy(where, said.restart or ("no" if awaited else ""), context))
    if awaited and found.policy == "always":
        refuse(f"{where}.restart", "always", f"no or on-failure: {awaited} waits until it has completed")
    return found


def _policy(where: str, text: str, context: ProjectContext) -> Any:
    found, colon, times = text.partition(":")
    if colon and (found != "on-failure" or not times.isdecimal()):
        refuse(f"{where}.restart", text, "always, unless-stopped, no, on-failure or on-failure:3")
    if colon:
        context.warnings.append(f"{where}.restart: the {times} is ignored: {ENDLESS}")
    return _one_of(where, "restart", found, _RESTART)


def _ports(where: str, said: schema.Service) -> list[PortSpec]:
    if said.ports and said.port_texts:
        refuse(f"{where}.x-ports", word(said.port_texts[0]), "none beside ports")
    try:
        found = [deploy_spec.parse(word(text)) for text in said.port_texts]
        for port in said.ports:
            published = word(port.published)
            if published and not (published.isascii() and published.isdigit()):
                refuse("published", published, "one port from 1 to 65535")
            if port.mode not in ("host", "ingress"):
                refuse("mode", port.mode, "host or ingress")
            if port.host_ip and not published:
                refuse("host_ip", port.host_ip, "a published port beside it")
            fixed = int(published[:6] or 0) if published else 0
            spec = PortSpec(
                container=port.target,
                published=fixed,
                protocol=port.protocol,
                mode="host" if fixed else "ingress",
                host_ip="" if "/" in port.host_ip else port.host_ip,
                host_prefix=port.host_ip if "/" in port.host_ip else "",
            )
            deploy_spec.validate(spec)
            found.append(spec)
        found = list(dict.fromkeys(found))  # Compose takes one that is listed twice
    except InputInvalid as error:
        raise InputInvalid(f"{where}.ports: {error.message}", field=f"{where}.ports") from error
    return found


def _update(where: str, said: schema.Service) -> UpdateConfig:
    update = said.deploy.update_config
    orders = {"": "", "start-first": "start-first", "stop-first": "stop-first"}
    if not 0 <= update.parallelism <= 50:
        refuse(f"{where}.deploy.update_config.parallelism", update.parallelism, "0 (all at once) to 50")
    return UpdateConfig(
        order=_one_of(where, "deploy.update_config.order", update.order, orders),
        parallelism=update.parallelism or 50,
        delay=update.delay,
        monitor=update.monitor,
        min_healthy_time=said.farmd.min_healthy_time,
        deadline=said.farmd.deadline,
        on_failure=_one_of(
            where, "deploy.update_config.failure_action", update.failure_action,
            {"rollback": "rollback", "pause": "pause"},
        ),
    )  # fmt: skip


def _catalog(where: str, name: str, said: schema.Service) -> Catalog | None:
    if (consul := said.consul) is None:
        return None
    found = Catalog(
        name=word(consul.name),
        tags=[word(each) for each in consul.tags],
        meta=words(consul.meta),
        canary_tags=[word(each) for each in consul.canary_tags],
    )
    if wrong := mistake(name, found, bool(said.ports or said.port_texts)):
        where = f"{where}.x-consul"
        raise InputInvalid(f"{where}{wrong.removeprefix('catalog')}", field=where)
    return found


def _hook(said: schema.PreDeploy | None) -> Hook | None:
    if said is None:
        return None
    return Hook(
        command=[word(each) for each in said.command],
        env=words(said.environment),
        privileged=said.privileged,
        user=word(said.user),
        timeout=said.timeout,
    )
