"""The service of a node's agent. A farm's process never imports it.

An agent must supervise its workloads at once (R27), so its service starts without Consul.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from aiohttp import web

from farmd.agent import execute
from farmd.agent import http as agent_http
from farmd.agent.access import Door, OneTimeKeys, asks_for_keys
from farmd.agent.access_records import AccessRecords
from farmd.agent.agent import Agent
from farmd.agent.model import AgentConfig, ArtifactConfig, ContainerConfig, SigningConfig, SystemdConfig
from farmd.agent.secrets import SecretConfig, hide_memory
from farmd.agent.users import Users
from farmd.process.services import Built, Dependencies
from farmd.web import hosts
from farmd.web.access import Access, of_proxy
from farmd.web.connections import parked
from farmd.web.hosts import Refusals
from store import access


def build_agent(dependencies: Dependencies) -> Built:
    """A node's agent."""
    section = dependencies.config.agent
    if section.secret_identities:
        hide_memory()
    config = AgentConfig(
        node=section.node,
        state_dir=Path(section.state_dir),
        address=dependencies.address,
        labels=section.labels,
        port_range=section.ports(),
        session_ttl=section.ttl,
        stop_workloads_on_exit=section.stop_workloads_on_exit,
        users=Users(
            default=section.user,
            share=section.share_user,
            allow=tuple(section.allow),
            deny=tuple(section.deny_users),
        ),
        artifacts=ArtifactConfig(
            allow=tuple(section.allow),
            most=section.artifact_max,
            unpacked=section.artifact_max_unpacked,
            timeout=section.artifact_timeout,
            retention=section.artifact_retention,
            auth=section.artifact_auth,
            ca=section.artifact_ca,
            proxy=section.artifact_proxy,
            hosts=tuple(section.artifact_hosts),
            registries=section.artifact_registries,
        ),
        secrets=SecretConfig(
            identities=tuple(section.secret_identities),
            folder=section.secret_folder,
            state_dir=Path(section.state_dir),
        ),
        cgroup=section.cgroup,
        pod_metrics=section.pod_metrics,
        owner_metrics=section.owner_metrics,
        log_to=tuple(section.log_to),
        log_hosts=tuple(section.log_hosts),
        log_ca=section.log_ca,
        exec=section.exec,
        exec_signed=section.signatures == "enforce" and not section.exec_unsigned,
        farm_ca=section.farm_ca,
        asks_for_keys=asks_for_keys(dependencies.config.web),
    )
    container = ContainerConfig(
        engine=section.engine,
        allow=tuple(section.allow),
        registry_auth=section.registry_auth,
        secrets_dir=Path(section.secrets_dir),
        image_retention=section.image_retention,
    )
    systemd = SystemdConfig(
        bus=section.systemd, allow=tuple(section.allow), secrets_dir=Path(section.secrets_dir)
    )
    signing = (
        None
        if section.signatures == "none"
        else SigningConfig(policy=section.signatures, trust=section.trust)
    )
    agent = Agent(
        config,
        signing=signing,
        container=container if section.engine else None,
        systemd=systemd if section.systemd else None,
        client=dependencies.client,
        keys=dependencies.keys,
        clock=dependencies.clock,
        rng=dependencies.rng,
        ids=dependencies.ids,
        recorder=dependencies.recorder,
        progress=dependencies.progress,
        environ=dependencies.env,
        denied=lambda: dependencies.rights.denied,
    )
    return Built(
        AgentService(agent),
        mount=lambda app: _mount(app, agent, dependencies),
        status=lambda: {"node": section.node, "pods": len(agent.reality())},
    )


def _mount(app: web.Application, agent: Agent, dependencies: Dependencies) -> None:
    section = dependencies.config.web
    refusals = Refusals(dependencies.recorder, dependencies.clock)

    def keys(purpose: str, records: AccessRecords | None = None) -> OneTimeKeys:
        return OneTimeKeys(
            dependencies.client,
            dependencies.keys,
            agent.config.node,
            lambda: agent.cluster,
            dependencies.clock,
            lambda peer, why: refusals.note("key", peer, why),
            purpose,
            records,
        )

    bearer = Access(section, dependencies.clock, refusals).bearer
    door = Door(section, bearer, keys(access.LOGS), keys(access.USAGE))
    app.middlewares.extend([hosts.only(section.bind, section.advertise), door.admits])
    agent_http.add_routes(app, agent, dependencies.clock, parked)
    for_exec = keys(access.EXEC, agent.access_records)
    execute.add_routes(app, agent, for_exec, dependencies.clock, safe=_safe, parked=parked)


def _safe(request: web.Request) -> bool:
    """Whether a request cannot be overheard: it came by TLS, or from this machine without a proxy."""
    here = hosts.loopback(request.remote or "") and not any(map(of_proxy, request.headers))
    return request.secure or here


class AgentService:
    """An agent as a process's work."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    def lacks(self) -> str:
        """Why the node is not present in the store; its workloads are supervised in any case."""
        return self._agent.lacks()

    async def run(self, stop: asyncio.Event) -> None:
        """Run until ``stop`` is set."""
        await self._agent.run(stop)
