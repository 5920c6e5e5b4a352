"""What the import contracts in pyproject.toml cannot see: handlers are files, not a package."""

import ast
import importlib.util
from pathlib import Path

import pytest

HANDLERS = Path(__file__).parents[2] / "handlers"
CORE = ("wire", "identity", "media", "scaling", "errors", "speech", "chunking", "pickled_arrays")
ALLOWED = {"reelscribe", *(f"reelscribe.{name}" for name in CORE)}


@pytest.mark.parametrize("path", sorted(HANDLERS.glob("*.py")), ids=lambda path: path.name)
def test_handlers_import_only_the_core_of_reelscribe(path):
    nodes = list(ast.walk(ast.parse(path.read_text())))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
    assert {name for name in names if name.split(".")[0] == "reelscribe"} <= ALLOWED


def test_handler_files_shadow_no_other_module():
    """TorchServe puts them first on sys.path, so a file called queue.py would replace the library's."""
    for path in HANDLERS.glob("*.py"):
        spec = importlib.util.find_spec(path.stem)
        assert spec is not None
        assert Path(spec.origin).resolve() == path.resolve()
