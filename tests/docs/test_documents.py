"""What the documents refer to is there."""

import os
import re
from pathlib import Path

import pytest
from typer.core import TyperGroup
from typer.main import get_command

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
    lines = re.findall(r"^reelscribe (.+)$", (ROOT / "README.md").read_text(), re.M)
    assert len(lines) > 3
    for line in lines:
        command, words = get_command(app), line.split(" #")[0].split()
        while isinstance(command, TyperGroup):
            command = command.commands[words.pop(0)]
        options = {option for parameter in command.params for option in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= options
