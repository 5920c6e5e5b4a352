"""The form that names speakers on the page of a source: what it writes into speakers.toml, and what it refuses."""

from html import unescape
from html.parser import HTMLParser

import aiohttp
import pytest

from reelscribe.export.formats import export
from reelscribe.viewer.index.source_row import source_id
from support.browsing import browsing
from support.exporting import annotations, spoken_by, transcript_record

CALL = spoken_by(transcript_record("/calls/17.wav", "How may I help?", "Hello."), "channel 1", "channel 2")
OTHER = spoken_by(transcript_record("/calls/18.wav", "Good morning."), "channel 1")
MINE = (
    '# mine\n[speakers]  # all\n"channel 2" = "Caller"  # often\n\n# of another\n[sources."/x"]\n"speaker 1" = "Ann"\n'
)


@pytest.fixture
def out(tmp_path):
    annotations(tmp_path, [CALL, OTHER])
    return tmp_path


@pytest.fixture
async def page(out):
    """The session and the address of the page of a call."""
    with browsing(out) as address:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(60)) as session:
            yield session, f"{address}source/{source_id(b'/calls/17.wav')}"


class Form(HTMLParser):
    """The fields of the form of a page, which a test fills in and sends as a browser does."""

    def __init__(self, page):
        super().__init__()
        self.text, self.fields = unescape(page), []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        if tag == "input" and found.get("name") in ("speaker", "for", "before", "name"):
            self.fields.append([found["name"], found["value"]])

    @property
    def names(self):
        """The names in the fields, by the speaker, and whether they are for all sources."""
        rows = [dict(self.fields[k : k + 4]) for k in range(0, len(self.fields), 4)]
        return {(row["speaker"], row["for"] == "all"): row["name"] for row in rows}

    def fill(self, speaker, name, *, everywhere=False):
        self.fields[4 * list(self.names).index((speaker, everywhere)) + 3][1] = name
        return self


async def load(page):
    session, address = page
    async with session.get(address) as response:
        return Form(await response.text())


async def save(page, form, **headers):
    session, address = page
    async with session.post(address, data=aiohttp.FormData(form.fields), headers=headers) as response:
        return response.status, Form(await response.text())


async def test_names_are_written_shown_and_exported_and_all_else_stays(page, out):
    (out / "speakers.toml").write_text(MINE)
    form = (await load(page)).fill("channel 1", " Ms Okafor ").fill("channel 1", "Agent", everywhere=True)
    status, shown = await save(page, form)
    assert (status, shown.names) == (
        200,
        {
            ("channel 1", False): "Ms Okafor",
            ("channel 1", True): "Agent",
            ("channel 2", False): "",
            ("channel 2", True): "Caller",
        },
    )
    assert "<bdi>Ms Okafor</bdi>:" in shown.text
    added = '\n[sources."/calls/17.wav"]\n"channel 1" = "Ms Okafor"\n'
    assert (out / "speakers.toml").read_text() == MINE.replace("often\n", 'often\n"channel 1" = "Agent"\n') + added
    export(out / "annotations.jsonl", out / "to", ["vtt"])
    assert "<v Ms Okafor>How may I help?" in (out / "to/vtt/17.wav.vtt").read_text()
    assert "<v Agent>Good morning." in (out / "to/vtt/18.wav.vtt").read_text()


async def test_an_empty_field_takes_a_name_away(page, out):
    mine = MINE.replace("/x", "/calls/17.wav").replace("speaker 1", "channel 1")
    (out / "speakers.toml").write_text(mine)
    form = (await load(page)).fill("channel 1", "").fill("channel 2", " ", everywhere=True)
    status, shown = await save(page, form)
    assert (status, {*shown.names.values()}) == (200, {""})
    text = mine.replace('"channel 2" = "Caller"  # often\n', "").replace('"channel 1" = "Ann"\n', "")
    assert (out / "speakers.toml").read_text() == text


async def test_two_windows_keep_both_names_and_none_replaces_what_it_has_not_shown(page, out):
    first, second, third = [await load(page) for _ in range(3)]
    await save(page, first.fill("channel 1", "Ann"))
    assert (await save(page, second.fill("channel 2", "Ben")))[1].names["channel 1", False] == "Ann"
    status, refused = await save(page, third.fill("channel 1", "Cleo"))
    assert status == 400
    assert "expected 'channel 1' to have the name '', as the page showed, got 'Ann'" in refused.text
    assert refused.names["channel 1", False] == "Cleo"  # what was typed is still there, and can be saved now
    assert (await save(page, refused))[1].names == {
        ("channel 1", False): "Cleo",
        ("channel 1", True): "",
        ("channel 2", False): "Ben",
        ("channel 2", True): "",
    }


@pytest.mark.parametrize(
    ("content", "name", "message"),
    [
        ("", "two\u2028lines", "expected a name of one line of characters that are visible, got"),
        ("[speakers", "Ann", "speakers.toml: cannot be read: "),
        ('speakers."channel 3" = "Cleo"\nsources."/a".x = "1"\nsources."/b".x = "2"\n', "Ann", "changed without loss"),
    ],
)
async def test_what_cannot_be_saved_is_said_and_nothing_is_written(page, out, content, name, message):
    (out / "speakers.toml").write_text(content)
    status, refused = await save(page, (await load(page)).fill("channel 1", name))
    assert (status, message in refused.text) == (400, True)
    assert refused.names["channel 1", False] == name
    assert (out / "speakers.toml").read_text() == content


async def test_a_speaker_that_the_record_has_not_is_refused(page, out):
    form = await load(page)
    form.fields[0][1] = "channel 9"
    status, refused = await save(page, form.fill("channel 9", "Ann"))
    assert (status, "expected a speaker of this source, got 'channel 9'" in refused.text) == (400, True)
    assert not (out / "speakers.toml").exists()


async def test_a_place_that_cannot_be_written_to_is_said(page, out):
    (out / "speakers.toml.partial").mkdir()
    status, refused = await save(page, (await load(page)).fill("channel 1", "Ann"))
    assert (status, "expected a file and a folder that can be written to, got: " in refused.text) == (400, True)
    (out / "speakers.toml.partial").rmdir()
    (out / "speakers.toml").rename(out / "mine.toml")
    (out / "speakers.toml").symlink_to(out / "mine.toml")
    assert "got: a symbolic link" in (await save(page, refused))[1].text
    assert (out / "mine.toml").read_text() == ""


OPENED = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}


@pytest.mark.parametrize("headers", [{"Origin": "http://evil.example"}, {"Origin": "null"}, OPENED])
async def test_forms_of_other_sites_are_refused(page, out, headers):
    assert (await save(page, (await load(page)).fill("channel 1", "Ann"), **headers))[0] == 403
    assert not (out / "speakers.toml").exists()


@pytest.mark.parametrize(
    ("body", "status"),
    [(b"", 303), (b"name=x", 400), (b"speaker=%ff&for=&before=&name=", 400), (b"\xff", 400), (b"x" * 300_000, 400)],
)
async def test_a_body_that_is_not_the_form_changes_nothing(page, out, body, status):
    session, address = page
    async with session.post(address + "?t=1.5", data=body, allow_redirects=False) as response:
        assert response.status == status
        assert status == 400 or address.endswith(response.headers["Location"].removesuffix("?t=1.5"))
    async with session.post(address[:-1] + "g", data=b"") as response:
        assert response.status == 404
    assert not (out / "speakers.toml").exists()
