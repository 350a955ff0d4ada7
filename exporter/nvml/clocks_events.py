"""For how long each reason has held the clocks down, out of NVML's field values.

Why it exists: three of the five fields were renumbered within one series of drivers, and their old numbers were given
to others: the numbers of the binding say nothing about those of the driver that answers.
"""

from collections.abc import Mapping

from exporter.nvml.calls import Absent
from exporter.nvml.fields import FieldKey, Fields
from exporter.readings import AbsentReason, ClocksEventReading

_STEADY = {"sw_power_cap_seconds": 74, "sync_boost_seconds": 76}
_NEWER = {
    "sw_thermal_slowdown_seconds": 269,
    "hw_thermal_slowdown_seconds": 270,
    "hw_power_brake_slowdown_seconds": 271,
}
_OLDER = {
    "sw_thermal_slowdown_seconds": 251,
    "hw_thermal_slowdown_seconds": 252,
    "hw_power_brake_slowdown_seconds": 253,
}
KEYS: list[FieldKey] = [(number, 0) for group in (_STEADY, _NEWER, _OLDER) for number in group.values()]
_NANOSECONDS = 1_000_000_000


def clocks_event(fields: Fields | Absent) -> ClocksEventReading | Absent:
    """Return the seconds for each reason, or why there are none.

    Under the other numbering the same numbers mean settings of power smoothing, which few boards have: where both
    groups answer, neither is believed.
    """
    if isinstance(fields, Absent):
        return fields
    known = _known(fields, _STEADY)
    newer, older = _known(fields, _NEWER), _known(fields, _OLDER)
    known |= {} if newer and older else newer or older
    if not known:
        return next(
            (value for key in KEYS if isinstance(value := fields.get(key), Absent)), Absent(AbsentReason.NOT_SUPPORTED)
        )
    return ClocksEventReading(**known)


def _known(fields: Fields, numbers: Mapping[str, int]) -> dict[str, float]:
    answers = {field: fields.get((number, 0)) for field, number in numbers.items()}
    return {
        field: value / _NANOSECONDS
        for field, value in answers.items()
        if value is not None and not isinstance(value, Absent) and value >= 0
    }
