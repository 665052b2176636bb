"""Asking for digests: a real registry with and without logins, and servers that fail in every way."""

from __future__ import annotations

import asyncio
import base64
import json
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from aiohttp.abc import AbstractResolver, ResolveResult

from farmd.deploy.protocols import NoDigest
from farmd.deploy.registry import Registries, registries
from tests.registry import PASSWORD, USER, Registry, config_json
from tests.web_servers import Handler, serving

DIGEST = "sha256:" + "0a" * 32
MANIFEST = "application/vnd.oci.image.manifest.v1+json"


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[Registry]:
    with Registry(tmp_path) as made:
        yield made


@pytest.fixture
def logins(tmp_path: Path) -> Path:
    return tmp_path / "config.json"


@pytest.fixture
async def client(logins: Path) -> AsyncIterator[Registries]:
    async with registries({"DOCKER_CONFIG": str(logins.parent)}) as made:
        yield made


async def refusal(client: Registries, image: str) -> NoDigest:
    with pytest.raises(NoDigest) as caught:
        await client.digest(image)
    return caught.value


# -- a real registry -----------------------------------------------------------------------------
async def test_the_digest_of_an_image_for_several_platforms_is_that_of_its_index(
    registry: Registry, client: Registries
) -> None:
    pushed = registry.push("team/web", "1.4", b"layer", ["amd64", "arm64"])
    latest = registry.push("team/web", "latest", b"other")
    assert await client.digest(f"{registry.host}/team/web:1.4") == pushed
    assert await client.digest(f"{registry.host}/team/web") == latest != pushed


async def test_an_image_that_does_not_exist_is_known_to_be_absent(
    registry: Registry, client: Registries
) -> None:
    registry.push("web", "1", b"layer")
    for image in (f"{registry.host}/web:2", f"{registry.host}/none:1"):
        found = await refusal(client, image)
        assert (found.absent, str(found)) == (True, f"{registry.host} has no image {image}")


async def test_a_password_is_that_of_dockers_file(
    registry: Registry, client: Registries, logins: Path
) -> None:
    pushed, image = registry.push("web", "1", b"layer"), f"{registry.host}/web:1"
    registry.with_passwords()
    assert "requires a login" in str(await refusal(client, image))
    logins.write_text(config_json(registry.host, USER, "wrong-one"))
    assert "requires a login" in str(await refusal(client, image))
    logins.write_text(config_json("registry.example"))
    assert "requires a login" in str(await refusal(client, image))
    logins.write_text(config_json(registry.host))
    assert await client.digest(image) == pushed


class TokenServer:
    """Signs tokens for the registry, to whoever knows the password, and to all for ``public/…``."""

    def __init__(self, folder: Path) -> None:
        self._key, self.certificate = folder / "key.pem", folder / "cert.pem"
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=tokens", "-days", "2",
             "-keyout", self._key, "-out", self.certificate],
            check=True, capture_output=True,
        )  # fmt: skip

    async def answer(self, request: web.Request) -> web.Response:
        given = await request.post() if request.method == "POST" else request.query
        login = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        known = request.headers.get("Authorization") == f"Basic {login}"
        known = known or given.get("refresh_token") == "identity"
        kind, name, actions = str(given["scope"]).split(":")
        may = known or name.startswith("public/")
        access = [{"type": kind, "name": name, "actions": actions.split(",")}] if may else []
        token = self._signed(str(given["service"]), access)
        return web.json_response({"access_token" if request.method == "POST" else "token": token})

    def _signed(self, audience: str, access: list[dict[str, object]]) -> str:
        pem = self.certificate.read_text().splitlines()
        header = {"typ": "JWT", "alg": "RS256", "x5c": ["".join(pem[1:-1])]}
        now = int(time.time())
        claims = {"iss": "test", "aud": audience, "exp": now + 60, "nbf": now - 60, "access": access}
        text = b".".join(_encoded(json.dumps(part).encode()) for part in (header, claims))
        sign = ["openssl", "dgst", "-sha256", "-sign", self._key]
        done = subprocess.run(sign, input=text, check=True, capture_output=True)
        return (text + b"." + _encoded(done.stdout)).decode()


def _encoded(content: bytes) -> bytes:
    return base64.urlsafe_b64encode(content).rstrip(b"=")


async def test_a_token_is_fetched_with_the_login_where_there_is_one(
    registry: Registry, client: Registries, logins: Path, tmp_path: Path
) -> None:
    public, private = registry.push("public/web", "1", b"a"), registry.push("team/web", "1", b"b")
    server = TokenServer(tmp_path)
    async with serving(server.answer) as address:
        certificate = str(server.certificate)
        token = {"realm": f"{address}/t?x=1", "service": "s", "issuer": "test", "rootcertbundle": certificate}
        registry.restart({"token": token})
        assert await client.digest(f"{registry.host}/public/web:1") == public
        assert "requires a login" in str(await refusal(client, f"{registry.host}/team/web:1"))
        logins.write_text(config_json(registry.host))
        assert await client.digest(f"{registry.host}/team/web:1") == private
        logins.write_text(json.dumps({"auths": {registry.host: {"identitytoken": "identity"}}}))
        assert await client.digest(f"{registry.host}/team/web:1") == private


