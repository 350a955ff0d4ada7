"""How a set of pods' values becomes a ratio to the target, per kind of target.

Why it exists: plain averages, utilisation of requests and memory headroom share all rules about pods (who counts, who
is filled) and differ only in these few formulas. Values are milli-units.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from controller.core.arithmetic import ceil32, int32, int64, quotient, ratio


class Measured(NamedTuple):
    """``ratio`` to the target; ``average`` in milli-units, ``utilization`` in whole percent of requests."""

    ratio: float
    average: int
    utilization: int | None = None


@dataclass(frozen=True, slots=True)
class Average:
    """The average per pod against a target value."""

    target: int

    def measure(self, values: Mapping[str, int]) -> Measured | None:
        """Measure the values; never None."""
        average = quotient(int64(sum(values.values())), len(values))
        return Measured(ratio(average, self.target), average)

    def assumed(self, name: str) -> int:
        """Give the value that a silent pod is assumed to have while the others ask for fewer: the target."""
        return self.target

    def size(self, measured: Measured, values: Mapping[str, int], pods: int) -> int:
        """Give the number of pods that would bring the load of ``pods`` pods to the target."""
        return ceil32(measured.ratio * pods)


@dataclass(frozen=True, slots=True)
class OfRequests:
    """The usage of all pods in whole percent of their requests against a target percent."""

    target: int
    requests: Mapping[str, int]

    def measure(self, values: Mapping[str, int]) -> Measured | None:
        """Measure the values of known pods; None if they ask for nothing in total."""
        known = [name for name in values if name in self.requests]
        requested = int64(sum(self.requests[name] for name in known))
        if requested == 0:
            return None
        used = int64(sum(values[name] for name in known))
        percent = int32(quotient(int64(used * 100), requested))
        return Measured(ratio(percent, self.target), quotient(used, len(known)), percent)

    def assumed(self, name: str) -> int:
        """Give the whole request, or the target's share of it where that is more than the request."""
        return quotient(int64(self.requests[name] * max(100, self.target)), 100)

    def size(self, measured: Measured, values: Mapping[str, int], pods: int) -> int:
        """Give the number of pods that would bring the load of ``pods`` pods to the target."""
        return ceil32(measured.ratio * pods)


@dataclass(frozen=True, slots=True)
class Headroom:
    """Memory used in total against what a pod may use: its capacity less the headroom."""

    usable: int

    def measure(self, values: Mapping[str, int]) -> Measured | None:
        """Measure the values; never None."""
        used = sum(values.values())
        return Measured(used / (self.usable * len(values)), used // len(values))

    def assumed(self, name: str) -> int:
        """Give what a pod may use at most."""
        return self.usable

    def size(self, measured: Measured, values: Mapping[str, int], pods: int) -> int:
        """Give the number of pods that hold the sum and keep the headroom."""
        return -(-sum(values.values()) // self.usable)


Measure = Average | OfRequests | Headroom
