"""Kubernetes' integer arithmetic, where Python's own differs.

Why it exists: the HPA counts in int64 milli-units and int32 sizes, divides towards zero and turns each operand into a
float64 before a ratio. One rounding that differs is one replica more or less.
"""

import math

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1


def int64(value: int) -> int:
    """Give what an int64 holds after ``value`` was written into it (it wraps around)."""
    if -INT64_MAX <= value <= INT64_MAX:
        return value
    return (value + 2**63) % 2**64 - 2**63


def int32(value: int) -> int:
    """Give what an int32 holds after ``value`` was written into it (it wraps around)."""
    if -INT32_MAX <= value <= INT32_MAX:
        return value
    return (value + 2**31) % 2**32 - 2**31


def quotient(dividend: int, divisor: int) -> int:
    """Divide integers towards zero. ``divisor`` must not be 0."""
    if dividend >= 0 < divisor:
        return dividend // divisor
    whole = abs(dividend) // abs(divisor)
    return whole if (dividend < 0) == (divisor < 0) else -whole


def ratio(part: float, whole: float) -> float:
    """Divide as float64, where 0 as divisor gives infinity, or NaN for 0/0."""
    part, whole = float(part), float(whole)
    if whole:
        return part / whole
    return math.copysign(math.inf, part) if part else math.nan


def ceil32(value: float) -> int:
    """Round up to a size. What an int32 can't hold becomes its end, NaN becomes 0 (Go leaves both open)."""
    if -INT32_MAX <= value <= INT32_MAX:
        return math.ceil(value)
    if math.isnan(value):
        return 0
    return INT32_MAX if value > 0 else -INT32_MAX - 1