# -- servers that fail ---------------------------------------------------------------------------
def answering(status: int, headers: dict[str, str] | None = None, body: bytes = b"") -> Handler:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(status=status, headers=headers, body=body)

    return answer


@pytest.mark.parametrize(
    ("handler", "why"),
    [
        (answering(429, {"Retry-After": "37"}), "gets too many requests; try again in 37 s"),
        (answering(429, {"Retry-After": "soon"}), "gets too many requests"),
        (answering(503), "answers with status 503"),
        (answering(403), "requires a login"),
        (answering(401), "requires a login"),
        (answering(401, {"WWW-Authenticate": "Bearer garbage"}), "names no token server"),
        (answering(401, {"WWW-Authenticate": 'Bearer realm="file:///etc/x"'}), "names no token server"),
        (answering(200, {"Docker-Content-Digest": "sha256:<b>"}), "answers without a digest"),
        (answering(200, {"Content-Type": "text/html"}, b"<h1>log in</h1>"), "answers without a digest"),
        (answering(200, {"Content-Type": MANIFEST}, b"x" * (5 << 20)), "answers with too much"),
        (answering(302, {"Location": "/"}), "cannot be asked: TooManyRedirects"),
    ],
)
async def test_a_registry_that_fails_gives_one_reason_and_no_digest(
    client: Registries, handler: Handler, why: str
) -> None:
    async with serving(handler) as address:
        host = address.removeprefix("http://")
        found = await refusal(client, f"{host}/web:1")
    assert str(found).startswith(f"{host} {why}")
    assert (found.absent, "\n" in str(found)) == (False, False)


async def test_a_registry_that_hangs_is_given_up(client: Registries, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("farmd.deploy.registry.ANSWER_SECONDS", 0.3)

    async def hang(request: web.Request) -> web.Response:
        await asyncio.Event().wait()
        raise AssertionError

    async with serving(hang) as address:
        host = address.removeprefix("http://")
        assert str(await refusal(client, f"{host}/web:1")) == f"{host} does not answer within 0.3 s"


async def test_an_answer_that_is_no_http_is_not_repeated_to_people(client: Registries) -> None:
    async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hush\r\n\r\n" * 9)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(babble, "127.0.0.1", 0)
    async with server:
        host = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        found = str(await refusal(client, f"{host}/web:1"))
    assert (found.startswith(f"{host} cannot be asked: "), "hush" in found) == (True, False)


async def test_where_nobody_listens_the_reason_says_so(client: Registries) -> None:
    assert str(await refusal(client, "127.0.0.1:1/web")).startswith("127.0.0.1:1 cannot be asked: Connect")


async def test_the_digest_of_a_manifest_is_computed_where_the_registry_does_not_tell_it(
    client: Registries,
) -> None:
    async with serving(answering(200, {"Content-Type": MANIFEST}, b"{}")) as address:
        found = await client.digest(f"{address.removeprefix('http://')}/web:1")
    assert found == "sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"


@pytest.mark.parametrize("config", ["not json: hush", "[]", '{"auths": {"HOST": {"auth": "%hush"}}}'])
async def test_a_file_of_logins_that_cannot_be_read_is_named_and_not_shown(
    client: Registries, logins: Path, config: str
) -> None:
    async with serving(answering(401, {"WWW-Authenticate": "Basic"})) as address:
        host = address.removeprefix("http://")
        logins.write_text(config.replace("HOST", host))
        found = await refusal(client, f"{host}/web:1")
    assert str(found) == f"{host} requires a login, but {logins} cannot be read"


# -- what a password meets -----------------------------------------------------------------------
class _Here(AbstractResolver):
    """Every name is this machine's."""

    async def resolve(self, host: str, port: int = 0, family: int = 0) -> list[ResolveResult]:
        found = {"hostname": host, "host": "127.0.0.1", "port": port, "family": 2, "proto": 6, "flags": 0}
        return [ResolveResult(**found)]  # type: ignore[typeddict-item]

    async def close(self) -> None: ...


async def test_a_registry_elsewhere_is_never_asked_without_tls(logins: Path) -> None:
    asked: list[str] = []

    async def note(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.Response(headers={"Docker-Content-Digest": DIGEST})

    async with serving(note) as address:
        host = f"registry.test:{address.rpartition(':')[2]}"
        logins.write_text(config_json(host))
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(resolver=_Here())) as http:
            found = await refusal(Registries(http, logins), f"{host}/web:1")
    assert (asked, str(found).partition(":")[0]) == ([], "registry.test")


async def test_no_login_follows_a_registry_to_another_server(client: Registries, logins: Path) -> None:
    told: list[str | None] = []

    async def other(request: web.Request) -> web.Response:
        told.append(request.headers.get("Authorization"))
        return web.Response(headers={"Docker-Content-Digest": DIGEST})

    async with serving(other) as away:

        async def leads(request: web.Request) -> web.Response:
            if "Authorization" not in request.headers:
                return web.Response(status=401, headers={"WWW-Authenticate": 'Basic realm="x"'})
            return web.Response(status=307, headers={"Location": f"{away}{request.path}"})

        async with serving(leads) as address:
            host = address.removeprefix("http://")
            logins.write_text(config_json(host))
            assert await client.digest(f"{host}/web:1") == DIGEST
    assert told == [None]
