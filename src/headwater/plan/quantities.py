"""Reading quantities with units: `400Gbps`, `50GB/s`, `80GiB`, `2e12`. A bare number is refused where a unit matters.

bandwidth("400Gbps")        # 5e10 bytes a second
"""

from __future__ import annotations

import math
import re

from headwater.core.errors import InputError

_NUMBER = re.compile(r"^\s*([-+0-9.eE_,]+)\s*([A-Za-z/]*)\s*$")
_PREFIX = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "p": 1e15}
_BINARY = {"ki": 2.0**10, "mi": 2.0**20, "gi": 2.0**30, "ti": 2.0**40, "pi": 2.0**50}


def _split(value: object, where: str) -> tuple[float, str]:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise InputError(f"{value!r} is not a quantity", where=where, mend="write a number")
    match = _NUMBER.match(str(value))
    try:
        number = float(match.group(1).replace(",", "").replace("_", "")) if match else math.nan
    except ValueError:
        number = math.nan
    if match is None or not math.isfinite(number):
        raise InputError(f"{value!r} is not a number", where=where, mend="write digits, with a unit where one matters")
    return number, match.group(2)


def plain(value: object, where: str) -> float:
    """A finite number of any sign, without a unit."""
    number, unit = _split(value, where)
    if unit:
        raise InputError(f"{value!r} has a unit", where=where, mend="write a plain number")
    return number


def positive(value: object, where: str, *, limit: float = math.inf) -> float:
    """A finite number above zero and at most `limit`; InputError says which."""
    number = plain(value, where)
    if not 0 < number <= limit:
        wanted = f"above zero{f' and at most {limit:g}' if limit < math.inf else ''}"
        raise InputError(f"{value!r} is not {wanted}", where=where, mend=f"a number {wanted}")
    return number


def bandwidth(value: object, where: str = "bandwidth") -> float:
    """Bytes a second from `400Gbps` (bits) or `50GB/s` (bytes); a bare number is refused."""
    number, unit = _split(value, where)
    low = unit.lower()
    bits = re.fullmatch(r"([kmgtp]?)(bps|bit/s|b/s)", low) if not low.endswith("b/s") or "B" not in unit else None
    if bits:
        rate = number * _PREFIX[bits.group(1)] / 8.0
    else:
        nbytes = re.fullmatch(r"([kmgtp]i?|)b/s", low)
        if nbytes is None or "B" not in unit:
            raise InputError(f"{value!r} has no unit of bandwidth", where=where, mend="write 400Gbps or 50GB/s")
        prefix = nbytes.group(1)
        rate = number * (_BINARY[prefix] if prefix in _BINARY else _PREFIX[prefix])
    if not 0 < rate < 1e17:
        raise InputError(
            f"{value!r} is not a bandwidth a machine has", where=where, mend="above zero, for example 400Gbps or 50GB/s"
        )
    return rate


def size(value: object, where: str = "size") -> float:
    """Bytes from `80GB`, `80GiB` or `1.5TB`; a bare number is refused."""
    number, unit = _split(value, where)
    match = re.fullmatch(r"([kmgtp]i?|)b", unit.lower())
    if match is None:
        raise InputError(f"{value!r} has no unit of size", where=where, mend="write 80GB, 80GiB or 2TB")
    prefix = match.group(1)
    total = number * (_BINARY[prefix] if prefix in _BINARY else _PREFIX[prefix])
    if not total > 0:
        raise InputError(f"{value!r} is not above zero", where=where, mend="write 80GB, 80GiB or 2TB")
    return total


def count(value: object, where: str) -> int:
    """A whole number above zero; `2e12` and `1_000` are whole numbers, `1.5` is not."""
    number = positive(value, where)
    if number != int(number):
        raise InputError(f"{value!r} is not a whole number", where=where, mend="write one without a fraction")
    return int(number)


def human(value: float, unit: str = "") -> str:
    """`1.23 G`, for people: three digits and a decimal prefix."""
    for prefix, scale in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= scale:
            return f"{value / scale:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}".rstrip()


def four_digits(value: float) -> str:
    """`7.421`, `10,790`, for people: four digits or all before the point, never an exponent of a large number."""
    return f"{value:,.4g}" if abs(value) < 9999.5 else f"{value:,.0f}"


def gib(value: float) -> str:
    """Bytes as GiB with one decimal."""
    return f"{value / 2**30:.1f}"
