"""Results of mutation testing: results.json has the last one of each module, docs/correctness.md a table of them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.mutation.table import TABLE, Target, read_targets

RESULTS = TABLE.with_name("results.json")
PAGE = TABLE.parents[2] / "docs" / "correctness.md"
_BEGIN, _END = "<!-- results of make mutation -->", "<!-- end of results -->"


@dataclass(frozen=True, slots=True)
class Survivor:
    """A change that no test noticed, and why nobody can, or ""."""

    line: int
    old: str
    new: str
    equivalent: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Result of a module: how many changes were drawn, and how tests noticed them."""

    name: str
    module: str
    seed: int
    date: str
    places: int
    drawn: int
    unchanged_seconds: float
    failed: int = 0  # a test failed
    timed_out: int = 0  # the tests did not end in time
    not_imported: int = 0  # the module could not be imported
    survivors: tuple[Survivor, ...] = ()
    seconds: int = 0

    @property
    def killed(self) -> int:
        """Return the number of changes that were noticed."""
        return self.failed + self.timed_out + self.not_imported

    @property
    def equivalent(self) -> int:
        """Return the number of changes that nobody can notice."""
        return sum(bool(survivor.equivalent) for survivor in self.survivors)

    @property
    def percent(self) -> float:
        """Return the share of the changes that were noticed, without equivalent ones."""
        return 100 * self.killed / max(1, self.drawn - self.equivalent)

    def with_killer(self, killer: str) -> Result:
        """Return the result with one more change; `killer` as of `Runs.killer`."""
        field = {"": "", "timeout": "timed_out", "import": "not_imported"}.get(killer, "failed")
        return dataclasses.replace(self, **{field: getattr(self, field) + 1}) if field else self

    def summary(self) -> str:
        """Return the result in one line."""
        return f"{self.killed} of {self.drawn} noticed, {self.equivalent} equivalent: {self.percent:.0f} %"


def least(results: Sequence[Result]) -> float:
    """Return the lowest percentage of results."""
    return min(result.percent for result in results)


def store(result: Result | None = None) -> None:
    """Replace a module's result in results.json, if there is a new one, and write the table anew.

    Changes that modules.yaml lists as equivalent by now no longer count.
    """
    stored = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.is_file() else {}
    if result:
        stored[result.name] = dataclasses.asdict(result)
    results = [_judged(target, stored[target.name]) for target in read_targets() if target.name in stored]
    content = {item.name: dataclasses.asdict(item) for item in results}
    RESULTS.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    write_table(results, PAGE, [target.module for target in read_targets() if target.name not in stored])


def write_table(results: Sequence[Result], page: Path, missing: Sequence[str] = ()) -> None:
    """Write the table of a page anew. `missing`: modules without a result."""
    before, _, rest = page.read_text(encoding="utf-8").partition(_BEGIN)
    _, _, after = rest.partition(_END)
    page.write_text(f"{before}{_BEGIN}\n{_table(results, missing)}\n{_END}{after}", encoding="utf-8")


def _table(results: Sequence[Result], missing: Sequence[str]) -> str:
    lines = ["| module | places | drawn | noticed | equivalent | survived | rate |", "|---|---|---|---|---|---|---|"]
    for one in results:
        survived = len(one.survivors) - one.equivalent
        numbers = (one.places, one.drawn, one.killed, one.equivalent, survived, f"{one.percent:.0f} %")
        lines.append(f"| `{one.module}` | {' | '.join(map(str, numbers))} |")
    return "\n".join([*lines, *(f"| `{module}` | | | | | | not run yet |" for module in missing)])


def _judged(target: Target, entry: dict[str, Any]) -> Result:
    """Return a stored result, with the table's reasons for survivors."""
    survivors = tuple(
        Survivor(item["line"], item["old"], item["new"], target.reason(item["old"], item["new"]))
        for item in entry["survivors"]
    )
    return Result(**{**entry, "survivors": survivors})
