"""Members of .tar archives: what is listed, what lies beside them, how they are read, and hostile archives."""

import io
import json
import os
import tarfile
import tracemalloc
from contextlib import ExitStack

import pytest

from reelscribe.contract.source import VIDEO_SUFFIXES
from reelscribe.errors import MediaError, NoSuchObject, SourceChanged, StoreUnavailable
from reelscribe.storage import tar_headers
from reelscribe.storage.search import find_members
from reelscribe.storage.stores import Stores
from support.buckets import SCHEMES, bucket_server
from support.stores import every_third, refusal, serving, web_server


@pytest.fixture
def stores():
    stores = Stores(5.0)
    yield stores
    stores.close()


def write_tar(path, members: dict[str, bytes], kind=tarfile.PAX_FORMAT, **attributes) -> str:
    with tarfile.open(path, "w", format=kind) as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            for attribute, value in attributes.items():
                setattr(info, attribute, value)
            tar.addfile(info, io.BytesIO(content))
    return str(path)


SHARD = {
    "a/000.mp4": b"first",
    "a/000.json": b'{"title": "One", "n": [1, NaN]}',
    "a/000.txt": "Größe".encode(),
    "a/001.caption.txt": b"two",
    "a/001.mp4": b"second",
    "a/002.mp4": b"",
    "a/.hidden.mp4": b"x",
    "a/003.jpg": b"picture",
    "../../etc/004.mp4": b"outside",
    "/005.mp4": b"root",
    "a\nb\x1b[2J/006.mp4": b"control",
    "long/" * 1000 + "007.mp4": b"long name",
    "big.mp4": bytes(range(256)) * 400,
}
VIDEOS = [name for name in SHARD if name.endswith(".mp4") and ".hidden" not in name]


