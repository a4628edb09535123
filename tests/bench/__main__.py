"""`python -m tests.bench [PART]`: a table for each part on stdout, and one JSON object as the last line."""

import importlib
from typing import TYPE_CHECKING

import click
import msgspec

if TYPE_CHECKING:
    from tests.bench.figures import Part

PARTS = ("verdict", "engine", "stream")


@click.command()
@click.argument("part", type=click.Choice(PARTS), required=False)
@click.option("--quick", is_flag=True, help="A few seconds a part: to see that it runs, not to believe its figures.")
def main(part: str | None, quick: bool) -> None:
    """Measures what the pipeline costs on this machine; leave the machine alone meanwhile."""
    figures = {}
    for name in [part] if part else PARTS:
        click.echo(f"measuring {name} ...", err=True)
        found: Part = importlib.import_module(f"tests.bench.{name}").run(quick)
        click.echo(f"{found.table}\n")
        figures[name] = found.figures
    click.echo(msgspec.json.encode(figures).decode())


if __name__ == "__main__":
    main()
