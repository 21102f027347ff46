"""Shell command lines: the words of shlex, with variables kept, and back."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xpk.cli.translate.words import VARIABLE, join, split_commands
from xpk.model.errors import UsageError

# Without private-use characters, one of which stands for a variable, and without what no command line can contain.
WORDS = st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs", "Co"))), min_size=1)


def words_of(line: str) -> list[str]:
    """Return the words of a single command."""
    (command,) = split_commands(line)
    return command.words


@given(WORDS)
def test_quoted_words_are_read_back(words: list[str]) -> None:
    assert words_of(join(words)) == words == shlex.split(join(words))


@given(st.text("ab '\"\\-=/.,\t", max_size=40))
def test_words_are_those_of_shlex(line: str) -> None:
    try:
        expected = shlex.split(line)
    except ValueError:
        if not line.endswith("\\"):
            with pytest.raises(UsageError, match="no closing"):
                split_commands(line)
        return
    assert [word for command in split_commands(line) for word in command.words] == expected


@given(st.lists(st.text("ab $\\\"'`{}", max_size=8), min_size=1))
def test_words_with_variables_are_read_back(words: list[str]) -> None:
    marked = [word.replace("$", f"{VARIABLE}NAME ") for word in words]
    assert words_of(join(marked)) == marked


@pytest.mark.parametrize(
    ("line", "same"),
    [
        ('--name "$RUN"', '--name "$RUN"'),
        ("--name $RUN", '--name "$RUN"'),
        ('--name "run-${ID:-1} x"', '--name "run-${ID:-1} x"'),
        ("--name '$RUN'", "--name '$RUN'"),
        (r"--name \$RUN", "--name '$RUN'"),
        (r'--name "\$RUN costs $5"', r'--name "\$RUN costs $5"'),
        ("--env 'A=b\"c'", "--env 'A=b\"c'"),
        ('--env A="it\'s"', "--env 'A=it'\"'\"'s'"),
        ("--empty ''", "--empty ''"),
    ],
)
def test_variables_that_a_shell_expands_stay_variables(line: str, same: str) -> None:
    assert join(words_of(line)) == same


def test_lines_are_joined_and_comments_are_skipped() -> None:
    text = "# first\n\nxpk workload list \\\n  --cluster c  # here\n\ngcluster job logs 'a\nb'\nxpk version"
    commands = split_commands(text)
    assert [command.words for command in commands] == [
        ["xpk", "workload", "list", "--cluster", "c"],
        ["gcluster", "job", "logs", "a\nb"],
        ["xpk", "version"],
    ]
    assert [command.number for command in commands] == [3, 6, 8]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("gcluster job list | grep x", "line 1: shell operator '|'"),
        ("\ngcluster job list && true", "line 2: shell operator '&'"),
        ("gcluster job logs $(date)", "line 1: command substitution"),
        ('gcluster job logs "`date`"', "line 1: command substitution"),
        ("gcluster job logs 'a", "line 1: no closing '"),
        ('\ngcluster "a\nb', 'line 2: no closing "'),
    ],
)
def test_lines_that_need_a_shell_are_refused(line: str, why: str) -> None:
    with pytest.raises(UsageError) as error:
        split_commands(line)
    assert error.value.message == why and error.value.hint
