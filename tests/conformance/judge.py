"""Run one row of a conformance table and say what came out.

Why it exists: the command and the pytest wrapper must judge alike.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from controller.schema import Invalid
from controller.situation import Decided, decisions
from tests.conformance.translate import NotUnderstoodError, form_of, listed


@dataclass(frozen=True, slots=True)
class Verdict:
    """``got`` and ``want`` as text, and whether they are the same."""

    id: str
    got: str
    want: str

    @property
    def passed(self) -> bool:
        return self.got == self.want


def judge(case: Mapping[str, Any]) -> Verdict:
    """Run a row; a row that is not understood differs from any want."""
    name = str(case.get("id", "?"))
    try:
        want = wanted(case)
        made = decisions(form_of(case))
        return Verdict(name, obtained(case, made), want)
    except (NotUnderstoodError, LookupError, AttributeError, ArithmeticError, TypeError, ValueError) as error:
        faults = "; ".join(map(str, error.faults)) if isinstance(error, Invalid) else f"{error}"
        return Verdict(name, f"not understood: {faults}", str(case.get("want")))


def wanted(case: Mapping[str, Any]) -> str:
    parts = [str(case["want"])] if "want" in case else []
    parts += [f"remove {sorted(case['remove'])}"] if "remove" in case else []
    return ", ".join([*parts, *conditions_wanted(case)])


def conditions_wanted(case: Mapping[str, Any]) -> list[str]:
    found = [f"{kind}={value}" for kind, value in dict(case.get("cond", {})).items()]
    for word in ("condition", "conditions"):
        given = case.get(word, [])
        rows = [f"{kind}={value}" for kind, value in given.items()] if isinstance(given, Mapping) else listed(given)
        found += [str(row) for row in rows]
    return found


def obtained(case: Mapping[str, Any], made: tuple[Decided, ...]) -> str:
    last = made[-1].decision
    parts = [size(case, made)] if "want" in case else []
    parts += [f"remove {sorted(int(name[1:]) for name in last.victims)}"] if "remove" in case else []
    shown = {one.type: (one.status, one.reason.value) for one in last.conditions}
    for row in conditions_wanted(case):
        kind, _, rest = row.partition("=")
        status, reason = shown.get(kind, ("absent", ""))
        parts.append(f"{kind}={status}/{reason}" if "/" in rest else f"{kind}={status}")
    return ", ".join(parts)


def size(case: Mapping[str, Any], made: tuple[Decided, ...]) -> str:
    """The number that the kind of row asks for: a proposal, the largest one, or the size decided."""
    decision, kind = made[-1].decision, case["kind"]
    if kind == "sequence":
        return str([one.decision.desired for one in made])
    if kind == "metric":
        proposal = decision.trace.metrics[0].proposal
        return "error" if proposal is None else str(proposal)
    if kind == "combine" or case["want"] == "error":
        return "error" if decision.trace.proposal is None else str(decision.trace.proposal)
    return str(decision.desired)
