"""A load that somebody recorded: a CSV file becomes times and amounts, or one sentence that says why not.

Why it exists: `gpuscale demo --load` takes whatever people have at hand (a metric's export, a request trace), and a
row that is wrong must be named with its line, never be skipped: a hole in a load is not a load of 0.
"""

import csv
import io
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path

TIME_NAMES = ("t", "time", "ts", "timestamp", "seconds", "date", "datetime")
MILLISECOND_NAMES = ("timestamp_ms", "time_ms", "ts_ms", "t_ms", "milliseconds", "ms")
DEMAND_NAMES = ("demand", "value", "rate", "load", "rps", "qps", "requests", "utilization", "utilisation", "y")
INPUT_NAMES = ("contexttokens", "context_tokens", "input_length", "input_tokens", "prompt_tokens")
OUTPUT_NAMES = ("generatedtokens", "generated_tokens", "output_length", "output_tokens", "completion_tokens")

MOST_BYTES = 64 * 2**20
MOST_AMOUNT = 1e15
LEAST_AMOUNT = 1e-9
LEAST_SPAN_SECONDS = 1e-3
EPOCH_MILLISECONDS_FROM = 1e11
"""A plain number of at least this much cannot be epoch seconds of our age (year 5138): it is milliseconds."""

WANTED = "expected two columns time,demand or a header that names them"


class LoadError(Exception):
    """The file cannot be used as a load. The message is one line: file, line number, what is wrong, what is right."""


class Kind(StrEnum):
    """What an amount is: a level that holds until the next row, or the work of one request that arrives then."""

    DEMAND = "demand"
    REQUESTS = "requests"


@dataclass(frozen=True, slots=True)
class CostModel:
    """What a request costs, in seconds of one fully busy replica. Rates are tokens per second and replica.

    A replica batches: the rates are those of the whole replica, not of one request. Because a load is scaled to a
    peak anyway, only the ratio of the two rates changes its shape.
    """

    prefill_tokens_per_second: float = 10_000.0
    decode_tokens_per_second: float = 1_000.0

    def busy_seconds(self, input_tokens: float, output_tokens: float) -> float:
        """Seconds that one replica is busy with a request of that many tokens."""
        return input_tokens / self.prefill_tokens_per_second + output_tokens / self.decode_tokens_per_second


@dataclass(frozen=True, slots=True)
class Recording:
    """A file that was understood: seconds since its first row, and an amount for each row (see Kind)."""

    kind: Kind
    seconds: tuple[float, ...]
    amounts: tuple[float, ...]

    @property
    def span_seconds(self) -> float:
        """From the first row to the last; above 0."""
        return self.seconds[-1] - self.seconds[0]


@dataclass(frozen=True, slots=True)
class _Columns:
    """Which column holds what. ``width`` is the number of columns that every row must have."""

    width: int
    time: int
    milliseconds: bool
    demand: int | None = None
    tokens: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class _Place:
    """Where an error is: makes the one line. ``line`` 0 = the file as a whole."""

    path: str
    line: int

    def error(self, wrong: str, right: str) -> LoadError:
        where = f"{self.path}:{self.line}" if self.line else self.path
        return LoadError(_printable(f"{where}: {wrong}; {right}"))


Row = tuple[_Place, list[str]]


def read_recording(path: str, cost: CostModel | None = None) -> Recording:
    """Read a CSV file of time and demand, or of requests with their token counts (Azure's and Mooncake's names).

    Times are seconds, epoch seconds, milliseconds or ISO 8601 (no zone = UTC). Raises LoadError.
    """
    rows = _rows(path, _text(path))
    first = next(rows, None)
    if first is None:
        raise _Place(path, 1).error("the file is empty", WANTED)
    columns, data = _columns(first, rows)
    return _recording(path, columns, data, cost or CostModel())


def _text(path: str) -> str:
    try:
        with Path(path).open("rb") as file:
            raw = file.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise _Place(path, 0).error(f"cannot be read: {why}", "expected a readable CSV file") from error
    if len(raw) > MOST_BYTES:
        raise _Place(path, 0).error(f"larger than {MOST_BYTES >> 20} MiB", "thin the rows out")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise _Place(path, line).error(f"byte 0x{raw[error.start]:02x} is not UTF-8 text", "expected CSV") from error


def _rows(path: str, text: str) -> Iterator[Row]:
    """Yield the rows that are not blank, each with the line on which it starts."""
    nul = text.find("\0")
    if nul >= 0:
        raise _Place(path, text.count("\n", 0, nul) + 1).error("a NUL byte, so not text", "expected CSV")
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    while True:
        place = _Place(path, reader.line_num + 1)
        try:
            row = next(reader, None)
        except csv.Error as error:
            raise place.error(f"not CSV: {error}", "expected balanced quotes and one row a line") from error
        if row is None:
            return
        if any(field.strip() for field in row):
            yield place, [field.strip() for field in row]


def _columns(first: Row, rest: Iterator[Row]) -> tuple[_Columns, Iterator[Row]]:
    place, fields = first
    if _is_data(fields[0]):
        return _without_header(place, fields), _chain(first, rest)
    return _from_header(place, [field.lower() for field in fields]), rest


def _chain(first: Row, rest: Iterator[Row]) -> Iterator[Row]:
    yield first
    yield from rest


def _is_data(field: str) -> bool:
    """Tell data from a header: data starts with a number or a time."""
    return _number(field) is not None or _iso(field) is not None


def _without_header(place: _Place, fields: list[str]) -> _Columns:
    if len(fields) != 2:
        raise place.error(f"no header and {len(fields)} column{'s' * (len(fields) != 1)}", WANTED)
    return _Columns(width=2, time=0, milliseconds=False, demand=1)


