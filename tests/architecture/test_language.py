"""The rules of language that a program can check, over docstrings, messages and documentation."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = [path for folder in ("xpk", "workloads", "tests", "e2e", "bench") for path in (ROOT / folder).rglob("*.py")]
PROGRAMS = [path for path in SOURCES if path.relative_to(ROOT).parts[0] in ("xpk", "workloads")]
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), *(ROOT / name for name in ("README.md", "CONTRIBUTING.md"))]

QUESTION_WORDS = ("what", "which", "how", "where", "whether", "who", "whose", "whom", "when", "why")

# A phrase, and what to write instead.
PHRASES = {
    r"\bfor ever\b": "forever, or a limit",
    r"\banew\b": "again",
    r"\bwhoever\b": "the user, process or host that is meant",
    r"what becomes of": "the noun",
    r"\bby the hundred\b": "a number",
    r"(?<!there )(?<!There )\b(is|are) no (?!longer|more|less|better|such|need|limit|way)": "is not a ...",
    r"\b(it|this|that) is said\b": "an active verb",
    r"\bhow (it|a workload|a run) does\b": "status",
    r"\bthere (is|are) none there\b": "does not exist",
}


def docstrings(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield the name and the docstring of everything in a module that has one."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if text := ast.get_docstring(node):
            yield getattr(node, "name", "module"), text


def phrases(text: str) -> list[str]:
    """Return the phrases of a text that the rules replace, with their replacement."""
    return [
        f"{match[0]!r}: write {instead}" for phrase, instead in PHRASES.items() for match in re.finditer(phrase, text)
    ]


def test_docstrings_begin_with_a_noun_or_a_verb() -> None:
    wrong = [
        f"{file.relative_to(ROOT)}: {name}"
        for file in SOURCES
        for name, text in docstrings(ast.parse(file.read_text(encoding="utf-8")))
        if text.split()[0].strip("`,.").lower() in QUESTION_WORDS
    ]
    assert not wrong


def test_strings_are_in_plain_english() -> None:
    wrong = [
        f"{file.relative_to(ROOT)}:{node.lineno}: {phrase}"
        for file in PROGRAMS
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        for phrase in phrases(node.value)
    ]
    assert not wrong


def test_pages_are_in_plain_english() -> None:
    wrong = [
        f"{page.relative_to(ROOT)}: {phrase}"
        for page in PAGES
        for phrase in phrases(re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL))
    ]
    assert not wrong
