"""The examples of docs/http.md, run against the service and compared with what they say."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import unittest
from pathlib import Path

from .support import HERE, SRC, WithService

DOCUMENT = HERE.parents[2] / "docs" / "http.md"
ADDRESS = "http://127.0.0.1:7601"
BLOCK = re.compile(r"<!-- tested -->\n```(\w+)\n(.*?)```\n(?:```text\n(.*?)```\n)?", re.DOTALL)
MARK = "--- the next command ---"


class Examples(WithService):
    def blocks(self, language: str) -> list[tuple[str, str]]:
        """The tested blocks in this language, and the text that each must print if it stands in a block of its own."""
        text = DOCUMENT.read_text()
        found = [match.groups() for match in BLOCK.finditer(text)]
        self.assertEqual(len(found), text.count("<!-- tested -->"), "a tested block is not understood")
        return [(code, expected) for word, code, expected in found if word == language]

    def compare(self, what: str, expected: str, found: str) -> None:
        """Compares, with `…` for whatever stands there."""
        pattern = ".*".join(re.escape(part) for part in expected.strip().split("…"))
        if not re.fullmatch(pattern, found.strip(), re.DOTALL):
            self.fail(f"{what}\nprints\n{found.strip()}\nand should print\n{expected.strip()}")

    def test_the_commands_print_what_the_document_says(self) -> None:
        # One shell for the whole document, as for a reader who tries it out.
        steps = [step for block, _ in self.blocks("console") for step in self.steps(block)]
        script = "".join(f"{command}\necho; echo '{MARK}'\n" for command, _ in steps)
        run = subprocess.run(
            ["bash", "-c", script.replace(ADDRESS, self.service.url)], capture_output=True, text=True, timeout=60
        )
        printed = run.stdout.split(MARK)[:-1]
        self.assertEqual(len(printed), len(steps), run.stderr)
        for (command, expected), found in zip(steps, printed):
            with self.subTest(command):
                self.compare(command, expected, found)

    def steps(self, block: str) -> list[tuple[str, str]]:
        """The commands of a console block, each with what it prints."""
        steps: list[tuple[str, str]] = []
        for line in block.splitlines(keepends=True):
            if line.startswith("$ "):
                steps.append((line[2:].rstrip("\n"), ""))
            else:
                command, expected = steps[-1]
                steps[-1] = (command, expected + line)
        return steps

    def test_the_programs_print_what_the_document_says(self) -> None:
        for program, expected in self.blocks("python"):
            environment = {**os.environ, "PYTHONPATH": str(SRC)}
            run = subprocess.run(
                [sys.executable, "-c", program.replace(ADDRESS, self.service.url)],
                capture_output=True,
                text=True,
                timeout=60,
                env=environment,
            )
            self.assertEqual(run.returncode, 0, run.stderr)
            self.compare(program, expected, run.stdout)


class Contract(unittest.TestCase):
    """What the service's code has, the document has."""

    def missing(self, pattern: str, shown: str) -> list[str]:
        text = DOCUMENT.read_text()
        sources = (HERE.parents[2] / "crates" / "lockkeeper-server" / "src").rglob("*.rs")
        found = {word for path in sources for word in re.findall(pattern, path.read_text(), re.MULTILINE | re.DOTALL)}
        self.assertGreater(len(found), 5)
        return sorted(word for word in found if shown.format(word) not in text)

    def test_every_kind_of_problem_is_in_the_document(self) -> None:
        self.assertEqual(self.missing(r'^    \("(\w+)", \d+, "', "`{}`"), [])

    def test_every_route_is_in_the_document(self) -> None:
        self.assertEqual(self.missing(r'route\(.{0,60}?"(/v1/[^"]+)"', "{}`"), [])


class Readme(unittest.TestCase):
    def test_every_python_block_of_the_readmes_is_python(self) -> None:
        for path in (HERE.parent / "README.md", DOCUMENT):
            for code in re.findall(r"```python\n(.*?)```", Path(path).read_text(), re.DOTALL):
                compile(code, str(path), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
