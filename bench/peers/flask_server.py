"""The simple server of the blog: Flask, one process, one model; it answers pickled frames.

    python -m peers.flask_server --weights demo/models/captioner --port 5000

It unpickles anything, so it listens on this machine only, and for the client of this folder.
"""

from __future__ import annotations

import argparse
import pickle

import flask

from peers.plain_model import PlainCaptioner


def make_app(captioner: PlainCaptioner) -> flask.Flask:
    """POST /caption: a pickled frame, (H, W, 3), is answered with its caption."""
    app = flask.Flask(__name__)

    @app.get("/health")
    def health() -> str:
        return "ready"

    @app.post("/caption")
    def caption() -> str:
        frame = pickle.loads(flask.request.get_data())  # noqa: S301 - this is how the blog does it
        return captioner.caption([frame])[0]

    return app


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", required=True)
    parser.add_argument("--port", type=int, required=True)
    options = parser.parse_args()
    make_app(PlainCaptioner(options.weights)).run("127.0.0.1", options.port)


if __name__ == "__main__":
    main()
