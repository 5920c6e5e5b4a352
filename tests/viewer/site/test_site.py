"""Exported pages: which files there are, what they refer to, what they tell, and what an older export leaves."""

import json
import os

import pytest
from typer.testing import CliRunner

from reelscribe._files import FolderLock
from reelscribe.cli import app
from reelscribe.contract.outcomes import Caption
from reelscribe.contract.source import Source
from reelscribe.errors import UsageError
from reelscribe.export.formats import export
from reelscribe.results.batches import SavedFrameBatch
from reelscribe.results.ledger import Ledger
from reelscribe.thumbnails.store import ThumbnailStore
from support.exported_pages import PICTURE, exported_site, files_of, page_id, pieces, source_record, tags_of
from support.exporting import annotations, both, record, transcript_record, with_summary
from support.memory import peak_memory

HOSTILE = [
    "</script><script>document.title='ran'</script>",
    "<!-- --><img src=x onerror=alert(1)>",
    "a\u2028b\u2029c",
    "\u202egnp.exe \u2066x",
    "null \0 escape \x1b[31m",
    "{{ 7*7 }} {% raw %}",
    "__proto__ constructor",
]


def failed(path, message):
    error = {"type": "MediaError", "message": message}
    return record(str(path), status="error", error=error, media=None, caption_settings=None)


def site_files(site):
    return {str(path.relative_to(site)) for path in site.rglob("*") if path.is_file()}


def test_each_source_has_a_page_and_all_that_pages_refer_to_is_in_the_folder(tmp_path):
    media = [tmp_path / "in" / name for name in ("a #?%é.webm", "b/a.webm")]
    site, _ = exported_site(tmp_path / "out", [source_record(path, "a star") for path in media], "copy")
    assert {f"source/{page_id(path)}.html" for path in media} < site_files(site)
    assert {"index.html", "search.html", "failed.html"} < site_files(site)
    assert "static/live.js" not in site_files(site)  # it asks a server
    for page in site.rglob("*.html"):
        for file in files_of(page):
            assert file.is_file(), (page, file)
            assert file.is_relative_to(site)


def test_pages_have_no_script_or_style_of_their_own(tmp_path):
    site, _ = exported_site(tmp_path / "out", [source_record(tmp_path / "a.webm", *HOSTILE)])
    for page in site.rglob("*.html"):
        for tag, attributes in tags_of(page):
            assert tag != "style"
            assert "style" not in attributes
            assert not any(name.startswith("on") for name in attributes)
            assert tag != "script" or "static/" in attributes["src"]


def test_hostile_texts_are_shown_and_searched_and_are_never_code(tmp_path):
    site, _ = exported_site(tmp_path / "out", [record("a.mp4", *HOSTILE)])
    ((_, address, _, name, _, rows),) = pieces(site, "texts")
    assert [text for _, _, _, text in rows][:3] == HOSTILE[:3]
    assert (address, name) == (f"source/{page_id(os.path.abspath('a.mp4'))}.html", "a.mp4")
    for path in site.glob("index/*.js"):
        assert not set(path.read_bytes().decode()) & set("<>\u2028\u2029\u202e\0\x1b")
    page = (site / address).read_text()
    assert "<script>" not in page
    assert "\u202e" not in page


def test_pages_to_hand_over_do_not_tell_where_they_were_made(tmp_path):
    folder = tmp_path / "home" / "secret"
    broken, spoken = folder / "b.mp4", folder / "inner" / "a.webm"
    records = [
        failed(broken, f"{broken}: cannot be read; {folder}/x is there"),
        source_record(spoken, "a star", caption_failures=[{"frame_index": 3, "pts_seconds": 3, "error": str(spoken)}]),
        source_record(folder / "gone.webm", "a star"),
    ]
    (folder / "gone.webm").unlink()
    for media in ("none", "copy"):
        site, _ = exported_site(tmp_path / "out", records, media)
        for path in site.rglob("*"):
            assert path.is_dir() or b"secret" not in path.read_bytes(), path
        assert "inner/a.webm" in (site / f"source/{page_id(spoken)}.html").read_text()


def test_linked_sources_are_found_from_the_pages_and_lie_where_they_were(tmp_path):
    path = tmp_path / "in" / "50% #1 ?.webm"
    site, _ = exported_site(tmp_path / "out", [source_record(path, "a star")], "link")
    assert path in files_of(site / f"source/{page_id(path)}.html")
    assert not (site / "media").exists()


