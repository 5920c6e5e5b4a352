import json
import re
from pathlib import Path

from reelscribe.errors import MediaError
from reelscribe.media import Caption, Source, VideoInfo
from reelscribe.records import Model, Record

RECORD = Record(
    Source("vidéo.mp4", 10, "00ff"),
    Model("some/model", "abc"),
    {"every": 2},
    media=VideoInfo(2.0, 640, 360, 20, 10.0, "h264", None),
    captions=[Caption(0, 0.0, "a star")],
)


def field_names(value: object, prefix: str = "") -> set[str]:
    if isinstance(value, list):
        return set().union(*(field_names(item, prefix + "[].") for item in value))
    if not isinstance(value, dict) or prefix == "settings.":
        return set()
    return {prefix + key for key in value}.union(*(field_names(v, f"{prefix}{k}.") for k, v in value.items()))


def test_a_record_is_one_line_of_json():
    line = RECORD.to_line()
    assert "\n" not in line
    value = json.loads(line)
    assert value["source"] == {"path": "vidéo.mp4", "bytes": 10, "sha256": "00ff"}
    assert value["captions"] == [{"frame_index": 0, "pts_seconds": 0.0, "text": "a star"}]
    assert value["status"] == "ok"
    assert "error" not in value


def test_a_failed_record_says_why():
    record = Record(Source("x.mp4"), Model("m", "r"), {})
    record.fail(MediaError("x.mp4: the file is empty"))
    value = json.loads(record.to_line())
    assert value["status"] == "error"
    assert value["error"] == {"type": "MediaError", "message": "x.mp4: the file is empty"}


def test_every_field_is_documented():
    failed = Record(RECORD.source, RECORD.model, {}, "error", RECORD.media, RECORD.captions, MediaError("x"))
    names = {name.replace(".[]", "[]") for name in field_names(json.loads(failed.to_line()))}
    documented = re.findall(r"^\| `([\w.\[\]]+)`", (Path(__file__).parents[1] / "docs/records.md").read_text(), re.M)
    assert names == {name for name in documented if not name.startswith("settings.")}
