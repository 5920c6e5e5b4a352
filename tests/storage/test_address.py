"""Addresses as names of sources: what is one, and what may not be in it."""

import os

import pytest

from reelscribe.errors import UsageError
from reelscribe.storage.address import absolute_name, check_address, file_name, is_address, split_object, suffix


@pytest.mark.parametrize(
    "name", ["s3://b/k.mp4", "S3://b/k.mp4", "gs://b/k", "az://c/k", "https://h/a.mp4", "http://h:80/a.mp4"]
)
def test_addresses_are_kept_as_they_are(name):
    assert is_address(name)
    assert absolute_name(name) == name


@pytest.mark.parametrize("name", ["s3:/b/k.mp4", "./s3://b/k.mp4", "ftp://h/a.mp4", "C://a.mp4", "s3", "//b/k"])
def test_everything_else_is_a_path(name):
    assert not is_address(name)
    assert absolute_name(name) == os.path.abspath(name)


def test_a_key_is_taken_as_it_is():
    key = "films//../a b?c#d%20é\n.mp4"
    assert split_object(f"s3://bucket/{key}") == ("bucket", key)
    assert split_object("s3://bucket") == ("bucket", "")


def test_the_suffix_is_that_of_the_file_name():
    assert suffix("https://h/films/one.MP4?v=2#t=1") == ".mp4"
    assert suffix("s3://b/one.mp4?v=.txt") == ".txt"
    assert suffix("films/one.MKV") == ".mkv"
    assert suffix("http://[x/one.mp4") == ".mp4"
    assert file_name("shards/0.tar::a/one.mp4") == "one.mp4"


@pytest.mark.parametrize(
    "address",
    [
        "https://me:hidden@example.org/a.mp4",
        "https://example.org/a.mp4?X-Amz-Signature=hidden",
        "https://example.org/a.mp4?v=1&sig=hidden",
        "http://example.org/a.mp4?access_token=hidden",
        "https://example.org/a.mp4?Key-Pair-Id=a&Signature=hidden",
        "s3://name:hidden@bucket/a.mp4",
        "az://name:hidden@container/a.mp4",
        "https://example.org/a.mp4#jwt=hidden",
        "https://example.org/a.mp4;jsessionid=hidden",
        "https://example.org/a.mp4#PHPSESSID=hidden",
        "https://example.org/a.mp4?hdnts=st=1~exp=2~hmac=hidden",
        "https://example.org/hdntl=exp=2~hmac=hidden/a.mp4",
        "https://example.org/bcdn_token=hidden/a.mp4",
        "https://example.org/a.mp4?X-Amz-Date=hidden",
        "https://example.org/a.mp4?st=hidden&e=1735689600",
        "https://example.org/a.mp4?Expires=hidden",
        "https://example.org/a.mp4?__token__=hidden",
        "https://example.org/a.mp4?v=1;sid=hidden",
        "https://example.org/a.mp4?%73ig=hidden",
        "https://example.org?token=hidden",
        "https://me:hid/hidden@example.org/a.mp4",
        "https://example.org\\@hidden/a.mp4",
        "https://example.org/a.mp4\r\nhidden: 1",
        "https://127.1/a.mp4?hidden",
        "https://0x7f000001/a.mp4?hidden",
        "https://[::ffff:127.0.0.1]/a.mp4?hidden",
        "https://example.org../a.mp4?hidden",
        "https://example.org/a.mp4?hdnea=exp=2~acl=/*~hmac=hidden",
        "https://example.org/a.mp4?session=hidden",
        "https://example.org/a.mp4?v=1&token=ab%26hidden",
        "https://example.org/a.mp4%3Ftoken=hidden",
        "https://example.org/a.mp4?pwd=1234",
        "https://[example.org/a.mp4",
        "https://example.org:99999/a.mp4",
        "s3://",
        "https:///a.mp4",
    ],
)
def test_what_would_put_a_secret_into_records_is_refused_without_showing_it(address):
    with pytest.raises(UsageError) as refused:
        check_address(address)
    assert "hidden" not in str(refused.value)
    assert "expected a" in str(refused.value)


@pytest.mark.parametrize(
    "address",
    [
        "https://example.org/a.mp4?v=2",
        "s3://b/a.mp4?token=1",
        "https://e.org/keys/k=1",
        "https://b\u00fccher.example/\u00e4 b.mp4",
        "https://e.org/@me/session=1/a.mp4?st=30",
        "http://127.0.0.1:8080/a.mp4",
        "http://[::1]/a.mp4",
        "http://example.org./a.mp4",
        "https://example.org/a.mp4?session=12",
        "https://example.org/a.mp4?sid=3",
        "https://example.org/a.mp4?session_id=5",
        "https://example.org/a.mp4?expires=never",
        "https://example.org/a.mp4?expires_on=never",
        "https://example.org/a.mp4?st=10&e=20",
        "https://example.org/a.mp4?st=00:01:30&e=00:02:00",
        "https://example.org/tokens=3/a.mp4",
    ],
)
def test_other_addresses_are_taken(address):
    check_address(address)


def test_a_session_is_to_be_left_out():
    with pytest.raises(UsageError, match="leave a session out"):
        check_address("https://example.org/a.mp4;jsessionid=0123456789ABCDEF")
