"""The blog's simple client of the Flask server, which sends one frame after the other.

python -m peers.captions.flask_client --url http://127.0.0.1:5000 a.mp4 b.mp4
"""

from __future__ import annotations

import pickle
import urllib.request

from lib.command import command_parser
from peers.captions.reading import frames_of
from peers.outcome import Recorder


def caption(url: str, paths: list[str], recorder: Recorder) -> list[str]:
    """Return the captions of all files."""
    captions = []
    for path in paths:
        for frame in frames_of(path):
            body = pickle.dumps(frame)
            recorder.sent(len(body))
            captions.append(_post(f"{url}/caption", body))
            recorder.answered(1)
    return captions


def _post(url: str, body: bytes) -> str:
    request = urllib.request.Request(url, body, {"Content-Type": "application/octet-stream"})  # noqa: S310 - loopback
    with urllib.request.urlopen(request) as answer:  # noqa: S310 - likewise
        return str(answer.read().decode())


def main() -> None:
    """Caption the sources and print the outcome."""
    parser = command_parser(__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("sources", nargs="+")
    options = parser.parse_args()
    recorder = Recorder()
    recorder.print_outcome(caption(options.url, options.sources, recorder))


if __name__ == "__main__":
    main()
