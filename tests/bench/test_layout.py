"""Who may import whom: tests do not import benchmarks, nobody patches sys.path, and no two files share a name."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BENCH, DEMO, HANDLERS, TESTS = (ROOT / name for name in ("bench", "demo", "handlers", "tests"))
PARTS = ("fakes", "lib", "peers")
"""The folders of what benchmarks use; all others have the benchmarks themselves, by subject."""

COMMANDS = sorted(path for path in BENCH.rglob("*.py") if path.relative_to(BENCH).parts[0] not in PARTS)


def modules(*folders: Path) -> set[str]:
    """Names that can be imported with these folders on the path."""
    entries = [entry for folder in folders for entry in folder.iterdir()]
    return {entry.stem for entry in entries if entry.suffix == ".py" or any(entry.glob("*.py"))}


def imports(path: Path) -> Iterator[str]:
    """The first part of the names of all modules that a file imports."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield node.module.partition(".")[0]


def test_tests_import_no_benchmark():
    benchmarks = modules(BENCH, *{path.parent for path in COMMANDS})
    assert {"captioning", "lib", "peers", "fakes", "resize"} <= benchmarks
    importing = {path.name: set(imports(path)) & benchmarks for path in TESTS.rglob("*.py")}
    assert {name: names for name, names in importing.items() if names} == {}


def changes_search_path(node: ast.AST) -> bool:
    """Whether it assigns to sys.path or a part of it, or calls a method that changes it."""
    if isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
        return ast.unparse(node).startswith("sys.path")
    methods = {"append", "clear", "extend", "insert", "pop", "remove"}
    return isinstance(node, ast.Attribute) and ast.unparse(node.value) == "sys.path" and node.attr in methods


def test_nobody_patches_the_search_path_for_modules():
    patching = [
        path.relative_to(ROOT)
        for folder in (BENCH, DEMO, TESTS)
        for path in folder.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if changes_search_path(node)
    ]
    assert patching == []


def test_no_module_shadows_another():
    """scripts/bench puts the first three on the path, pytest the last three, and Python the folder of a program."""
    folders = [modules(BENCH), modules(DEMO), modules(HANDLERS), {"support"}]
    folders += [modules(folder) for folder in {path.parent for path in COMMANDS} - {BENCH}]
    assert sum(map(len, folders)) == len(set().union(*folders))


@pytest.mark.parametrize("path", COMMANDS, ids=lambda path: path.stem)
def test_a_command_says_which_question_it_answers(path):
    docstring = ast.get_docstring(ast.parse(path.read_text()))
    question, *lines = docstring.splitlines()
    assert question.endswith("?")
    assert any(re.search(rf"scripts/bench (\w+/)?{path.stem}\b", line) for line in lines)
