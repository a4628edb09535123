"""Java's archive of the broker's classes, with which a start takes half the time. It is only ever a matter of speed.

In: Java, the folder of the jars. Kept: `classes-<digest>.jsa` beside the jars, one for each Java and list of jars. The first
broker that ends in good order writes it. Java itself checks that jars and program are those of the archive, and its checksum;
one that does not fit is passed over.
"""

import hashlib
import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

LINK = "classes.jsa"
"""In the broker's scratch folder, to where the archive is or would be."""
WRITTEN = "written.jsa"
"""There, by a broker that ends."""


def link_archive(scratch: Path, java: Path, jars: Sequence[Path]) -> None:
    """Puts the link into the scratch folder of a broker that is about to start."""
    program = java.resolve()
    facts = f"{program} {program.stat().st_mtime_ns} {[jar.name for jar in jars]}"
    name = f"classes-{hashlib.sha256(facts.encode(errors='surrogateescape')).hexdigest()[:12]}.jsa"
    (scratch / LINK).symlink_to(jars[0].parent.absolute() / name)


def reading_options(scratch: Path) -> list[str]:
    """Options of any Java program over the jars: the archive, if there is one."""
    if not (scratch / LINK).exists():
        return []
    return [f"-XX:SharedArchiveFile={scratch.name}/{LINK}", "-XX:+VerifySharedSpaces"]


def writing_options(scratch: Path) -> list[str]:
    """Options of a broker: it writes the archive when it ends, if there is none and there can be one."""
    folder = (scratch / LINK).readlink().parent
    if (scratch / LINK).exists() or not os.access(folder, os.W_OK | os.X_OK):
        return []
    return [f"-XX:ArchiveClassesAtExit={scratch.name}/{WRITTEN}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"]


def keep_archive(scratch: Path) -> None:
    """Keeps what a broker has written that has ended in good order. Whoever cannot has none the next time."""
    written = scratch / WRITTEN
    if not written.exists():
        return
    with suppress(OSError):
        archive = (scratch / LINK).readlink()
        part = archive.with_suffix(f".{os.getpid()}.part")
        try:
            shutil.copyfile(written, part)
            part.replace(archive)
        finally:
            part.unlink(missing_ok=True)
    written.unlink(missing_ok=True)
