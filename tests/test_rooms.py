"""The house keeps its shape: how many files a room holds, and how long the documents are that describe it."""

import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MOST_FILES = 12
ROOMS = sorted(
    folder
    for top in ("clients/reelscribe", "handlers", "bench/lib")
    for folder in [ROOT / top, *(ROOT / top).rglob("*")]
    if folder.is_dir() and any(folder.glob("*.py"))
)


@pytest.mark.parametrize("room", ROOMS, ids=lambda folder: str(folder.relative_to(ROOT)))
def test_a_package_holds_at_most_a_dozen_modules(room):
    assert len(list(room.glob("*.py"))) <= MOST_FILES


@pytest.mark.parametrize(
    "package", sorted((ROOT / "clients/reelscribe").rglob("__init__.py")), ids=lambda p: p.parent.name
)
def test_a_package_says_what_it_is_for(package):
    assert len(package.read_text().partition('"""')[2].partition('"""')[0].split()) >= 10


def test_the_layers_fit_a_dozen_lines():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = [contract["layers"] for contract in contracts if contract["type"] == "layers"]
    assert len(layers) <= MOST_FILES


@pytest.mark.parametrize(("document", "most_lines"), [("README.md", 130), ("docs/architecture.md", 40)])
def test_what_everybody_reads_first_is_short(document, most_lines):
    assert len((ROOT / document).read_text().splitlines()) <= most_lines
