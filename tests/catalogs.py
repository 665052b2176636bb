"""Consul's catalogue as its readers see it: over HTTP, and by DNS. For tests."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import urllib.parse
import urllib.request
from dataclasses import dataclass
from typing import Any

A, SRV, IN = 1, 33, 1


@dataclass(frozen=True)
class Reader:
    """Somebody who finds services in Consul, and who may write there by hand."""

    address: str
    token: str = ""

    async def ask(self, path: str, *, method: str = "GET", body: Any = None) -> Any:
        """What the HTTP API answers, decoded."""
        return await asyncio.to_thread(self._ask, path, method, body)

    def _ask(self, path: str, method: str, body: Any) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://{self.address}/v1/{path}", data, method=method)
        if self.token:
            request.add_header("X-Consul-Token", self.token)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read())

    async def passing(self, name: str) -> list[tuple[str, int]]:
        """Address and port of the instances that a proxy would send requests to."""
        found = await self.ask(f"health/service/{name}?passing")
        return sorted((each["Service"]["Address"], each["Service"]["Port"]) for each in found)

    async def all(self, name: str) -> dict[str, str]:
        """The status of farmd's check of each instance, by the instance's id."""
        found = await self.ask(f"health/service/{name}")
        return {
            each["Service"]["ID"]: check["Status"]
            for each in found
            for check in each["Checks"]
            if check["ServiceID"] == each["Service"]["ID"]
        }

    async def one(self, name: str) -> Any:
        """The one instance of a service, as the health endpoint tells it."""
        (found,) = await self.ask(f"health/service/{name}")
        return found


def resolve(host: str, port: int, name: str, kind: int) -> list[Any]:
    """The answers of a DNS server over TCP, which cuts none off: addresses, or ports with their targets."""
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
    question = struct.pack(">HHHHHH", 7, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack(">HH", kind, IN)
    with socket.create_connection((host, port), timeout=30) as line:
        line.sendall(struct.pack(">H", len(question)) + question)
        stream = line.makefile("rb")
        (size,) = struct.unpack(">H", stream.read(2))
        body = stream.read(size)
    count, place = struct.unpack(">H", body[6:8])[0], len(question)
    found = list[Any]()
    for _ in range(count):
        place = _behind_name(body, place)
        of, _, _, length = struct.unpack(">HHIH", body[place : place + 10])
        data, place = body[place + 10 : place + 10 + length], place + 10 + length
        if of == A == kind:
            found.append(socket.inet_ntoa(data))
        elif of == SRV == kind:
            found.append(struct.unpack(">HHH", data[:6])[2])
    return sorted(found)


def _behind_name(body: bytes, place: int) -> int:
    while body[place]:
        if body[place] >= 0xC0:
            return place + 2
        place += body[place] + 1
    return place + 1


def quoted(text: str) -> str:
    """A part of a path."""
    return urllib.parse.quote(text, safe="")
