"""Which compose files are read when nobody names one, and where their variables come from."""

from __future__ import annotations

from pathlib import Path

import pytest

from farmd.compose.disk import Disk, found, variables
from store.errors import InputInvalid


def made(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("")
    return folder


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["docker-compose.yml", "compose.yaml", "compose.yml"], ["compose.yaml"]),
        (["docker-compose.yaml", "docker-compose.yml"], ["docker-compose.yml"]),
        (["compose.yaml", "compose.override.yaml"], ["compose.yaml", "compose.override.yaml"]),
        (["compose.yaml", "docker-compose.override.yml"], ["compose.yaml", "docker-compose.override.yml"]),
        (
            ["compose.yml", "compose.override.yml", "compose.override.yaml"],
            ["compose.yml", "compose.override.yml"],
        ),
    ],
)
def test_the_files_of_the_folder_are_those_that_compose_finds(
    tmp_path: Path, names: list[str], expected: list[str]
) -> None:
    assert found((), {}, made(tmp_path, *names)) == [str(tmp_path / name) for name in expected]


def test_the_nearest_folder_above_has_them(tmp_path: Path) -> None:
    made(tmp_path, "compose.yaml", "shop/compose.yaml", "shop/compose.override.yml", "shop/src/main.c")
    shop = tmp_path / "shop"
    assert found((), {}, shop / "src") == [str(shop / "compose.yaml"), str(shop / "compose.override.yml")]


def test_a_variable_names_the_files_also_in_the_file_of_variables(tmp_path: Path) -> None:
    made(tmp_path, "compose.yaml").joinpath(".env").write_text("COMPOSE_FILE=a.yaml:b.yaml\n")
    assert found((), {}, tmp_path) == ["a.yaml", "b.yaml"]
    assert found((), {"COMPOSE_FILE": "c;d", "COMPOSE_PATH_SEPARATOR": ";"}, tmp_path) == ["c", "d"]
    assert found(("e",), {}, tmp_path) == ["e"]
    assert found((), {"COMPOSE_DISABLE_ENV_FILE": "1"}, tmp_path) == [str(tmp_path / "compose.yaml")]


def test_no_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(
        InputInvalid, match=r"^found no compose\.yaml in .* or above, expected one or -f FILE$"
    ):
        found((), {}, tmp_path)


def test_the_callers_variables_stand_over_those_of_the_file_also_within_it(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("A=file\nB=file\nC=$A-${B}-'x'\n")
    known = variables({"A": "caller"}, tmp_path, lambda path: Path(path).read_text())
    assert known == {"A": "caller", "B": "file", "C": "caller-file-'x'"}


def test_a_folder_that_is_mounted_like_a_file_is_named_with_the_option_that_copies_it(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    with pytest.raises(InputInvalid, match=r"conf: found a folder, expected a file; .*--with-files"):
        Disk(lambda path: Path(path).read_text()).copy(str(tmp_path / "conf"))
