from collections.abc import Awaitable, Mapping
from typing import Any, NamedTuple

class ConsulException(Exception): ...

class Response(NamedTuple):
    code: int
    headers: Mapping[str, str]
    body: str
    content: bytes

class Consul:
    http: Any
    token: str | None
    dc: str | None
    consistency: str
    scheme: str
    agent: Consul.Agent
    session: Consul.Session
    status: Consul.Status

    def __init__(self) -> None: ...
    def http_connect(self, *args: Any, **options: Any) -> Any: ...

    class Agent:
        def __init__(self, agent: Consul) -> None: ...
        def self(self, token: str | None = ...) -> Awaitable[Any]: ...

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

    class Status:
        def __init__(self, agent: Consul) -> None: ...
        def leader(self) -> Awaitable[Any]: ...
