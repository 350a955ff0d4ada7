"""Kubernetes quantities as integers.

Why it exists: decisions are made in int milli-units, and a quantity is rounded here exactly as Kubernetes does.
"""

import re
from functools import lru_cache

_QUANTITY = re.compile(r"([+-]?)(\d*)(?:\.(\d*))?(?:([KMGTPE]i|[numkMGTPE])|[eE]([+-]?\d{1,3}))?")
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_LARGEST = 2**63 - 1


@lru_cache(maxsize=4096)
def milli(text: str | int) -> int:
    """Read a Kubernetes quantity ("500m", "8Gi", 2) in milli-units, rounded and capped as Kubernetes does.

    Raises ValueError that names the right form.
    """
    found = _QUANTITY.fullmatch(str(text))
    if found is None or not (found[2] or found[3]):
        raise ValueError(
            f'"{text}" is not a quantity: write a number with, if any, one of the suffixes '
            'n u m k M G T P E Ki Mi Gi Ti Pi Ei or an exponent, such as "500m", "8Gi" or "1e3"'
        )
    sign, whole, fraction, suffix, exponent = found.groups(default="")
    power = int(exponent or _DECIMAL.get(suffix, 0)) - len(fraction) + 3
    amount = int(whole + fraction) << _BINARY.get(suffix, 0)
    scaled: int = amount * 10**power if power >= 0 else -(-amount // 10**-power)
    return min(scaled, _LARGEST) * (-1 if sign == "-" else 1)
