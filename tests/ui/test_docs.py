"""The pages about the chat say what the program does."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from exlchat import paths
from exlchat.app.commands.actions import ACTIONS
from exlchat.chat.presets.registry import PRESETS
from exlchat.cli.ask import build_parser as ask_parser
from exlchat.cli.config import build_parser as config_parser
from exlchat.cli.presets import build_parser as presets_parser
from exlchat.cli.run.command import build_parser as run_parser
from exlchat.cli.serve.command import build_parser as serve_parser
from exlchat.cli.sessions.command import build_parser as sessions_parser
from exlchat.cli.themes.command import build_parser as themes_parser
from exlchat.config.themes import PALETTE_NEEDED, STYLES, USES, load_themes
from exlchat.llm.controls import STEPS
from exlchat.ui.tui.screens.help import help_rows
from tools.tables import control_rows, doors, key_rows, page_rows

DOCS = Path(__file__).parents[2] / "docs"


def test_the_chat_page_has_every_key_and_command_of_the_help_screen() -> None:
    page = (DOCS / "chat.md").read_text(encoding="utf-8")
    rows = [row for row in help_rows() if row[1]]
    assert len(rows) > 30
    for left, right in rows:
        assert f"| {doors(left)} | {right} |" in page


def test_the_chat_page_has_every_alias_of_a_command() -> None:
    page = (DOCS / "chat.md").read_text(encoding="utf-8")
    for action in ACTIONS:
        if action.aliases:
            assert f"| `{action.slash}` | {', '.join(f'`{name}`' for name in action.aliases)} |" in page


def test_the_theme_page_names_every_entry() -> None:
    page = (DOCS / "themes.md").read_text(encoding="utf-8")
    for section, keys in {"colors": PALETTE_NEEDED, **USES, "styles": STYLES}.items():
        row = next(line for line in page.splitlines() if line.startswith(f"| `[{section}]`"))
        for key in keys:
            assert f"`{key}`" in row


def test_the_theme_page_names_and_shows_every_theme() -> None:
    page = (DOCS / "themes.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    for name in load_themes(paths.shipped_themes(), Path("/nowhere"))[0]:
        assert any(f"`{name}`" in row for row in rows)
        picture = f"theme-{name}.svg"
        assert f"![{name}]({picture})" in page
        assert (DOCS / picture).is_file()


def test_the_sampling_page_says_of_each_preset_what_its_file_says() -> None:
    page = (DOCS / "sampling.md").read_text(encoding="utf-8")
    for one in PRESETS.all(Path("/nowhere"), paths.shipped_presets()).entries:
        row = next(line for line in page.splitlines() if line.startswith(f"| `{one.id}` |"))
        assert one.preset.description[1:].partition(";")[0] in row


@pytest.mark.parametrize(("command", "make"), [("presets", presets_parser), ("themes", themes_parser)])
def test_the_command_line_page_has_every_command_and_option(
    command: str, make: Callable[[], argparse.ArgumentParser]
) -> None:
    page = (DOCS / "command-line.md").read_text(encoding="utf-8")
    section = page.partition(f"\n## {command}\n")[2].partition("\n## ")[0]
    rows = {line.split("`")[1].split()[0]: line for line in section.splitlines() if line.startswith("| `")}
    (commands,) = (one for one in make()._actions if isinstance(one, argparse._SubParsersAction))
    assert rows.keys() == commands.choices.keys()
    for name, parser in commands.choices.items():
        options = {one for action in parser._actions for one in action.option_strings if one.startswith("--")}
        for option in options - {"--help", "--version"}:
            assert f"`{option}" in rows[name]


def test_the_command_line_page_has_every_option_of_ask_and_of_sessions() -> None:
    page = (DOCS / "command-line.md").read_text(encoding="utf-8")
    options = page.partition("\n## Options\n")[2].partition("\n## template\n")[0]
    sessions = page.partition("\n## sessions\n")[2].partition("\n## personas\n")[0]
    for parser, section in ((ask_parser(), options), (sessions_parser(), sessions)):
        (*below,) = (one for one in parser._actions if isinstance(one, argparse._SubParsersAction))
        parsers = [parser, *(one for action in below for one in action.choices.values())]
        named = {one for each in parsers for action in each._actions for one in action.option_strings}
        for option in named - {"--help", "-h", "--version", "--ext"}:
            assert f"`{option}" in section, option


@pytest.mark.parametrize(("name", "make"), [("server", serve_parser), ("runs", run_parser)])
def test_the_pages_of_server_and_runs_have_every_option_of_their_own(
    name: str, make: Callable[[], argparse.ArgumentParser]
) -> None:
    page = (DOCS / f"{name}.md").read_text(encoding="utf-8")
    shared = {one for action in ask_parser()._actions for one in action.option_strings}
    for option in {one for action in make()._actions for one in action.option_strings} - shared - {"--output"}:
        assert option in page, option


def test_the_chat_page_has_every_command_of_sessions() -> None:
    page = (DOCS / "chat.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| `exlchat sessions ")]
    (commands,) = (one for one in sessions_parser()._actions if isinstance(one, argparse._SubParsersAction))
    for name in commands.choices.keys() - {"export", "import"}:
        assert any(f"sessions {name}" in row or f"`{name}" in row for row in rows), name


def test_the_settings_page_has_every_setting_and_every_key_as_they_are_declared() -> None:
    page = (DOCS / "settings.md").read_text(encoding="utf-8").splitlines()
    for rows in (list(page_rows()), list(key_rows())):
        at = page.index(rows[0])
        assert page[at : at + len(rows) + 1] == [*rows, ""]


@pytest.mark.parametrize("name", ["command-line.md", "settings.md"])
def test_the_pages_have_every_command_of_config(name: str) -> None:
    page = (DOCS / name).read_text(encoding="utf-8")
    heading = "config" if name == "command-line.md" else "exlchat config"
    section = page.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = {line.split("`")[1].split()[0] for line in section.splitlines() if line.startswith("| `")}
    (commands,) = (one for one in config_parser()._actions if isinstance(one, argparse._SubParsersAction))
    assert rows == commands.choices.keys()


def test_the_page_of_sampling_has_every_control_and_step() -> None:
    page = (DOCS / "sampling.md").read_text(encoding="utf-8")
    assert "\n".join(control_rows()) in page
    for step in STEPS:
        assert f"\n| {step} | " in page


def _anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings."""
    heads = [line.lstrip("#").strip() for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def _links() -> Iterator[tuple[Path, str]]:
    root = DOCS.parent
    for page in (root / "README.md", root / "CHANGELOG.md", *sorted(DOCS.rglob("*.md"))):
        for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
            if "://" not in link:
                yield page, link


def test_every_link_leads_to_a_file_and_a_heading_of_it() -> None:
    links = list(_links())
    assert len(links) > 100
    lost = []
    for page, link in links:
        name, _, anchor = link.partition("#")
        target = (page.parent / name) if name else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in _anchors(target)):
            lost.append(f"{page.name}: {link}")
    assert lost == []