def test_copies_are_the_bytes_that_the_run_has_read(tmp_path):
    paths = [tmp_path / f"{name}.webm" for name in ("same", "changed", "swapped")]
    same, changed, swapped = [source_record(path, "a star") for path in paths]
    content = bytearray(paths[1].read_bytes())
    content[1000] ^= 1
    paths[1].write_bytes(content)  # of the same size
    paths[2].unlink()
    paths[2].symlink_to("/etc/passwd")
    site, line = exported_site(tmp_path / "out", [same, changed, swapped], "copy")
    (copy,) = (site / "media").iterdir()
    assert copy.name == f"{page_id(paths[0])}.webm"
    assert copy.read_bytes() == paths[0].read_bytes()
    assert f"1 file of media copied ({copy.stat().st_size:,} bytes)" in line
    assert "was changed after the run" in (site / f"source/{page_id(paths[1])}.html").read_text()
    paths[0].unlink()
    _, line = exported_site(tmp_path / "out", [same, changed, swapped], "copy")
    assert copy.exists()
    assert "1 copy of an earlier export kept" in line
    assert copy in files_of(site / f"source/{page_id(paths[0])}.html")


@pytest.mark.parametrize("media", ["link", "copy"])
def test_sources_in_stores_are_neither_linked_nor_copied_and_pages_say_so(tmp_path, media):
    path = "s3://bucket/in/a.mp4"
    site, _ = exported_site(tmp_path / "out", [record(path, "a star")], media)
    assert "a.mp4 is in a store; only reelscribe browse plays it" in (site / f"source/{page_id(path)}.html").read_text()
    assert not (site / "media").exists()


def test_thumbnails_that_are_missing_are_made_and_said(tmp_path):
    there, broken = tmp_path / "a.webm", tmp_path / "b.webm"
    records = [source_record(there, "a star"), source_record(broken, "a star", of="phrases.ogg")]
    site, line = exported_site(tmp_path / "out", records, pictures=False)
    assert "12 thumbnails, made for 1 source that had none, 1 video without any" in line
    assert len(list((site / "thumbnails" / page_id(there)).iterdir())) == 12
    _, line = exported_site(tmp_path / "out", records, pictures=False)
    assert "12 thumbnails, 1 video without any" in line


def test_sources_that_failed_have_pages_of_their_own(tmp_path):
    records = [failed(f"/in/{k}.mp4", "damaged") for k in range(97)] + [record("/in/a.mp4", "x")]
    site, _ = exported_site(tmp_path / "out", records)
    assert {"failed.html", "failed-2.html", "index.html", "library-2.html"} < site_files(site)
    names = ("failed.html", "failed-2.html", "index.html", "library-2.html")
    assert [(site / name).read_text().count('class="card ') for name in names] == [96, 1, 96, 2]
    assert "Failed (97)" in (site / "index.html").read_text()


def test_an_older_export_loses_what_no_page_refers_to_but_not_what_a_user_has_put_there(tmp_path):
    first, second = (source_record(tmp_path / name, f"only {name}") for name in ("a.webm", "b.webm"))
    site, _ = exported_site(tmp_path / "out", [first, second], "copy")
    before = site_files(site)
    mine = [site / name for name in ("source/notes.html", "library.html")]
    for path in mine:
        path.write_text("mine")
    _, line = exported_site(tmp_path / "out", [first], "copy")
    gone = {name.split("/")[0] for name in before - site_files(site)}
    assert gone == {"source", "thumbnails", "index"}  # a copy may be the last one
    assert "1 page of sources removed that are no longer in the results" in line
    assert "1 file in html/media that no page plays" in line
    assert [path.read_text() for path in mine] == ["mine", "mine"]
    assert not any("only b.webm" in path.read_text() for path in site.rglob("*.js"))


def test_an_export_that_breaks_off_leaves_the_index_of_the_older_one(tmp_path):
    site, _ = exported_site(tmp_path / "out", [record("a.mp4", "old words")])
    older = {path: path.read_bytes() for path in [*site.glob("index/*"), site / "index.html"]}
    with pytest.raises(UsageError, match="line 2"):
        exported_site(tmp_path / "out", [record("a.mp4", "new words"), {}])
    assert all(path.read_bytes() == content for path, content in older.items())


def test_a_long_source_has_several_pages_and_hits_lead_to_the_right_one(tmp_path):
    path = tmp_path / "a.mp4"
    site, _ = exported_site(tmp_path / "out", [record(str(path), *(f"frame {k}" for k in range(4500)))])
    name = page_id(path)
    assert {f"source/{name}.html", f"source/{name}-2.html", f"source/{name}-3.html"} < site_files(site)
    found = {row[3]: address for _, address, _, _, _, rows in pieces(site, "texts") for row in rows}
    assert len(found) == 4500
    for number, address in ((7, f"{name}.html"), (2000, f"{name}-2.html"), (4499, f"{name}-3.html")):
        text = f"frame {number}"
        assert found[text] == f"source/{address}"
        assert f">{text}" in (site / "source" / address).read_text()
    assert f'href="../source/{name}-2.html#t=2000.000"' in (site / f"source/{name}.html").read_text()


