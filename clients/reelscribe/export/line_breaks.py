"""Where text is cut for readers: which words share a cue, and which of them a line.

Both are the same problem: a row of pieces is cut into groups, so that the sum of what the groups and the cuts between
them cost is least. `_cheapest_groups` solves it, and the costs are the rules of subtitlers. Lines are as few as
possible and of similar lengths, and end after punctuation. A cue ends after a sentence, or else a clause, or else a
pause; none holds a pause of more than about a second, so that no word is shown long before it is spoken, and no word is
alone unless it is a sentence. Segments are joined only where one is too short to be read, as some models write one for
each word; others stay apart, as they may be of two people. Grammar plays no part.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable, Sequence
from itertools import accumulate, chain, pairwise, zip_longest
from typing import NamedTuple

from rich.cells import cell_len

from reelscribe.export.cue_rules import CueRules

_CLOSING = (
    r"""["'\u201d\u201c\u2019\u203a\u00bb\u300d\u300f\u3009\u300b\u3011)\uff09\]\uff3d"""
    r"\u061c\u200e\u200f]*$"  # marks that put the punctuation before them in its place
)
_SENTENCE_END = re.compile(
    r"[.!?\u2026\u203c\u2047-\u2049\u3002\uff01\uff0e\uff1f\uff61"
    r"\u0589\u05c3\u061d\u061e\u061f\u06d4"  # Armenian, Hebrew, Arabic
    r"\u0964\u0965\u0f0d\u0f0e\u104b\u1362\u1367\u1368\u17d4\u17d5]"
    + _CLOSING  # Indic, Tibetan, Burmese, Ethiopic, Khmer
)
_CLAUSE_END = re.compile(
    r"[,;:\u2014\u2013\u3001\uff0c\uff1b\uff1a\uff64\u055d\u060c\u061b\u104a\u1363-\u1366\u17d6]" + _CLOSING
)
_ABBREVIATION = re.compile(r"^\W*(?:Mr|Mrs|Ms|Dr|Prof|St|vs|(?:[^\W\d_]\.)*[^\W\d_])\.$")

_NO_START = frozenset(["Mn", "Mc", "Me", "Cf", "Sk", "Lm", "Pe", "Pf", "Po", "Pd"])
"""Categories of characters that begin no line: marks, closing punctuation, prolonged vowels, parts of emojis."""
_NO_END = frozenset(["Ps", "Pi", "Cf"])
"""Categories of characters that end no line: opening punctuation, and joiners."""
_BELONGS_TO_THE_ONE_BEFORE = frozenset("\u0e2f\u0e30\u0e32\u0e33\u0e45\u0eb0\u0eb2\u0eb3")  # vowels of Thai and Lao
_BELONGS_TO_THE_NEXT = frozenset("\u0e40\u0e41\u0e42\u0e43\u0e44\u0ec0\u0ec1\u0ec2\u0ec3\u0ec4")
_WRITTEN_WITHOUT_SPACES = ("THAI ", "LAO ", "KHMER ", "MYANMAR ", "TIBETAN ", "JAVANESE ", "BALINESE ")
"""How the names of characters begin whose words only a dictionary can tell apart."""

_FIRST_WITHOUT_SPACES = "\u0e00"
"""No earlier character is full-width, or of a script without spaces."""

# What cuts and groups cost. Only the proportions matter.
_PLAIN_CUT = 20.0  # between two words of a clause that follow one another at once; less after a pause
_CLAUSE_CUT = 8.0
_ORPHAN = 60.0  # a word alone that is no sentence
_LINE = 1000.0  # more than anything else, so that there are no more lines than needed
_UNEVEN_LINES = 60.0
_CUE = 25.0
_FULL_CUE = 25.0  # so that cues of a sentence are equally full
_SHORT_CUE = 100.0
_FAST_CUE = 20.0
_JOINED = 40.0  # two segments of which each can be read: more than a cue less saves
_PAUSE_SECOND = 30.0  # within a cue, which shows words long before they are spoken


