"""Compose files in the style of well-known public projects are read whole, as manifests that agents take."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from farmd.compose.project import Project
from farmd.deploy import spec
from farmd.deploy.manifest import compiled, spec_of
from tests.unit.compose.disk import project, resolved

SHOP = (Path(__file__).parents[3] / "examples" / "shop" / "compose.yaml").read_text()

BLOG = """
services:
  wordpress:
    image: wordpress:6
    restart: always
    ports: ["8080:80"]
    environment: {WORDPRESS_DB_HOST: db, WORDPRESS_DB_PASSWORD: "${PASSWORD:?set it}"}
    volumes: [wordpress:/var/www/html]
  db:
    image: mysql:8
    restart: always
    command: --default-authentication-plugin=mysql_native_password
    cap_add: [SYS_NICE]
    environment: [MYSQL_DATABASE=blog, MYSQL_USER=blog, MYSQL_PASSWORD, MYSQL_RANDOM_ROOT_PASSWORD=1]
    volumes: [db:/var/lib/mysql]
volumes: {wordpress: {}, db: {}}
"""
FORGE = """
version: "3"
networks: {forge: {external: false}}
services:
  server:
    image: docker.io/gitea/gitea:1.22
    container_name: gitea
    environment: [USER_UID=1000, GITEA__database__DB_TYPE=postgres, "GITEA__database__HOST=db:5432"]
    restart: always
    networks: [forge]
    volumes: ["./gitea:/data", "/etc/timezone:/etc/timezone:ro", "/etc/localtime:/etc/localtime:ro"]
    ports: ["3000:3000", "222:22"]
    depends_on: [db]
  db: {image: postgres:14, restart: always, networks: [forge], volumes: [pg:/var/lib/postgresql/data]}
volumes: {pg: }
"""
MONITORING = """
services:
  prometheus:
    image: prom/prometheus:v2.54.0
    command: ["--config.file=/etc/prometheus/prometheus.yml", "--storage.tsdb.retention.time=30d"]
    volumes: ["./prometheus.yml:/etc/prometheus/prometheus.yml:ro", "prometheus:/prometheus"]
    extra_hosts: ["host.docker.internal:host-gateway"]
    user: "65534:65534"
    ports: [9090:9090]
  node-exporter:
    image: prom/node-exporter:v1.8.2
    command: ["--path.rootfs=/host"]
    network_mode: host
    pid: host
    volumes: ["/sys:/host/sys:ro,rslave"]
    deploy: {mode: global}
  grafana:
    image: grafana/grafana:11.2.0
    environment: {GF_INSTALL_PLUGINS: ""}
    tmpfs: [/tmp]
    ports: ["3001:3000"]
    depends_on: {prometheus: {condition: service_started}}
volumes: {prometheus: {driver: local}}
"""
SOCIAL = """
x-app: &app
  image: ghcr.io/social/app:v4.3
  env_file: .env.production
  restart: always
  security_opt: ["no-new-privileges:true"]
  read_only: true
  depends_on: [db, redis]
services:
  db: {image: "postgres:14-alpine", shm_size: 256mb, environment: [POSTGRES_HOST_AUTH_METHOD=trust],
       healthcheck: {test: [CMD, pg_isready, -U, postgres]}, volumes: ["pg:/var/lib/postgresql/data"]}
  redis: {image: "redis:7-alpine", healthcheck: {test: [CMD, redis-cli, ping]}, volumes: ["redis:/data"]}
  web:
    <<: *app
    command: bundle exec puma -C config/puma.rb
    healthcheck: {test: [CMD-SHELL, "curl -s localhost:3000/health | grep -q 'OK' || exit 1"]}
    ports: ["3000:3000"]
    volumes: ["system:/srv/public/system"]
  sidekiq: {<<: *app, command: bundle exec sidekiq, ulimits: {nofile: {soft: 65536, hard: 65536}}}
  seed: {<<: *app, command: rails db:seed, restart: "no", profiles: [seed]}
volumes: {pg: , redis: , system: {name: social_system}}
"""

FILES = {"./prometheus.yml": "scrape_configs: []", ".env.production": "SECRET=1\nHOST=a.example\n"}
WHOLE = {"shop": SHOP, "blog": BLOG, "monitoring": MONITORING, "social": SOCIAL}


def loaded(name: str) -> Project:
    return project(WHOLE[name], files=FILES, env={"PASSWORD": "x", "MYSQL_PASSWORD": "x"}, name=name)


@pytest.mark.parametrize("name", WHOLE)
def test_a_public_file_is_read_whole(name: str) -> None:
    found = loaded(name)
    assert found.warnings == ()
    for one in resolved(found).values():
        assert spec_of(*compiled(one)) == replace(one, on_lost="replace")


def test_a_file_that_lies_beside_a_folder_says_what_to_change() -> None:
    with pytest.raises(
        Exception, match=r"services\.server\.volumes\[0\]: found './gitea', expected an absolute"
    ):
        project(FORGE, name="forge")
    found = project(FORGE.replace("./gitea:", "/srv/gitea:"), name="forge")
    assert [line.partition(" ")[0] for line in found.warnings] == [
        "version",
        "services.server.container_name",
    ]
    assert found.together


def test_what_the_shop_asks_for() -> None:
    found = loaded("shop")
    web = resolved(found)["web"]
    assert (found.together, found.after["web"]) == (True, {"db": "healthy", "cache": "started"})
    assert web.container.image == "registry.example/shop/web:1.5"
    assert [spec.text(port) for port in web.ports] == ["8080:8080/tcp@host"]
    assert web.pre_deploy is not None
    assert (web.pre_deploy.command, web.pre_deploy.timeout) == (["rails", "db:migrate"], 300.0)
    assert web.container.resources.memory == 512 * 1024**2
