"""YAML that people write by hand: a key that stands twice in one mapping is an error.

Why it exists: PyYAML keeps the last of two equal keys and says nothing, so that a limit or a user would be lost.
"""

from typing import Any

import yaml


class DuplicateKeyError(yaml.YAMLError):
    """A mapping gives a key twice. As text: which key, and in which lines."""


class _Composer(yaml.composer.Composer):
    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """Compose, then compare the keys as written: before ``<<`` adds those that may be overridden."""
        node = super().compose_mapping_node(anchor)
        first: dict[tuple[str, str], yaml.ScalarNode] = {}
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            before = first.setdefault((key.tag, key.value), key)
            if before is not key:
                line, earlier = key.start_mark.line + 1, before.start_mark.line + 1
                raise DuplicateKeyError(f"line {line}: {key.value} is given twice, first in line {earlier}")
        return node


class _Loader(_Composer, yaml.SafeLoader):
    pass


class _TextLoader(_Composer, yaml.BaseLoader):
    pass


def load(text: str) -> Any:
    """Read one document into plain values. Raises yaml.YAMLError, of which DuplicateKeyError is one."""
    return yaml.load(text, Loader=_Loader)  # noqa: S506 - a safe loader that only compares keys


def load_text(text: str) -> Any:
    """Read one document and leave each value the text it is. Raises as ``load`` does."""
    return yaml.load(text, Loader=_TextLoader)  # noqa: S506 - only text
