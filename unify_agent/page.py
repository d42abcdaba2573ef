"""HTML pieces. Every text passes `escape`, every picture is embedded, so a page is one file that opens anywhere."""

from __future__ import annotations

import base64
import io
import json
from html import escape as _escape
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from unify_agent.files import write_text

STYLE = Path(__file__).with_name("page.css")


def escape(text: object) -> str:
    """Text as HTML text or attribute value."""
    return _escape(str(text), quote=True)


def data_uri(picture: np.ndarray | Image.Image, largest: int | None = None) -> str:
    """A picture as a PNG data URI, made smaller when its longest side exceeds `largest` pixels."""
    if isinstance(picture, np.ndarray):
        picture = Image.fromarray(picture)
    if largest is not None and max(picture.size) > largest:
        picture = picture.copy()
        picture.thumbnail((largest, largest), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    picture.save(buffer, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def figure(picture: np.ndarray | None, title: str, caption: str = "", alt: str = "") -> str:
    """A picture (or the place where one is missing) with a title in bold; `caption` is HTML."""
    shown = (
        '<div class="none">no picture</div>'
        if picture is None
        else f'<img src="{data_uri(picture)}" alt="{escape(alt or title)}">'
    )
    return f"<figure>{shown}<figcaption><b>{escape(title)}</b>{caption}</figcaption></figure>"


def badge(good: bool, yes: str, no: str) -> str:
    """A small green or red label."""
    return f'<span class="badge {"yes" if good else "no-mark"}">{escape(yes if good else no)}</span>'


def tag(name: str, content: str, classes: str = "") -> str:
    """An element around HTML."""
    start = f'<{name} class="{classes}">' if classes else f"<{name}>"
    return f"{start}{content}</{name}>"


def table(head: list[str], rows: list[list[str]], numbers: int) -> str:
    """A table of HTML cells; the last `numbers` columns hold numbers."""
    text = len(head) - numbers

    def row(cells: list[str], name: str) -> str:
        return tag(
            "tr",
            "".join(
                f'<{name} class="number">{cell}</{name}>' if number >= text else f"<{name}>{cell}</{name}>"
                for number, cell in enumerate(cells)
            ),
        )

    return (
        f'<div class="scroll"><table><thead>{row(head, "th")}</thead>'
        f"<tbody>{''.join(row(cells, 'td') for cells in rows)}</tbody></table></div>"
    )


def page(title: str, introduction: str, body: str, policy: str = "") -> str:
    """A whole page: `introduction` stands in the header; both are HTML. `policy`: a Content-Security-Policy."""
    rule = f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">' if policy else ""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f"{rule}"
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE.read_text(encoding='utf-8')}</style></head>\n"
        f"<body><header><div><h1>{escape(title)}</h1>{introduction}</div></header>\n<main>{body}</main></body></html>\n"
    )


def write_script(path: Path, name: str, value: Any) -> None:
    """A script that assigns `value` to `window.NAME`; no text in it ends the script or is no UTF-8."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    safe = text.encode("utf-8", "replace").decode()
    safe = safe.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    write_text(path, f"window.{name} = {safe};\n")
