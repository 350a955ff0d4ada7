"""Pods x node template -> nodes: how many nodes a pool needs, and which of those it has are used.

Why it exists: peers order pods by cpu and memory, so that GPUs end up stranded in fractions of nodes. Here the
pods with the most GPUs go first, then those with the largest share of any resource, each onto the first node with
room. Pods that ask for the same are placed together, so that the cost depends on classes and nodes, not on pods,
and the result is the one that pod-by-pod first fit gives in the same order. New nodes are also filled node by
node, each with the pods that leave least unused; the plan with fewer nodes wins.

A request below one GPU is a share of one device: shares are never summed across devices. On a node that runs
pods already, a device in part use counts as used, because nobody knows how its shares lie.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from controller.core.pool_model import NodeTemplate, PodClass, Resources, Taint, Toleration
from controller.core.room import DEVICE, UNLIMITED, Free, Need, Parts

_NOT_LIMITING = frozenset({"cpu", "memory", "ephemeral-storage", "pods"})
"""Where a node's offer does not name these, nothing is known of them, and they do not limit."""
_BINDING = frozenset({"NoSchedule", "NoExecute"})
_MOST_CLASSES_BY_NODE = 150
"""Filling node by node costs about the square of the classes; beyond this only first fit is tried."""


@dataclass(frozen=True, slots=True)
class Bin:
    """A place that is paid for: ``free`` is what pods may still ask for, in milli-units."""

    name: str
    free: Resources
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()


@dataclass(frozen=True, slots=True)
class NeverFit:
    """Pods that neither a bin nor an empty new node can take, and why."""

    pods: PodClass
    reason: str


@dataclass(frozen=True, slots=True)
class Packing:
    """Where the pods go. ``placed``: bin -> pods put there; ``spare_gpus``: bin -> whole GPUs left free on it."""

    new_nodes: int = 0
    placed: Mapping[str, int] = field(default_factory=dict)
    spare_gpus: Mapping[str, int] = field(default_factory=dict)
    spare_gpus_on_new: int = 0
    never_fit: tuple[NeverFit, ...] = ()


def tolerates(toleration: Toleration, taint: Taint) -> bool:
    """Match as Kubernetes does: no key with Exists is every taint, no effect is every effect."""
    if toleration.effect not in (None, "", taint.effect):
        return False
    if not toleration.key:
        return toleration.operator == "Exists"
    return toleration.key == taint.key and (toleration.operator == "Exists" or toleration.value == taint.value)


def refusal(pods: PodClass, labels: Mapping[str, str], taints: Iterable[Taint]) -> str:
    """Say why these pods may not run on a node with such labels and taints; empty = they may."""
    for key, value in pods.node_selector.items():
        if labels.get(key) != value:
            have = f"have {key}={labels[key]}" if key in labels else f"have no label {key}"
            return f"wants nodes with {key}={value}, nodes of this pool {have}"
    for taint in taints:
        if taint.effect in _BINDING and not any(tolerates(t, taint) for t in pods.tolerations):
            value = f"={taint.value}" if taint.value else ""
            return f"does not tolerate the taint {taint.key}{value}:{taint.effect}"
    return ""


def gpus_of(resources: Resources, gpu_resources: Iterable[str]) -> int:
    """Return the GPUs among the resources, in milli-units."""
    return sum(resources.get(name, 0) for name in gpu_resources)


def pack(classes: Sequence[PodClass], template: NodeTemplate, bins: Sequence[Bin] = ()) -> Packing:
    """Place all pods: bins in the order given, then as many new nodes as it takes. No limit is applied here."""
    order = _gpu_first(_merge(classes), template)
    layout = _Layout(template, order)
    shelf = _Shelf(layout, bins, order)
    waiting, never = [], []
    for pods in order:
        need = layout.need(pods)
        rest = shelf.take(pods, need)
        reason = layout.never(pods, need) if rest else ""
        if reason:
            never.append(NeverFit(replace(pods, count=rest), reason))
        elif rest:
            waiting.append((need, rest))
    nodes = _new_nodes(waiting, layout)
    return Packing(
        new_nodes=sum(group.count for group in nodes),
        placed=shelf.placed(),
        spare_gpus=shelf.spare_gpus(),
        spare_gpus_on_new=sum(layout.spare(group.free) * group.count for group in nodes),
        never_fit=tuple(never),
    )


def _merge(classes: Sequence[PodClass]) -> list[PodClass]:
    """Classes that ask for the same become one."""
    merged: dict[tuple[object, ...], PodClass] = {}
    for pods in classes:
        if pods.count <= 0:
            continue
        key = (frozenset(pods.requests.items()), frozenset(pods.node_selector.items()), pods.tolerations)
        seen = merged.get(key)
        both = pods if seen is None else replace(seen, count=seen.count + pods.count, names=seen.names + pods.names)
        merged[key] = both
    return list(merged.values())


