"""What the pages show is what happens: their examples are run.

A `python` block that imports the package is run; a `text` block right after it is its output. A
`console` block holds commands after `$ ` and their output. Output is compared word by word, `...`
standing for what differs from run to run.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
# Examples are written for this width.
ENVIRONMENT = {**os.environ, "COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}


def pages() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page: Path, language: str) -> list[tuple[str, str]]:
    """Return the blocks of a language, each with the `text` block that follows it, or ""."""
    found = [(match, match.group(1)) for match in FENCE.finditer(page.read_text())]
    result = []
    for index, (match, name) in enumerate(found):
        if name != language:
            continue
        output = ""
        if index + 1 < len(found) and found[index + 1][1] == "text":
            following = found[index + 1][0]
            between = page.read_text()[match.end() : following.start()]
            output = following.group(2) if not between.strip() else ""
        result.append((match.group(2), output))
    return result


def python_examples() -> list[tuple[str, str]]:
    """Return the complete examples; a block without the import is a fragment."""
    found = [example for page in pages() for example in blocks(page, "python")]
    return [(code, shown) for code, shown in found if "import tandemkv" in code]


def console_examples() -> list[tuple[str, str]]:
    """Return the commands of every console block with their output."""
    found = []
    for page in pages():
        for text, _ in blocks(page, "console"):
            for part in re.split(r"^\$ ", text, flags=re.M)[1:]:
                command, _, output = part.replace("\\\n", " ").partition("\n")
                found.append((command, output))
    return found


def assert_shows(output: str, shown: str) -> None:
    """Compare with spaces folded.

    `...` stands for any text within a line, and on a line of its own for any number of lines.
    """
    actual, expected = (
        "\n".join(" ".join(line.split()) for line in text.strip().splitlines())
        for text in (output, shown)
    )
    pattern = "".join(
        {"...": "[^\n]*", "\n...\n": "\n(?:.*\n)*"}.get(part, re.escape(part))
        for part in re.split(r"(^\.\.\.$|\n\.\.\.\n|\.\.\.)", expected)
    )
    assert re.fullmatch(pattern, actual), f"{output}\nis not\n{shown}"


def run(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        arguments, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, check=False
    )


def test_the_readme_has_examples():
    assert blocks(ROOT / "README.md", "python")
    assert blocks(ROOT / "README.md", "console")


@pytest.mark.parametrize(("code", "shown"), python_examples())
def test_python_example(code: str, shown: str):
    result = run([sys.executable, "-W", "error", "-c", code])
    assert result.returncode == 0, result.stderr
    if shown:
        assert_shows(result.stdout, shown)


@pytest.mark.parametrize(("command", "shown"), console_examples())
def test_console_example(command: str, shown: str):
    words = shlex.split(command)
    assert words[0] == "tandemkv", "only the command of the package is run"
    program = "import sys; from tandemkv.cli import main; sys.exit(main())"
    result = run([sys.executable, "-c", program, *words[1:]])
    # The status is in the error's own line where an example shows an error.
    assert result.returncode == (1 if shown.startswith("error:") else 0), result.stderr
    assert_shows(result.stdout + (result.stderr if result.returncode else ""), shown)
