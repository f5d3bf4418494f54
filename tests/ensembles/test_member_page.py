import json
import re

import pytest
from voters import model

from elephas_like import VotingModel
from elephas_like.ensembles.member_page import members_monitor, report_of, show_member

HISTORIES = [{"loss": [2.0, 1.0], "val_loss": [2.5, 1.5]}, {"loss": [2.0, 0.5], "val_loss": [2.5, 1.75]}]


def test_members_are_compared_by_held_out_rows_where_there_are_any() -> None:
    shown = report_of(HISTORIES, [(1, LookupError("gone"))], {"votes": "soft"})
    assert (shown["objective"], shown["best"], shown["done"], shown["total"]) == ("val_loss", [0, "1.5"], 3, 3)
    assert [run["number"] for run in shown["runs"]] == [0, 1, 2]
    assert [run["status"] for run in shown["runs"]] == ["ok", "failed", "ok"]
    assert shown["runs"][1]["error"] == "LookupError: gone"
    assert shown["runs"][2]["y"] == [2.5, 1.75]
    assert shown["about"] == {"votes": "soft"}


def test_without_held_out_rows_by_their_loss() -> None:
    page = members_monitor(2, {}, validates=False)
    show_member(page, 1, {"loss": [3.0, 1.0]}, 2.5)
    shown = page.snapshot()
    assert (shown["objective"], shown["best"]) == ("loss", [1, "1"])
    assert shown["runs"][0]["seconds"] == 2.5


def test_a_report_is_a_page_of_an_ensemble_that_was_trained(tmp_path) -> None:
    ensemble = VotingModel([model(), model()])
    with pytest.raises(ValueError, match="save_report is for ensembles of train_ensemble"):
        ensemble.save_report(tmp_path / "ensemble.html")
    ensemble.histories = HISTORIES
    ensemble.save_report(tmp_path / "ensemble.html")
    written = (tmp_path / "ensemble.html").read_text()
    (data,) = re.findall(r'<script type="application/json"[^>]*>(.*?)</script>', written, re.DOTALL)
    assert json.loads(data)["best"] == [0, "1.5"]