class Piece(NamedTuple):
    """What stays on one line: a word, or in scripts without spaces a character."""

    text: str
    """The word with its punctuation, and without spaces at its ends."""
    space: str = ""
    """What is between it and the next one on the same line: a space or nothing."""
    start: int | None = None
    """Time at which it is spoken, in milliseconds; None if it is not known."""
    end: int | None = None
    """Time at which it has been spoken, in milliseconds; None if it is not known."""


class Phrase(NamedTuple):
    """Text that is spoken in a stretch of time."""

    start: int
    """Time at which it starts, in milliseconds."""
    end: int
    """Time at which it ends, in milliseconds; at least `start`."""
    pieces: Sequence[Piece]
    """At least one. Either all have times, or none."""

    @property
    def has_times(self) -> bool:
        """Return `True` if the times of its pieces are known."""
        return self.pieces[0].start is not None

    @property
    def last_start(self) -> int:
        """Return when its last piece starts, or if that is not known the phrase itself, in milliseconds."""
        last = self.pieces[-1].start
        return self.start if last is None else last


def pieces_of(text: str, words: Sequence[Piece] = ()) -> list[Piece]:
    """Split a text into pieces that stay on one line.

    Args:
        text: A text without line breaks, with single spaces, and none at its ends.
        words: The spoken words in order, with times; empty if they are not known.

    Returns:
        The pieces. They have times if the words do, are all in the text and follow one another.
    """
    found = _found_words(text, words)
    candidates = [*found][1:] if found else range(1, len(text))
    starts = [0, *(at for at in candidates if _may_break(text, at, spoken=bool(found)))]
    spoken: dict[int, list[Piece]] = {start: [] for start in starts}
    start = 0
    for at, word in found.items():
        start = at if at in spoken else start
        spoken[start].append(word)
    pieces = []
    for start, stop in pairwise([*starts, len(text)]):
        part, inside = text[start:stop], spoken[start]
        times = (inside[0].start, inside[-1].end) if inside else (None, None)
        pieces.append(Piece(part.rstrip(" "), " " if part.endswith(" ") else "", *times))
    return pieces


def width(pieces: Sequence[Piece]) -> int:
    """Return the width of a line, in characters; a full-width character counts as two."""
    return cell_len(line_text(pieces))


def line_text(pieces: Sequence[Piece]) -> str:
    """Return the text of a line."""
    return "".join(piece.text + piece.space for piece in pieces).rstrip(" ")


def lines_of(pieces: Sequence[Piece], max_chars: int) -> list[Sequence[Piece]]:
    """Break text into as few lines as possible: after punctuation, of similar lengths, the last one not the shortest.

    Args:
        pieces: The text.
        max_chars: Most characters of a line; only a piece that is alone on its line may be longer.
    """
    ends = _ends(pieces)
    if ends[-1] <= max_chars:
        return [pieces]
    cuts = _cut_costs(pieces)
    count = stop = 0
    while stop < len(pieces):
        stop, count = _full_line(pieces, ends, stop, max_chars), count + 1
    even = ends[-1] / count

    def cost(start: int, stop: int) -> float:
        chars = _line_width(pieces, ends, start, stop)
        if chars > max_chars and stop - start > 1:
            return math.inf
        uneven = ((chars - even) / even) ** 2 * _UNEVEN_LINES
        if stop == len(pieces) and chars < even:
            uneven *= 2
        return _LINE + uneven + cuts[stop] + _orphan(cuts, start, stop)

    return [pieces[start:stop] for start, stop in _cheapest_groups(len(pieces), cost)]


