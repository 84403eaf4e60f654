"""The chapters as pages for a browser: mathematics as MathML, figures inline, nothing fetched from anywhere."""

import html
import re
import shutil
from pathlib import Path

from tinymlx import paths
from tinymlx.errors import UserError
from tinymlx.learn.days import Day, all_days

_STYLE = """
:root { color-scheme: light dark; --ink: #1d2430; --paper: #ffffff; --soft: #f3f5f8; --line: #d5dae2; --accent: #9a4a00; }
@media (prefers-color-scheme: dark) { :root { --ink: #e3e7ee; --paper: #14181f; --soft: #1e242e; --line: #38414f; --accent: #f0a860; } }
* { box-sizing: border-box; }
body { margin: 0; color: var(--ink); background: var(--paper); font: 17px/1.6 system-ui, sans-serif; }
nav { position: fixed; inset: 0 auto 0 0; width: 16rem; padding: 1.5rem 1.2rem; overflow-y: auto; background: var(--soft); border-right: 1px solid var(--line); }
nav a { display: block; padding: .15rem 0; color: inherit; text-decoration: none; font-size: .92rem; }
nav a[aria-current] { font-weight: 700; color: var(--accent); }
nav .sections a { padding-left: 1rem; font-size: .85rem; }
main { max-width: 48rem; margin-left: 16rem; padding: 1rem 2.5rem 5rem; }
h1, h2 { line-height: 1.25; } h2 { margin-top: 2.4rem; border-bottom: 1px solid var(--line); }
a { color: var(--accent); }
img { display: block; max-width: 100%; margin: 1.5rem auto; border-radius: 6px; background: #ffffff; }
pre { padding: .8rem 1rem; overflow-x: auto; background: var(--soft); border: 1px solid var(--line); border-radius: 6px; font-size: .82rem; line-height: 1.45; }
code { font-family: ui-monospace, Menlo, Consolas, monospace; } :not(pre) > code { font-size: .88em; background: var(--soft); padding: .1em .3em; border-radius: 4px; }
.table { overflow-x: auto; } table { border-collapse: collapse; font-size: .92rem; } td code { white-space: nowrap; } th, td { padding: .3rem .8rem; border-bottom: 1px solid var(--line); text-align: left; }
details { margin: .6rem 0; padding: .3rem 1rem; border: 1px solid var(--line); border-radius: 6px; } summary { cursor: pointer; color: var(--accent); }
math[display=block] { margin: 1rem 0; } math { font-size: 1.08em; }
.turn { display: flex; justify-content: space-between; gap: 1rem; margin-top: 4rem; }
@media (max-width: 60rem) { nav { position: static; width: auto; border: 0; } main { margin: 0; padding: 1rem; } }
@media print { nav, .turn { display: none; } main { margin: 0; max-width: none; } }
"""
_HEADING = re.compile(r"<h([23])>(.*?)</h\1>")
_COMMENT = re.compile(r"<!--.*?-->\n?", re.DOTALL)
_LINK = re.compile(r'<a href="(?!https?:|#)([^"#]*)(#[^"]*)?">(.*?)</a>', re.DOTALL)


def build_site(out: Path) -> Path:
    """Write index.html and a page a day into the folder `out`. Returns the index.

    Raises UserError where the libraries of the extra `learn` are missing, or `out` cannot be written.
    """
    try:
        from latex2mathml.converter import convert
        from markdown_it import MarkdownIt
        from mdit_py_plugins.dollarmath import dollarmath_plugin
    except ImportError as error:
        raise UserError(
            f"{error.name} is not installed; pip install markdown-it-py mdit-py-plugins latex2mathml"
        ) from None

    def formula(text: str, options: dict) -> str:
        return convert(text, display="block" if options["display_mode"] else "inline")

    markdown = MarkdownIt("commonmark", {"html": True, "highlight": _highlight}).enable("table")
    markdown.use(dollarmath_plugin, renderer=formula, allow_digits=False, double_inline=True)

    days = all_days()
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / "style.css").write_text(_STYLE + _code_colours(), encoding="utf-8")
        _write(out / "index.html", markdown.render(_text(paths.weeks())), days, None)
        for day in days:
            shutil.copyfile(day.folder / "figure.svg", out / f"{_page(day)}.svg")
            body = markdown.render(_text(day.folder)).replace('src="figure.svg"', f'src="{_page(day)}.svg"')
            _write(out / f"{_page(day)}.html", body, days, day)
    except OSError as error:
        raise UserError(f"{error.filename or out}: {error.strerror or error}; name another folder with --out") from None
    return out / "index.html"


