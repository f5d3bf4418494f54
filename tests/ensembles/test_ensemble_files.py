"""Files of ensembles: whole or not there, and what is none is refused."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
from voters import X, members, model

from elephas_like.ensembles.ensemble_files import zip_path
from elephas_like.ensembles.voting_model import VotingModel


def test_save_and_load(tmp_path: Path) -> None:
    ensemble = VotingModel(members(2), "soft", weights=[1, 2])
    ensemble.histories = [{"loss": [0.5, 0.25]}, {"loss": [1.0]}]
    path = tmp_path / "new" / "ensemble.zip"
    ensemble.save(path)
    loaded = VotingModel.load(path)
    np.testing.assert_array_equal(loaded.predict_proba(X), ensemble.predict_proba(X))
    assert (loaded.voting, loaded.weights, loaded.nb_classes) == ("soft", pytest.approx((1 / 3, 2 / 3)), 3)
    assert loaded.histories == ensemble.histories
    y = np.arange(40) % 3
    assert loaded.evaluate(X, y) == pytest.approx(ensemble.evaluate(X, y))
    with zipfile.ZipFile(path) as archive:
        assert archive.namelist() == ["ensemble.json", "member-0.keras", "member-1.keras"]
        assert json.loads(archive.read("ensemble.json"))["voting"] == "soft"
    with pytest.raises(FileExistsError):
        ensemble.save(path, overwrite=False)
    assert [file.name for file in path.parent.iterdir()] == ["ensemble.zip"]


def test_a_failed_save_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "ensemble.zip"
    VotingModel(members(1)).save(path)
    before = path.read_bytes()
    broken = members(2)
    monkeypatch.setattr(broken[1], "save", lambda path: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        VotingModel(broken).save(path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["ensemble.zip"]


def test_a_tilde_is_the_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert zip_path("~/models/ensemble.zip") == tmp_path / "models" / "ensemble.zip"


def test_an_ensemble_s_file_is_no_directory_that_is_named_as_a_url() -> None:
    with pytest.raises(ValueError, match=r"kept on a disk of the driver; got 's3a://models/ensemble.zip'"):
        VotingModel(members(1)).save("s3a://models/ensemble.zip")


def test_files_that_are_no_ensembles(tmp_path: Path) -> None:
    model().save(tmp_path / "model.keras")
    (tmp_path / "model.keras").rename(tmp_path / "model.zip")
    with pytest.raises(ValueError, match="no saved VotingModel"):
        VotingModel.load(tmp_path / "model.zip")
    with pytest.raises(ValueError, match=r"must end with '\.zip'"):
        VotingModel(members(1)).save(tmp_path / "model.keras")
