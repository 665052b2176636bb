"""The keys of a compose document that mean something here, by type, in their long forms.

``farmd.compose.merge`` writes short forms out, so each key has one type. Values come from variables, too, so
text is read as what a field needs: ``"3"`` as a number, ``1.5g`` as bytes, ``"true"`` as a truth value.
"""

from __future__ import annotations

import msgspec

from farmd.compose.scalars import Count, FileMode, Flag, Number, Pairs, Scalar, Size, Words
from farmd.deploy.spec import Propagation
from store.manifests import Toleration
from store.quantities import Seconds


class _Struct(msgspec.Struct, frozen=True, kw_only=True):
    """One mapping of the document; a key without a value is as if it were not there."""


class Port(_Struct, frozen=True, kw_only=True):
    target: Count
    published: Scalar = ""
    host_ip: str = ""
    protocol: str = "tcp"
    mode: str = "host"


class BindMount(_Struct, frozen=True, kw_only=True):
    create_host_path: Flag = True
    propagation: Propagation = ""


class VolumeMount(_Struct, frozen=True, kw_only=True):
    nocopy: Flag = False
    subpath: str = ""
    labels: Pairs = {}


class TmpfsMount(_Struct, frozen=True, kw_only=True):
    size: Size = 0
    mode: FileMode = 0
    options: list[str] = []


class Mount(_Struct, frozen=True, kw_only=True):
    type: str
    target: str
    source: str = ""
    read_only: Flag = False
    bind: BindMount = BindMount()
    volume: VolumeMount = VolumeMount()
    tmpfs: TmpfsMount = TmpfsMount()


class File(_Struct, frozen=True, kw_only=True):
    source: str
    target: str = ""
    uid: Scalar = ""
    gid: Scalar = ""
    mode: FileMode = 0o444


class EnvFile(_Struct, frozen=True, kw_only=True):
    path: str
    required: Flag = True
    format: str = ""


class Healthcheck(_Struct, frozen=True, kw_only=True):
    test: str | list[Scalar] = []
    disable: Flag = False
    interval: Seconds = 30.0
    timeout: Seconds = 30.0
    retries: Count = 3
    start_period: Seconds = 0.0


class Dependency(_Struct, frozen=True, kw_only=True):
    condition: str = "service_started"
    required: Flag = True


class Network(_Struct, frozen=True, kw_only=True):
    aliases: list[str] = []


class Device(_Struct, frozen=True, kw_only=True):
    source: str
    target: str = ""
    permissions: str = "rwm"


class Gpu(_Struct, frozen=True, kw_only=True):
    capabilities: list[str] = []
    count: Count | str = 0
    device_ids: list[Scalar] = []
    driver: str = ""
    options: Pairs = {}


class Limit(_Struct, frozen=True, kw_only=True):
    soft: Count
    hard: Count


class Logging(_Struct, frozen=True, kw_only=True):
    driver: str = ""
    options: Pairs = {}


class Amounts(_Struct, frozen=True, kw_only=True):
    cpus: Number = 0.0
    memory: Size = 0
    pids: Count = 0
    devices: list[Gpu] = []


class Amended(_Struct, frozen=True, kw_only=True):
    limits: Amounts = Amounts()
    reservations: Amounts = Amounts()


class RestartPolicy(_Struct, frozen=True, kw_only=True):
    condition: str = "any"
    delay: Seconds = 1.0


class Update(_Struct, frozen=True, kw_only=True):
    parallelism: Count = 1
    delay: Seconds = 0.0
    order: str = ""
    monitor: Seconds | None = None
    failure_action: str = "rollback"


class Preference(_Struct, frozen=True, kw_only=True):
    spread: str


class Placement(_Struct, frozen=True, kw_only=True):
    constraints: list[str] = []
    preferences: list[Preference] = []
    max_replicas_per_node: Count = 0


class Deploy(_Struct, frozen=True, kw_only=True):
    mode: str = "replicated"
    replicas: Count | None = None
    labels: Pairs = {}
    resources: Amended = Amended()
    restart_policy: RestartPolicy | None = None
    update_config: Update = Update()
    placement: Placement = Placement()


