from reelscribe.contract.speech import Word
from transcripts.whisper.tokens import TokenSegment
from transcripts.whisper.word_alignment import AlignedTokens, split_words, time_words


class Pieces:
    """A tokenizer of these pieces of UTF-8."""

    def __init__(self, *pieces: bytes) -> None:
        self.pieces = pieces

    def decode(self, tokens: list[int]) -> str:
        return b"".join(self.pieces[token] for token in tokens).decode(errors="replace")


def words(language: str | None, *pieces: str | bytes) -> list[tuple[str, int]]:
    encoded = [piece.encode() if isinstance(piece, str) else piece for piece in pieces]
    return [tuple(word) for word in split_words(Pieces(*encoded), list(range(len(pieces))), language)]


def test_a_blank_begins_a_word_and_punctuation_joins_its_neighbour():
    assert words("en", " a", " re", "d", ",", " (", "big", ")", " one", "!") == [
        (" a", 1),
        (" red,", 3),
        (" (big)", 3),
        (" one!", 2),
    ]


def test_languages_without_spaces_have_a_word_a_character():
    assert words("ja", "赤", "い", "丸", "。") == [("赤", 1), ("い", 1), ("丸。", 2)]


def test_a_character_of_several_tokens_stays_whole():
    first, second = "ü".encode()[:1], "ü".encode()[1:]
    assert words("de", " gr", first, second, "n") == [(" grün", 4)]


def test_bytes_that_are_no_character_keep_their_place():
    assert words("en", " a", b"\xff", " b") == [(" a\ufffd", 2), (" b", 1)]
    assert words("en", " a", b"\xc3") == [(" a\ufffd", 2)]


def test_opening_punctuation_at_the_end_is_a_word():
    assert words("en", " a", ' "') == [(" a", 1), (' "', 1)]


def test_words_have_the_times_and_the_mean_probability_of_their_tokens():
    pieces = Pieces(b" re", b"d", b" star", b" go")
    segments = [TokenSegment(0.5, 2.0, [0, 1, 2]), TokenSegment(3.0, 4.0, [3])]
    aligned = [AlignedTokens([0.5, 0.9, 1.2, 2.0], [0.5, 1.0, 0.25]), AlignedTokens([3.0, 4.0], [0.125])]
    words = time_words(pieces, segments, aligned, "en")
    assert words == [(Word(0.5, 1.2, "red", 0.75), Word(1.2, 2.0, "star", 0.25)), (Word(3.0, 4.0, "go", 0.125),)]
