"""The index of exported pages: JavaScript files, because pages that come from files may load nothing else.

Below `index/` lie, with H for 16 hexadecimal digits of the SHA-256 of the file::

    manifest.js   names of all pieces, which the page of the search loads first
    words-H.js    words in order, each with the numbers of the pages that have it
    texts-H.js    the texts of pages, in the order of their numbers
    sources-H.js  the number of each source, its path, the address of its page, and what the library finds it by
    cards-H.js    the number of each source, and its card in the library as HTML

Each file calls `reelscribe.piece(name, value)`. A search loads the words that it needs, and then the texts of the
pages that have all of them. As a piece is named by its content, the manifest of an earlier export never refers to
pieces of another one: it is replaced when all new pieces are there.
"""

from __future__ import annotations

import hashlib
import heapq
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, NamedTuple, Self

from reelscribe.export.folder import ExportFolder
from reelscribe.viewer.index.word_rules import word_spans
from reelscribe.viewer.pages.parameters import TextKind
from reelscribe.viewer.pages.render import shown, uncut

FOLDER = "index"

_PIECE_CHARACTERS = 2**18
_MOST_PAIRS = 2**20  # of a word and a page in memory; about 150 MB
_PIECE_NAME = re.compile(r"(texts|words|sources|cards)-[0-9a-f]{16}\.js")
# Nothing that could end a script or a line of it, wherever the text is put.
_ESCAPES = str.maketrans({"<": "\\u003c", ">": "\\u003e", "\u2028": "\\u2028", "\u2029": "\\u2029"})


class IndexedText(NamedTuple):
    """A text of a source, as the index has it."""

    kind: TextKind
    start: float
    """Presentation time in seconds, as all others."""
    thumbnail: float | None
    """Time of the thumbnail that stands for it; None if there is none."""
    text: str


class IndexedPage(NamedTuple):
    """The page of a source, or one of several of a long one."""

    address: str
    """Its address, as seen from the root."""
    thumbnails: str
    """The folder of the thumbnails of its source, as seen from the root."""
    name: str
    """The name of its source in hits: its path below the folder of all sources."""
    missing: bool
    """True if the file of the source was gone when the run ended."""


