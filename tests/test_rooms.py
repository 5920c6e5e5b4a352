"""Packages and the documents that everybody reads first stay small."""

import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MOST_FILES = 12
PACKAGES = sorted(
    folder
    for top in ("clients/reelscribe", "handlers", "bench/lib")
    for folder in [ROOT / top, *(ROOT / top).rglob("*")]
    if folder.is_dir() and any(folder.glob("*.py"))
)


@pytest.mark.parametrize("package", PACKAGES, ids=lambda folder: str(folder.relative_to(ROOT)))
def test_a_package_has_at_most_twelve_files(package):
    assert len(list(package.glob("*.py"))) <= MOST_FILES


@pytest.mark.parametrize(
    "package", sorted((ROOT / "clients/reelscribe").rglob("__init__.py")), ids=lambda p: p.parent.name
)
def test_a_package_has_a_docstring_of_at_least_ten_words(package):
    assert len(package.read_text().partition('"""')[2].partition('"""')[0].split()) >= 10


def test_there_are_at_most_twelve_layers():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = [contract["layers"] for contract in contracts if contract["type"] == "layers"]
    assert len(layers) <= MOST_FILES


@pytest.mark.parametrize(("document", "most_lines"), [("README.md", 130), ("docs/architecture.md", 60)])
def test_the_first_documents_are_short(document, most_lines):
    assert len((ROOT / document).read_text().splitlines()) <= most_lines
