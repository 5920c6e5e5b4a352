"""The servers that many tests share. A test that kills or restarts a server starts one of its own."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from reelscribe.archive import build as archive
from reelscribe.contract.frames import PixelBudget
from servers.emulated import HANDLER, Emulated
from servers.torchserve import HANDLERS, ROOT, handler_modules, pack_handler
from support.odd_runs import annotate, complete, library_without_hangs
from support.scraping import Figures, scrape_server
from support.servers import RunningServer, serve, serve_demo_models
from support.speaker_models import DIARIZER, save_encoder
from support.tiny_models import save_wav2vec2

EMULATED = {
    "slow": Emulated(frames_per_second=100),  # slow enough for a test to interrupt, whatever the machine
    "dynamic": Emulated(1000, frame=PixelBudget(factor=28, min_pixels=4 * 28 * 28, max_pixels=100 * 28 * 28)),
}


@pytest.fixture(scope="session")
def gone_weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Path of the weights that two archives of `server` bundle; the folder does not exist any more."""
    return tmp_path_factory.mktemp("gone") / "weights"


@pytest.fixture(scope="session")
def server(
    tmp_path_factory: pytest.TempPathFactory, demo_model: str, demo_speech: str, gone_weights: Path
) -> Iterator[RunningServer]:
    """A server as anybody starts it, with every model that the tests share; its `model` is the captioner."""
    directory = tmp_path_factory.mktemp("server")
    shutil.copytree(demo_model, gone_weights)
    options = {"bundle": True, "version": "2.0", "handlers": HANDLERS}
    archive.build("bundled", "caption", str(gone_weights), directory / "store", **options)
    shutil.rmtree(gone_weights)
    shutil.copytree(demo_speech, gone_weights)
    archive.build("converted", "speech", str(gone_weights), directory / "store", engine="ctranslate2", **options)
    shutil.rmtree(gone_weights)
    ctc = save_wav2vec2(tmp_path_factory.mktemp("ctc"), masked=True)
    archive.build("aligner", "speech", ctc, directory / "store", handlers=HANDLERS)
    for name, model in EMULATED.items():
        pack_handler(HANDLER, name, directory / "store", settings=model.settings(), modules=handler_modules())
    with serve_demo_models(directory) as running:
        yield running


@pytest.fixture(scope="session")
def slow(server: RunningServer) -> RunningServer:
    """A model that captions 100 frames a second."""
    return server.with_model("slow")


@pytest.fixture(scope="session")
def joining(tmp_path_factory: pytest.TempPathFactory, demo_model: str) -> Iterator[RunningServer]:
    """A server that joins single frames, under the name that the blog's clients know."""
    directory = tmp_path_factory.mktemp("joining")
    archive.build("blip2", "caption", demo_model, directory / "store", handlers=HANDLERS)
    with serve(directory, "blip2", ROOT / "config-single.properties") as running:
        yield running


@pytest.fixture(scope="session")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server of the demo models, and of a speaker model, that is killed, with its workers and its clients."""
    directory = tmp_path_factory.mktemp("killed")
    handlers = directory / "handlers"
    shutil.copytree(HANDLERS, handlers)
    yaml = handlers / "speaker.yaml"
    yaml.write_text(yaml.read_text().replace("diarizer: null", f"diarizer: {DIARIZER}"))
    archive.build("speakers", "speaker", save_encoder(directory / "encoder"), directory / "store", handlers=handlers)
    with serve_demo_models(directory) as running:
        yield running


@pytest.fixture(scope="session")
def library(media: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Good and bad sources, over which runs are killed."""
    return library_without_hangs(tmp_path_factory.mktemp("library") / "odd", media)


@pytest.fixture(scope="session")
def undisturbed(killed: RunningServer, library: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Figures]:
    """The output folder of an undisturbed run over the library, and what the server has done for it."""
    out, before = tmp_path_factory.mktemp("undisturbed"), scrape_server(killed)
    with annotate(killed, library, out) as run:
        complete(run, out)
    return out, scrape_server(killed) - before


@pytest.fixture(scope="session")
def annotated(server: RunningServer, media: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output folder of an undisturbed run over all demo media."""
    out = tmp_path_factory.mktemp("annotated")
    result = server.run("annotate", media, "--out", out, "--format", "vtt", "--cues", "both")
    assert result.exit_code == 0, result.output
    return out
