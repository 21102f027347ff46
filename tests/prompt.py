"""Failures told when they happen: a run that is cut off would never tell."""

from __future__ import annotations

import pytest

_NAME = "prompt-failures"
_LINES = 25  # of what failed


def pytest_configure(config: pytest.Config) -> None:
    """Say at once what fails, in the process that prints."""
    if not hasattr(config, "workerinput") and not config.pluginmanager.has_plugin(_NAME):
        config.pluginmanager.register(_Prompt(config), _NAME)


class _Prompt:
    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and (terminal := self._config.pluginmanager.get_plugin("terminalreporter")):
            terminal.ensure_newline()
            terminal.write_line(f"FAILED {report.nodeid} ({report.when}, {report.duration:.0f} s)")
            terminal.write_line("\n".join(report.longreprtext.splitlines()[-_LINES:]))
