import ast
import zipfile
from pathlib import Path

import pytest
import yaml

from reelscribe.archive import HANDLER_FILES, build
from reelscribe.errors import UsageError

HANDLERS = Path(__file__).parents[1] / "handlers"


def test_an_archive_holds_the_handler_and_its_settings(tmp_path, demo_model):
    path = build("clips", "caption", demo_model, tmp_path, handlers=HANDLERS)
    assert [p.name for p in tmp_path.iterdir()] == [path.name] == ["clips.mar"]
    with zipfile.ZipFile(path) as archive:
        names = set(archive.namelist())
        settings = yaml.safe_load(archive.read("model-config.yaml"))
    assert {"caption_handler.py", *HANDLER_FILES["caption"]} <= names
    template = yaml.safe_load((HANDLERS / "caption.yaml").read_text())
    template["handler"]["model"] = str(Path(demo_model).resolve())
    assert settings == template


def imported(name: str) -> set[str]:
    """The files beside `name` that it needs, and those that they need."""
    tree = ast.parse((HANDLERS / name).read_text())
    modules = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    modules |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
    files = {f"{module}.py" for module in modules if (HANDLERS / f"{module}.py").exists()}
    return files.union(*map(imported, files))


@pytest.mark.parametrize("kind", HANDLER_FILES)
def test_an_archive_has_what_its_handler_imports_and_nothing_else(kind):
    assert imported(f"{kind}_handler.py") == set(HANDLER_FILES[kind])


def test_weights_may_be_a_hub_name(tmp_path):
    path = build("blip2", "caption", "Salesforce/blip2-opt-2.7b", tmp_path, handlers=HANDLERS)
    with zipfile.ZipFile(path) as archive:
        assert yaml.safe_load(archive.read("model-config.yaml"))["handler"]["model"] == "Salesforce/blip2-opt-2.7b"


@pytest.mark.parametrize(
    ("kind", "weights", "reason"),
    [
        ("paint", "a/b", "expected one of caption, speech"),
        ("caption", "./none", "neither"),
        ("caption", ".", "safetensors"),
    ],
)
def test_what_cannot_be_served_is_not_built(tmp_path, monkeypatch, kind, weights, reason):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=reason):
        build("x", kind, weights, tmp_path / "store", handlers=HANDLERS)
    assert not list(tmp_path.glob("store/*"))
