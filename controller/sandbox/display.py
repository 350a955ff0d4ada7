"""The demo's live view: a table that redraws itself in a terminal, a line now and then everywhere else."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TextIO

from controller.sandbox.kubelet import Life
from controller.sandbox.record import Record
from controller.sandbox.report import Told, findings
from controller.sandbox.scenario import Scenario
from controller.sandbox.summary import limits_of, status_line, told_line
from controller.sandbox.world import World

LINE_SECONDS = 5.0
"""How often a line is written where there is no terminal."""
REDRAW_SECONDS = 1.0
PATIENCE_SECONDS = 3.0
"""How long a change waits for the operator's reason before it is told without."""
LAST_CHANGES = 4
BAR = 10

UP = "\x1b[{}F"
CLEAR = "\x1b[J"


@dataclass
class Display:
    """Shows how a world stands. ``out`` is the terminal or whatever stands in its place."""

    out: TextIO
    world: World
    scenario: Scenario
    began: float
    _drawn: int = 0
    _next: float = 0.0
    _told: int = 0
    _latest: list[str] = field(default_factory=list)

    @property
    def live(self) -> bool:
        """Whether the output is a terminal that can be redrawn."""
        return self.out.isatty()

    def show(self, now: float) -> None:
        """Draw or write, if it is time to."""
        if not self.world.record.moments:
            return
        if self.live:
            if now >= self._next:
                self._next = now + REDRAW_SECONDS
                self._redraw(self._table())
            return
        for told in self._new_changes(now):
            self._write(told_line(told, self.began))
        if now >= self._next:
            self._next = now + LINE_SECONDS
            self._write(self._status())

    def finish(self) -> None:
        """Leave the last picture, so that what follows stands below it."""
        if self.live and self.world.record.moments:
            self._redraw(self._table())
        self._drawn = 0

    def _status(self) -> str:
        return status_line(self.world.record.moments[-1], self.began, self.scenario.target_percent)

    def _new_changes(self, now: float) -> list[Told]:
        """Give the changes not told yet whose reason is known, or has been waited for."""
        told = self._changes(self.world.record)[self._told :]
        ripe: list[Told] = []
        for change in told:
            if not change.reason and now - change.change.at < PATIENCE_SECONDS:
                break
            ripe.append(change)
        self._told += len(ripe)
        return ripe

    def _changes(self, record: Record) -> Sequence[Told]:
        return findings(record, limits_of(self.scenario)).told

    def _table(self) -> list[str]:
        changes = [told_line(told, self.began) for told in self._changes(self.world.record)[-LAST_CHANGES:]]
        return [self._status(), *self._nodes(), "", *(changes or ["no change yet"])]

    def _nodes(self) -> list[str]:
        held: dict[str, list[Life]] = {}
        for life in self.world.kubelet.lives.values():
            held.setdefault(life.node, []).append(life)
        names = sorted(self.world.exporters.running)
        return [f"  {name:8} {'  '.join(self._pod(life) for life in held.get(name, [])) or 'empty'}" for name in names]

    def _pod(self, life: Life) -> str:
        busy = self.world.plant.utilization.get(life.pod, 0.0)
        full = round(busy / 100 * BAR)
        state = f"{busy:3.0f} %" if life.serving else "ending" if life.ending_at is not None else "loading"
        return f"{life.pod[-5:]} [{'#' * full}{'.' * (BAR - full)}] {state:7}"

    def _write(self, line: str) -> None:
        self.out.write(line + "\n")
        self.out.flush()

    def _redraw(self, table: list[str]) -> None:
        width = shutil.get_terminal_size().columns
        back = UP.format(self._drawn) if self._drawn else ""
        self.out.write(back + CLEAR + "".join(f"{line[: width - 1]}\n" for line in table))
        self.out.flush()
        self._drawn = len(table)
