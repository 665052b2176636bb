"""The files of a bundle on this machine: single ones, folders, stdin.

What must never break: a folder that another tool reads (kustomize, Helm) is refused, because its files by
themselves mean something else than what that tool makes of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from store.errors import InputInvalid

ENDINGS = (".yaml", ".yml", ".json")
_RENDERED = {
    "kustomization.yaml": "kustomize build {folder}",
    "kustomization.yml": "kustomize build {folder}",
    "Kustomization": "kustomize build {folder}",
    "Chart.yaml": "helm template --no-hooks {name} {folder}",
}


def texts(
    paths: Sequence[str], read: Callable[[str], str], *, recursive: bool = False
) -> list[tuple[str, str]]:
    """The (text, name) of each file, those of a folder in the order of their names; ``-`` is stdin.

    ``recursive``: also those of the folders below.

    Raises:
        InputInvalid: a path that is not there, or is given twice; or a folder that another tool renders.
    """
    found: dict[str, str] = {}
    for path in paths:
        for each in [path] if path == "-" else _files(path, recursive):
            name = "stdin" if each == "-" else each
            if name in found:
                raise InputInvalid(f"-f: found {name!r} twice, expected each file once", field="file")
            found[name] = read(each)
    return [(text, name) for name, text in found.items()]


def _files(path: str, recursive: bool) -> list[str]:
    folder = Path(path)
    if not folder.is_dir():
        return [path]
    _refuse_rendered(folder)
    files = []
    for each in sorted(folder.iterdir()):
        if each.is_dir() and recursive and not each.name.startswith("."):
            files += _files(str(each), recursive)
        elif each.is_file() and each.suffix in ENDINGS and not each.name.startswith("."):
            files.append(str(each))
    return files


def _refuse_rendered(folder: Path) -> None:
    for name, command in _RENDERED.items():
        if (folder / name).is_file():
            pipe = command.format(folder=folder, name=folder.resolve().name)
            raise InputInvalid(
                f"{folder / name}: found files that another tool renders, expected plain documents",
                field="file",
                hint=f"{pipe} | farmctl apply -f - --app APP",
            )