def _gpu_first(classes: list[PodClass], template: NodeTemplate) -> list[PodClass]:
    """Most GPUs first, then the largest share of any resource; the rest of the key makes the order repeatable."""

    def key(pods: PodClass) -> tuple[object, ...]:
        gpus = gpus_of(pods.requests, template.gpu_resources)
        share = dominant_share(pods.requests, template.allocatable)
        return (-gpus, -share, sorted(pods.requests.items()), sorted(pods.node_selector.items()), pods.names)

    return sorted(classes, key=key)


def dominant_share(requests: Resources, offer: Resources) -> float:
    """Return the largest part of a whole node that one pod takes of any resource."""
    return max((amount / offer[name] for name, amount in requests.items() if offer.get(name)), default=0.0)


class _Layout:
    """Positions of the resources: the GPUs first, then every other one that is asked for; and an empty node."""

    def __init__(self, template: NodeTemplate, classes: Sequence[PodClass]) -> None:
        asked = {name for pods in classes for name in pods.requests}
        self._template = template
        self._gpus = len(template.gpu_resources)
        self._names = (*template.gpu_resources, *sorted((asked | {"pods"}) - set(template.gpu_resources)))
        self.empty = self.vector(template.allocatable)

    def vector(self, resources: Resources) -> Free:
        return tuple(max(0, resources.get(name, UNLIMITED if name in _NOT_LIMITING else 0)) for name in self._names)

    def need(self, pods: PodClass) -> Need:
        whole, share, device = [], 0, 0
        for at, name in enumerate(self._names):
            amount = pods.requests.get(name, DEVICE if name == "pods" else 0)
            if at < self._gpus and 0 < amount < DEVICE:
                share, device = amount, at
            elif amount > 0:
                whole.append((at, -(-amount // DEVICE) * DEVICE if at < self._gpus else amount))
        return Need(tuple(whole), share, device)

    def spare(self, free: Free) -> int:
        """Whole GPUs that are free."""
        return sum(amount // DEVICE for amount in free[: self._gpus])

    def never(self, pods: PodClass, need: Need) -> str:
        """Say why not even an empty new node takes one such pod; empty = it does."""
        barred = refusal(pods, self._template.labels, self._template.taints)
        if barred or need.fits(self.empty, ()):
            return barred
        asked = (*need.whole, (need.device, need.share)) if need.share else need.whole
        at, amount = next((at, amount) for at, amount in asked if amount > self.empty[at])
        name = self._names[at]
        return f"needs {amount_text(name, amount)} {name}, a node has {amount_text(name, self.empty[at])}"


class _Shelf:
    """The bins and what is left on them."""

    def __init__(self, layout: _Layout, bins: Sequence[Bin], classes: Sequence[PodClass]) -> None:
        self._layout = layout
        self._bins = bins
        self._free = [layout.vector(b.free) for b in bins]
        self._parts: list[Parts] = [()] * len(bins)
        self._kinds, self._kind_of = _kinds(bins, {key for pods in classes for key in pods.node_selector})
        self._placed = [0] * len(bins)

    def take(self, pods: PodClass, need: Need) -> int:
        """First fit; returns how many pods found no room."""
        rest = pods.count
        allowed = [not refusal(pods, kind.labels, kind.taints) for kind in self._kinds]
        at, least = need.whole[0]
        for i, free in enumerate(self._free):
            if free[at] < least or not allowed[self._kind_of[i]]:
                continue
            taken = min(need.fits(free, self._parts[i]), rest)
            if taken:
                self._free[i], self._parts[i] = need.put(free, self._parts[i], taken)
                self._placed[i] += taken
                rest -= taken
                if not rest:
                    break
        return rest

    def placed(self) -> dict[str, int]:
        return {b.name: count for b, count in zip(self._bins, self._placed, strict=True) if count}

    def spare_gpus(self) -> dict[str, int]:
        return {b.name: self._layout.spare(free) for b, free in zip(self._bins, self._free, strict=True)}


def _kinds(bins: Sequence[Bin], keys: set[str]) -> tuple[list[Bin], list[int]]:
    """Bins that any pod sees alike (taints, and the labels that are selected on), and the kind of each bin."""
    found: dict[tuple[object, ...], int] = {}
    kinds: list[Bin] = []
    kind_of = []
    ordered = sorted(keys)
    for b in bins:
        key = (b.taints, tuple(b.labels.get(k) for k in ordered))
        if key not in found:
            found[key] = len(kinds)
            kinds.append(b)
        kind_of.append(found[key])
    return kinds, kind_of


# --- new nodes ----------------------------------------------------------------------------------------------------

Waiting = Sequence[tuple[Need, int]]
"""Pods that each fit an empty node: what one needs, and how many they are; in the order of first fit."""


@dataclass(slots=True)
class _Group:
    """``count`` new nodes of one state."""

    free: Free
    parts: Parts
    count: int


def _new_nodes(waiting: Waiting, layout: _Layout) -> list[_Group]:
    """Plan the new nodes in both ways; node by node wins only with fewer nodes."""
    first_fit: list[_Group] = []
    for need, count in waiting:
        first_fit = _onto(first_fit, need, count, layout.empty)
    if not 1 < len(waiting) <= _MOST_CLASSES_BY_NODE:
        return first_fit
    by_node = _node_by_node(waiting, layout.empty)
    fewer = sum(group.count for group in by_node) < sum(group.count for group in first_fit)
    return by_node if fewer else first_fit


def _onto(nodes: list[_Group], need: Need, rest: int, empty: Free) -> list[_Group]:
    """First fit of like pods onto new nodes, then onto further ones."""
    groups: list[_Group] = []
    for group in nodes:
        rest = _spread(groups, group, need, rest)
    if rest:
        further = -(-rest // need.fits(empty, ()))
        _spread(groups, _Group(empty, (), further), need, rest)
    return groups


def _spread(groups: list[_Group], group: _Group, need: Need, rest: int) -> int:
    """Put pods onto a group of like nodes: so many full, one with what is left, the others untouched."""
    each = need.fits(group.free, group.parts) if rest else 0
    if not each:
        _append(groups, group.free, group.parts, group.count)
        return rest
    full = min(group.count, rest // each)
    _append(groups, *need.put(group.free, group.parts, each), full)
    rest -= full * each
    if full < group.count and rest:
        _append(groups, *need.put(group.free, group.parts, rest), 1)
        full, rest = full + 1, 0
    _append(groups, group.free, group.parts, group.count - full)
    return rest


def _append(groups: list[_Group], free: Free, parts: Parts, count: int) -> None:
    """Append nodes; neighbours of one state are merged, which keeps the order of first fit."""
    if count <= 0:
        return
    if groups and groups[-1].free == free and groups[-1].parts == parts:
        groups[-1].count += count
    else:
        groups.append(_Group(free, parts, count))


def _node_by_node(waiting: Waiting, empty: Free) -> list[_Group]:
    """Fill one node with the pods that leave least unused, repeat it as often as the pods last, and so on."""
    left = {i: count for i, (_, count) in enumerate(waiting)}
    needs = [need for need, _ in waiting]
    shares = [_shares(need, empty) for need in needs]
    nodes: list[_Group] = []
    while left:
        chosen, free, parts = _fill(needs, shares, left, empty)
        times = min(left[i] // count for i, count in chosen.items())
        nodes.append(_Group(free, parts, times))
        left = {i: rest for i, count in left.items() if (rest := count - times * chosen.get(i, 0))}
    return nodes


Shares = tuple[tuple[int, float], ...]


def _shares(need: Need, empty: Free) -> Shares:
    """Return the part of an empty node that one pod takes, by position; what does not limit is left out."""
    asked = (*need.whole, (need.device, need.share)) if need.share else need.whole
    return tuple((at, amount / empty[at]) for at, amount in asked if empty[at] < UNLIMITED)


def _fill(
    needs: Sequence[Need], shares: Sequence[Shares], left: Mapping[int, int], empty: Free
) -> tuple[dict[int, int], Free, Parts]:
    """Choose the pods of one node: each time the one that brings it nearest to full, scarce resources counting more.

    Returns how many of each, and what stays free.
    """
    weights = [0.0] * len(empty)
    for i, count in left.items():
        for at, part in shares[i]:
            weights[at] += part * count
    chosen: dict[int, int] = {}
    free: Free = empty
    parts: Parts = ()
    able = list(left)
    while able:
        room = [amount / whole if whole else 0.0 for amount, whole in zip(free, empty, strict=True)]
        best = max(able, key=lambda i: sum(weights[at] * part * (2 * room[at] - part) for at, part in shares[i]))
        chosen[best] = chosen.get(best, 0) + 1
        free, parts = needs[best].put(free, parts, 1)
        able = [i for i in able if chosen.get(i, 0) < left[i] and needs[i].fits(free, parts)]
    return chosen, free, parts


_BYTES = ("memory", "storage", "hugepages")


def amount_text(resource: str, milli: int) -> str:
    """Write a quantity for people: GPUs and cores as numbers, bytes in Gi."""
    if any(word in resource for word in _BYTES):
        return f"{milli / 1000 / 2**30:.4g}Gi"
    return f"{milli / 1000:g}"


def lower_bound(classes: Sequence[PodClass], template: NodeTemplate) -> int:
    """Return the nodes that no packing can go below: per resource, all that is asked for over what a node offers."""
    totals: dict[str, int] = {}
    for pods in classes:
        for name, amount in pods.requests.items():
            totals[name] = totals.get(name, 0) + amount * pods.count
    return max(
        (
            math.ceil(total / template.allocatable[name])
            for name, total in totals.items()
            if template.allocatable.get(name)
        ),
        default=0,
    )
