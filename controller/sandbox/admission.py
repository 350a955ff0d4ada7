"""What a kind may do to a write before it is stored: fill in defaults, refuse, warn."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass
class WriteOptions:
    """How a write is made.

    ``dry_run`` keeps nothing; ``strictness`` is what unknown fields of custom resources cause (``Ignore``, ``Warn`` or
    ``Strict``), and ``patching`` words the refusal; ``warnings`` is filled with what the caller should be told.
    """

    dry_run: bool = False
    strictness: str = "Ignore"
    patching: bool = False
    warnings: list[str] = field(default_factory=list)


# (new object to default and check in place, the stored one or None, subresource, options); raises StatusError
Admit = Callable[[dict[str, Any], dict[str, Any] | None, str, WriteOptions], None]