class SearchIndex:
    """Writes the index. Use it as a context manager; `finish` makes it complete, and removes pieces of earlier ones."""

    def __init__(self, folder: ExportFolder, root: str) -> None:
        """Begin an index.

        Args:
            folder: The folder of the export.
            root: Name of the folder of the site in it.
        """
        self._folder, self._path = folder, f"{root}/{FOLDER}"
        self._runs = TemporaryDirectory(prefix="reelscribe-index-")
        self._run_paths: list[Path] = []
        self._numbers: dict[str, list[int]] = {}
        self._pairs = self._pages = 0
        self._texts = _Pieces(self, "texts")
        self._words = _Pieces(self, "words")
        self._sources = _Pieces(self, "sources")
        self._cards = _Pieces(self, "cards")
        self._cards_added = 0
        self._names: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._runs.cleanup()

    def add(self, page: IndexedPage, texts: Iterable[IndexedText]) -> None:
        """Add a page with its texts, which are shortened as on pages.

        Args:
            page: The page.
            texts: Its texts, in the order in which they are found.
        """
        number, self._pages = self._pages, self._pages + 1
        words: set[str] = set()
        head = [number, page.address, page.thumbnails, shown(page.name), int(page.missing)]
        rows: list[list[Any]] = []
        size = 0
        for text in texts:
            content = shown(text.text)
            words.update(span.word for span in word_spans(content))
            picture = -1 if text.thumbnail is None else round(1000 * text.thumbnail)
            rows.append([text.kind, round(text.start, 3), picture, content])
            size += len(content) + 30
            if size > _PIECE_CHARACTERS:
                self._texts.add([*head, rows], number, size)
                rows, size = [], 0
        if rows:
            self._texts.add([*head, rows], number, size + 100)
        for word in words:
            self._numbers.setdefault(word, []).append(number)
        self._pairs += len(words)
        if self._pairs >= _MOST_PAIRS:
            self._save_run()

    def add_card(self, path: str, address: str, found_by: str, html: str) -> None:
        """Add a source, so that the library finds it.

        Args:
            path: Its path below the folder of all sources.
            address: The address of its first page, as seen from the root.
            found_by: Its path and its tags, folded.
            html: Its card.
        """
        number, self._cards_added = self._cards_added, self._cards_added + 1
        self._sources.add([number, uncut(path), address, uncut(found_by)], number, 2 * len(path) + 60)
        self._cards.add([number, html], number, len(html))

    def finish(self) -> None:
        """Write what is missing, and at last the manifest, which makes the new index the one that is used."""
        self._save_run()
        self._texts.end()
        for word, numbers in self._merged():
            steps = [numbers[0], *(after - before for before, after in pairwise(numbers))]
            self._words.add([word, steps], word, len(word) + 6 * len(steps))
        self._words.end()
        for pieces in (self._sources, self._cards):
            pieces.end()
        kinds = (self._texts, self._words, self._sources, self._cards)
        self.write("manifest", script({pieces.kind: pieces.manifest for pieces in kinds}))
        self._folder.remove(self._path, _PIECE_NAME, self._names)

    def write(self, name: str, value: str) -> None:
        """Write a piece.

        Args:
            name: Its name.
            value: What it holds, from `script`.
        """
        with self._folder.file(f"{self._path}/{name}.js", listed=False) as file:
            file.write(f'reelscribe.piece("{name}", {value});\n'.encode())
        self._names.add(f"{name}.js")

    def _save_run(self) -> None:
        """Write the words that are in memory to a file, in order, so that there is room for others."""
        path = Path(self._runs.name, str(len(self._run_paths)))
        with path.open("w", encoding="utf-8") as file:
            for word in sorted(self._numbers, key=_order):
                file.write(f"{word} {' '.join(map(str, self._numbers[word]))}\n")
        self._run_paths.append(path)
        self._numbers.clear()
        self._pairs = 0

    def _merged(self) -> Iterator[tuple[str, list[int]]]:
        """Yield each word with the numbers of its pages, both in order."""
        runs = heapq.merge(*map(_read_run, self._run_paths), key=lambda entry: _order(entry[0]))
        for word, entries in groupby(runs, key=lambda entry: entry[0]):
            yield word, [number for _, numbers in entries for number in numbers]


class _Pieces:
    """Files of one kind, each with about the same number of characters."""

    def __init__(self, index: SearchIndex, kind: str) -> None:
        self._index, self.kind = index, kind
        self._rows: list[Any] = []
        self._first: Any = None
        self._size = 0
        self.manifest: list[tuple[str, Any, Any]] = []
        """The name of each piece, and its first and last key."""

    def add(self, row: Any, key: str | int, size: int) -> None:
        if self._rows and self._size + size > _PIECE_CHARACTERS:
            self.end()
        if not self._rows:
            self._first = key
        self._rows.append(row)
        self._last = key
        self._size += size

    def end(self) -> None:
        if not self._rows:
            return
        content = script(self._rows)
        name = f"{self.kind}-{hashlib.sha256(content.encode()).hexdigest()[:16]}"
        self._index.write(name, content)
        self.manifest.append((name, self._first, self._last))
        self._rows, self._size = [], 0


def script(value: Any) -> str:
    """Return a value as JSON that can stand in a script, also in one within a page.

    Args:
        value: A value that JSON can have.
    """
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).translate(_ESCAPES)


def _read_run(path: Path) -> Iterator[tuple[str, Sequence[int]]]:
    with path.open(encoding="utf-8", newline="\n") as file:
        for line in file:
            word, *numbers = line.split(" ")
            yield word, [int(number) for number in numbers]


def _order(word: str) -> bytes:
    """Return by what words are ordered: as JavaScript compares texts, by units of UTF-16."""
    return word.encode("utf-16-be")
