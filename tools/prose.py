"""Prose lint: `python -m tools.prose` reports sentences and names that break the rules of CONTRIBUTING.md."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ("xpk", "workloads", "tests", "e2e", "bench", "tools", "examples")
PROGRAMS = ("xpk", "workloads")  # their strings are messages to users
NAMED = ("xpk",)  # their identifiers are checked
PAGES = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "examples/README.md", "docs")
QUESTION_WORDS = frozenset(
    [
        "what",
        "which",
        "how",
        "where",
        "whether",
        "who",
        "whose",
        "whom",
        "when",
        "why",
        "whatever",
        "whichever",
        "whoever",
    ]
)
# Identifiers without a noun.
VAGUE_NAMES = frozenset(["found", "there", "wanted", "given", "told", "gone", "theirs", "heard"])
_QUESTION = re.compile(r"_?(what\w*|which|how|where|who|whose|when|why)_")
_CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)
_HINT = re.compile(r"(there|it|its|they|the|these|those|this|that|a|an|only|nothing|fewer|another|several|for) ")


@dataclass(frozen=True)
class Rule:
    """A phrase to avoid, its replacement, and an example of the phrase."""

    pattern: str
    instead: str
    example: str


RULES = (
    Rule(r"\bfor ever\b", "forever, or a limit", "waits for ever"),
    Rule(r"\banew\b", "again", "it begins anew"),
    Rule(r"\bwhoever\b", "the user, process or host that is meant", "whoever holds it"),
    Rule(r"what becomes of", "the noun", "what becomes of the state"),
    Rule(r"\bby the hundred\b", "a number", "hosts by the hundred"),
    Rule(
        r"(?<!there )(?<!There )\b(is|are) no (?!longer|more|less|better|such|need|limit|way)",
        "is not a ...",
        "'80x' is no port",
    ),
    Rule(r"\b(it|this|that) is said\b", "an active verb", "it is said before"),
    Rule(r"\bhow (it|a workload|a run) does\b", "status", "how a workload does"),
    Rule(r"\bthere (is|are) none there\b", "does not exist", "if there are none there"),
    Rule(r"\bas ever\b", "as before, or nothing", "works as ever"),
    Rule(r"\bgo(es)? on (from|with|at|where)\b", "continue, or resume", "goes on from step 40"),
    Rule(r"\bsomebody else\b", "another user, or another tool", "changed by somebody else"),
    Rule(r"\bnot authori[sz]ed\b", "permission denied", "not authorized to list pods"),
    Rule(r"\bmade by (?!\w+ for cluster)(xpk|\{|`xpk)", "created by", "made by xpk"),
    Rule(r"\ba run would be refused\b", "without --dry-run, this command would fail", "a run would be refused: x"),
    Rule(r"\bthat (are|is) there\b", "existing", "the slices that are there"),
)


def phrases(text: str) -> list[str]:
    """Return the phrases of a text that a rule replaces, with their replacement."""
    return [f"{match[0]!r}: write {rule.instead}" for rule in RULES for match in re.finditer(rule.pattern, text)]


def python_problems(source: str, *, is_program: bool, is_named: bool) -> Iterator[tuple[int, str]]:
    """Yield the line and the problem of each docstring, string, hint, help text and name of a module."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _docstring(node)
        if is_program:
            yield from _strings(node, is_named=is_named)
        if is_named:
            yield from _names(node)


def page_problems(text: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the problem of each phrase of a Markdown page, except in its code."""
    prose = _CODE.sub(lambda code: re.sub(r"[^\n]", "`", code[0]), text)
    joined = re.sub(r"(?<!\n)\n(?!\n)", " ", prose)  # a phrase may continue on the next line
    for rule in RULES:
        for match in re.finditer(rule.pattern, joined):
            yield prose.count("\n", 0, match.start()) + 1, f"{match[0]!r}: write {rule.instead}"


def problems() -> list[str]:
    """Return all problems of the repository, one line each."""
    return sorted(_all())


def _all() -> Iterator[str]:
    for folder in SOURCES:
        for file in (ROOT / folder).rglob("*.py"):
            checked = python_problems(
                file.read_text(encoding="utf-8"), is_program=folder in PROGRAMS, is_named=folder in NAMED
            )
            yield from _located(file, checked)
    for name in PAGES:
        path = ROOT / name
        for page in path.rglob("*.md") if path.is_dir() else (path,):
            yield from _located(page, page_problems(page.read_text(encoding="utf-8")))


def _located(file: Path, located: Iterable[tuple[int, str]]) -> Iterator[str]:
    return (f"{file.relative_to(ROOT)}:{line}: {problem}" for line, problem in located)


def _docstring(node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[tuple[int, str]]:
    text = ast.get_docstring(node)
    if text and text.split()[0].strip("`,.").lower() in QUESTION_WORDS:
        yield node.body[0].lineno, f"docstring begins with {text.split()[0]!r}: begin with a noun or an imperative"


def _strings(node: ast.AST, *, is_named: bool) -> Iterator[tuple[int, str]]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield from ((node.lineno, phrase) for phrase in phrases(node.value))
    if isinstance(node, ast.keyword) and node.arg in ("hint", "help"):
        text = _text(node.value)
        if node.arg == "hint" and _HINT.match(text):
            yield node.value.lineno, f"hint {text[:40]!r}: begin with an imperative or a command"
        if node.arg == "help" and is_named and text and not re.search(r"[.\]}]$", text):
            yield node.value.lineno, f"help {text[-40:]!r}: end with a full stop, or with [default: ...]"


def _names(node: ast.AST) -> Iterator[tuple[int, str]]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _QUESTION.match(node.name):
        yield node.lineno, f"function {node.name!r}: begin with a verb, or name its result"
    name = node.arg if isinstance(node, ast.arg) else node.id if isinstance(node, ast.Name) else ""
    is_binding = isinstance(node, ast.arg) or (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    if is_binding and name in VAGUE_NAMES:
        yield node.lineno, f"name {name!r}: write the noun"  # type: ignore[attr-defined]


def _text(node: ast.expr) -> str:
    """Return a string of the source; each expression in it is a pair of braces."""
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


if __name__ == "__main__":
    found_problems = problems()
    print(*found_problems, sep="\n", end="\n" if found_problems else "")
    sys.exit(bool(found_problems))
