"""Both packages read the YAML that people write in the same way, though neither may import the other."""

import pytest
import yaml

from controller import user_yaml as operators
from exporter import user_yaml as exporters

TEXTS = (
    "a: 1\nb: [x, 2.5, null]\n",
    "a: 1\nb: 2\na: 3\n",
    "outer:\n  key: 1\n  other: 2\n  key: 3\n",
    "base: &base {a: 1}\nmore:\n  <<: *base\n  a: 2\n",
    "1: one\n'1': text\n",
    "a: [1\n",
    "",
    "a: 2026-99-99\n",
    "a: 1\nb: [x, !!int y]\n",
    "a: !!bool perhaps\n",
    "a: !!timestamp never\n",
    f"a: 1{5000 * '0'}\n",
    100_000 * "[",
)


@pytest.mark.parametrize("text", TEXTS)
def test_one_text_means_the_same_or_is_refused_in_the_same_words(text: str) -> None:
    answers = []
    for module in (operators, exporters):
        try:
            answers.append(module.load(text))
        except yaml.YAMLError as error:
            answers.append((type(error).__name__, str(error)))
    assert answers[0] == answers[1]
