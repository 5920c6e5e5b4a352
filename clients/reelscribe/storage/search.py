"""Finds the objects of a store that an address stands for."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from fnmatch import translate

from reelscribe.errors import NoSuchObject
from reelscribe.storage.address import file_name, is_archive, split_object, suffix
from reelscribe.storage.objects import StoredObject
from reelscribe.storage.stores import Stores


def find_objects(address: str, suffixes: Collection[str], stores: Stores) -> Iterator[StoredObject]:
    """Yield the objects that an address stands for, as the store lists them.

    Args:
        address: An object; a folder, which stands for all media below it; or a glob, which stands for all media and
            archives that match, and for all media below folders that match.
        suffixes: Endings of media files in lower case.
        stores: Those in which the address is.

    Raises:
        MediaError: The store cannot be asked.
        UsageError: A package is not installed.
    """
    store, key = stores.of(address), split_object(address).key
    if key and not key.endswith("/"):
        try:
            stored = store.info(address)
        except NoSuchObject:
            pass
        else:
            yield stored
            return
    magic = re.search(r"[*?\[]", key)
    if magic:
        begin, fits = address[: len(address) - len(key) + magic.start()], _pattern_of(key).fullmatch
    else:
        begin, fits = address if not key or key.endswith("/") else f"{address}/", re.compile(".*", re.DOTALL).fullmatch
    for each in store.list(begin):
        if fits(split_object(each.address).key) and (
            is_media(each.address, suffixes) or (magic and is_archive(each.address))
        ):
            yield each


def find_members(archive: str, suffixes: Collection[str], stores: Stores) -> Iterator[StoredObject]:
    """Yield the media in an archive, in their order, with what lies beside them.

    Args:
        archive: Path or address of the archive.
        suffixes: Endings of media files in lower case.
        stores: Those in which it is.

    Raises:
        MediaError: The archive cannot be read.
    """
    address = f"{archive}::"
    return (each for each in stores.of(address).list(address) if is_media(each.address, suffixes))


def is_media(name: str, suffixes: Collection[str]) -> bool:
    """Return whether an object or a member is a media file by its name, and not hidden."""
    return suffix(name) in suffixes and not file_name(name).startswith(".")


def _pattern_of(glob: str) -> re.Pattern[str]:
    """Return the pattern of the keys that a glob stands for, and of those below the folders that it stands for."""
    parts = re.split(r"(\*\*/|\*\*|\*|\?|\[!?\]?[^\]]*\])", glob)
    known = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    pattern = "".join(known.get(part) or translate(part)[4:-3] for part in parts)  # without its "(?s:" and ")\\Z"
    return re.compile(f"{pattern}(?:/.*)?", re.DOTALL)
