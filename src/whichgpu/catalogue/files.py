"""Catalogue files: TOML with one list of entries, read into records, with the file, line and field of every mistake.

`tomllib` says the line of what is no TOML, but not where an entry stands. The line of an entry is that of its n-th `[[key]]`
header, and of a field the first `field =` below; where an entry is written in another way, no line is named.
"""

from __future__ import annotations

import re
import tomllib
import unicodedata
from collections.abc import Iterator
from datetime import date, timedelta
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from rapidfuzz import process

from whichgpu.catalogue.days import first
from whichgpu.errors import CatalogueError

__all__ = ["Document", "plain"]

Record = TypeVar("Record", bound=msgspec.Struct)

_UNSEEN = ("Cc", "Cf", "Zl", "Zp")  # categories of Unicode: control, format (the direction of text), line and paragraph
_DATES = ("date", "checked")  # fields that hold the day on which something was read


def plain(text: str) -> str:
    """Text for a line of an error message."""
    return "".join(char if char.isprintable() else "?" for char in text)


class Document:
    """One file; CatalogueError where it cannot be read or is no TOML."""

    def __init__(self, entry: Traversable) -> None:
        # files of the user's own are named in full, those of the package need not be found
        self.name = plain(str(entry) if isinstance(entry, Path) else entry.name)
        try:
            self._text = entry.read_text(encoding="utf-8-sig")  # editors of Windows begin a file with U+FEFF
            self.raw = tomllib.loads(self._text)
        except OSError as error:
            raise CatalogueError(f"{self.name}: cannot be read ({error.strerror}); check the file") from None
        except UnicodeDecodeError as error:
            what = plain(str(error))
            raise CatalogueError(f"{self.name}: not valid TOML ({what}); save the file as UTF-8") from None
        except tomllib.TOMLDecodeError as error:
            raise self._no_toml(str(error)) from None
        except ValueError:  # an integer of more digits than Python reads
            raise CatalogueError(f"{self.name}: holds a number of thousands of digits; correct it") from None

    def _no_toml(self, words: str) -> CatalogueError:
        what, _, where = plain(words).partition(" (at ")
        found = re.match(r"line (\d+)", where)
        lines = self._text.splitlines()
        line = int(found[1]) if found else len(lines)
        field = re.match(r"\s*([\w-]+)\s*=", lines[line - 1]) if 0 < line <= len(lines) else None
        about = f"field {field[1]}: " if field else ""
        return CatalogueError(f"{self.name}, line {line}: {about}not valid TOML ({what}); correct that line")

    def rows(self, key: str, record: type[Record], **defaults: Any) -> Iterator[Record]:
        """The entries `[[key]]` as records, of which the file must be a list; CatalogueError for the first mistake.

        `defaults` are values of fields that an entry leaves out.
        """
        rows = self.raw.get(key)
        others = sorted(self.raw.keys() - {key})
        if others or not isinstance(rows, list) or not rows:
            problem = f'unknown key "{plain(others[0])}"' if others else f"no [[{key}]] entry"
            raise CatalogueError(f"{self.name}: {problem}; the file is a list of [[{key}]] entries")
        for number, row in enumerate(rows, 1):
            filled = {**defaults, **row} if isinstance(row, dict) else row
            self._check_characters(key, number, filled)
            try:
                yield msgspec.convert(filled, record)
            except msgspec.ValidationError as error:
                raise self._mistake(key, number, record, error) from None
            self._check_dates(key, number, row)

    def error(self, key: str, number: int, field: str, what: str) -> CatalogueError:
        """An error about a field of the n-th entry (from 1); `what` says what is wrong and what to do."""
        rows = self.raw[key]
        row = rows[number - 1]
        name = row.get("name", "") if isinstance(row, dict) else ""
        label = f'{key} {number} "{plain(name)}"' if isinstance(name, str) and name else f"{key} {number}"
        line = self._line(key, number, field, len(rows))
        where = f"{self.name}, line {line}" if line else self.name
        return CatalogueError(f"{where}: {label}, {f'field {plain(field)}: ' if field else ''}{plain(what)}")

    def _check_characters(self, key: str, number: int, row: object) -> None:
        """Refuse characters that a terminal takes for commands, or that hide what is written."""
        for field, value in row.items() if isinstance(row, dict) else ():
            for words in _words(value):
                allowed = "\n\t" if field == "note" else ""
                found = next((c for c in words if unicodedata.category(c) in _UNSEEN and c not in allowed), None)
                if found is not None:
                    what = f"holds the control character U+{ord(found):04X}; write it without"
                    raise self.error(key, number, field, what)

    def _check_dates(self, key: str, number: int, row: dict[str, Any]) -> None:
        for field in _DATES:
            words = row.get(field)
            if not isinstance(words, str):
                continue
            try:
                day = first(words)
            except ValueError:
                raise self.error(key, number, field, f'there is no day "{words}"; correct it') from None
            if day > date.today() + timedelta(days=1):  # it may be tomorrow already where it was written
                raise self.error(key, number, field, f"{words} is in the future; write the day on which it was read")

    def _mistake(self, key: str, number: int, record: type[Record], error: msgspec.ValidationError) -> CatalogueError:
        what, _, where = str(error).partition(" - at ")
        field = where.strip("`").removeprefix("$").removeprefix(".")
        text = what[0].lower() + what[1:].replace("`", "").replace(" | null", "")
        return self.error(key, number, field, f"{text}; {_cure(what, field, record)}")

    def _line(self, key: str, number: int, field: str, entries: int) -> int | None:
        """The line of a field, or of its entry; None where the entries are not written as `[[key]]`."""
        lines = self._text.splitlines()
        header = re.compile(rf"\s*\[\[\s*{re.escape(key)}\s*\]\]")
        begins = [index for index, line in enumerate(lines) if header.match(line)]
        if len(begins) != entries:
            return None
        begin, end = begins[number - 1], (*begins, len(lines))[number]
        name = re.split(r"[^\w-]", field)[0]  # of "second_source.url" or "gpus[0]" the field itself
        for index in range(begin + 1, end) if name else ():
            if re.match(rf"\s*{re.escape(name)}\s*=", lines[index]):
                return index + 1
        return begin + 1


def _words(value: object) -> Iterator[str]:
    """Every text in a value of a TOML file."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, dict)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _words(part)


def _cure(what: str, field: str, record: type[Record]) -> str:
    """What to do about msgspec's complaint."""
    named = re.search(r"`(\w+)`$", what)
    known = {one.encode_name: one for one in msgspec.inspect.type_info(record).fields}  # type: ignore[attr-defined]
    if what.startswith("Object missing") and named:
        return f"add a line {named[1]} = ..."
    if what.startswith("Object contains unknown") and named:
        near = process.extractOne(named[1], [*known], score_cutoff=70)
        return f"did you mean {near[0]}?" if near else "remove that line"
    kind = known[field].type if field in known else None
    if isinstance(kind, msgspec.inspect.LiteralType):
        return f"say {', '.join(map(str, kind.values))}"
    if field in _DATES:
        return "write a date as 2026-05-24, 2026-05 or 2026"
    return "correct that entry"
