"""What the documents refer to is there."""

import os
import re
from pathlib import Path

import pytest

from reelscribe.cli import app

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("demo/**/*.md")])


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_and_scripts_exist(document):
    text = document.read_text()
    links = [link for link in re.findall(r"\]\(([^)#]+)", text) if "://" not in link]
    assert [link for link in links if not (document.parent / link).exists()] == []
    scripts = set(re.findall(r"\bscripts/(\w+)", text))
    assert [name for name in scripts if not os.access(ROOT / "scripts" / name, os.X_OK)] == []


def test_commands_and_options_of_the_readme_exist():
    commands = {command.name or command.callback.__name__: command.callback for command in app.registered_commands}
    for line in re.findall(r"^reelscribe (.+)$", (ROOT / "README.md").read_text(), re.M):
        name, *words = line.split()
        options = {word[2:].replace("-", "_") for word in words if word.startswith("--")}
        assert options <= set(commands[name].__annotations__)
