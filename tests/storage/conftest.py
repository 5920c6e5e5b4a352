import pytest

from reelscribe.storage import objects


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    """Whoever tries again waits hardly at all."""
    monkeypatch.setattr(objects, "FIRST_PAUSE", 0.001)
    monkeypatch.setattr(objects, "MOST_PAUSE", 0.001)
