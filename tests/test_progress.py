import io

from rich.console import Console

from reelscribe.errors import MediaError
from reelscribe.media import Source
from reelscribe.progress import RunProgress
from reelscribe.records import Model, Record


def shown(*, terminal: bool) -> str:
    screen = io.StringIO()
    failed = Record(Source("x.mp4"), Model("m", "r"), {})
    failed.fail(MediaError("x.mp4: the [file] is empty"))
    with RunProgress(2, Console(file=screen, force_terminal=terminal, width=200)) as progress:
        progress.expect(10)
        progress.captioned(4)
        progress.finished(Record(Source("a.mp4"), Model("m", "r"), {}))
        progress.finished(failed)
    return screen.getvalue()


def test_a_terminal_shows_how_far_sources_and_frames_are():
    screen = shown(terminal=True)
    assert "2/2" in screen
    assert "4/10" in screen


def test_elsewhere_only_failures_are_told():
    assert shown(terminal=False) == "MediaError: x.mp4: the [file] is empty\n"