@pytest.mark.parametrize("kind", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_media_in_an_archive_are_found_and_read_in_place(stores, tmp_path, kind):
    shard = write_tar(tmp_path / "s.tar", SHARD, kind)
    found = list(find_members(shard, VIDEO_SUFFIXES, stores))
    assert [each.address for each in found] == [f"{shard}::{name}" for name in VIDEOS]
    for name, each in zip(VIDEOS, found, strict=True):
        assert b"".join(stores.of(each.address).read(each)) == SHARD[name]
    big = found[-1]
    assert b"".join(stores.of(big.address).read(big, 1000, 1500)) == SHARD["big.mp4"][1000:1500]


def test_what_lies_beside_a_member_comes_with_it(stores, tmp_path):
    shard = write_tar(tmp_path / "s.tar", SHARD)
    beside = [each.extra and json.loads(each.extra) for each in find_members(shard, VIDEO_SUFFIXES, stores)]
    assert beside[:3] == [{"json": {"title": "One", "n": [1, None]}, "txt": "Größe"}, {"caption.txt": "two"}, None]


@pytest.mark.parametrize("content", [b"{", b"[" * 50_000, b" " * 70_000, b"[" * 500 + b"]" * 500])
def test_what_cannot_be_taken_from_beside_a_member_is_null(stores, tmp_path, content):
    shard = write_tar(tmp_path / "s.tar", {"0.mp4": b"x", "0.json": content})
    (found,) = find_members(shard, VIDEO_SUFFIXES, stores)
    assert json.loads(found.extra) == {"json": None}


def test_one_member_can_be_named(stores, tmp_path):
    shard = write_tar(tmp_path / "s.tar", SHARD)
    stored = stores.of(f"{shard}::big.mp4").info(f"{shard}::big.mp4")
    assert b"".join(stores.of(stored.address).read(stored)) == SHARD["big.mp4"]
    with pytest.raises(NoSuchObject, match="no such member"):
        stores.of(stored.address).info(f"{shard}::none.mp4")


def test_an_archive_that_was_changed_is_not_read(stores, tmp_path):
    shard = write_tar(tmp_path / "s.tar", SHARD)
    *_, stored = find_members(shard, VIDEO_SUFFIXES, stores)
    write_tar(tmp_path / "s.tar", {"x.mp4": b"y" * 200_000})
    with pytest.raises(SourceChanged, match="its archive was changed"):
        b"".join(stores.of(stored.address).read(stored))


def test_archives_in_stores_are_read_by_ranges(stores, tmp_path, monkeypatch):
    (folder := tmp_path / "b").mkdir()
    write_tar(folder / "s.tar", {f"{k}.mp4": bytes([k]) * 300_000 for k in range(8)})
    with ExitStack() as stack:
        web, address = stack.enter_context(web_server(folder))
        buckets = {scheme: stack.enter_context(bucket_server(scheme, monkeypatch, folder)) for scheme in SCHEMES}
        places = {f"{scheme}://bucket/s.tar": bucket for scheme, bucket in buckets.items()}
        for shard, server in (places | {f"{address}/s.tar": web}).items():
            found = list(find_members(shard, VIDEO_SUFFIXES, stores))
            assert [each.address for each in found] == [f"{shard}::{k}.mp4" for k in range(8)]
            size = (folder / "s.tar").stat().st_size
            assert server.sent["s.tar"] < size / 10
            assert b"".join(stores.of(shard + "::").read(found[3])) == bytes([3]) * 300_000
            assert server.sent["s.tar"] < size / 10 + 320_000
        for shard, bucket in places.items():
            found = list(find_members(shard, VIDEO_SUFFIXES, stores))
            bucket.put("s.tar", b"other")
            with pytest.raises(SourceChanged):
                b"".join(stores.of(f"{shard}::").read(found[3]))


def hostile(tmp_path) -> dict[str, bytes]:
    """Archives with one fault each."""
    good = (tmp_path / "good.tar").read_bytes()
    huge = bytearray(good)
    huge[124:136] = b"77777777777\0"  # the size of the first member
    long = tarfile.TarInfo("././@LongLink")
    long.type, long.size = tarfile.GNUTYPE_LONGNAME, 2**33
    pax = tarfile.TarInfo("pax")
    pax.type, pax.size = tarfile.XHDTYPE, 2**33
    link = tarfile.TarInfo("pax")
    link.type = tarfile.XHDTYPE
    chained = link.tobuf(tarfile.USTAR_FORMAT) * 3000
    sparse = attributes(b"22 GNU.sparse.major=1\n22 GNU.sparse.minor=0\n") + header("a.mp4", b"0", 2**23)
    return {
        "empty": b"",
        "no archive": b"this is text" * 1000,
        "compressed": b"\x1f\x8b" + bytes(5000),
        "cut": good[: len(good) // 2 - 3000],
        "a size that lies": bytes(huge),
        "a header that is damaged": damaged(good, 512 + 50_176),
        "a header that is cut": good[: 512 + 50_176 + 100],
        "headers of headers": chained,
        "a name of 8 GB": long.tobuf(tarfile.GNU_FORMAT) + bytes(5000),
        "attributes of 8 GB": pax.tobuf(tarfile.PAX_FORMAT) + bytes(5000),
        "attributes of digits alone": attributes(b"9" * 900_000) + good,
        "an attribute of digits": attributes(b"60007 x=" + b"9" * 59_998 + b"\n") + good,
        "attributes that overlap": attributes(b"2 " * 30_000 + b"a=b") + good,
        "a size that goes back": header("a.mp4", tarfile.REGTYPE, 0) * 2 + header("b.mp4", tarfile.REGTYPE, -1024),
        "a size below zero among attributes": attributes(b"14 size=-1024\n") + good,
        "a name of a size below zero": header("a", tarfile.GNUTYPE_LONGNAME, -1024) + good,
        "a map that is cut": extended(header("a.mp4", tarfile.GNUTYPE_SPARSE, 0)),
        "a map without end": sparse + (b"9999999\n" + b"0\n" * 600_000),
        "attributes for all members": b"".join(common(k) for k in range(200)),
        "two archives": good + good,
    }


def header(name: str, kind: bytes, size: int) -> bytes:
    """The header of a member."""
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, size
    return info.tobuf(tarfile.GNU_FORMAT)


def extended(block: bytes) -> bytes:
    """The header of a sparse file that says that more of its map follows."""
    block = block[:148] + b" " * 8 + block[156:482] + b"\1" + bytes(29)
    return block[:148] + b"%06o\0 " % sum(block) + block[156:]


def attributes(content: bytes, kind: bytes = tarfile.XHDTYPE) -> bytes:
    """A header with attributes of the member after it."""
    return header("a", kind, len(content)) + content + bytes(-len(content) % 512)


def common(number: int) -> bytes:
    """A header with an attribute of all members after it, and a member."""
    return attributes(f"8 {number:04}=\n".encode(), tarfile.XGLTYPE) + header("a", b"0", 0)


def damaged(content: bytes, place: int) -> bytes:
    return content[:place] + b"\xff" * 10 + content[place + 10 :]


NUMBER = 20


@pytest.mark.parametrize("number", range(NUMBER))
def test_hostile_archives_are_one_error(stores, tmp_path, number):
    write_tar(tmp_path / "good.tar", {"a.mp4": b"x" * 50_000, "b.mp4": b"y" * 50_000})
    every = hostile(tmp_path)
    assert len(every) == NUMBER
    (tmp_path / "bad.tar").write_bytes(list(every.values())[number])
    with pytest.raises(MediaError, match="expected"):
        list(find_members(str(tmp_path / "bad.tar"), VIDEO_SUFFIXES, stores))


def links(path, *members: tuple[str, bytes, bytes | str]) -> str:
    """An archive of members with their names, kinds, and contents or targets."""
    with tarfile.open(path, "w") as tar:
        for name, kind, what in members:
            info = tarfile.TarInfo(name)
            info.type = kind
            if isinstance(what, str):
                info.linkname = what
                tar.addfile(info)
            else:
                info.size = len(what)
                tar.addfile(info, io.BytesIO(what))
    return str(path)


FILE, HARD, SYMBOLIC = tarfile.REGTYPE, tarfile.LNKTYPE, tarfile.SYMTYPE


def test_links_lead_to_what_unpacking_would_find(stores, tmp_path):
    shard = links(
        tmp_path / "s.tar",
        ("./films/0.mp4", FILE, b"first"),
        ("films/hard.mp4", HARD, "films/0.mp4"),
        ("films/again.mp4", HARD, "films/hard.mp4"),
        ("films/again.mp4", HARD, "films/again.mp4"),  # as tar writes a file that is named twice
        ("films/0.mp4", FILE, b"its successor"),
        ("latest.mp4", SYMBOLIC, "new/../2026//./later.mp4"),
        ("new", SYMBOLIC, "by-year/2026"),
        ("ahead.mp4", HARD, "by-year/2026/later.mp4"),
        ("by-year/2026/later.mp4", SYMBOLIC, "../../blobs/abc"),
        ("blobs/abc", FILE, b"content"),
        ("latest.json", SYMBOLIC, "blobs/def"),
        ("blobs/def", FILE, b'{"a": 1}'),
    )
    found = list(find_members(shard, VIDEO_SUFFIXES, stores))
    assert {each.address.rpartition("::")[2]: b"".join(stores.of(each.address).read(each)) for each in found} == {
        "films/hard.mp4": b"first",
        "films/again.mp4": b"first",
        "films/0.mp4": b"its successor",
        "latest.mp4": b"content",
        "ahead.mp4": b"content",
        "by-year/2026/later.mp4": b"content",
    }
    assert {each.extra for each in found if "latest" in each.address} == {'{"json": {"a": 1}}'}
    assert stores.of(shard + "::").info(f"{shard}::latest.mp4").size == 7


@pytest.mark.parametrize(
    ("name", "kind", "target", "reason"),
    [
        ("a.mp4", SYMBOLIC, "/etc/passwd", "leads out of the archive, by '/etc/passwd'"),
        ("a/b.mp4", SYMBOLIC, "../../etc/passwd", "leads out of the archive, by '../../etc/passwd'"),
        ("a.mp4", SYMBOLIC, "a.mp4", "leads in circles, by 'a.mp4'"),
        ("a.mp4", SYMBOLIC, "circle/x.mp4", "leads in circles"),
        ("a.mp4", SYMBOLIC, "x/" * 100_000, "leads in circles"),
        ("a.mp4", SYMBOLIC, "none.mp4", "there is no such file: 'none.mp4'"),
        ("a.mp4", SYMBOLIC, "folder", "there is no such file: 'folder'"),
        ("a.mp4", HARD, "none.mp4", "there is no such file"),
        ("a.mp4", HARD, "/etc/passwd", "there is no such file"),
        ("a.mp4", HARD, "a.mp4", "leads in circles"),
        ("a.mp4", tarfile.CHRTYPE, "", "got a device, a pipe or the rest of a file"),
        ("a.mp4", tarfile.FIFOTYPE, "", "got a device, a pipe or the rest of a file"),
        ("a.mp4", b"M", "", "got a device, a pipe or the rest of a file"),
        ("a.mp4", tarfile.GNUTYPE_SPARSE, "", "expected a member that is stored as a whole, got a sparse one"),
    ],
)
def test_a_member_that_cannot_be_read_has_a_reason_and_others_are_found(stores, tmp_path, name, kind, target, reason):
    shard = links(
        tmp_path / "s.tar",
        ("circle", SYMBOLIC, "./circle"),
        ("folder", tarfile.DIRTYPE, ""),
        (name, kind, target),
        ("z.mp4", FILE, b"x"),
    )
    bad, good = find_members(shard, VIDEO_SUFFIXES, stores)
    assert (bad.address, good.problem) == (f"{shard}::{name}", "")
    assert reason in bad.problem
    with pytest.raises(MediaError, match="expected a"):
        stores.of(shard + "::").info(bad.address)


def test_what_belongs_together_need_not_be_neighbours(stores, tmp_path):
    members = [
        ("./._0.json", FILE, b"a note of a Mac"),
        ("./0.json", FILE, b'{"n": 0}'),
        ("1.txt", FILE, b"old"),
        ("0.MP4", FILE, b"old"),
        ("__MACOSX/._0.mp4", FILE, b"a note of a Mac"),
        ("./0.MP4", FILE, b"zero"),
        ("1.mp4", FILE, b"one"),
        ("Cafe\u0301.mp4", FILE, b"coffee"),
        ("1.TXT", FILE, b"other"),
        ("0.txt", FILE, b"zero"),
        ("./1.txt", FILE, b"new"),
        ("Caf\xe9.txt", FILE, b"accent"),
        ("Caf\xe9.json", FILE, b'\xef\xbb\xbf"marked"'),
        ("Caf\xe9.mark.txt", FILE, "Größe".encode("utf-16")),
    ]
    shard = links(tmp_path / "S.TAR", *members)
    found = list(find_members(shard, VIDEO_SUFFIXES, stores))
    assert {each.address.rpartition("::")[2]: json.loads(each.extra or "{}") for each in found} == {
        "./0.MP4": {"json": {"n": 0}, "txt": "zero"},
        "1.mp4": {"txt": "new"},
        "Cafe\u0301.mp4": {"txt": "accent", "json": "marked", "mark.txt": "Größe"},
    }
    for name, content in {"0.MP4": b"zero", "././1.mp4": b"one", "Caf\xe9.mp4": b"coffee"}.items():
        store = stores.of(f"{shard}::")
        assert b"".join(store.read(store.info(f"{shard}::{name}"))) == content


def test_members_of_one_sample_get_what_lies_beside_them_up_to_a_limit(stores, tmp_path):
    shard = write_tar(tmp_path / "s.tar", {"0.txt": b"x"} | {f"0.{k:03}.mp4": b"" for k in range(300)})
    assert sum(each.extra is not None for each in find_members(shard, VIDEO_SUFFIXES, stores)) == 100


def test_what_was_found_before_a_store_failed_is_listed_and_the_rest_later(stores, tmp_path):
    write_tar(tmp_path / "s.tar", {f"{k}.mp4": bytes(100_000) for k in range(8)})
    with web_server(tmp_path) as (web, address):
        shard, found = f"{address}/s.tar", list[str]()
        web.faults["s.tar"] = lambda sending: refusal("", 503) if sending.number > 4 else None
        with pytest.raises(StoreUnavailable):
            found += (each.address for each in find_members(shard, VIDEO_SUFFIXES, stores))
        assert found[0] == f"{shard}::0.mp4"
        assert len(found) < 8
        del web.faults["s.tar"]
        assert len(list(find_members(shard, VIDEO_SUFFIXES, stores))) == 8


def test_small_members_do_not_cost_a_request_each(stores, tmp_path):
    write_tar(tmp_path / "s.tar", {f"{k}.mp4": bytes(20_000) for k in range(200)})
    with web_server(tmp_path) as (web, address):
        assert len(list(find_members(f"{address}/s.tar", VIDEO_SUFFIXES, stores))) == 200
        assert web.requests["s.tar"] < 20


def test_what_is_left_in_the_last_record_is_no_other_archive(stores, tmp_path):
    shard = write_tar(tmp_path / "s.tar", {"0.mp4": b"x"})
    content = bytearray((tmp_path / "s.tar").read_bytes())
    content[3072:3584] = tarfile.TarInfo("stale.mp4").tobuf(tarfile.USTAR_FORMAT)
    (tmp_path / "s.tar").write_bytes(content)
    assert [each.address for each in find_members(shard, VIDEO_SUFFIXES, stores)] == [f"{shard}::0.mp4"]
    for more in (bytes(512), content):
        (tmp_path / "s.tar").write_bytes(content + more)
        with pytest.raises(MediaError, match="expected one archive, but another one begins at byte 3,072"):
            list(find_members(shard, VIDEO_SUFFIXES, stores))


def test_an_archive_that_does_not_end_is_given_up(stores, monkeypatch):
    def endless(environ, start_response):
        start, stop = map(int, environ["HTTP_RANGE"].removeprefix("bytes=").split("-"))
        first, last = start // tarfile.BLOCKSIZE, stop // tarfile.BLOCKSIZE
        content = b"".join(tarfile.TarInfo(f"{number}.mp4").tobuf() for number in range(first, last + 1))
        content = content[start % tarfile.BLOCKSIZE :][: stop - start + 1]
        told = [("Content-Length", str(len(content))), ("Content-Range", f"bytes {start}-{stop}/{10**17}")]
        start_response("206 Partial Content", told)
        return [content]

    monkeypatch.setattr(tar_headers, "_MOST_MEMBERS", 100)
    with serving(endless) as (_, address):
        found = find_members(f"{address}/endless.tar", VIDEO_SUFFIXES, stores)
        assert [next(found).address.rpartition("::")[2] for _ in range(100)] == [f"{k}.mp4" for k in range(100)]
        with pytest.raises(MediaError, match="expected an archive with at most 100 members, got more"):
            next(found)


def test_an_archive_that_became_a_pipe_keeps_nobody_waiting(stores, tmp_path):
    shard = write_tar(tmp_path / "s.tar", {"0.mp4": b"x"})
    (member,) = find_members(shard, VIDEO_SUFFIXES, stores)
    (tmp_path / "s.tar").unlink()
    os.mkfifo(shard)
    with pytest.raises(MediaError, match="its archive cannot be read: not a regular file"):
        list(stores.of(member.address).read(member))


def test_many_members_take_no_memory(stores, tmp_path):
    shard = write_tar(tmp_path / "s.tar", {f"{k:05}.mp4": b"x" for k in range(3000)})
    tracemalloc.start()
    try:
        count = sum(1 for _ in find_members(shard, VIDEO_SUFFIXES, stores))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert count == 3000
    assert peak < 1_000_000  # without what each header takes


def test_numbers_that_json_does_not_have_become_null(stores, tmp_path):
    members = {"0.mp4": b"x", "0.json": b'{"a": 1e999, "b": "\\ud800"}'}
    shard = write_tar(tmp_path / "s.tar", members, pax_headers={"mtime": "nan"})
    (found,) = find_members(shard, VIDEO_SUFFIXES, stores)
    assert json.loads(found.extra) == {"json": {"a": None, "b": "\\ud800"}}


def test_what_lies_beside_a_member_is_bounded_as_a_whole(stores, tmp_path):
    texts = {f"0.{k:03}.txt": b"x" * 30_000 for k in range(300)}
    shard = write_tar(tmp_path / "s.tar", {**texts, "0.mp4": b"x"})
    (found,) = find_members(shard, VIDEO_SUFFIXES, stores)
    assert len(found.extra or "") < 2 * tar_headers.MOST_BESIDE


def test_a_store_that_is_busy_for_a_moment_loses_no_member(stores, tmp_path):
    write_tar(tmp_path / "s.tar", {f"{k}.mp4": bytes(50_000) for k in range(8)})
    with web_server(tmp_path) as (web, address):
        web.fault_of_all = every_third(503)
        stored = [each.address for each in find_members(f"{address}/s.tar", VIDEO_SUFFIXES, stores)]
    assert len(stored) == 8