def _text(folder: Path) -> str:
    return _COMMENT.sub("", (folder / "README.md").read_text(encoding="utf-8"))


def _page(day: Day) -> str:
    return f"{day.number}-{day.topic}"


def _write(file: Path, body: str, days: list[Day], current: Day | None) -> None:
    sections = []

    def anchored(match: re.Match) -> str:
        level, text = match.groups()
        anchor = re.sub(r"[^\w]+", "-", re.sub(r"<.*?>", "", text).lower()).strip("-")
        if level == "2":
            sections.append((anchor, text))
        return f'<h{level} id="{anchor}">{text}</h{level}>'

    def link(match: re.Match) -> str:
        """To another chapter, or to what is no page (the licence, the product's code): then the text alone."""
        names = Path(match[1]).parts
        target = next((_page(day) for day in days if day.folder.name in names and names[-1] == "README.md"), None)
        return f'<a href="{target}.html{match[2] or ""}">{match[3]}</a>' if target else match[3]

    body = _LINK.sub(link, _HEADING.sub(anchored, body))
    body = body.replace("<table>", '<div class="table"><table>').replace("</table>", "</table></div>")
    menu = [_entry("index.html", "tinymlx: the course", current is None)]
    for day in days:
        menu.append(_entry(f"{_page(day)}.html", _title(day), day is current))
        if day is current:
            menu.append(
                '<div class="sections">' + "".join(_entry(f"#{a}", text, False) for a, text in sections) + "</div>"
            )
    at = days.index(current) if current else -1
    turn = [
        f'<a href="{_page(days[at - 1])}.html">← {html.escape(_title(days[at - 1]))}</a>' if at > 0 else "<span></span>"
    ]
    if at + 1 < len(days):
        turn.append(f'<a href="{_page(days[at + 1])}.html">{html.escape(_title(days[at + 1]))} →</a>')
    file.write_text(
        '<!doctype html>\n<html lang="en">\n<head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<title>{html.escape(_title(current) if current else "tinymlx: the course")}</title><link rel="stylesheet" href="style.css"></head>\n'
        f'<body>\n<nav>{"".join(menu)}</nav>\n<main>\n{body}<div class="turn">{"".join(turn)}</div>\n</main>\n</body>\n</html>\n',
        encoding="utf-8",
    )


def _title(day: Day) -> str:
    return _text(day.folder).partition("\n")[0].removeprefix("# ")


def _entry(target: str, text: str, current: bool) -> str:
    return f'<a href="{target}"{" aria-current=page" if current else ""}>{html.escape(text, quote=False) if "<" not in text else text}</a>'


def _highlight(code: str, language: str, _: str) -> str:
    from pygments import highlight
    from pygments.formatters import HtmlFormatter
    from pygments.lexers import get_lexer_by_name
    from pygments.util import ClassNotFound

    try:
        return highlight(code, get_lexer_by_name(language), HtmlFormatter(nowrap=True))
    except ClassNotFound:
        return ""


def _code_colours() -> str:
    from pygments.formatters import HtmlFormatter

    light, dark = (HtmlFormatter(style=style).get_style_defs("pre") for style in ("friendly", "github-dark"))
    keep = lambda rules: "\n".join(rule for rule in rules.splitlines() if "background" not in rule)  # noqa: E731
    return f"{keep(light)}\n@media (prefers-color-scheme: dark) {{\n{keep(dark)}\n}}\n"
