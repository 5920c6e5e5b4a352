"""Results beside their sources: their names and contents, and that nothing of others is replaced."""

import hashlib
import json
import os
import resource
import shutil
import sqlite3
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from reelscribe._files import atomic_file
from reelscribe.cli import app
from reelscribe.errors import OutputError, UsageError
from reelscribe.export.beside import NAME, write_beside
from reelscribe.export.cue_rules import CueRules
from reelscribe.export.formats import export
from support.exporting import SETTINGS, annotations, both, record, transcript_record

ALL = ["srt", "vtt", "json"]


@pytest.fixture
def films(tmp_path) -> Path:
    """A folder of films, beside which results shall be."""
    (tmp_path / "films").mkdir()
    return tmp_path / "films"


def beside(films: Path, records, formats=ALL, out="out", **options):
    """Write what records have beside their sources; return what has become of it."""
    (films.parent / out).mkdir(exist_ok=True)
    return write_beside(annotations(films.parent / out, records), films.parent / out, formats, **options)


def speech(path, text="hello", language="en"):
    value = transcript_record(str(path), text)
    value["source"]["absolute_path"] = str(path)
    value["segments"][0]["language"] = language
    return value


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_the_files_are_those_of_format_and_the_line_of_the_record(films):
    records = [speech(films / "film.mp4", "a <b> {c}"), record(films / "frames.avi", "a dog")]
    records[1]["source"]["path"] = str(films / "frames.avi")
    done = beside(films, records)
    assert (done.written, done.unchanged, done.kept, done.failures) == (6, 0, [], [])
    assert names(films) == {
        *("film.en.srt", "film.en.vtt", "film.reelscribe.json"),
        *("frames.srt", "frames.vtt", "frames.reelscribe.json"),
    }
    out = films.parent / "out"
    export(out / "annotations.jsonl", out, ["srt", "vtt"])
    for name, exported in {"film.en": "film.mp4", "frames": "frames.avi"}.items():
        for suffix in ("srt", "vtt"):
            assert (films / f"{name}.{suffix}").read_bytes() == (out / suffix / f"{exported}.{suffix}").read_bytes()
    lines = [(films / f"{name}.reelscribe.json").read_bytes() for name in ("film", "frames")]
    assert b"".join(lines) == (out / "annotations.jsonl").read_bytes()


def test_a_file_that_is_unchanged_is_not_written_again(films):
    beside(films, [speech(films / "film.mp4")])
    before = {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in films.iterdir()}
    done = beside(films, [speech(films / "film.mp4")])
    assert (done.written, done.unchanged) == (0, 3)
    assert {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in films.iterdir()} == before


@pytest.mark.parametrize(
    ("language", "cues", "name"),
    [
        ("de", "auto", "film.de.srt"),
        ("pt-BR", "both", "film.pt-BR.srt"),
        ("de", "captions", "film.srt"),
        (None, "auto", "film.srt"),
        ("../../x", "auto", "film.srt"),
        ("english", "auto", "film.srt"),
        ("jw", "auto", "film.jv.srt"),
        ("IW-IL", "auto", "film.he-IL.srt"),
    ],
)
def test_the_name_has_the_language_of_what_is_said_if_that_is_shown(films, language, cues, name):
    said = speech(films / "film.mp4", language=language)
    beside(films, [both(record(str(films / "film.mp4"), "a dog"), said)], ["srt"], cues=CueRules(made_from=cues))
    assert names(films) == {name}


def test_the_language_is_the_one_that_is_spoken_for_the_longest_time(films):
    said = transcript_record(str(films / "film.mp4"), *"abcde")
    for segment, language in zip(said["segments"], ["en", "de", "fr", "de", None], strict=True):
        segment["language"] = language
    beside(films, [said], ["vtt"])
    assert names(films) == {"film.de.vtt"}


def test_what_is_translated_is_named_english(films, monkeypatch):
    monkeypatch.setitem(SETTINGS, "50", {**SETTINGS["50"], "settings": {"task": "translate"}})
    beside(films, [speech(films / "film.mp4", language="de")], ["srt"])
    assert names(films) == {"film.en.srt"}


