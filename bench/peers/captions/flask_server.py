"""The blog's simple server: Flask with one process and one model, which answers pickled frames.

    python -m peers.captions.flask_server --weights demo/models/captioner --port 5000

It unpickles any body, so it listens on loopback only, and only the client of this folder may use it.
"""

from __future__ import annotations

import pickle

import flask

from lib.command import command_parser
from peers.captions.plain_model import PlainCaptioner


def make_app(captioner: PlainCaptioner) -> flask.Flask:
    """An app that answers POST /caption with a pickled frame, (H, W, 3), with its caption."""
    app = flask.Flask(__name__)

    @app.get("/health")
    def health() -> str:
        return "ready"

    @app.post("/caption")
    def caption() -> str:
        frame = pickle.loads(flask.request.get_data())  # noqa: S301 - the blog does so
        return captioner.caption([frame])[0]

    return app


def main() -> None:
    """Run the server."""
    parser = command_parser(__doc__)
    parser.add_argument("--weights", required=True)
    parser.add_argument("--port", type=int, required=True)
    options = parser.parse_args()
    make_app(PlainCaptioner(options.weights)).run("127.0.0.1", options.port)


if __name__ == "__main__":
    main()
