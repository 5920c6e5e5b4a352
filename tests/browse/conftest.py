import pytest

from reelscribe.browse.media import MediaFiles
from reelscribe.browse.views.pictures import Pictures


@pytest.fixture
def pictures(tmp_path):
    return Pictures(tmp_path, tmp_path, MediaFiles(tmp_path))
