"""What notebooks show: tables, with everything escaped."""

from __future__ import annotations

from elephas_like.core.html import MOST_ROWS, history_table, html_table


def test_everything_is_escaped() -> None:
    shown = html_table("a<b", ["x&y"], [["<script>", 0.123456]])
    assert shown == (
        "<p><code>a&lt;b</code></p><table><thead><tr><th>x&amp;y</th></tr></thead>"
        "<tbody><tr><td>&lt;script&gt;</td><td>0.1235</td></tr></tbody></table>"
    )


def test_of_many_rows_the_last_are_shown() -> None:
    shown = html_table("many", ["n"], [[number] for number in range(MOST_ROWS + 5)])
    assert shown.count("<td>") == MOST_ROWS
    assert f"<td>{MOST_ROWS + 4}</td>" in shown
    assert "5 rows before these are not shown" in shown


def test_a_history_by_epoch() -> None:
    history = {"loss": [2.0, 1.0], "val_loss": [3.0], "matrix": [[[1]], [[2]]]}
    assert history_table("fit", history) == html_table("fit", ["epoch", "loss"], [[1, 2.0], [2, 1.0]])
    assert history_table("none", {}) == "<p><code>none</code></p>"
