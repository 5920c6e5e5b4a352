"""A real kernel runs cells, and their outputs are what a notebook shows."""

import nbclient
import nbformat
import pytest

from support.fake_torchserve import FakeTorchServe, captions

IMPORTS = """
from pathlib import Path
from IPython.display import display
import reelscribe
"""

RUN = """
async def run(server, out):
    async with reelscribe.CaptionClient([reelscribe.Server(server)], "captioner") as client:
        await reelscribe.Run([reelscribe.CaptionTrack(client)], Path(out), on_record=display).run([{path!r}])

await run({url!r}, {out!r})
"""

CAPTION = "reelscribe.caption({path!r}, server={url!r}, model='captioner')"

ANNOTATE = "_ = reelscribe.annotate({path!r}, server={url!r}, model='captioner', transcript=False)"


@pytest.fixture
async def execute(media, tmp_path, monkeypatch):
    """Runs cells in a new kernel; returns the outputs of the last one as HTML."""
    # Otherwise they are in the home folder, which somebody else may have, or which cannot be written.
    for variable in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(variable, str(tmp_path / variable))

    async def run(cell: str) -> list[str]:
        async with FakeTorchServe(captions) as server:
            filled = cell.format(path=str(media / "spoken.mp4"), url=server.url, out=str(tmp_path / "out"))
            cells = [nbformat.v4.new_code_cell(code) for code in (IMPORTS, filled)]
            notebook = nbformat.v4.new_notebook(cells=cells)
            await nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3").async_execute()
        return [output["data"].get("text/html", "") for output in cells[-1].outputs if "data" in output]

    return run


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cell", "pictures"), [(RUN, 3), (CAPTION, 12), (ANNOTATE, 0)], ids=["record", "captions", "annotate"]
)
async def test_a_cell_shows_pictures_with_text_and_progress(execute, cell, pictures):
    html = await execute(cell)
    assert sum(each.count('src="data:image/webp;base64,') for each in html) == pictures
    if cell != CAPTION:
        (progress,) = [each for each in html if "1 of 1 sources" in each]
        assert "all sources are done" in progress
