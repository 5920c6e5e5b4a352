"""The names of the files of sources: each source has its own, inside the folder of the export."""

import os
from pathlib import Path

import pytest

from reelscribe.export.formats import export
from support.exporting import annotations, cues, exported, record


@pytest.mark.parametrize(
    ("sources", "names"),
    [
        (["/v/a.mp4"], ["a.mp4"]),
        (["/v/a.mp4", "/v/deep/er/a.mp4", "/v/a.mkv"], ["a.mkv", "a.mp4", "deep/er/a.mp4"]),
        (["v/a.mp4", "v/../v/./b.mp4", "../w/c.mp4"], ["here/v/a.mp4", "here/v/b.mp4", "w/c.mp4"]),
        (["a.mp4", "./a.mp4", "a.mp4~2", "a.mp4"], ["a.mp4", "a.mp4~2", "a.mp4~2~2", "a.mp4~3"]),
        (["/v/a.mp4", "/v/a.mp4.vtt/b.mp4", "/v/b.vtt.partial/c"], ["a.mp4", "a.mp4.vtt_/b.mp4", "b.vtt.partial_/c"]),
        (["/v/a.vtt", "/v/b"], ["a.vtt", "b"]),
    ],
)
def test_names_are_those_of_the_sources_below_their_common_folder(tmp_path, monkeypatch, sources, names):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    out = exported(tmp_path, [record(path, path) for path in sources], "vtt")
    found = {
        str(path.relative_to(out / "vtt")): cues(path)[0][2] for path in (out / "vtt").rglob("*") if path.is_file()
    }
    assert sorted(found) == [f"{name}.vtt" for name in names]
    assert sorted(found.values()) == sorted([path] for path in sources)


def export_again(folder: Path, records: list[dict], *formats: str) -> dict[str, str]:
    """Export into the same folder as before; return what each file of WebVTT shows, by its name."""
    export(annotations(folder, records), folder / "out", formats)
    out = folder / "out/vtt"
    return {str(path.relative_to(out)): cues(path)[0][2][0] for path in out.rglob("*.vtt")}


def test_a_name_stays_when_sources_come_and_go(tmp_path):
    holidays = [record(f"/lib/holidays/{name}", "old") for name in ("a.mp4", "audio/x.wav")]
    export_again(tmp_path, holidays, "vtt")
    more = [record(path, "new") for path in ("/lib/audio/x.wav", "/lib/audio/y.wav", "/lib/holidays/b.mp4")]
    found = export_again(tmp_path, [*more, *holidays], "vtt")
    wider = {"audio/x.wav~2.vtt": "new", "audio/y.wav.vtt": "new", "b.mp4.vtt": "new"}
    assert found == {"a.mp4.vtt": "old", "audio/x.wav.vtt": "old"} | wider
    last = [record("/lib/audio/y.wav", "alone"), record("/lib/audio/z.wav", "last")]
    assert export_again(tmp_path, last, "vtt", "srt") == found | {
        "audio/y.wav.vtt": "alone",
        "audio/z.wav.vtt": "last",
    }
    assert (tmp_path / "out/srt/audio/z.wav.srt").exists()  # as the other format has it


def test_names_that_differ_in_case_alone_are_not_those_of_two_files(tmp_path):
    texts = {"/v/A.mp4": "one", "/v/B/c.mp4": "two", "/v/a.mp4": "three", "/v/b/C.mp4": "four"}
    found = export_again(tmp_path, [record(path, text) for path, text in texts.items()], "vtt")
    assert found == {"A.mp4.vtt": "one", "B/c.mp4.vtt": "two", "a.mp4~2.vtt": "three", "b/C.mp4~2.vtt": "four"}
    assert export_again(tmp_path, [record("/v/a.mp4", "new")], "vtt") == found | {"a.mp4~2.vtt": "new"}


HOSTILE = [
    *("", "/", ".", "..", "../../../../x.mp4", "/etc/../../x.mp4", "a\0b.mp4", "a\0/../../../b", "~/x", "a\nb", "-rf"),
    *("x" * 255, "é" * 127 + "y", "é" * 127 + "z", f"{'d' * 255}/x", "/".join(["d" * 200] * 30), "d/" * 3000 + "x"),
    *("\ud800.mp4", "\ud801.mp4", "caf\udce9.mp4", "\udcc3\udca9.mp4", "é.mp4", "\udcff" * 255, "C:\\x", "a|b:*?"),
]


@pytest.mark.parametrize("others", [[], ["../out.mp4"], ["/"]])
def test_files_of_hostile_paths_stay_inside_the_folder_and_apart(tmp_path, monkeypatch, others):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    sources = [*HOSTILE, *others]
    out = exported(tmp_path, [record(path, str(k)) for k, path in enumerate(sources)], "srt", "vtt", "chapters")
    for kind in ("srt", "vtt"):
        files = [Path(folder, name) for folder, _, names in os.walk(out / kind) for name in names]
        assert sorted(int(cues(path)[0][2][0]) for path in files) == list(range(len(sources)))
    files = [os.path.join(folder, name) for folder, _, names in os.walk(out / "chapters") for name in names]
    of_ffmpeg = {path.removesuffix(".ffmetadata") for path in files if path.endswith(".ffmetadata")}
    assert of_ffmpeg == {path.removesuffix(".chapters.txt") for path in files if path.endswith(".chapters.txt")}
    titles = [int(Path(f"{name}.chapters.txt").read_text().removeprefix("00:00 ")) for name in of_ffmpeg]
    assert sorted(titles) == list(range(len(sources)))


def test_a_folder_is_not_named_like_the_chapters_of_a_source(tmp_path):
    sources = ["/v/a.mp4", "/v/a.mp4.ffmetadata/b", "/v/a.mp4.chapters.txt/c", "/v/a.mp4.vtt/d"]
    out = exported(tmp_path, [record(path, "x") for path in sources], "chapters") / "chapters"
    assert sorted(str(path.relative_to(out)) for path in out.rglob("*.ffmetadata") if path.is_file()) == [
        *("a.mp4.chapters.txt_/c.ffmetadata", "a.mp4.ffmetadata", "a.mp4.ffmetadata_/b.ffmetadata"),
        "a.mp4.vtt/d.ffmetadata",
    ]


def test_a_name_that_is_not_utf_8_is_kept_byte_for_byte(tmp_path):
    out = exported(tmp_path, [record("caf\udce9.avi", "x"), record("vidéo.avi", "x")], "vtt")
    assert sorted(os.listdir(os.fsencode(out / "vtt"))) == [b"caf\xe9.avi.vtt", "vidéo.avi.vtt".encode()]