class PreDeploy(_Struct, frozen=True, kw_only=True):
    command: Words
    environment: Pairs = {}
    privileged: Flag | None = None
    timeout: Seconds = 300.0
    user: Scalar = ""


class Consul(_Struct, frozen=True, kw_only=True):
    """How a service is found in Consul's catalogue."""

    name: Scalar = ""
    tags: list[Scalar] = []
    meta: Pairs = {}
    canary_tags: list[Scalar] = []


class Farmd(_Struct, frozen=True, kw_only=True):
    """What only this house has, of a service."""

    on_lost: str = ""
    min_healthy_time: Seconds = 0.0
    unhealthy_after: Seconds = 300.0
    deadline: Seconds = 600.0
    tolerations: list[Toleration] = []


class ProjectFarmd(_Struct, frozen=True, kw_only=True):
    """What only this house has, of the whole document."""

    together: Flag | None = None
    prefix: str = ""


class Service(_Struct, frozen=True, kw_only=True):
    image: str
    command: Words = []
    entrypoint: Words = []
    environment: Pairs = {}
    env_file: list[EnvFile] = []
    ports: list[Port] = []
    volumes: list[Mount] = []
    tmpfs: list[str] = []
    configs: list[File] = []
    secrets: list[File] = []
    healthcheck: Healthcheck | None = None
    depends_on: dict[str, Dependency] = {}
    networks: dict[str, Network | None] = {}
    network_mode: str = ""
    dns: list[str] = []
    dns_opt: list[str] = []
    dns_search: list[str] = []
    extra_hosts: Pairs = {}
    hostname: str = ""
    user: Scalar = ""
    group_add: list[Scalar] = []
    working_dir: str = ""
    init: Flag | None = None
    privileged: Flag = False
    pid: str | None = ""
    cap_add: list[str] = []
    cap_drop: list[str] = []
    sysctls: Pairs = {}
    devices: list[Device] = []
    gpus: list[Gpu] = []
    ulimits: dict[str, Limit] = {}
    read_only: Flag = False
    security_opt: list[str] = []
    shm_size: Size = 0
    stop_signal: str = ""
    stop_grace_period: Seconds = 10.0
    restart: str = ""
    scale: Count | None = None
    cpus: Number = 0.0
    mem_limit: Size = 0
    mem_reservation: Size = 0
    pids_limit: Count = 0
    platform: str = ""
    pull_policy: str = "missing"
    labels: Pairs = {}
    logging: Logging = Logging()
    profiles: list[str] = []
    deploy: Deploy = Deploy()
    machines: list[str] = msgspec.field(default_factory=list, name="x-machines")
    port_texts: list[Scalar] = msgspec.field(default_factory=list, name="x-ports")
    pre_deploy: PreDeploy | None = msgspec.field(default=None, name="x-pre_deploy")
    consul: Consul | None = msgspec.field(default=None, name="x-consul")
    farmd: Farmd = msgspec.field(default=Farmd(), name="x-farmd")


class Volume(_Struct, frozen=True, kw_only=True):
    name: str = ""
    driver: str = ""
    driver_opts: Pairs = {}
    external: Flag = False
    labels: Pairs = {}


class Config(_Struct, frozen=True, kw_only=True):
    name: str = ""
    external: Flag = False
    content: str | None = None
    environment: str = ""
    file: str = ""


class Secret(_Struct, frozen=True, kw_only=True):
    name: str = ""
    file: str = ""
    environment: str = ""
    external: Flag = False


class TopNetwork(_Struct, frozen=True, kw_only=True):
    name: str = ""
    driver: str = ""
    external: Flag = False
    internal: Flag = False


class Project(_Struct, frozen=True, kw_only=True):
    """The whole document."""

    name: str = ""
    services: dict[str, Service]
    volumes: dict[str, Volume] = {}
    networks: dict[str, TopNetwork] = {}
    configs: dict[str, Config] = {}
    secrets: dict[str, Secret] = {}
    farmd: ProjectFarmd = msgspec.field(default=ProjectFarmd(), name="x-farmd")