def _from_header(place: _Place, names: list[str]) -> _Columns:
    time = _one(place, names, TIME_NAMES + MILLISECOND_NAMES, "the time")
    inputs = _one(place, names, INPUT_NAMES, "the input tokens")
    outputs = _one(place, names, OUTPUT_NAMES, "the output tokens")
    demand = _one(place, names, DEMAND_NAMES, "the demand")
    tokens = (inputs, outputs) if inputs is not None and outputs is not None else None
    if time is None or (tokens is None and demand is None):
        raise place.error(f"no column for {'the time' if time is None else 'the demand'} in {_list(names)}", _hint())
    return _Columns(len(names), time, names[time] in MILLISECOND_NAMES, None if tokens else demand, tokens)


def _hint() -> str:
    return (
        f"expected a time ({', '.join(TIME_NAMES[:4])}) and a demand ({', '.join(DEMAND_NAMES[:3])}) "
        "or ContextTokens,GeneratedTokens or input_length,output_length, separated by commas"
    )


def _one(place: _Place, names: list[str], known: Sequence[str], what: str) -> int | None:
    found = [index for index, name in enumerate(names) if name in known]
    if len(found) > 1:
        raise place.error(f"{len(found)} columns could be {what}: {_list([names[i] for i in found])}", "keep one")
    return found[0] if found else None


def _recording(path: str, columns: _Columns, rows: Iterator[Row], cost: CostModel) -> Recording:
    seconds: list[float] = []
    amounts: list[float] = []
    amount = _amount(columns, cost)
    place = _Place(path, 1)
    clock: Callable[[str], float | None] | None = None
    for place, fields in rows:
        if len(fields) != columns.width:
            raise place.error(f"{len(fields)} columns where {columns.width} are expected", "give every row the same")
        clock = clock or _clock(place, fields[columns.time], milliseconds=columns.milliseconds)
        seconds.append(_time(place, fields[columns.time], clock, seconds))
        amounts.append(amount(place, fields))
    _check_whole(place, seconds, amounts)
    start = seconds[0]
    kind = Kind.REQUESTS if columns.tokens else Kind.DEMAND
    return Recording(kind, tuple(s - start for s in seconds), tuple(amounts))


def _check_whole(place: _Place, seconds: list[float], amounts: list[float]) -> None:
    if len(seconds) < 2:
        rows = "one row" if seconds else "no row"
        raise place.error(f"{rows} of data", "expected at least two, so that the load has a length")
    if seconds[-1] - seconds[0] < LEAST_SPAN_SECONDS:
        raise place.error("every row has the same time", "expected times that go forward")
    if max(amounts) < LEAST_AMOUNT:
        raise place.error("the demand is 0 in every row", "expected at least one above 0")


def _clock(place: _Place, field: str, *, milliseconds: bool) -> Callable[[str], float | None]:
    """Take the form of the first time as the form of all."""
    number = _number(field)
    if number is None:
        if _iso(field) is None:
            raise _bad_time(place, field)
        return _iso
    divisor = 1000.0 if milliseconds or number >= EPOCH_MILLISECONDS_FROM else 1.0
    return lambda text: None if (value := _number(text)) is None else value / divisor


def _time(place: _Place, field: str, clock: Callable[[str], float | None], before: list[float]) -> float:
    value = clock(field)
    if value is None or not abs(value) <= MOST_AMOUNT:
        raise _bad_time(place, field)
    if before and value < before[-1]:
        raise place.error(f"time goes backwards by {before[-1] - value:g} s", "expected rows in the order of time")
    return value


def _bad_time(place: _Place, field: str) -> LoadError:
    return place.error(
        f"time {_quoted(field)} is not a time", "expected seconds, epoch seconds or 2026-11-30T12:00:00Z, all alike"
    )


def _amount(columns: _Columns, cost: CostModel) -> Callable[[_Place, list[str]], float]:
    if columns.tokens:
        given, made = columns.tokens
        return lambda place, fields: cost.busy_seconds(
            _positive(place, fields[given], "input tokens"), _positive(place, fields[made], "output tokens")
        )
    demand = columns.demand
    assert demand is not None  # noqa: S101 - _from_header and _without_header give one of the two
    return lambda place, fields: _positive(place, fields[demand], "demand")


def _positive(place: _Place, field: str, what: str) -> float:
    value = _number(field)
    right = f"expected a number from 0 to {MOST_AMOUNT:g}"
    if value is None:
        raise place.error(f"{what} {_quoted(field)} is not a number" if field else f"{what} is empty", right)
    if not math.isfinite(value):
        raise place.error(f"{what} is {field}", right)
    if value < 0:
        raise place.error(f"{what} {field} is negative", right)
    if value > MOST_AMOUNT:
        raise place.error(f"{what} {field} is too large", right)
    return value


def _number(field: str) -> float | None:
    if "_" in field:
        return None  # 1_000 is Python's spelling, not a number of a CSV file
    try:
        return float(field)
    except ValueError:
        return None


def _iso(field: str) -> float | None:
    if not re.match(r"\d{4}-\d{2}-\d{2}", field):
        return None
    try:
        moment = datetime.fromisoformat(field)
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _quoted(field: str) -> str:
    return f"'{field[:40]}...'" if len(field) > 40 else f"'{field}'"


def _list(names: Sequence[str]) -> str:
    shown = ", ".join(name[:30] or "''" for name in names[:6])
    return shown + (", ..." if len(names) > 6 else "")


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)