def test_texts_of_many_megabytes_are_cut_as_on_pages(tmp_path):
    site, _ = exported_site(tmp_path / "out", [record("a.mp4", "word " * 2_000_000 + "end")])
    assert sum(path.stat().st_size for path in site.rglob("*") if path.is_file()) < 200_000
    ((*_, rows),) = pieces(site, "texts")
    assert rows[0][3].endswith("(cut; the whole text has 10,000,003 characters)")


def test_words_are_written_once_with_the_pages_that_have_them(tmp_path):
    value = both(record("a.mp4", "Über STOP"), transcript_record("a.mp4", "stop 日本"))
    site, _ = exported_site(tmp_path / "out", [value, record("b.mp4", "x"), record("c.mp4", "stop")])
    assert pieces(site, "words") == [["stop", [0, 2]], ["uber", [0]], ["x", [1]], ["日", [0]], ["本", [0]]]


def test_translations_are_on_pages_and_found_as_a_transcript(tmp_path):
    value = transcript_record("a.mp4", "Hallo!")
    english = [segment | {"start": 0.5, "text": "Good morning!"} for segment in value["segments"]]
    site, _ = exported_site(tmp_path / "out", [value | {"translations": english}])
    assert "Good morning!" in next((site / "source").glob("*.html")).read_text()
    ((*_, rows),) = pieces(site, "texts")
    assert [(kind, start, text) for kind, start, _, text in rows] == [
        ("transcript", 0.0, "Hallo!"),
        ("transcript", 0.5, "Good morning!"),
    ]


def test_memory_does_not_grow_with_the_number_of_sources(tmp_path):
    peaks = []
    for number in (1, 2, 8):  # the first one is for what is loaded once
        path = annotations(tmp_path, [record(f"{k}.mp4", *["star" * 2500] * 40) for k in range(number)])
        with peak_memory() as peak:
            export(path, tmp_path / "out", ["html"])
        peaks.append(peak())
    assert peaks[2] < 1.3 * peaks[1]


async def test_pages_are_exported_while_a_run_is_writing(tmp_path):
    sha256 = "ab" * 32
    async with Ledger(tmp_path) as ledger:
        job = await ledger.job(sha256, await ledger.settings_id({"model": ["some/model", "abc"]}))
        await ledger.save_batch(job.id, SavedFrameBatch(0, 1, 0, captions=[Caption(0, 0.0, "a star")]))
        await ledger.save_source(Source("/v/a.mp4", 5, sha256), {"captions": job})
    ThumbnailStore(tmp_path).write(sha256, 0.0, PICTURE)
    with FolderLock(tmp_path):
        result = CliRunner().invoke(app, ["export", str(tmp_path), "--format", "html", "--media", "none"])
    assert result.exit_code == 0
    index = tmp_path / "html" / "index.html"
    assert result.output == f"wrote {index}\nopen {index} in a browser; pages of 1 source, 1 thumbnail\n"
    assert "a star" in (tmp_path / f"html/source/{page_id('/v/a.mp4')}.html").read_text()


def test_a_choice_of_media_that_is_none_is_refused(tmp_path):
    result = CliRunner().invoke(app, ["export", str(tmp_path), "--format", "html", "--media", "all"])
    assert result.exit_code != 0
    assert "--media" in result.output
    assert list(tmp_path.iterdir()) == []


def test_a_choice_of_media_without_pages_is_refused(tmp_path):
    result = CliRunner().invoke(app, ["export", str(tmp_path), "--format", "csv", "--media", "copy"])
    assert result.exit_code != 0
    assert "--media copy: only pages have players; add --format html" in result.output
    assert list(tmp_path.iterdir()) == []


def test_no_records_make_an_empty_library(tmp_path):
    site, line = exported_site(tmp_path / "out", [])
    assert json.loads((site / "index/manifest.js").read_text().partition(", ")[2].removesuffix(");\n")) == {
        "texts": [],
        "words": [],
        "sources": [],
        "cards": [],
    }
    assert "There are no results" in (site / "index.html").read_text()
    assert line == f"open {site / 'index.html'} in a browser; pages of 0 sources, 0 thumbnails"


def test_a_summary_is_on_every_page_of_its_source_and_found_once(tmp_path):
    spans = [{"start": float(k), "end": k + 1.0, "text": f"line {k}"} for k in range(5000)]
    value = with_summary(source_record(tmp_path / "a.webm", caption_spans=spans), "A talk", "<b>One.</b>", ["two"])
    site, _ = exported_site(tmp_path / "out", [value])
    pages = [path.read_text() for path in (site / "source").glob("*.html")]
    assert [page.count("&lt;b&gt;One.&lt;/b&gt;") for page in pages] == [1, 1, 1]
    texts = [text for *_, rows in pieces(site, "texts") for kind, _, _, text in rows if kind == "summary"]
    assert texts == ["A talk · <b>One.</b> · two"]
    assert "A talk" in (site / "index.html").read_text()
