"""An archive carries the handler at its top, and the files that it imports below."""

import json
import zipfile
from pathlib import Path

import pytest

from reelscribe.archive.handler_files import imported_files, pack_handler
from reelscribe.errors import StartupError


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


@pytest.fixture
def handlers(tmp_path) -> Path:
    return write(
        tmp_path / "handlers",
        {
            "alone.py": "import json",
            "unused.py": "",
            "package/__init__.py": "",
            "package/direct.py": "from package.inner.deep import x",
            "package/late.py": "import alone",
            "package/unused.py": "",
            "package/inner/__init__.py": "",
            "package/inner/deep.py": "def f():\n    from package import late, nothing",
        },
    )


def test_all_that_is_imported_directly_or_not_at_the_top_or_in_functions(handlers, tmp_path):
    script = write(tmp_path, {"model_handler.py": "import numpy, package.direct"}) / "model_handler.py"
    expected = ["alone.py", *(f"package/{name}.py" for name in ("__init__", "direct", "inner/__init__", "inner/deep"))]
    assert [str(file) for file in imported_files(script, handlers)] == [*expected, "package/late.py"]


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import package.gone", r"model_handler\.py: imports package\.gone, expected it in .*, got no such file"),
        ("from package.inner.gone import x", r"imports package\.inner\.gone, "),
        ("def", "expected a Python file that can be read: .*"),
    ],
)
def test_an_import_that_cannot_be_followed_is_named(handlers, tmp_path, code, reason):
    script = write(tmp_path, {"model_handler.py": code}) / "model_handler.py"
    with pytest.raises(StartupError, match=reason):
        imported_files(script, handlers)


def test_a_handler_from_elsewhere_is_packed_with_its_imports_in_their_folders(handlers, tmp_path):
    elsewhere = write(tmp_path / "else, [where]*", {"model_handler.py": "from package import late"})
    script, handlers = elsewhere / "model_handler.py", handlers.rename(elsewhere / "handlers")
    path = pack_handler(script, handlers, elsewhere, name="clips", version="2.0", settings={"minWorkers": 1})
    with zipfile.ZipFile(path) as mar:
        names = set(mar.namelist())
        manifest = json.loads(mar.read("MAR-INF/MANIFEST.json"))["model"]
        assert mar.read("model-config.yaml") == b"minWorkers: 1\n"
    code = {"model_handler.py", "alone.py", "package/__init__.py", "package/late.py"}
    assert names == {"MAR-INF/MANIFEST.json", "model-config.yaml", *code}
    assert (manifest["modelName"], manifest["modelVersion"], manifest["handler"]) == ("clips", "2.0", script.name)
    assert sorted(path.name for path in elsewhere.iterdir()) == ["clips.mar", "handlers", "model_handler.py"]


def test_a_handler_that_imports_nothing_needs_no_settings(tmp_path):
    script = write(tmp_path, {"noop_handler.py": "handle = print"}) / "noop_handler.py"
    with zipfile.ZipFile(pack_handler(script, tmp_path, tmp_path, name="noop")) as mar:
        assert set(mar.namelist()) == {"noop_handler.py", "MAR-INF/MANIFEST.json"}
