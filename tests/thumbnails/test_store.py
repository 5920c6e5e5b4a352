"""The thumbnails in the folder of a run."""

import os

import pytest

from reelscribe.errors import OutputError, UsageError
from reelscribe.thumbnails import store as store_module
from reelscribe.thumbnails.store import ThumbnailStore

SHA256 = "ab" * 32
OTHER = "cd" * 32


@pytest.fixture
def store(tmp_path):
    return ThumbnailStore(tmp_path)


def test_what_is_written_is_found_by_digest_and_time(store):
    store.write(SHA256, 12.3456, b"late")
    store.write(SHA256, 0.0, b"early")
    assert store.times(SHA256) == [0.0, 12.346]
    assert store.read(SHA256, 12.346) == b"late"
    assert store.path(SHA256, 0.0).read_bytes() == b"early"
    assert store.times(OTHER) == []


def test_a_path_has_the_digest_and_the_milliseconds_in_nine_digits(store, tmp_path):
    assert store.path(SHA256, 1.5) == tmp_path / "thumbnails" / "ab" / SHA256 / "000001500.webp"


def test_a_source_without_thumbnails_has_none_to_read(store):
    assert store.times(SHA256) == []
    assert store.read(SHA256, 1.0) is None


@pytest.mark.parametrize("sha256", ["", "ab", "../" * 21 + "x", "AB" * 32, "ab" * 32 + "\n", "g" * 64])
def test_only_a_digest_gets_near_a_path(store, sha256, tmp_path):
    for use in (store.times, lambda s: store.path(s, 0), lambda s: store.write(s, 0, b""), lambda s: store.read(s, 0)):
        with pytest.raises(UsageError, match="expected 64 hexadecimal digits"):
            use(sha256)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("seconds", [-0.001, 1e6, float("nan"), float("inf")])
def test_a_time_that_has_no_name_is_refused(store, seconds):
    with pytest.raises(UsageError, match="expected 0 to 999999"):
        store.write(SHA256, seconds, b"")


def test_a_thumbnail_of_the_same_time_is_replaced(store):
    store.write(SHA256, 1.0, b"old")
    store.write(SHA256, 1.0, b"new")
    assert store.read(SHA256, 1.0) == b"new"
    assert os.listdir(store.path(SHA256, 1.0).parent) == ["000001000.webp"]


def test_a_source_has_at_most_so_many(store, monkeypatch):
    monkeypatch.setattr(store_module, "MOST_PICTURES", 2)
    store.write(SHA256, 1.0, b"1")
    store.write(SHA256, 2.0, b"2")
    with pytest.raises(OutputError, match="at most 2 thumbnails of a source"):
        store.write(SHA256, 3.0, b"3")
    store.write(SHA256, 2.0, b"again")  # in place of the one that is there
    assert store.times(SHA256) == [1.0, 2.0]


def test_all_together_have_at_most_so_many_bytes(tmp_path):
    ThumbnailStore(tmp_path).write(SHA256, 1.0, bytes(60))
    store = ThumbnailStore(tmp_path, most_bytes=256 * 100)
    with pytest.raises(OutputError, match="at most 25600 bytes of thumbnails; delete the folder"):
        store.write(SHA256, 2.0, bytes(41))
    store.write(SHA256, 2.0, bytes(40))
    store.write(OTHER, 2.0, bytes(100))


def test_a_thumbnail_is_no_large_file(store):
    with pytest.raises(OutputError, match="expected at most 262144 bytes, got 262145"):
        store.write(SHA256, 1.0, bytes(2**18 + 1))


@pytest.mark.parametrize("level", ["thumbnails", "ab", SHA256])
def test_no_link_to_another_folder_is_followed(store, tmp_path, level):
    elsewhere = tmp_path / "elsewhere"
    folder = store.path(SHA256, 1.0).parent
    link = next(path for path in (folder, *folder.parents) if path.name == level)
    (elsewhere / folder.relative_to(link)).mkdir(parents=True)
    (elsewhere / folder.relative_to(link) / "000001000.webp").write_bytes(b"secret")
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(elsewhere)
    with pytest.raises(OutputError, match="a thumbnail cannot be written"):
        store.write(SHA256, 2.0, b"mine")
    assert store.times(SHA256) == []
    assert store.read(SHA256, 1.0) is None
    assert [path.read_bytes() for path in elsewhere.rglob("*.webp")] == [b"secret"]


def test_no_link_to_another_file_is_read_or_written_through(store, tmp_path):
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret")
    path = store.path(SHA256, 1.0)
    path.parent.mkdir(parents=True)
    path.symlink_to(secret)
    assert store.times(SHA256) == []
    assert store.read(SHA256, 1.0) is None
    store.write(SHA256, 1.0, b"mine")
    assert secret.read_bytes() == b"secret"
    assert store.read(SHA256, 1.0) == b"mine"


def test_a_pipe_in_place_of_a_thumbnail_is_not_waited_for(store):
    path = store.path(SHA256, 1.0)
    path.parent.mkdir(parents=True)
    os.mkfifo(path)
    assert store.read(SHA256, 1.0) is None


def test_a_folder_that_cannot_be_written_is_said(tmp_path):
    store = ThumbnailStore(tmp_path / "missing")
    with pytest.raises(OutputError, match="a thumbnail cannot be written: No such file"):
        store.write(SHA256, 1.0, b"")


def test_a_source_can_be_forgotten(store):
    store.write(SHA256, 1.0, b"1")
    store.write(OTHER, 1.0, b"1")
    store.forget(SHA256)
    store.forget("ef" * 32)
    assert (store.times(SHA256), store.times(OTHER)) == ([], [1.0])
    assert not store.path(SHA256, 1.0).parent.exists()
