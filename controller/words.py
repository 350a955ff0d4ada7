"""Kinds of field that both custom resources have: names, labels, counts, each with its form and its greatest length.

Why it exists: a name is checked by the same rule wherever it stands.
"""

from collections.abc import Mapping
from typing import Annotated, Literal

from controller.shapes import Doc, Length, Pattern, Quantity, Range

_DNS_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
DnsLabel = Annotated[
    str, Length(63, 1), Pattern(f"^{_DNS_LABEL}$", "lower-case letters, digits and - (at most 63, no - at the ends)")
]
DnsName = Annotated[
    str,
    Length(253, 1),
    Pattern(
        rf"^{_DNS_LABEL}(\.{_DNS_LABEL})*$", "lower-case letters, digits, - and . as in a Kubernetes object's name"
    ),
]
KindName = Annotated[str, Length(63, 1), Pattern("^[A-Z][A-Za-z0-9]*$", 'a kind such as "Deployment"')]
ApiVersion = Annotated[
    str,
    Length(253, 1),
    Pattern(r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?v[a-z0-9]+$", 'an API version such as "apps/v1"'),
]
MetricName = Annotated[str, Length(253, 1), Pattern("^[^/% ]+$", "a metric's name, without / % and blanks")]
LabelKey = Annotated[str, Length(317, 1)]
LabelValue = Annotated[str, Length(63)]
Labels = Annotated[Mapping[str, LabelValue], Length(32)]
ResourceName = Annotated[
    str,
    Length(253, 1),
    Pattern(r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$", "such as nvidia.com/gpu"),
]
PositiveQuantity = Annotated[str, Quantity("positive")]
Seconds = Annotated[int, Range(0, 3600)]
Replicas = Annotated[int, Range(0, 100_000)]
Mode = Annotated[
    Literal["Active", "Preview", "Off"],
    Doc("Active acts; Preview decides and shows what it would do; Off does neither."),
]