def cut_phrases(phrases: Sequence[Phrase], rules: CueRules) -> list[Phrase]:
    """Cut phrases that are too long to be read at once, and join those that are too short to be read at all.

    Args:
        phrases: Phrases with the times of their pieces, which start one after the other.
        rules: How much can be read at once.

    Returns:
        Phrases of the same pieces, in order. Only a piece that is alone exceeds the limits.
    """
    pieces = list(chain.from_iterable(_spaced(phrases)))
    starts, stops = [piece.start or 0 for piece in pieces], [piece.end or 0 for piece in pieces]
    most_ms, least_ms = rules.max_cue_seconds * 1000, rules.min_cue_seconds * 1000
    most_chars = rules.max_line_chars * rules.max_lines
    ends, apart = _ends(pieces), _kept_apart(phrases, least_ms)
    cuts = [cut * (1 - apart.get(at, 0.0)) for at, cut in enumerate(_cut_costs(pieces))]
    pauses = [max(0, after - before) / 1000 for before, after in zip(stops, starts[1:], strict=False)]
    uncut = [0.0, *(apart.get(at, 0.0) * _JOINED + pause * _PAUSE_SECOND for at, pause in enumerate(pauses, 1))]
    before = list(accumulate(uncut))
    reach = [_full_cue(pieces, ends, start, rules) for start in range(len(pieces))]

    def cost(start: int, stop: int) -> float:
        lasts = stops[stop - 1] - starts[start]
        if stop - start > 1 and (stop > reach[start] or lasts > most_ms):
            return math.inf
        chars = _line_width(pieces, ends, start, stop)
        room = min(starts[stop] - starts[start], most_ms) if stop < len(pieces) else most_ms
        full = max(chars / most_chars, lasts / most_ms)
        short = max(0.0, 1 - room / least_ms) if least_ms else 0.0
        needed = chars / rules.max_chars_per_second * 1000
        fast = 1 - room / needed if room < needed else 0.0
        cue = _CUE + full**2 * _FULL_CUE + short * _SHORT_CUE + fast * _FAST_CUE
        return cue + before[stop - 1] - before[start] + cuts[stop] + _orphan(cuts, start, stop)

    groups = [pieces[start:stop] for start, stop in _cheapest_groups(len(pieces), cost)]
    return [Phrase(group[0].start or 0, group[-1].end or 0, group) for group in groups]


def _cheapest_groups(count: int, cost: Callable[[int, int], float]) -> list[tuple[int, int]]:
    """Cut a row into the groups that cost least in all.

    Args:
        count: Number of items in the row.
        cost: Returns what a group costs, from the number of its first item and of the one after its last: infinity if
            it is too long, and then each longer one is, too. A group of one item is never too long.

    Returns:
        The first item of each group, and the one after its last.
    """
    least, first = [0.0], [0]
    for stop in range(1, count + 1):
        best, start_of_best = math.inf, stop - 1
        for start in range(stop - 1, -1, -1):
            group = cost(start, stop)
            if group == math.inf:
                break
            if least[start] + group < best:
                best, start_of_best = least[start] + group, start
        least.append(best)
        first.append(start_of_best)
    groups, stop = [], count
    while stop:
        groups.append((first[stop], stop))
        stop = first[stop]
    return groups[::-1]


def _cut_costs(pieces: Sequence[Piece]) -> list[float]:
    """Return what a cut before each piece costs; at both ends of the row there is nothing to cut."""
    return [0.0, *(_cut_cost(piece, after) for piece, after in pairwise(pieces)), 0.0]


def _cut_cost(before: Piece, after: Piece) -> float:
    if _SENTENCE_END.search(before.text) and not _ABBREVIATION.match(before.text):
        return 0.0
    pause = max(0, after.start - before.end) if after.start is not None and before.end is not None else 0
    cost = _PLAIN_CUT * (1 - 0.8 * pause / (pause + 500))
    return min(cost, _CLAUSE_CUT) if _CLAUSE_END.search(before.text) else cost


def _orphan(cuts: Sequence[float], start: int, stop: int) -> float:
    """Return what a group costs because it is a single word; nothing if the word is a whole sentence."""
    return _ORPHAN if stop - start == 1 and (cuts[start] or cuts[stop]) else 0.0


def _ends(pieces: Sequence[Piece]) -> list[int]:
    """Return the width of the text before each piece, and of all, with the spaces between pieces."""
    return [*accumulate((max(1, cell_len(piece.text)) + len(piece.space) for piece in pieces), initial=0)]


