"""A browser, and the pages of example views in a folder; both serve all tests of a file."""

import pytest

from support.browser import open_browser
from support.example_views import write_pages


@pytest.fixture(scope="module")
def browser():
    with open_browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    write_pages(folder)
    return folder
