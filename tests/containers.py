"""What the tests need of a Docker-compatible API, docker's or podman's, through testcontainers."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

from tests.debian import CannotFetch


def answers() -> str | None:
    """None where a Docker-compatible API answers, else the reason in one line.

    A docker binary on PATH says nothing; the API has to answer.
    """
    import docker
    import requests

    try:
        client = docker.from_env(timeout=5)
    except docker.errors.DockerException as error:
        return f"no Docker-compatible API answers: {_first_line(error)}"
    try:
        client.ping()
    except (docker.errors.DockerException, requests.RequestException) as error:
        return f"no Docker-compatible API answers: {_first_line(error)}"
    finally:
        client.close()
    return None


def copy_out(image: str, path: str, into: Path) -> Path:
    """One file of an image, copied into a folder; the image is pulled if need be.

    Raises:
        CannotFetch: no API answers, or the image cannot be had.
    """
    import docker
    import requests

    reason = answers()
    if reason is not None:
        raise CannotFetch(reason)
    client = docker.from_env(timeout=120)
    try:
        container = client.containers.create(image)
        try:
            chunks, _ = container.get_archive(path)
            archive = b"".join(chunks)
        finally:
            container.remove(force=True)
    except (docker.errors.DockerException, requests.RequestException) as error:
        raise CannotFetch(f"image {image}: {_first_line(error)}") from error
    finally:
        client.close()
    with tarfile.open(fileobj=io.BytesIO(archive)) as unpacked:
        unpacked.extractall(into, filter="data")
    return into / Path(path).name


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
