"""What handlers may import; import contracts in pyproject.toml cannot check it, as handlers are no single package."""

import ast
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from reelscribe.archive.build import KINDS
from reelscribe.archive.engines import CONVERSIONS
from reelscribe.archive.handler_files import imported_files

HANDLERS = Path(__file__).parents[2] / "handlers"
FILES = sorted(path.relative_to(HANDLERS) for path in HANDLERS.rglob("*.py"))
SHARED = ("reelscribe.contract", "reelscribe.wire", "reelscribe.errors")
LAYERS = [
    {"caption_handler", "clip_handler", "shot_handler", "speaker_handler", "speech_handler"},
    {"captions", "clips", "shots", "speakers"},
    {"transcripts"},
    {"worker"},
    {"pipeline"},
    {"runtime"},
]
"""The files and packages at the top of handlers/, from those that import others to those that others import."""


def modules_imported_by(path: Path) -> set[str]:
    nodes = list(ast.walk(ast.parse((HANDLERS / path).read_text())))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return names | {node.module for node in nodes if isinstance(node, ast.ImportFrom)}


@pytest.mark.parametrize("path", FILES, ids=str)
def test_handlers_import_only_the_core_of_reelscribe_when_they_load(path):
    """The client's other modules take a second to load, so functions import them when the first media file comes."""
    nodes = ast.parse((HANDLERS / path).read_text()).body
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
    ours = {name for name in names if name.split(".")[0] == "reelscribe"}
    assert {name for name in ours if not name.startswith(SHARED) and name != "reelscribe"} == set()


@pytest.mark.parametrize("path", FILES, ids=str)
def test_imports_between_packages_run_one_way(path):
    level = {name: depth for depth, layer in enumerate(LAYERS) for name in layer}
    own = path.parts[0].removesuffix(".py")
    imported = {name.split(".")[0] for name in modules_imported_by(path)} & set(level)
    assert all(name == own or level[name] > level[own] for name in imported), imported


def test_every_file_is_part_of_an_archive_but_the_programs_that_convert_weights_for_one():
    packed = {Path(f"{kind}_handler.py") for kind in KINDS}
    for kind in KINDS:
        packed.update(imported_files(HANDLERS / f"{kind}_handler.py", HANDLERS))
    programs = {Path(*conversion.program.split(".")).with_suffix(".py") for conversion in CONVERSIONS.values()}
    assert packed == set(FILES) - programs


def test_modules_at_the_top_shadow_no_other_module():
    """TorchServe puts them first on sys.path, so a file called queue.py would replace that of the library."""
    for name in set.union(*LAYERS):
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert HANDLERS.resolve() in Path(spec.origin).resolve().parents
    others = [path for path in sys.path if Path(path).resolve() != HANDLERS.resolve()]
    command = f"import importlib.util, sys; sys.path[:] = {others!r}; print([n for n in {sorted(set.union(*LAYERS))!r}"
    command += " if (s := importlib.util.find_spec(n)) and s.origin])"
    assert subprocess.check_output([sys.executable, "-c", command], text=True) == "[]\n"


LOAD_BOTH = """
import sys
sys.path[:] = {path!r}
import caption_handler, speech_handler
from support.fake_context import FakeContext
caption_handler.handle(None, FakeContext({{"model": {captioner!r}}}))
speech_handler.handle(None, FakeContext({{"model": {speech!r}}}))
print([name for name in sys.modules if name.split(".")[0] == "pipeline"])
"""


def test_models_in_one_stage_import_nothing_for_two_stages(demo_model, demo_speech):
    code = LOAD_BOTH.format(path=sys.path, captioner=demo_model, speech=demo_speech)
    assert subprocess.check_output([sys.executable, "-c", code], text=True).splitlines()[-1] == "[]"
