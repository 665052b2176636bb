"""Images in the style of public projects, made of busybox and small scripts, and sites that run them.

``store`` is a server of lines (``ping``, ``set KEY VALUE``, ``get KEY``, ``incr KEY``) that stands for
databases, caches and brokers. ``page`` answers HTTP and shows what the store says. Nothing is pulled.
"""

from __future__ import annotations

import asyncio
import io
import tarfile
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.agents import Agents
from tests.engine import PodmanEngine, busybox
from tests.farmctl import Farmctl, Result
from tests.fleet import RunningFarm, eventually

_SESSION = """#!/bin/sh
read word key value
cd "$STORE_DATA" || exit 1
case "$word" in
  ping) echo pong;;
  set) echo "$value" > "$key"; echo ok;;
  get) cat "$key" 2>/dev/null || echo none;;
  incr) n=$(($(cat "$key" 2>/dev/null || echo 0) + 1)); echo $n > "$key"; echo $n;;
esac
"""
_STORE = """#!/bin/sh
# store PORT FOLDER
mkdir -p "$2"
export STORE_DATA="$2"
exec busybox nc -ll -p "$1" -e /bin/session
"""
_ASK = """#!/bin/sh
# ask HOST PORT WORDS...: one question to a store
host=$1 port=$2
shift 2
echo "$*" | busybox nc -w 3 "$host" "$port"
"""
_INDEX = """#!/bin/sh
printf 'Content-Type: text/plain\\r\\n\\r\\n'
echo "$NAME $(cat /etc/release)"
[ -z "$STORE" ] || echo "visits $(ask $STORE incr visits)"
[ -z "$CACHE" ] || echo "cache $(ask $CACHE ping)"
[ -z "$GREETING" ] || echo "$GREETING"
[ ! -x /bin/extra ] || /bin/extra
"""
_PAGE = """#!/bin/sh
# page PORT
root=$(mktemp -d) && chmod 755 "$root" && mkdir "$root/cgi-bin" || exit
cp /etc/index.cgi "$root/cgi-bin/" && echo ok > "$root/healthz"
exec busybox httpd -f -p "$1" -h "$root"
"""
_CURL = """#!/bin/sh
for url; do :; done
exec wget -qO- "$url"
"""
_TASKS = """#!/bin/sh
case "$1" in
  prepare) until ask broker 5672 set queue mail | grep -q ok; do sleep 0.1; done;;
  consume) [ "$(ask broker 5672 get queue)" = mail ] || exit 7
           while :; do ask broker 5672 incr consumed >/dev/null; sleep 0.2; done;;
esac
"""
_BASE = {
    "bin/session": _SESSION, "bin/store": _STORE, "bin/ask": _ASK, "bin/page": _PAGE, "bin/curl": _CURL,
    "etc/index.cgi": _INDEX,
}  # fmt: skip


@dataclass(frozen=True)
class Image:
    """A program: its command, and files beside the common ones. ``word``: an entrypoint for commands."""

    command: Sequence[str]
    files: Mapping[str, str] = field(default_factory=dict)
    entrypoint: Sequence[str] = ()


def script(*lines: str) -> str:
    """A shell script."""
    return "\n".join(("#!/bin/sh", *lines, ""))


def made(engine: PodmanEngine, name: str, image: Image) -> None:
    """Make a local image."""
    release = {"etc/release": name.rpartition("/")[2]}
    archive = io.BytesIO(busybox())
    with tarfile.open(fileobj=archive, mode="a") as packed:
        for path, text in {**_BASE, **release, **image.files}.items():
            entry = tarfile.TarInfo(path)
            entry.mode, entry.size = 0o755, len(text.encode())
            packed.addfile(entry, io.BytesIO(text.encode()))
    words = [f'{key} [{", ".join(map(_quoted, value))}]' for key, value in
             (("ENTRYPOINT", image.entrypoint), ("CMD", image.command)) if value]  # fmt: skip
    changes = [word for each in words for word in ("--change", each)]
    engine.run("import", "-q", *changes, "-", name, given=archive.getvalue())


def _quoted(word: str) -> str:
    return f'"{word}"'


