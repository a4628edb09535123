"""Java's archive of the broker's classes, with which a start takes half the time. It is only ever a matter of speed.

In: Java, the folder of the jars. Kept: `classes-<digest>.jsa` beside the jars, one for each Java and list of jars. The first
broker that ends in good order writes it, on top of Java's archive of its own classes. The wheel's Java comes without that one,
so it is made to write it before the first start: `java-<digest>.jsa`, two seconds. Java itself checks that jars and program are
those of the archive, and its checksum; one that does not fit is passed over.
"""

import hashlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

LINK = "classes.jsa"
"""In the broker's scratch folder, to where the archive is or would be."""
WRITTEN = "written.jsa"
"""There, by a broker that ends."""
JAVA_LINK = "java.jsa"
"""There, to the archive of Java's own classes where Java comes without one."""
DUMP_TIMEOUT_S = 60.0


def link_archive(scratch: Path, java: Path, jars: Sequence[Path]) -> None:
    """Puts the links into the scratch folder of a broker that is about to start."""
    program, folder = java.resolve(), jars[0].parent.absolute()
    facts = f"{program} {program.stat().st_mtime_ns}"
    (scratch / LINK).symlink_to(folder / f"classes-{_digest(f'{facts} {[jar.name for jar in jars]}')}.jsa")
    if not (program.parent.parent / "lib" / "server" / "classes.jsa").exists():
        archive = folder / f"java-{_digest(facts)}.jsa"
        (scratch / JAVA_LINK).symlink_to(archive)
        if not archive.exists():
            _dump_java(program, archive)


def _digest(facts: str) -> str:
    return hashlib.sha256(facts.encode(errors="surrogateescape")).hexdigest()[:12]


def _dump_java(program: Path, archive: Path) -> None:
    """Has Java write the archive of its own classes. One that cannot has none."""
    part = f"{archive.stem}.{os.getpid()}.part"  # relative: Java splits a path at its colons
    command = [str(program), "-Xshare:dump", f"-XX:SharedArchiveFile={part}"]
    try:
        with suppress(OSError, subprocess.SubprocessError):
            subprocess.run(command, cwd=archive.parent, capture_output=True, check=True, timeout=DUMP_TIMEOUT_S)
            (archive.parent / part).replace(archive)
    finally:
        with suppress(OSError):
            (archive.parent / part).unlink(missing_ok=True)


def reading_options(scratch: Path) -> list[str]:
    """Options of any Java program over the jars: the archives, if there are some."""
    archives = [f"{scratch.name}/{name}" for name in (JAVA_LINK, LINK) if (scratch / name).exists()]
    return [f"-XX:SharedArchiveFile={':'.join(archives)}", "-XX:+VerifySharedSpaces"] if archives else []


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
