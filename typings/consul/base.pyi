from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple

class ConsulException(Exception): ...

class Response(NamedTuple):
    code: int
    headers: Mapping[str, str]
    body: str
    content: bytes

class HTTPClient:
    def get(
        self,
        callback: Callable[[Response], Any],
        path: str,
        params: Sequence[tuple[str, Any]] | None = ...,
        headers: Mapping[str, str] | None = ...,
    ) -> Awaitable[Any]: ...
    def put(
        self,
        callback: Callable[[Response], Any],
        path: str,
        params: Sequence[tuple[str, Any]] | None = ...,
        data: str | bytes = ...,
        headers: Mapping[str, str] | None = ...,
    ) -> Awaitable[Any]: ...
    def delete(
        self,
        callback: Callable[[Response], Any],
        path: str,
        params: Sequence[tuple[str, Any]] | None = ...,
        data: str | bytes = ...,
        headers: Mapping[str, str] | None = ...,
    ) -> Awaitable[Any]: ...
    def post(
        self,
        callback: Callable[[Response], Any],
        path: str,
        params: Sequence[tuple[str, Any]] | None = ...,
        data: str | bytes = ...,
        headers: Mapping[str, str] | None = ...,
    ) -> Awaitable[Any]: ...

class Consul:
    http: HTTPClient
    token: str | None
    dc: str | None
    consistency: str
    scheme: str
    agent: Consul.Agent
    catalog: Consul.Catalog
    health: Consul.Health
    kv: Consul.KV
    session: Consul.Session
    status: Consul.Status
    txn: Consul.Txn

    def __init__(self) -> None: ...
    def http_connect(self, *args: Any, **options: Any) -> HTTPClient: ...

    class Agent:
        def __init__(self, agent: Consul) -> None: ...
        def self(self, token: str | None = ...) -> Awaitable[Any]: ...

    class Catalog:
        def __init__(self, agent: Consul) -> None: ...
        def datacenters(self) -> Awaitable[Any]: ...

    class Health:
        def __init__(self, agent: Consul) -> None: ...

    class KV:
        def __init__(self, agent: Consul) -> None: ...
        def get(
            self,
            key: str,
            index: int | None = ...,
            recurse: bool = ...,
            wait: str | None = ...,
            token: str | None = ...,
            consistency: str | None = ...,
        ) -> Awaitable[Any]: ...
        def put(self, key: str, value: str | bytes | None, cas: int | None = ...) -> Awaitable[Any]: ...

    class Session:
        def __init__(self, agent: Consul) -> None: ...
        def info(
            self,
            session_id: str,
            index: int | None = ...,
            wait: str | None = ...,
            consistency: str | None = ...,
            dc: str | None = ...,
        ) -> Awaitable[Any]: ...
        def list(self) -> Awaitable[Any]: ...

    class Status:
        def __init__(self, agent: Consul) -> None: ...
        def leader(self) -> Awaitable[Any]: ...
        def peers(self) -> Awaitable[Any]: ...

    class Txn:
        def __init__(self, agent: Consul) -> None: ...
        def put(self, payload: Sequence[Any], token: str | None = ...) -> Awaitable[Any]: ...
