from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    """A cache folder of the test's own, and no data folder of the user's."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    monkeypatch.delenv("MANYHANDS_DATA", raising=False)
    return folder / "manyhands"


_USERS = os.environ.get("MANYHANDS_DATA")


@pytest.fixture(scope="session")
def data_folder():
    """The data folder, if present."""
    folder = Path(_USERS) if _USERS else ROOT.parent / "shared" / "data"
    if not (folder / "mnist.npz").is_file():
        pytest.skip("no data folder (set MANYHANDS_DATA)")
    return folder
