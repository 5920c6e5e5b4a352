"""Archives of shot models: a file of weights that torch has saved, or that is in safetensors format."""

import zipfile
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import save_file
from typer.testing import CliRunner

from reelscribe.archive.build import build
from reelscribe.cli import app
from reelscribe.errors import UsageError
from support.shot_models import save_transnetv2, transnetv2_weights
from support.speaker_models import encoder_weights

HANDLERS = Path(__file__).parents[2] / "handlers"


@pytest.fixture
def folder(tmp_path) -> Path:
    """A folder of weights as torch saves them, beside something else."""
    save_transnetv2(tmp_path / "model")
    (tmp_path / "model" / "README.md").write_text("about the weights")
    return tmp_path / "model"


def read(archive: Path) -> tuple[dict, set[str]]:
    """The settings of the handler in an archive, and the names of its weights."""
    with zipfile.ZipFile(archive) as mar:
        settings = yaml.safe_load(mar.read("model-config.yaml"))
        names = {name for name in mar.namelist() if name.startswith("weights/")}
    return settings["handler"], names


@pytest.mark.parametrize("given", ["", "weights.pth"])
def test_a_folder_or_its_only_file_of_weights_is_named(folder, tmp_path, given):
    settings, bundled = read(build("shots", "shot", str(folder / given), tmp_path / "store", handlers=HANDLERS))
    assert (settings["model"], settings["revision"], settings["weights"]) == (str(folder), None, None)
    assert (settings["dtype"], bundled) == ("float32", set())


def test_a_bundle_holds_the_weights_alone(folder, tmp_path):
    settings, bundled = read(build("shots", "shot", str(folder), tmp_path / "store", bundle=True, handlers=HANDLERS))
    assert (settings["weights"], bundled) == ("weights", {"weights/weights.pth"})


def test_weights_may_be_in_safetensors_format(tmp_path):
    (tmp_path / "model").mkdir()
    save_file(transnetv2_weights(), tmp_path / "model" / "model.safetensors")
    arguments = ["shots", "--handler", "shot", "--weights", str(tmp_path / "model"), "--gpus", "2"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(HANDLERS.parent)
        result = CliRunner().invoke(app, ["archive", *arguments, "--model-store", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert read(tmp_path / "shots.mar")[0]["model"] == str(tmp_path / "model")


@pytest.mark.parametrize("given", ["", "weights.pth"])
def test_several_files_of_weights_are_refused(folder, tmp_path, given):
    save_file(transnetv2_weights(), folder / "other.safetensors")
    with pytest.raises(UsageError, match=r"and in .*model other\.safetensors, weights\.pth; put it into a folder"):
        build("shots", "shot", str(folder / given), tmp_path / "store", handlers=HANDLERS)
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("given", ["none", "model/README.md", "model/none.pth"])
def test_what_is_no_file_of_weights_is_refused(folder, tmp_path, given):
    with pytest.raises(UsageError, match="weights: expected a file of a TransNetV2"):
        build("shots", "shot", str(tmp_path / given), tmp_path / "store", handlers=HANDLERS)


def test_weights_that_are_no_archive_of_torch_are_refused(tmp_path):
    (tmp_path / "weights.pth").write_bytes(b"an unsafe pickle")
    with pytest.raises(UsageError, match=r"weights\.pth is damaged, cut short or of an old format"):
        build("shots", "shot", str(tmp_path), tmp_path / "store", handlers=HANDLERS)


def test_weights_as_torch_saved_them_before_2020_are_packed(tmp_path):
    torch.save(encoder_weights(), tmp_path / "pretrained.pt", _use_new_zipfile_serialization=False)
    build("speakers", "speaker", str(tmp_path), tmp_path / "store", bundle=True, handlers=HANDLERS)
    with zipfile.ZipFile(tmp_path / "store" / "speakers.mar") as archive:
        assert archive.read("weights/pretrained.pt") == (tmp_path / "pretrained.pt").read_bytes()


@pytest.mark.parametrize(
    ("options", "reason"), [({"revision": "main"}, "revision: the weights"), ({"stages": 2}, "stages: expected 1")]
)
def test_what_a_shot_model_does_not_have_is_refused(folder, tmp_path, options, reason):
    with pytest.raises(UsageError, match=reason):
        build("shots", "shot", str(folder), tmp_path / "store", handlers=HANDLERS, **options)
