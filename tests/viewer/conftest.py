import pytest

from reelscribe.viewer.media.media_files import MediaFiles
from reelscribe.viewer.media.source_thumbnails import Pictures


@pytest.fixture
def pictures(tmp_path):
    return Pictures(tmp_path, tmp_path, MediaFiles(tmp_path))