def _line_width(pieces: Sequence[Piece], ends: Sequence[int], start: int, stop: int) -> int:
    return ends[stop] - ends[start] - len(pieces[stop - 1].space)


def _full_line(pieces: Sequence[Piece], ends: Sequence[int], start: int, max_chars: int) -> int:
    """Return the piece before which a line has to end that begins with a piece."""
    stop = start + 1
    while stop < len(pieces) and _line_width(pieces, ends, start, stop + 1) <= max_chars:
        stop += 1
    return stop


def _full_cue(pieces: Sequence[Piece], ends: Sequence[int], start: int, rules: CueRules) -> int:
    """Return the piece before which a cue has to end that begins with a piece."""
    stop = start
    for _ in range(rules.max_lines):
        if stop == len(pieces):
            break
        stop = _full_line(pieces, ends, stop, rules.max_line_chars)
    return stop


def _kept_apart(phrases: Sequence[Phrase], least_ms: float) -> dict[int, float]:
    """Return how much each phrase shall stay apart from the next one, by the number of the piece that begins that.

    It is 1 where both can be shown for long enough, and less where one has to be joined with another to be read.
    """
    rooms = [after.start - phrase.start for phrase, after in pairwise(phrases)]
    starts = accumulate(len(phrase.pieces) for phrase in phrases)
    return {
        at: min(1.0, room / least_ms, next_room / least_ms) if least_ms else 1.0
        for at, room, next_room in zip(starts, rooms, [*rooms[1:], math.inf], strict=False)
    }


def _spaced(phrases: Sequence[Phrase]) -> list[Sequence[Piece]]:
    """Return the pieces of phrases, with a space after each phrase whose script has spaces."""
    spaced: list[Sequence[Piece]] = []
    for phrase, after in zip_longest(phrases, phrases[1:]):
        *others, last = phrase.pieces
        edge = last.text[-1] + after.pieces[0].text[0] if after else ""
        spaced.append([*others, last._replace(space="" if any(map(_has_no_spaces, edge)) else " ")])
    return spaced


def _found_words(text: str, words: Sequence[Piece]) -> dict[int, Piece]:
    """Return the words by their offsets in the text; none if one is not there, or they do not follow one another.

    Joining the words would not do: only the text shows whether there are spaces between them, and Chinese has none.
    """
    found, stop, time = dict[int, Piece](), 0, -math.inf
    for word in words:
        offset = text.find(word.text, stop)
        start, end = word.start or 0, word.end or 0
        if offset < 0 or not time <= start <= end:
            return {}
        found[offset] = word
        stop, time = offset + len(word.text), start
    return found


def _may_break(text: str, at: int, *, spoken: bool) -> bool:
    """Return whether a line may end before a character: after spaces, and beside full-width characters.

    Args:
        text: The text.
        at: Offset of the character, at least 1.
        spoken: Whether a word begins there, which tells words apart in scripts without spaces.
    """
    before, after = text[at - 1], text[at]
    if before == " " or after == " ":
        return before == " "
    if max(before, after) < _FIRST_WITHOUT_SPACES:
        return False
    if unicodedata.category(after) in _NO_START or after in _BELONGS_TO_THE_ONE_BEFORE or _is_small_kana(after):
        return False
    if unicodedata.category(before) in _NO_END or before in _BELONGS_TO_THE_NEXT:
        return False
    return any(_is_full_width(each) or (spoken and _has_no_spaces(each)) for each in (before, after))


def _has_no_spaces(character: str) -> bool:
    """Return whether a character belongs to a script that is written without spaces."""
    return _is_full_width(character) or _name(character).startswith(_WRITTEN_WITHOUT_SPACES)


def _is_full_width(character: str) -> bool:
    is_wide = unicodedata.east_asian_width(character) in "WF"
    return is_wide and not _name(character).startswith("HANGUL")  # Korean has spaces


def _is_small_kana(character: str) -> bool:
    return "KANA LETTER SMALL" in _name(character)


def _name(character: str) -> str:
    return unicodedata.name(character, "")
