"""Parsing and validation of report pages."""

from __future__ import annotations

from html.parser import HTMLParser

from tests.jobs.report.runs import START
from xpk.jobs.report.page import ReportFacts
from xpk.jobs.report.restart_lines import RestartFact

FACTS = ReportFacts(
    workload="demo",
    cluster="dev",
    accelerator="v5litepod-8",
    slices=2,
    hosts_per_slice=2,
    chips_per_host=4,
    state="Succeeded",
    command=("python", "-m", "trainer"),
    config={"run.steps": "150"},
    restarts=(RestartFact(cause="s1/h1 ended with exit code 137", time=START + 40),),
)
VOID = {"meta", "link", "br", "img", "input", "hr"}


class Checker(HTMLParser):
    """Checks that all tags are closed in order; collects tags, attributes and text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-3:]}"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.text += data
