"""Amounts, times and shares as people write them: ``500m``, ``1.5Gi``, ``500ms``, ``1h30m``, ``25%``.

Records hold plain numbers (cores, bytes, seconds), so that every version reads them. These texts are accepted
only where people write: files, flags and the configuration. A field of a file says by its type, such as
``Seconds``, which texts it accepts; ``plain`` turns them into numbers before the types are checked.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Annotated, Any

import msgspec

from store.errors import InputInvalid
from store.mistakes import described, shown

_NUMBER = r"[0-9]{1,19}(?:\.[0-9]{1,19})?"
_TIMES = {
    "d": Fraction(86400),
    "h": Fraction(3600),
    "m": Fraction(60),
    "s": Fraction(1),
    "ms": Fraction(1, 1000),
}
_DURATION = re.compile("".join(rf"(?:({_NUMBER}){unit})?" for unit in _TIMES))
_AMOUNTS = {"": Fraction(1), "m": Fraction(1, 1000)}
_AMOUNTS |= {letter: Fraction(1000**power) for power, letter in enumerate("kMGTPE", 1)}
_AMOUNTS |= {f"{letter}i": Fraction(1024**power) for power, letter in enumerate("KMGTPE", 1)}
_AMOUNT = re.compile(rf"({_NUMBER})({'|'.join(_AMOUNTS)})")


def seconds(text: str) -> float:
    """The seconds of ``90``, ``500ms``, ``5m``, ``1h30m`` or ``2d``.

    Raises:
        InputInvalid: not such a text.
    """
    if re.fullmatch(_NUMBER, text):
        return float(text)
    parts = found.groups() if (found := _DURATION.fullmatch(text)) else ()
    if not any(parts):
        raise InputInvalid(f"found {shown(text)}, expected a time such as 90, 500ms, 5m, 1h30m or 2d")
    sizes = zip(parts, _TIMES.values(), strict=True)
    return float(sum(Fraction(number) * size for number, size in sizes if number))


def amount(text: str) -> float:
    """The number of ``2``, ``500m`` (0.5), ``64Mi`` (64 · 1024²) or ``2G`` (2 · 1000³).

    Raises:
        InputInvalid: not such a text.
    """
    return float(_exact(text))


def _exact(text: str) -> Fraction:
    if (found := _AMOUNT.fullmatch(text)) is None:
        raise InputInvalid(f"found {shown(text)}, expected an amount such as 2, 500m, 64Mi or 1.5Gi")
    return Fraction(found[1]) * _AMOUNTS[found[2]]


def whole(text: str) -> int:
    """The number of ``4096`` or ``64Mi``.

    Raises:
        InputInvalid: not such a text, or not a whole number.
    """
    if (found := _exact(text)).denominator != 1:
        raise InputInvalid(f"found {shown(text)}, expected a whole number such as 4096 or 64Mi")
    return int(found)


def check_bytes(amounts: Mapping[str, float], where: str) -> None:
    """Refuse a fraction of a byte of memory: ``64m`` usually means ``64Mi``. ``where`` begins the message.

    Raises:
        InputInvalid: the amount of ``memory`` is no whole number.
    """
    if not (memory := amounts.get("memory", 0.0)).is_integer():
        raise InputInvalid(
            f"{where}.memory: found {shown(memory)}, expected whole bytes, such as 64Mi",
            field=f"{where}.memory",
        )


def percent(value: int | str) -> int:
    """The number before the percent sign, 1 to 100; 0 for what is a number and no share.

    Raises:
        InputInvalid: a text that is no such share.
    """
    if isinstance(value, int):
        return 0
    if not re.fullmatch("([1-9][0-9]?|100)%", value):
        raise InputInvalid(f"found {value!r}, expected a whole number or a share from 1% to 100%")
    return int(value.removesuffix("%"))


def _reads(parse: Callable[[str], float]) -> msgspec.Meta:
    return msgspec.Meta(extra={"parse": parse})


Seconds = Annotated[float, _reads(seconds)]
Amount = Annotated[float, _reads(amount)]
Whole = Annotated[int, _reads(whole)]
Share = Annotated[
    str, msgspec.Meta(pattern="^(100|[0-9]{1,2})%$", extra={"expected": "a share from 0% to 100%"})
]
"""A share of a whole, such as ``90%``."""


def plain(kind: Any, data: Any, path: str = "") -> Any:
    """A person's input for a type, with each text in a field of the types above turned into its number,
    and ``3.0`` and ``1e3`` in a field of whole numbers into whole ones.

    Raises:
        InputInvalid: naming the field, what was found and what was expected.
    """
    if kind is None:  # a key that the type does not have
        return data
    info = kind if isinstance(kind, msgspec.inspect.Type) else described(kind)
    if isinstance(info, msgspec.inspect.UnionType):
        for option in info.types:
            data = plain(option, data, path)
    elif isinstance(info, msgspec.inspect.Metadata):
        if isinstance(data, str) and "parse" in (info.extra or {}):
            try:
                return info.extra["parse"](data)  # type: ignore[index]
            except InputInvalid as error:
                raise InputInvalid(f"{path}: {error.message}", field=path) from error
        return plain(info.type, data, path)
    elif isinstance(info, msgspec.inspect.IntType) and isinstance(data, float) and data.is_integer():
        return int(data)
    elif isinstance(info, msgspec.inspect.StructType) and isinstance(data, Mapping):
        types = {field.encode_name: field.type for field in info.fields}
        return {key: plain(types.get(key), each, f"{path}.{key}".lstrip(".")) for key, each in data.items()}
    elif isinstance(info, msgspec.inspect.DictType) and isinstance(data, Mapping):
        return {key: plain(info.value_type, each, f"{path}.{key}".lstrip(".")) for key, each in data.items()}
    elif isinstance(info, msgspec.inspect.ListType) and isinstance(data, list):
        return [plain(info.item_type, each, f"{path}[{place}]") for place, each in enumerate(data)]
    return data