def answer(port: int, path: str = "/") -> str:
    """What a site answers; empty while it does not."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as got:
            return str(got.read().decode())
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return ""


@dataclass
class Sites:
    """A cluster with a farm and machines that run containers, and a person who deploys."""

    rig: Agents
    farm: RunningFarm
    farmctl: Farmctl

    async def run(self, *words: str, env: Mapping[str, str] | None = None) -> Result:
        """Run farmctl beside the farm."""
        person = Farmctl(self.farmctl.address, self.farmctl.prefix, variables=env or {})
        return await asyncio.to_thread(person, *words)

    async def deployed(self, path: Path, *words: str, env: Mapping[str, str] | None = None) -> Result:
        """Deploy a file; it must succeed."""
        result = await self.run("deploy", "-f", str(path), "-y", *words, env=env)
        assert result.code == 0, result
        return result

    async def pods(self, project: str) -> list[tuple[str, str]]:
        """The places of a project's pods."""
        listed = await self.run("service", "list", "-o", "json")
        names = [each["name"] for each in listed.json["items"] if each["project"] == project]
        found = await self.rig.intents()
        return [place for place in found if place[1].partition("~")[0] in names]

    async def shows(self, port: int, *texts: str) -> str:
        """What a site answers, once that has all these texts."""

        async def found() -> str:
            text = await asyncio.to_thread(answer, port)
            return text if text and all(each in text for each in texts) else ""

        return str(await eventually(found, what=f"{texts} on port {port}"))


def _store(port: int, folder: str, ready: str, *before: str) -> Image:
    """A store, and the program with which its check asks whether it is ready."""
    files = {
        "bin/serve": script(*before, f"exec store {port} {folder}"),
        f"bin/{ready}": script(f"ask localhost {port} ping | grep -q pong"),
    }
    return Image([], files, ["/bin/serve"])


def _postgres() -> Image:
    secret = '[ -s "$POSTGRES_PASSWORD_FILE" ] || [ -n "$POSTGRES_PASSWORD" ] || exit 3'
    return _store(5432, "/var/lib/postgresql/data", "pg_isready", secret)


_WORKER = script('[ "$1" = thumbnails ] || exit 4', "while :; do ask $STORE incr thumbnails; sleep 0.2; done")
_PROMETHEUS = script(
    '[ "$(id -u)" = 65534 ] && grep -q scrape_configs "${1#--config.file=}" || exit 5',
    "mkdir -p /tmp/metrics",
    "exec store 9090 /tmp/metrics",
)
_EXPORTER = script(
    "[ -e /host/marker ] && touch /tmp/writable || exit 6",
    "while :; do ask prometheus 9090 set up 1; sleep 0.2; done",
)
_DASHBOARD = script(
    'grep -o "name: Prometheus" /etc/grafana/provisioning/datasources.yml', 'echo "up $(ask $STORE get up)"'
)
_BROKER = script("store 5672 /var/lib/rabbitmq &", "exec page 15672")
_CONSUMED = script('echo "consumed $(ask $STORE get consumed)"')
IMAGES = {
    "docker.io/library/postgres:15-alpine": _postgres(),
    "docker.io/library/postgres:14": _postgres(),
    "docker.io/library/postgres:16": _postgres(),
    "docker.io/library/mysql:8.0": _store(
        3306, "/var/lib/mysql", "mysqladmin", '[ -n "$MYSQL_PASSWORD" ] && [ $# = 2 ] || exit 3'
    ),
    "docker.io/library/redis:6.2-alpine": _store(6379, "/tmp/redis", "redis-cli"),
    "docker.io/library/redis:7": _store(6379, "/tmp/redis", "redis-cli"),
    "ghcr.io/example/wiki:2": Image(["/bin/page", "3000"]),
    "ghcr.io/example/photos:v1": Image(["/bin/page", "2283"], {"bin/worker": _WORKER}),
    "docker.io/prom/prometheus:v2.54.0": Image([], {"bin/prometheus": _PROMETHEUS}, ["/bin/prometheus"]),
    "docker.io/prom/node-exporter:v1.8.2": Image([], {"bin/exporter": _EXPORTER}, ["/bin/exporter"]),
    "docker.io/grafana/grafana:11.2.0": Image(["/bin/page", "3000"], {"bin/extra": _DASHBOARD}),
    "docker.io/library/wordpress:6": Image(["/bin/page", "80"]),
    "docker.io/library/rabbitmq:3-management": Image(
        ["/bin/broker"], {"bin/broker": _BROKER, "bin/extra": _CONSUMED}
    ),
    "docker.io/example/tasks:1": Image([], {"bin/tasks": _TASKS}, ["/bin/tasks"]),
}
"""What the projects run, by the names that their files have."""
