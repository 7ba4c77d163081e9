"""For all tests: traces, results and prices are kept in folders of the test run's own, never in the user's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import settings

# a property is no matter of time, which a busy machine has less of
settings.register_profile("whichgpu", deadline=None)
settings.load_profile("whichgpu")


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WHICHGPU_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("WHICHGPU_RESULTS", str(tmp_path_factory.mktemp("results") / "results.sqlite"))
        patch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("data")))
        patch.delenv("WHICHGPU_CATALOGUE", raising=False)
        yield
