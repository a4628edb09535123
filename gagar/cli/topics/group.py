"""`gagar topics`: all that is done with the topics of a run as a whole."""

import click

from gagar.cli.topics.excerpts import export, import_
from gagar.cli.topics.planning import apply, check, graph, plan
from gagar.cli.topics.reset import reset

topics = click.Group(
    "topics",
    commands=[plan, apply, check, graph, export, import_, reset],
    help="Plan, apply or check the topics; draw the pipeline; take parts of a run along; move a stage.",
)
