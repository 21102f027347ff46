"""The prose lint: the repository has no problems, and each rule catches its example."""

from __future__ import annotations

import pytest

from tools import prose

STANDARD = (
    "JobSet 'w' already exists in namespace 'default', created by argo, not xpk",
    "--num-slices must be between 1 and 1024, got 300",
    "resuming from step 40 (local checkpoint)",
    "permission denied: user 'ann' cannot list pods in namespace 'default'",
    "there is no need to run it again, and it is no longer running",
)


def problems_of(source: str) -> list[str]:
    return [problem for _, problem in prose.python_problems(source, is_program=True, is_named=True)]


def test_the_repository_has_no_problems() -> None:
    assert not prose.problems()


@pytest.mark.parametrize("rule", prose.RULES, ids=lambda rule: rule.example)
def test_each_rule_catches_its_example(rule: prose.Rule) -> None:
    assert prose.phrases(rule.example) and rule.instead in prose.phrases(rule.example)[0]


@pytest.mark.parametrize("text", STANDARD)
def test_standard_messages_pass(text: str) -> None:
    assert not prose.phrases(text)


@pytest.mark.parametrize(
    "source",
    [
        '"""What a module holds."""',
        'raise Error("x", hint="there are: a, b")',
        'option(help="Number of slices")',
        "def why_waiting(): pass",
        "def f(found): pass",
        "for there in (): pass",
        'print("made by xpk")',
    ],
)
def test_docstrings_hints_help_and_names_are_checked(source: str) -> None:
    assert len(problems_of(source)) == 1


def test_plain_code_passes() -> None:
    source = '"""Names of workloads."""\n\n\ndef read_names(folder):\n    """Return the names."""\n    names = []\n'
    assert not problems_of(source)


def test_a_phrase_on_two_lines_of_a_page_is_reported_where_it_begins_and_code_is_ignored() -> None:
    page = "# Title\n\nIt goes on\nfrom step 3.\n\n```\ngoes on from\n```\n`begins anew`\n"
    assert [line for line, _ in prose.page_problems(page)] == [3]