def test_a_file_of_somebody_else_stays_until_overwrite_replaces_it(films):
    (films / "film.en.srt").write_text("mine")
    done = beside(films, [speech(films / "film.mp4")])
    assert (done.written, done.kept, done.failures) == (2, [str(films / "film.en.srt")], [])
    assert (films / "film.en.srt").read_text() == "mine"
    assert beside(films, [speech(films / "film.mp4")], overwrite=True).written == 1
    assert "hello" in (films / "film.en.srt").read_text()
    assert beside(films, [speech(films / "film.mp4", "new")]).written == 3


def test_a_file_that_was_edited_is_no_longer_ours_and_one_of_another_output_folder_never_is(films):
    beside(films, [speech(films / "film.mp4")], ["srt", "vtt"])
    with (films / "film.en.srt").open("a") as file:
        file.write("edited")
    done = beside(films, [speech(films / "film.mp4", "new")], ["srt", "vtt"])
    assert (done.written, done.kept) == (1, [str(films / "film.en.srt")])
    assert (films / "film.en.srt").read_text().endswith("edited")
    assert beside(films, [speech(films / "film.mp4", "again")], ["vtt"], out="other").kept == [f"{films}/film.en.vtt"]


def test_sources_whose_names_differ_in_their_suffixes_alone_keep_them(films):
    records = [speech(films / "film.mp4", "one"), speech(films / "film.mkv", "two"), speech(films / "other.mp4")]
    assert beside(films, records, ["srt"]).failures == []
    assert names(films) == {"film.mp4.en.srt", "film.mkv.en.srt", "other.en.srt"}
    assert "two" in (films / "film.mkv.en.srt").read_text()


def test_a_name_stays_when_another_source_of_it_comes(films):
    beside(films, [speech(films / "film.mp4", "one")], ["srt"])
    both_there = [speech(films / "film.mkv", "two"), speech(films / "film.mp4", "three")]
    assert beside(films, both_there, ["srt"]).failures == []
    assert names(films) == {"film.en.srt", "film.mkv.en.srt"}
    assert "three" in (films / "film.en.srt").read_text()


def test_a_name_in_the_memory_leads_nowhere_else(films, tmp_path):
    source, private = films / "film.mp4", tmp_path / "private.en.srt"
    beside(films, [speech(source)], ["srt"])
    private.write_text("mine")
    with closing(sqlite3.connect(tmp_path / "out" / NAME)) as database, database:
        stem = os.fsencode(tmp_path / "private")
        assert database.execute("UPDATE names SET name = ?", (stem,)).rowcount == 1
        digest = hashlib.sha256(b"mine").hexdigest()
        database.execute("INSERT INTO written VALUES (?, ?)", (stem + b".en.srt", digest))
    done = beside(films, [speech(source, "new")], ["srt"])
    assert (done.written, private.read_text(), names(films)) == (1, "mine", {"film.en.srt"})


def test_two_sources_that_had_the_same_name_one_after_the_other_get_names_of_their_own(films):
    for name in ("film.mp4", "film.mkv"):
        beside(films, [speech(films / name, name)], ["srt"])
    again = beside(films, [speech(films / "film.mkv", "one"), speech(films / "film.mp4", "two")], ["srt"])
    assert (again.failures, names(films)) == ([], {"film.en.srt", "film.mkv.en.srt", "film.mp4.en.srt"})


def test_a_source_that_failed_has_a_file_of_its_record_only_if_something_was_annotated(films):
    failed = {"status": "error", "error": {"type": "MediaError", "message": "cut short"}}
    records = [record(str(films / "none.mp4"), **failed), record(str(films / "some.mp4"), "a dog", **failed)]
    assert beside(films, [*records, record(str(films / "fine.mp4"))], ["json"]).written == 2
    assert names(films) == {"some.reelscribe.json", "fine.reelscribe.json"}


def test_a_source_that_is_gone_gets_nothing_and_leaves_its_name_to_others(films):
    beside(films, [speech(films / "film.mp4", "one")], ["srt"])
    gone = speech(films / "film.mp4", "one")
    gone["source"]["missing"] = True
    assert beside(films, [gone, speech(films / "film.mkv", "two")], ["srt"]).written == 1
    assert names(films) == {"film.en.srt"}
    assert "two" in (films / "film.en.srt").read_text()


