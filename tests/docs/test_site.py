"""The documents become a site without a dead link, and its pages load nothing from other hosts."""

import re
import subprocess

import pytest

from support.documents import DOCUMENTS, ROOT

pytestmark = pytest.mark.slow

PAGES = ROOT / ".site" / "html"


@pytest.fixture(scope="module")
def site():
    done = subprocess.run([ROOT / "scripts/docs"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return PAGES


def test_every_document_is_a_page(site):
    names = {path.relative_to(ROOT) for path in DOCUMENTS if path.parent == ROOT or path.is_relative_to(ROOT / "docs")}
    pages = {path.relative_to(site) for path in [*site.glob("*.html"), *site.glob("docs/**/*.html")]}
    expected = {name.with_suffix(".html") if name.stem != "README" else name.with_name("index.html") for name in names}
    assert pages - {PAGES.joinpath("404.html").relative_to(site)} == expected


def test_pages_load_nothing_from_other_hosts(site):
    for page in site.rglob("*.html"):
        text = page.read_text()
        assert "default-src 'self'" in text
        assert re.findall(r"<(?:script|img|iframe|source)\b[^>]*\bsrc=\"?(?:https?:)?//[^\">]+", text) == []
        assert re.findall(r"<link\b[^>]*\brel=\"?(?:stylesheet|preconnect|preload)[^>]*//[^>]+>", text) == []
