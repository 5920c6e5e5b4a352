from collections.abc import Iterator

import pytest

from support.sending import Messages


@pytest.fixture
def messages() -> Iterator[Messages]:
    """What the client logs during the test."""
    with Messages() as messages:
        yield messages
