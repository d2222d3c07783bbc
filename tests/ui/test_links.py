"""Where a link really leads, and having a browser go there."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exlchat.ui.render.links import OpenError, links_of, look_at, open_link
from exlchat.untrusted.sanitize import printable


@pytest.mark.parametrize(
    ("target", "host"),
    [
        ("https://host.org/a?b#c", "host.org"),
        ("HTTP://Host.org:8080/", "Host.org"),
        ("http://[::1]:80/x", "[::1]"),
        ("https://bank.com@evil.com/bank.com", "evil.com"),
        ("https://bücher.de", "bücher.de"),
    ],
)
def test_the_host_is_the_one_that_would_be_asked(target: str, host: str) -> None:
    link = look_at(target)
    assert link.can_open
    assert link.host == host
    assert link.target[link.host_at :].startswith(host)
    assert link.target == target


@pytest.mark.parametrize(
    "target",
    [
        "javascript:alert(1)",
        "file:///etc/passwd",
        "ssh://host",
        "docs/readme.md",
        "",
        "https:host.org",
        "https://",
        "https://good.com\\@evil.com",
        "https://good.com /x",
        "https://good\u2044com.evil%2fx y",
        "https://[::1",
        "https://host:port/",
        "https://a\x1b]8;;b",
        "https://a\u202eb",
        "//host.org",
    ],
)
def test_what_is_no_certain_web_address_is_not_opened(target: str) -> None:
    link = look_at(target)
    assert not link.can_open
    assert link.remarks
    with pytest.raises(OpenError):
        open_link(link)


def test_names_that_pose_as_others_are_told() -> None:
    assert "mixes letters of Cyrillic and Latin" in look_at("https://pаypal.com").remarks[-1]
    sent = look_at("https://xn--80ak6aa92e.com").remarks
    assert sent[0] == "The host reads as аррӏе.com"
    assert "Cyrillic" in sent[1]
    assert "xn--80ak6aa92e.com" in look_at("https://аррӏе.com").remarks[0]
    assert "the host is evil.com" in look_at("https://bank.com@evil.com").remarks[0]
    assert look_at("https://host.org").remarks == ()
    assert look_at("mailto:a@host.org").can_open


@given(st.text() | st.text().map("https://".__add__) | st.text("xn-аa.@:/[]%\\ ").map("http://xn--".__add__))
def test_any_address_is_shown_printable_and_in_one_line(target: str) -> None:
    link = look_at(target)
    for text in (link.target, *link.remarks):
        assert printable(text) == text
        assert "\n" not in text
    assert link.target[link.host_at :].startswith(link.host)
    assert link.host or not link.can_open or link.target.lower().startswith("mailto:")


def test_links_of_a_message_in_order_each_once() -> None:
    text = (
        "See [docs](https://a.org/d) and https://b.org/x, `https://code.org`.\n\n"
        "- > ![p](https://c.org/p.png) [docs](https://a.org/d)\n\n| h |\n|---|\n| <https://e.org> |\n"
    )
    assert links_of(text, is_markdown=True) == [
        "https://a.org/d",
        "https://b.org/x",
        "https://c.org/p.png",
        "https://e.org",
    ]
    assert links_of("[docs](https://a.org/d)", is_markdown=False) == ["https://a.org/d"]


def test_the_browser_gets_the_address_as_one_argument(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    got = tmp_path / "got"
    browser = tmp_path / "browser"
    script = f"import sys\nopen({str(got)!r}, 'w').write(repr(sys.argv[1:]))\nprint('noise')\n"
    browser.write_text(f"#!{sys.executable}\n{script}")
    browser.chmod(0o755)
    monkeypatch.setenv("BROWSER", str(browser))
    open_link(look_at("https://host.org/a?b=$(c)&d;e'f"))
    assert got.read_text() == repr(["https://host.org/a?b=$(c)&d;e'f"])


def test_a_browser_within_the_terminal_is_no_browser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lynx = tmp_path / "lynx"
    lynx.write_text("#!/bin/sh\nexit 0\n")
    lynx.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    with pytest.raises(OpenError, match="c copies the address"):
        open_link(look_at("https://host.org"))
