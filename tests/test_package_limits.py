"""Folders, modules, and the documents that everybody reads first have sizes that serve the reader."""

import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TOPS = ("clients/reelscribe", "handlers", "bench", "demo")
MODULES = sorted(path for top in TOPS for path in (ROOT / top).rglob("*.py"))
PACKAGES = sorted({path.parent for path in MODULES})

MOST_MODULES = 14
"""In a folder. What has more needs rooms by subject."""

MOST_LINES, FEWEST_LINES = 600, 40
"""In a module: it has one whole idea."""

SMALL = {
    "bench/fakes/noop_handler.py": "TorchServe loads a handler from a file of its own",
    "bench/peers/captions/plain_model.py": "it travels alone in the archive of the blog's handler",
    "bench/peers/captions/plain_script.py": "it is as short as people write it",
    "bench/peers/captions/reading.py": "clients that load no torch import it, too",
    "handlers/captions/families/blip.py": "each family of captioning models has a file",
    "handlers/captions/families/git.py": "each family of captioning models has a file",
}
"""Modules that have fewer lines than others, and why."""


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("package", PACKAGES, ids=name)
def test_a_folder_has_few_modules(package):
    assert len(list(package.glob("*.py"))) <= MOST_MODULES


def test_a_module_has_one_whole_idea():
    lines = {name(path): len(path.read_text().splitlines()) for path in MODULES}
    small = {path for path, count in lines.items() if count < FEWEST_LINES and "/__" not in path}
    assert {path: count for path, count in lines.items() if count > MOST_LINES} == {}
    assert small == SMALL.keys()


@pytest.mark.parametrize(
    "package", sorted((ROOT / "clients/reelscribe").rglob("__init__.py")), ids=lambda p: p.parent.name
)
def test_a_package_has_a_docstring_of_at_least_ten_words(package):
    assert len(package.read_text().partition('"""')[2].partition('"""')[0].split()) >= 10


def test_there_are_at_most_twelve_layers():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = [contract["layers"] for contract in contracts if contract["type"] == "layers"]
    assert len(layers) <= 12


@pytest.mark.parametrize(("document", "most_lines"), [("README.md", 130), ("docs/architecture.md", 60)])
def test_the_first_documents_are_short(document, most_lines):
    assert len((ROOT / document).read_text().splitlines()) <= most_lines
