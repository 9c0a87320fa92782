"""The browser that looks at reports notices what it is there for."""

import pathlib

from rljob_testing import browser


def test_page_whose_script_fails_is_noticed_and_a_plain_one_is_silent(tmp_path: pathlib.Path) -> None:
    browser.require()
    broken, plain = tmp_path / "broken.html", tmp_path / "plain.html"
    broken.write_text("<!doctype html><html><body><script>nothing.at.all</script></body></html>")
    plain.write_text("<!doctype html><html><body><p>a page</p></body></html>")
    (line,) = browser.console_of(broken, tmp_path / "profile")
    assert "nothing is not defined" in line
    assert browser.console_of(plain, tmp_path / "profile") == []
