"""Patches: the difference of two text trees as a unified diff in git's format, and back.

In: trees (text by relative POSIX path). Out: a patch that `git apply` takes too, or the tree that a patch makes. Applying is
strict, in memory and touches no file: a hunk fits exactly where it says or the patch is refused, every section says each path
the same way twice, and nothing but the text of regular files can be changed. Not promised: the smallest diff of two very
different large files.
"""

import difflib
import re
from collections.abc import Iterator, Mapping
from typing import Literal, NoReturn

from gagar.errors import BadRecordError

Tree = Mapping[str, str]
"""Text files of a repository by path. Example: `{"src/x.py": "def f(): ...\\n"}`."""

MAX_PATCH_CHARS = 16 << 20
MAX_PATH_CHARS = 1024
MAX_CELLS = 4_000_000
"""Old lines times new lines of a changed region up to which it is aligned line by line (the aligner is quadratic at worst:
0.3 s); beyond it, the region is replaced as a whole."""

NO_NEWLINE = "\\ No newline at end of file\n"
CONTEXT = 3
FILE_MODES = ("100644", "100755")

_HUNK = re.compile(r"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@(?: .*)?\n")
_ESCAPES = {"a": "\a", "b": "\b", "t": "\t", "n": "\n", "v": "\v", "f": "\f", "r": "\r", '"': '"', "\\": "\\"}
_NAMES = {value: name for name, value in _ESCAPES.items()}


def check_path(path: str) -> None:
    """Raises BadRecordError unless `path` is relative, normal and POSIX, and outside any `.git`."""
    parts = path.split("/")
    is_plain = all(part not in ("", ".", "..") and part.lower() != ".git" for part in parts)
    is_encodable = not any("\ud800" <= char <= "\udfff" or char == "\0" for char in path)
    if not is_plain or not is_encodable or len(path) > MAX_PATH_CHARS:
        raise BadRecordError(f"path {path[:200]!r}: expected a relative, normal path outside .git, got another")


def split_lines(text: str) -> list[str]:
    """Lines with their ends, cut at line feeds only: other line breaks belong to the text."""
    lines = text.split("\n")
    last = lines.pop()
    kept = [line + "\n" for line in lines]
    return [*kept, last] if last else kept


def changed_files(base: Tree, result: Tree) -> list[str]:
    """Paths that were changed, made or removed, in order."""
    return sorted(path for path in base.keys() | result.keys() if base.get(path) != result.get(path))


def folders_above(path: str) -> list[str]:
    """Every folder that a path lies in. Example: `a/b/c` lies in `a` and `a/b`."""
    return [path[:cut] for cut, char in enumerate(path) if char == "/"]


def make_patch(base: Tree, result: Tree) -> str:
    """The patch that turns `base` into `result`, files in the order of their paths; empty if they are equal."""
    sections = (_file_section(path, base.get(path), result.get(path)) for path in changed_files(base, result))
    return "".join("".join(section) for section in sections)


def _file_section(path: str, old: str | None, new: str | None) -> Iterator[str]:
    old_name, new_name = _quote(f"a/{path}"), _quote(f"b/{path}")
    yield f"diff --git {old_name} {new_name}\n"
    if old is None:
        yield "new file mode 100644\n"
    if new is None:
        yield "deleted file mode 100644\n"
    if old or new:
        # A tab ends a name with spaces, as git writes it, so that other tools do not take the rest for a date.
        end = "\t\n" if " " in path else "\n"
        yield "--- /dev/null\n" if old is None else f"--- {old_name}{end}"
        yield "+++ /dev/null\n" if new is None else f"+++ {new_name}{end}"
        yield from _hunks(split_lines(old or ""), split_lines(new or ""))


def _hunks(old: list[str], new: list[str]) -> Iterator[str]:
    for group in _Aligned(_opcodes(old, new)).get_grouped_opcodes(CONTEXT):
        old_start, old_stop, new_start, new_stop = group[0][1], group[-1][2], group[0][3], group[-1][4]
        yield f"@@ -{_range(old_start, old_stop)} +{_range(new_start, new_stop)} @@\n"
        for tag, i1, i2, j1, j2 in group:
            if tag == "equal":
                yield from _marked(" ", old[i1:i2])
                continue
            yield from _marked("-", old[i1:i2])
            yield from _marked("+", new[j1:j2])


Opcode = tuple[Literal["replace", "delete", "insert", "equal"], int, int, int, int]