def test_a_name_that_a_source_or_another_file_has_is_not_taken(films):
    (films / "a.srt").write_text("a source")
    records = [speech(films / "a.srt", language=None), speech(films / "b.en.mp4", language=None)]
    done = beside(films, [*records, speech(films / "b.mp4", "two")], ["srt"], overwrite=True)
    assert [line.partition(": ")[0] for line in done.failures] == [f"{films}/a.srt", f"{films}/b.en.srt"]
    assert (films / "a.srt").read_text() == "a source"
    assert "hello" in (films / "b.en.srt").read_text()


def test_what_is_no_file_stays_and_is_one_line_each(films, tmp_path):
    (films / "link.en.srt").symlink_to(tmp_path / "mine")
    (tmp_path / "mine").write_text("mine")
    (films / "folder.en.srt").mkdir()
    os.mkfifo(films / "pipe.en.srt")
    records = [speech(films / f"{name}.mp4") for name in ("link", "folder", "pipe", "caf\udce9", "x" * 250, "a\0b")]
    records.append(speech(tmp_path / "gone/film.mp4"))
    done = beside(films, records, ["srt"], overwrite=True)
    assert [line.partition("source: ")[2].partition(";")[0] for line in done.failures] == [
        *(
            "a symbolic link",
            "a folder",
            "a special file",
            "File name too long",
            "embedded null byte",
            "No such file or directory",
        )
    ]
    assert done.written == 1
    assert names(films) == {"link.en.srt", "folder.en.srt", "pipe.en.srt", "caf\udce9.en.srt"}
    assert (tmp_path / "mine").read_text() == "mine"


def test_a_read_only_folder_and_a_full_disk_cost_only_what_is_there(films):
    """Nobody can make files in /sys. The largest size of a file stands in for a full disk."""
    records = [speech("/sys/a.mp4"), speech(films / "b.mp4", "x" * 100_000), speech(films / "c.mp4")]
    out = films.parent
    path = annotations(out, records)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
    try:
        done = write_beside(path, out, ["srt"])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    read_only, full = [line.rpartition(": ")[2] for line in done.failures]
    assert read_only in ("Read-only file system", "Permission denied", "Operation not permitted")
    assert full == "File too large"
    assert names(films) == {"c.en.srt"}


def test_what_is_put_there_in_the_meantime_stays(films, monkeypatch):
    @contextmanager
    def write_slowly(*names, **options):
        with atomic_file(*names, **options) as file:
            (films / "film.en.srt").write_text("mine")
            yield file

    monkeypatch.setattr("reelscribe.export.beside.atomic_file", write_slowly)
    (line,) = beside(films, [speech(films / "film.mp4")], ["srt"]).failures
    assert "something else was put there" in line
    assert (films / "film.en.srt").read_text() == "mine"
    assert names(films) == {"film.en.srt"}


@pytest.mark.parametrize(
    ("statement", "what"),
    [
        ("CREATE TRIGGER t AFTER INSERT ON written BEGIN DELETE FROM written; END", "trigger 't'"),
        ("ALTER TABLE written ADD COLUMN x AS (hex(name))", "table 'written'"),
        (
            "ANALYZE; PRAGMA writable_schema = ON;"
            " UPDATE sqlite_master SET sql = replace(sql, 'stat)', 'stat, x AS (hex(idx)))')",
            "table 'sqlite_stat1'",
        ),
    ],
)
def test_a_memory_of_somebody_else_is_not_written_to(films, statement, what):
    beside(films, [speech(films / "film.mp4")], ["srt"])
    path = films.parent / "out" / NAME
    with closing(sqlite3.connect(path)) as database:
        database.executescript(statement)
    before = path.read_bytes()
    with pytest.raises(
        OutputError, match=f"expected the tables that reelscribe makes, and no more, got another {what}"
    ):
        beside(films, [speech(films / "other.mp4")], ["srt"])
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "statements",
    [
        "ANALYZE",
        """
        DROP TABLE written;
        CREATE TABLE IF NOT EXISTS written (
            name BLOB, sha256 TEXT, PRIMARY KEY (name, sha256)
        ) WITHOUT ROWID;
        """,
    ],
    ids=["with statistics", "of an earlier version"],
)
def test_a_memory_is_ours_with_statistics_and_with_other_spaces(films, statements):
    beside(films, [speech(films / "film.mp4")], ["srt"])
    with closing(sqlite3.connect(films.parent / "out" / NAME)) as database:
        database.executescript(statements)
    assert beside(films, [speech(films / "other.mp4")], ["srt"]).written == 1


