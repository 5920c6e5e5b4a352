"""Subtitles in scripts that are written from right to left: each line is shown as one, whatever the player assumes."""

import pysubs2
import pytest

from support.browser import open_browser
from support.exporting import cues_made, exported, line_texts, record_of_both, said, transcript_record

LINES = [
    "שלום עולם.",
    "- מה שלומך, John? 25%.",
    "OK, iPhone 15 נשבר!",
    "نعم، هذا صحيح؟",
    "(שלום)...",
    "א" + "\u05b8" + ": \u201cב\u201d!",
]

IN_ORDER = """([text, direction]) => {
    const line = document.createElement("div"), range = document.createRange(), left = [];
    line.dir = direction;
    line.style.display = "inline-block";
    line.textContent = text;
    document.body.replaceChildren(line);
    for (let k = 0; k < text.length; k++) {
        range.setStart(line.firstChild, k);
        range.setEnd(line.firstChild, k + 1);
        left.push([Math.round(range.getBoundingClientRect().left - line.getBoundingClientRect().left), text[k]]);
    }
    return left.filter(([, each]) => !/[\\u202a-\\u202e]/.test(each)).sort((one, two) => one[0] - two[0]);
}"""
"""Returns the characters of a line as they are shown from left to right, with their places."""


@pytest.mark.parametrize("kind", ["vtt", "srt", "ass"])
def test_a_player_that_takes_lines_for_left_to_right_shows_them_as_one_that_knows_better(tmp_path, kind):
    out = exported(tmp_path, [transcript_record("a.mp4", *LINES)], kind)
    written = [event.text for event in pysubs2.load(str(out / f"{kind}/a.mp4.{kind}"))]
    with open_browser() as browser:
        page = browser.new_page()
        shown = [page.evaluate(IN_ORDER, [line, "ltr"]) for line in written]
        right = [page.evaluate(IN_ORDER, [line, "rtl"]) for line in LINES]
    assert shown == right


@pytest.mark.parametrize(("text", "encoding"), [("שלום.", -1), ("Hello, é.", 1), ("Two words: שלום.", 1)])
def test_libass_finds_out_the_direction_of_karaoke(tmp_path, text, encoding):
    out = exported(tmp_path, [transcript_record("a.mp4", segments=[said(f"{text} {text}")])], "ass", karaoke=True)
    assert pysubs2.load(str(out / "ass/a.mp4.ass")).styles["Default"].encoding == encoding


def test_no_tag_divides_a_line_of_subrip(tmp_path):
    segments = [said("نعم هنا، John."), said("Yes, now.", 3.0)]
    out = exported(tmp_path, [transcript_record("a.mp4", segments=segments)], "srt", karaoke=True)
    texts = [event.text for event in pysubs2.load(str(out / "srt/a.mp4.srt"), keep_html_tags=True)]
    assert texts == ["\u202bنعم هنا، John.\u202c", "<u>Yes,</u> now.", "Yes, <u>now.</u>", "Yes, now."]


@pytest.mark.parametrize(
    ("texts", "directions"),
    [
        (["OK, iPhone 15 Pro Max נשבר!", "שלום לכולם, אני כאן היום."], [True, True]),  # the same speech
        (["The word שלום means peace."], [False]),
        (["We talk now.", "שלום."], [False, True]),
        (["שלום לכולם, אני כאן.", "We are.", "25.", "..."], [True, False, False, False]),
        (["سلام", "ދިވެހި", "ߒߞߏ", "𐤀𐤁", "日本。", "สวัสดี"], [True, True, True, True, False, False]),
    ],
)
def test_a_cue_has_the_direction_of_its_letters_or_else_of_the_speech(texts, directions):
    made = cues_made(transcript_record("a.mp4", *texts))
    assert [cue.right_to_left for cue in made] == directions


def test_captions_in_another_script_beside_speech_keep_their_direction():
    value = record_of_both([(0, 4, "a sign: שלום")], [(1, 2, "שלום לכולם, אני כאן"), (3, 4, "Pop מוזיקה")])
    found = {line_texts(cue)[0]: cue.right_to_left for cue in cues_made(value, made_from="both")}
    assert found == {"[a sign: שלום]": False, "שלום לכולם, אני כאן": True, "Pop מוזיקה": True}
