"""YAML that people write by hand: a key that stands twice in one mapping is an error.

Why it exists: PyYAML keeps the last of two equal keys and says nothing, so that a limit or a user would be lost.
"""

from typing import Any

import yaml


class DuplicateKeyError(yaml.YAMLError):
    """A mapping gives a key twice. As text: which key, and in which lines."""


class UnreadableError(yaml.YAMLError):
    """A value can't be what its form or its tag says it is, or stands in too many others. As text: which, and why."""


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
    def construct_object(self, node: Any, deep: bool = False) -> Any:  # noqa: FBT001, FBT002 - as PyYAML has it
        """Construct, and name the line of a value that can't be: no date has a month 13."""
        try:
            return super().construct_object(node, deep)
        except (ArithmeticError, AttributeError, LookupError, ValueError) as error:
            raise UnreadableError(f"line {node.start_mark.line + 1}: {error}") from error


class _TextLoader(_Composer, yaml.BaseLoader):
    pass


def load(text: str) -> Any:
    """Read one document into plain values. Raises yaml.YAMLError, of which the errors here are some."""
    return _load(text, _Loader)


def load_text(text: str) -> Any:
    """Read one document and leave each value the text it is. Raises as ``load`` does."""
    return _load(text, _TextLoader)


def _load(text: str, loader: type[_Loader | _TextLoader]) -> Any:
    try:
        return yaml.load(text, Loader=loader)  # noqa: S506 - both are safe: plain values, or only text
    except RecursionError:
        raise UnreadableError("it is nested too deeply") from None
