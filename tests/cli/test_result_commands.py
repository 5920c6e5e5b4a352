"""What `reelscribe export` says."""

from pathlib import Path

import pytest

from reelscribe.cli.result_commands import describe_written


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ([], "wrote nothing"),
        (["captions.csv"], "wrote out/captions.csv"),
        (["vtt/a/1.vtt", "html/index.html"], "wrote out/vtt/a/1.vtt, out/html/index.html"),
        (
            ["vtt/a/1.vtt", "vtt/2.vtt", "captions.csv", "words.csv"],
            "wrote 2 .vtt files below out/vtt, out/captions.csv, out/words.csv",
        ),
    ],
)
def test_an_export_says_in_one_line_what_it_wrote(names, said):
    assert describe_written([Path("out", name) for name in names], Path("out")) == said
