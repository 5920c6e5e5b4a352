import pytest

from reelscribe.storage import spool as spool_module


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    """Whoever tries again waits hardly at all."""
    monkeypatch.setattr(spool_module, "FIRST_PAUSE", 0.001)
    monkeypatch.setattr(spool_module, "MOST_PAUSE", 0.001)
