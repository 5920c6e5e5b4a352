import pytest

from reelscribe.viewer.media.media_files import MediaFiles
from reelscribe.viewer.media.source_thumbnails import SourceThumbnails


@pytest.fixture
def thumbnails(tmp_path):
    return SourceThumbnails(tmp_path, tmp_path, MediaFiles(tmp_path))