class _Aligned(difflib.SequenceMatcher[str]):
    """An alignment that is known, for difflib to put into hunks."""

    def __init__(self, codes: list[Opcode]) -> None:
        super().__init__()
        self._codes = codes

    def get_opcodes(self) -> list[Opcode]:
        return self._codes


def _opcodes(old: list[str], new: list[str]) -> list[Opcode]:
    """difflib's opcodes; common ends are cut off first, since the aligner would pay for them."""
    shorter = min(len(old), len(new))
    head = 0
    while head < shorter and old[head] == new[head]:
        head += 1
    tail = 0
    while tail < shorter - head and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    old_end, new_end = len(old) - tail, len(new) - tail
    codes: list[Opcode] = [("equal", 0, head, 0, head)] if head else []
    if (old_end - head) * (new_end - head) > MAX_CELLS:
        codes.append(("replace", head, old_end, head, new_end))
    else:
        matcher = difflib.SequenceMatcher(None, old[head:old_end], new[head:new_end])
        codes += [(tag, i1 + head, i2 + head, j1 + head, j2 + head) for tag, i1, i2, j1, j2 in matcher.get_opcodes()]
    if tail:
        codes.append(("equal", old_end, len(old), new_end, len(new)))
    return codes


def _range(start: int, stop: int) -> str:
    count = stop - start
    if count == 1:
        return f"{start + 1}"
    return f"{start + 1 if count else start},{count}"


def _marked(mark: str, lines: list[str]) -> Iterator[str]:
    for line in lines:
        yield mark + line if line.endswith("\n") else f"{mark}{line}\n{NO_NEWLINE}"


def _quote(name: str) -> str:
    """A name as git writes it: in quotes, with escapes, if it holds anything but plain printable ASCII."""
    if all(" " <= char <= "~" and char not in '"\\' for char in name):
        return name
    quoted = []
    for char in name:
        if char in _NAMES:
            quoted.append(f"\\{_NAMES[char]}")
        elif " " <= char <= "~":
            quoted.append(char)
        else:
            quoted += [f"\\{byte:03o}" for byte in char.encode("utf-8", "surrogatepass")]
    return f'"{"".join(quoted)}"'


def _refuse(what: str, expected: str, got: str) -> NoReturn:
    raise BadRecordError(f"patch, {what}: expected {expected}, got {got[:200]!r}")


def apply_patch(base: Tree, patch: str) -> dict[str, str]:
    """The tree that `patch` makes of `base`.

    Raises BadRecordError if it does not fit exactly, names a path outside the tree, or is about anything but the text of
    regular files.
    """
    if len(patch) > MAX_PATCH_CHARS:
        _refuse("size", f"at most {MAX_PATCH_CHARS} characters", str(len(patch)))
    result = dict(base)
    reader = _Reader(split_lines(patch))
    seen: set[str] = set()
    while not reader.is_at_end:
        path, new = _read_section(reader, base)
        if path in seen:
            _refuse(path, "one section for each file", "a second one")
        seen.add(path)
        if new is None:
            del result[path]
        else:
            result[path] = new
    _check_no_file_is_a_folder(result)
    return result


def _check_no_file_is_a_folder(tree: Mapping[str, str]) -> None:
    folders = {folder for path in tree for folder in folders_above(path)}
    for path in folders & tree.keys():
        _refuse(path, "a file or a folder", "both")


class _Reader:
    """Lines of a patch and a place among them."""

    def __init__(self, lines: list[str]) -> None:
        self.lines = lines
        self.position = 0

    @property
    def is_at_end(self) -> bool:
        return self.position >= len(self.lines)

    @property
    def line(self) -> str:
        """The next line; empty at the end."""
        return "" if self.is_at_end else self.lines[self.position]

    def take(self, prefix: str) -> str | None:
        """The rest of the next line, its line feed included, if it starts with `prefix`."""
        if not self.line.startswith(prefix):
            return None
        line = self.line
        self.position += 1
        return line[len(prefix) :]


def _read_section(reader: _Reader, base: Tree) -> tuple[str, str | None]:
    """Path and new text (none: deleted) of the next file."""
    header = reader.take("diff --git ")
    if header is None:
        _refuse("header", "`diff --git a/<path> b/<path>`", reader.line)
    path = _path_of_header(header)
    check_path(path)
    is_new, is_deleted = _read_modes(reader)
    old = base.get(path)
    if is_new != (old is None):
        _refuse(path, "a new file" if is_new else "a file of the base tree", "the opposite")
    lines = split_lines(old or "")
    if reader.take("--- ") is not None:
        reader.position -= 1
        _read_names(reader, path, is_new, is_deleted)
        lines = _apply_hunks(reader, path, lines)
    if is_deleted:
        if lines:
            _refuse(path, "a deletion of every line", f"{len(lines)} left")
        return path, None
    return path, "".join(lines)


