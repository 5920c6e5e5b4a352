"""What the documents name exists: files, commands, options, packages and public names."""

import ast
import inspect
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import reelscribe
from support.commands import command_options
from support.documents import DOCUMENTS, ROOT, blocks

NAMES = [str(path.relative_to(ROOT)) for path in DOCUMENTS]
HISTORY = "CHANGELOG.md"
PLACES = (ROOT, ROOT / "clients", ROOT / "clients/reelscribe", ROOT / "handlers")
"""Folders from which documents name files."""

OTHERS_SAY = {
    "Connection refused": "the operating system",
    "Token Authorization failed": "TorchServe",
    "Worker died.": "TorchServe",
    "has no worker to serve inference request": "TorchServe",
    "java not found": "TorchServe's launcher",
    "Failed to connect to Ray cluster at": "Ray",
    "no authentication token was found": "Ray",
    "No node info found matching attributes": "Ray",
}
"""Parts of messages in docs/symptoms.md that are not in the code of this project, and who says them."""


COMMANDS = command_options()


@pytest.mark.parametrize("name", NAMES)
def test_links_and_scripts_exist(name):
    text = (ROOT / name).read_text()
    links = [link for link in re.findall(r"\]\(([^)#]+)", text) if "://" not in link]
    assert [link for link in links if not ((ROOT / name).parent / link).exists()] == []
    scripts = set(re.findall(r"\bscripts/(\w+)", text))
    assert [script for script in scripts if not os.access(ROOT / "scripts" / script, os.X_OK)] == []


def test_the_index_of_decisions_has_a_line_for_each():
    folder = ROOT / "docs/decisions"
    lines = re.findall(r"^- \[(.+)\]\((.+)\)$", (folder / "README.md").read_text(), re.M)
    titles = {path.name: path.read_text().partition("\n")[0] for path in folder.glob("*.md") if path.stem != "README"}
    assert sorted((name, f"# {title}") for title, name in lines) == sorted(titles.items())


@pytest.mark.parametrize("name", [name for name in NAMES if name != HISTORY])
def test_files_that_are_named_exist(name):
    paths = re.findall(
        r"`((?:reelscribe|handlers|bench|demo|deploy|docs|tests)/[\w./-]+\.\w+)`", (ROOT / name).read_text()
    )
    assert [path for path in paths if not any((place / path).exists() for place in PLACES)] == []


def test_tests_that_are_named_exist():
    named = re.findall(r"`(test_\w+)`", (ROOT / "docs/security.md").read_text())
    tests = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    assert len(named) > 20
    assert [name for name in named if f"def {name}(" not in tests] == []


@pytest.mark.parametrize("name", [name for name in NAMES if name != HISTORY])
def test_commands_and_their_options_exist(name):
    text = (ROOT / name).read_text()
    lines = [line for block in blocks(ROOT / name) for line in block.code.replace("\\\n", "").splitlines()]
    lines += re.findall(r"`([^`]+)`", text)
    for line in lines:
        if match := re.match(r"\s*(?:\S*/)?reelscribe ([a-z].*)", line):
            words = shlex.split(match[1], comments=True)
            command = max((each for each in COMMANDS if words[: len(each.split())] == each.split()), key=len)
            assert command or words[0] == "COMMAND", line
            options = {word.partition("=")[0] for word in words if word.startswith("--")}
            assert options <= COMMANDS[command], line


@pytest.mark.parametrize("name", ["options", "api"])
def test_generated_pages_are_those_of_the_code(name):
    done = subprocess.run([sys.executable, ROOT / f"docs/{name}.py"], capture_output=True, text=True, check=True)
    assert done.stdout == (ROOT / f"docs/{name}.md").read_text(), f"run scripts/docs --{name}"


@pytest.mark.parametrize("name", [name for name in NAMES if name != HISTORY])
def test_benchmarks_that_are_named_exist(name):
    paths = [path.relative_to(ROOT / "bench").with_suffix("") for path in (ROOT / "bench").rglob("*.py")]
    benchmarks = {each for path in paths for each in (path.name, str(path))}
    assert set(re.findall(r"scripts/bench\s+([a-z][\w/]*)", (ROOT / name).read_text())) <= benchmarks


def test_the_architecture_has_every_package_in_its_layer():
    rows = re.findall(r"^\| ([\d, ]+) \| (`.+?) \|", (ROOT / "docs/architecture.md").read_text(), re.M)
    documented = {}
    for numbers, packages in rows:
        layers, names = numbers.split(", "), re.findall(r"`(\w+)`", packages)
        documented |= zip(names, map(int, layers * (len(names) // len(layers))), strict=True)
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = [contract["layers"] for contract in contracts if contract["type"] == "layers"]
    assert documented == {name: k for k, layer in enumerate(layers, 1) for name in layer.split(" | ")}


def test_the_python_api_has_every_public_name():
    documented = re.findall(r"^### (\w+)$", (ROOT / "docs/api.md").read_text(), re.M)
    assert sorted(documented) == sorted(set(reelscribe.__all__) - {"__version__"})


def test_no_description_of_a_return_value_is_taken_for_its_type():
    """In Google style, what is before a colon in the first line is the type."""
    public = [getattr(reelscribe, name) for name in reelscribe.__all__]
    members = [member for value in public if isinstance(value, type) for member in vars(value).values()]
    documented = [inspect.getdoc(value) or "" for value in [*public, *members] if callable(value)]
    found = [line for text in documented for line in re.findall(r"^(?:Returns|Yields):\n +(.*)", text, re.M)]
    assert len(found) > 10
    assert [line for line in found if ": " in line or line.endswith(":")] == []


def test_symptoms_quote_messages_of_the_programs():
    rows = re.findall(r"^\| .+$", (ROOT / "docs/symptoms.md").read_text(), re.M)
    quoted = [text for row in rows for text in re.findall(r'"(.+?)"', row)]
    parts = {part.strip(" ;:,`") for text in quoted for part in text.split("...")} - {"", "s", "of"}
    said = "\n".join(text for top in ("clients", "handlers") for text in texts(ROOT / top))
    assert len(parts) > 20
    assert {part for part in parts if part not in said} == OTHERS_SAY.keys()


def texts(folder: Path) -> Iterator[str]:
    """The strings in the code below a folder; what is filled in begins a new one."""
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                yield "".join(part.value if isinstance(part, ast.Constant) else "\n" for part in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value
