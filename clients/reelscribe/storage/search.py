"""Finds the objects of a store that an address stands for."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator
from fnmatch import translate

from reelscribe.errors import NoSuchObject
from reelscribe.storage.address import file_name, is_archive, is_note_of_mac, split_object, suffix
from reelscribe.storage.objects import StoredObject
from reelscribe.storage.stores import Stores

MAGIC = re.compile(r"[*?\[]")
"""A character that has a meaning in globs."""

MOST_KINDS = 1000
"""Largest number of suffixes by which files that are left out are counted."""


def find_objects(
    address: str, suffixes: Collection[str], stores: Stores, left_out: Counter[str] | None = None
) -> Iterator[StoredObject]:
    """Yield the objects that an address stands for, as the store lists them.

    Args:
        address: An object; a folder, which stands for all media below it; or a glob, which stands for all media and
            archives that match, and for all media below folders that match. Folders whose names look like globs are
            taken for themselves, if they are there.
        suffixes: Endings of media files in lower case.
        stores: Those in which the address is.
        left_out: Where other objects that it stands for are counted, as `leave_out` does; None for nowhere.

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
    begin, glob = address.removesuffix(key), key
    while glob and (not MAGIC.search(part := glob.partition("/")[0]) or next(store.list(f"{begin}{part}/"), None)):
        begin, glob = f"{begin}{part}/", glob.partition("/")[2]
    fits = _pattern_of(glob).fullmatch
    plain = MAGIC.split(glob, maxsplit=1)[0]
    for each in store.list(begin + plain):
        if not fits(each.address[len(begin) :]):
            continue
        if is_media(each.address, suffixes) or (glob and is_archive(each.address)):
            yield each
        else:
            leave_out(each.address, left_out)


def find_members(
    archive: str,
    suffixes: Collection[str],
    stores: Stores,
    left_out: Counter[str] | None = None,
    *,
    glance: bool = False,
) -> Iterator[StoredObject]:
    """Yield the media in an archive, in their order, with what lies beside them.

    Args:
        archive: Path or address of the archive.
        suffixes: Endings of media files in lower case.
        stores: Those in which it is.
        left_out: Where its other members are counted, but not what goes into records; None for nowhere.
        glance: Whether they come as they are found, and maybe without what lies beside them.

    Raises:
        MediaError: The archive cannot be read.
    """
    address = f"{archive}::"
    store = stores.of(address)
    for each in store.glance(address) if glance else store.list(address):
        if is_media(each.address, suffixes):
            yield each
        else:
            leave_out(each.address, left_out)


def is_media(name: str, suffixes: Collection[str]) -> bool:
    """Return whether an object or a member is a media file by its name, and not hidden."""
    return suffix(name) in suffixes and not file_name(name).startswith(".")


def leave_out(name: str, left_out: Counter[str] | None) -> None:
    """Count a file that is left out by its suffix, unless it is an empty object in the place of a folder, or a note.

    Args:
        name: Its path or address.
        left_out: Numbers of files by what they are, such as ".txt", "hidden" or "without suffix"; None for nowhere.
    """
    if left_out is None or name.endswith("/") or is_note_of_mac(name):
        return
    kind = "hidden" if file_name(name).startswith(".") else suffix(name) or "without suffix"
    left_out[kind if kind in left_out or len(left_out) < MOST_KINDS else "with other suffixes"] += 1


def _pattern_of(glob: str) -> re.Pattern[str]:
    """Return the pattern of the keys that a glob stands for, and of those below the folders that it stands for.

    A glob that ends with a slash stands for folders alone, and an empty one for all keys.
    """
    parts = re.split(r"(\*\*/|\*\*|\*|\?|\[!?\]?[^\]]*\])", glob)
    known = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    pattern = "".join(known.get(part) or translate(part)[4:-3] for part in parts)  # without its "(?s:" and ")\\Z"
    return re.compile(pattern + (".*" if glob.endswith("/") or not glob else "(?:/.*)?"), re.DOTALL)