def _path_of_header(header: str) -> str:
    """The path that both halves of the header name; they are of equal length, whatever spaces they hold."""
    text = header.removesuffix("\n")
    half = len(text) // 2
    old, new = text[:half], text[half + 1 :]
    if text[half : half + 1] != " " or len(old) != len(new):
        _refuse("header", "the same path twice", text)
    path, other = _unquote(old), _unquote(new)
    if not path.startswith("a/") or not other.startswith("b/") or path[2:] != other[2:]:
        _refuse("header", "`a/<path> b/<path>`", text)
    return path[2:]


def _unquote(name: str) -> str:
    if not name.startswith('"'):
        return name
    if len(name) < 2 or not name.endswith('"'):
        _refuse("name", "a closing quote", name)
    raw = bytearray()
    for piece in re.findall(r'\\[0-3][0-7]{2}|\\["abtnvfr\\]|[^"\\]|.', name[1:-1], re.DOTALL):
        if len(piece) == 4:
            raw.append(int(piece[1:], 8))
        elif len(piece) == 2:
            raw += _ESCAPES[piece[1]].encode()
        elif piece in '"\\':
            _refuse("name", "git's escapes", name)
        else:
            raw += piece.encode("utf-8", "surrogatepass")
    try:
        return raw.decode()
    except UnicodeDecodeError:
        _refuse("name", "UTF-8", name)


def _read_modes(reader: _Reader) -> tuple[bool, bool]:
    """Whether the section makes or deletes a file; other headers (modes, renames, copies, binary) are left to be refused."""
    new_mode = reader.take("new file mode ")
    deleted_mode = reader.take("deleted file mode ") if new_mode is None else None
    for mode in (new_mode, deleted_mode):
        if mode is not None and mode.removesuffix("\n") not in FILE_MODES:
            _refuse("mode", "a regular file", mode)
    reader.take("index ")
    return new_mode is not None, deleted_mode is not None


def _read_names(reader: _Reader, path: str, is_new: bool, is_deleted: bool) -> None:
    for mark, prefix, is_absent in (("--- ", "a/", is_new), ("+++ ", "b/", is_deleted)):
        name = reader.take(mark)
        if name is None:
            _refuse(path, f"a line `{mark}`", reader.line)
        expected = "/dev/null" if is_absent else prefix + path
        if _unquote(name.removesuffix("\n").removesuffix("\t")) != expected:
            _refuse(path, expected, name)


def _apply_hunks(reader: _Reader, path: str, old: list[str]) -> list[str]:
    new: list[str] = []
    done = 0
    while match := _HUNK.fullmatch(reader.line):
        reader.position += 1
        old_start, old_count, new_start, new_count = (int(number) if number else 1 for number in match.groups())
        start, landing = _index(old_start, old_count), _index(new_start, new_count)
        before, after = _read_hunk(reader, path, old_count, new_count)
        if start < done or old[start : start + old_count] != before:
            _refuse(path, f"the old lines of the hunk at {old_start}", "".join(old[start : start + old_count]))
        new += old[done:start]
        if len(new) != landing:
            _refuse(path, f"a hunk that lands on line {new_start}", match.group(0))
        new += after
        done = start + old_count
    new += old[done:]
    if any(not line.endswith("\n") for line in new[:-1]):
        _refuse(path, "line feeds between lines", "a missing one")
    return new


def _index(start: int, count: int) -> int:
    """Where a range begins; an empty one names the line before it."""
    return start - 1 if count else start


def _read_hunk(reader: _Reader, path: str, old_count: int, new_count: int) -> tuple[list[str], list[str]]:
    """Old and new lines of a hunk of that many."""
    before: list[str] = []
    after: list[str] = []
    while len(before) < old_count or len(after) < new_count:
        line = reader.line
        mark = line[:1]
        if mark not in (" ", "-", "+") or not line.endswith("\n"):
            _refuse(path, "a line of the hunk", line)
        reader.position += 1
        text = line[1:]
        if reader.line.startswith("\\ "):
            reader.position += 1
            text = text[:-1]
        if mark in " -":
            before.append(text)
        if mark in " +":
            after.append(text)
    if len(before) != old_count or len(after) != new_count:
        _refuse(path, f"{old_count} old and {new_count} new lines in a hunk", f"{len(before)} and {len(after)}")
    return before, after
