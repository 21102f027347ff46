"""Settings of every test process: failures are printed immediately, and Ctrl-C reaches child processes."""

from __future__ import annotations

import signal

import pytest

_NAME = "prompt-failures"
_LINES = 25  # characters of a failure


def pytest_configure(config: pytest.Config) -> None:
    """Print failures immediately, in the process that prints: an interrupted run would never show them."""
    # A shell starts background processes with SIGINT ignored, and children inherit that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
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