def test_the_command_says_what_it_did_and_that_something_failed(films):
    out = films.parent / "out"
    beside(films, [speech(films / "film.mp4"), speech("https://example.org/one.mp4")], ["srt"])
    (films / "film.reelscribe.json").write_text("mine")
    (films / "film.en.vtt").symlink_to("nowhere")
    result = CliRunner().invoke(app, ["export", str(out), "--beside", "srt,vtt,json"])
    assert result.exit_code == 3
    assert result.stdout.splitlines() == [
        "wrote 0 files beside the sources, and found 1 unchanged",
        "kept 1 file beside the sources that others have made or changed, such as"
        f" {films}/film.reelscribe.json; --overwrite replaces them",
        "wrote nothing beside 1 source on web servers or in archives, which take no files",
    ]
    assert result.stderr == (
        f"reelscribe: {films}/film.en.vtt: cannot be written beside its source: a symbolic link; expected a file or"
        " nothing there; remove it\n"
    )
    (films / "film.en.vtt").unlink()
    result = CliRunner().invoke(app, ["export", str(out), "--beside", "vtt,json", "--overwrite"])
    assert (result.exit_code, result.stdout.splitlines()[0]) == (
        0,
        "wrote 2 files beside the sources, and found 0 unchanged",
    )


def test_the_options_for_subtitles_hold_for_both_places(films):
    said_in_film = speech(films / "film.mp4", "go left and right")
    annotations(films.parent, [said_in_film])
    words = ["export", str(films.parent), "--format", "ass", "--beside", "ass", "--max-line-chars", "10"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert (films / "film.en.ass").read_text().splitlines()[-1].endswith(r",go left\Nand right")
    assert (films / "film.en.ass").read_bytes() == (films.parent / "ass/film.mp4.ass").read_bytes()
    refused = CliRunner().invoke(app, [*words, "--min-cue-seconds", "9"])
    assert (refused.exit_code, "--min-cue-seconds: expected 0 to 7" in refused.stderr) == (2, True)


def test_a_run_writes_when_it_ends(films, media):
    shutil.copy(media.parent / "clips/events.mp4", films / "film.mp4")
    command = ["shots", str(films / "film.mp4"), "-o", str(films.parent / "out"), "--beside", "json"]
    assert CliRunner().invoke(app, [*command, "--dry-run"]).exit_code == 0
    assert names(films) == {"film.mp4"}
    result = CliRunner().invoke(app, [*command, "--json-log"])
    event = json.loads(result.stderr.splitlines()[-1])
    assert (result.exit_code, event["event"], event["written"], event["failures"]) == (0, "beside", 1, [])
    path = films / "film.reelscribe.json"
    assert path.read_bytes() == (films.parent / "out/annotations.jsonl").read_bytes()
    path.rename(films / "mine")
    path.symlink_to("mine")
    result = CliRunner().invoke(app, [*command, "-q"])
    assert (result.exit_code, result.stdout) == (3, "")
    assert f"{path}: cannot be written beside its source: a symbolic link" in result.stderr


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ([], "expected --format or --beside, got neither"),
        (["--beside", "srt,csv"], "expected formats out of srt, vtt, ass, json, with commas, got 'csv'"),
        (["--beside", ""], "expected formats out of srt, vtt, ass, json, with commas, got ''"),
        (["--overwrite"], "--overwrite: expected --beside or --format with it"),
    ],
)
def test_a_wrong_option_is_a_usage_error_before_anything_is_written(films, words, reason):
    annotations(films, [speech(films / "film.mp4")])
    result = CliRunner().invoke(app, ["export", str(films), *words])
    assert result.exit_code == 2
    assert reason in result.stderr
    assert names(films) == {"annotations.jsonl", "run.json"}


def test_an_output_folder_that_cannot_remember_is_an_error_and_nothing_is_written(films):
    out = films.parent / "out"
    for make in (lambda: (out / NAME).mkdir(), lambda: (out / NAME).symlink_to("x")):
        out.mkdir(exist_ok=True)
        make()
        with pytest.raises(OutputError, match=NAME):
            beside(films, [speech(films / "film.mp4")])
        (out / NAME).rmdir() if (out / NAME).is_dir() else (out / NAME).unlink()
    (out / "annotations.jsonl").write_text("{}\n")
    with pytest.raises(UsageError, match="line 1: expected a record"):
        write_beside(out / "annotations.jsonl", out, ALL)
    assert names(films) == set()
